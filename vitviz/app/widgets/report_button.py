"""A button that writes what the model sees in the picture into one HTML file."""

import streamlit as st

from vitviz.app.shared.view import View


def report_button(view: View) -> None:
    """Draw the button; the file is made when it is clicked."""

    def content() -> bytes:
        from vitviz.report import html

        picture = view.picture
        name = picture.name
        return html(
            view.model,
            {name: view.acts},
            images={name: picture.image},
            checksums={name: picture.digest},
        ).encode()

    st.download_button(
        "Report",
        content,
        file_name="vitviz_report.html",
        mime="text/html",
        key="report",
        on_click="ignore",
        icon=":material/download:",
        help="One HTML file with the live map and the figures of this picture, for any browser.",
    )
