"""What the first layer sees: the patch embedding's filters."""

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app.figure import show
from vitviz.app.state import View

SHOWN_FILTERS = 256


def page(view: View) -> None:
    kernel = view.model.patch_kernel
    if kernel is None or kernel.shape[1] != 3:
        st.info(
            f"{view.model.name} cuts patches from the feature map of a CNN, so its filters are no "
            "pictures. Choose a plain ViT, such as vitviz_tiny_cifar10."
        )
        return
    count = min(28, kernel.shape[0], kernel[0].size)
    components, explained = inspection.filter_components(kernel, n_components=count)
    left, right = st.columns(2)
    with left:
        st.subheader(f"First {count} principal components", anchor=False)
        show(plots.filter_components(components, explained))
        st.markdown(
            f"They explain {100 * explained.sum():.0f} % of the variance of {len(kernel)} filters "
            f"of {kernel.shape[2]} x {kernel.shape[3]} pixels, which have at most "
            f"{min(kernel.shape[0], kernel[0].size)} components."
        )
    with right:
        norms = np.linalg.norm(kernel.reshape(len(kernel), -1), axis=1)
        order = np.argsort(-norms, kind="stable")[:SHOWN_FILTERS]
        st.subheader(f"{len(order)} filters, the largest norm first", anchor=False)
        show(plots.filters(kernel[order]))
        st.markdown(f"Norms from {norms[order[0]]:.2f} down to {norms[order[-1]]:.2f}.")
