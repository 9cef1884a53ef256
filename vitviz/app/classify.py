"""What the model answers."""

import streamlit as st

from vitviz import plots
from vitviz.app.figure import show
from vitviz.app.state import View

LISTED_CLASSES = 20


def page(view: View) -> None:
    acts = view.acts
    if acts.probabilities is None:
        st.info(
            f"{view.model.name} has no head that names classes. Choose a model that does, such as "
            "vitviz_tiny_cifar10."
        )
        return
    labels = acts.labels or tuple(f"class {index}" for index in range(len(acts.probabilities)))
    photo, answer = st.columns([2, 3])
    with photo:
        st.subheader("The picture", anchor=False)
        show(plots.picture(view.picture.image, crop=acts.crop, grid=acts.grid, query=None))
    with answer:
        st.subheader("Five most probable classes", anchor=False)
        show(plots.class_probabilities(acts.probabilities, labels))
        if not view.model.trained:
            st.markdown("These are **random weights**: the answer means nothing.")
        if len(labels) <= LISTED_CLASSES:
            st.markdown(f"All {len(labels)} classes that it knows: {', '.join(labels)}.")
        else:
            st.markdown(f"It knows {len(labels):,} classes.")
