import streamlit as st

from vitviz.app.server import APP

app = st.App(**APP)
