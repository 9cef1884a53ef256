"""What tokens mean: principal components, similarity and length of the patch tokens."""

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app.figure import show
from vitviz.app.state import View

COLOURS = 3  # red, green and blue


def page(view: View) -> None:
    acts, depth = view.acts, view.layer + 1
    prefix = acts.num_prefix_tokens
    tokens = acts.tokens(depth, normalised=True)
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
    queries = range(prefix, len(unit)) if view.query is None else [view.query]
    cosine = (unit @ unit[queries].mean(axis=0))[prefix:].reshape(acts.grid)
    norm = np.linalg.norm(acts.tokens(depth)[prefix:], axis=1).reshape(acts.grid)
    image, crop, query = view.picture.image, acts.crop, view.query_patch
    photo, colours, similar, length = st.columns(4)
    with photo:
        st.subheader("The picture", anchor=False)
        show(
            plots.picture(image, crop=crop, grid=acts.grid, query=query, query_name=view.query_name)
        )
    with colours:
        st.subheader(f"Components after layer {depth}", anchor=False)
        _components(view, tokens)
    with similar:
        st.subheader(f"Similarity to {view.query_name}", anchor=False)
        show(plots.token_map(cosine, image, crop=crop, query=query, name="cosine", signed=True))
    with length:
        st.subheader("Length", anchor=False)
        show(plots.token_map(norm, image, crop=crop, query=query, name="norm", signed=False))
        st.markdown(f"From {norm.min():.1f} to {norm.max():.1f}; median {np.median(norm):.1f}.")


def _components(view: View, tokens: np.ndarray) -> None:
    patches = len(tokens) - view.acts.num_prefix_tokens
    if min(patches, tokens.shape[1]) < COLOURS:
        st.info(f"A picture of {patches} patches has fewer than {COLOURS} components.")
        return
    components, explained = inspection.token_components(
        tokens,
        grid=view.acts.grid,
        num_prefix_tokens=view.acts.num_prefix_tokens,
        n_components=COLOURS,
    )
    image, crop = view.picture.image, view.acts.crop
    show(plots.token_components(components, image, crop=crop, query=view.query_patch))
    shares = ", ".join(f"{100 * share:.0f} %" for share in explained)
    st.markdown(f"Red, green and blue explain {shares} of the variance.")
