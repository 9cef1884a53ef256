"""Local or global: mean attention distance of every head."""

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import state
from vitviz.app.figure import show
from vitviz.app.state import View


def page(view: View) -> None:
    variant = st.segmented_control(
        "Variant",
        ["renormalised", "paper"],
        default="renormalised",
        key="variant",
        label_visibility="collapsed",
    )
    if refusals := [layer.refusal for layer in view.acts.layers if layer.refusal]:
        st.warning(refusals[0])
        return
    acts, measured = view.acts, state.measurements(view)
    distance = measured.distance
    if variant == "paper":
        distance = inspection.attention_distance(
            acts.attention_layers(),
            grid=acts.grid,
            patch_size=acts.patch_size,
            num_prefix_tokens=acts.num_prefix_tokens,
            variant="paper",
        )
    dots, facts = st.columns([4, 1])
    with dots:
        show(
            plots.attention_distance(
                distance,
                measured.prefix_mass,
                equal_sharing=inspection.uniform_distance(acts.grid, acts.patch_size),
                side=max(view.model.preprocess.input_size),
                selected=(view.layer, view.head),
            )
        )
    with facts:
        _facts(view, distance, measured)


def _facts(view: View, distance: np.ndarray, measured: inspection.Measurements) -> None:
    """The chosen heads in numbers, and the extremes of all."""
    here = (view.layer, slice(None) if view.head is None else view.head)
    who = "mean of heads" if view.head is None else f"head {view.head + 1}"
    st.markdown(f"**Layer {view.layer + 1}, {who}**")
    st.metric("distance", f"{np.mean(distance[here]):.1f} px")
    st.metric("attention on prefix", f"{100 * np.mean(measured.prefix_mass[here]):.1f} %")
    st.metric("entropy", f"{np.mean(measured.entropy[here]):.2f} bits")
    low = np.unravel_index(np.nanargmin(distance), distance.shape)
    high = np.unravel_index(np.nanargmax(distance), distance.shape)
    st.markdown(
        f"Most local: layer {low[0] + 1}, head {low[1] + 1} ({distance[low]:.1f} px). "
        f"Farthest: layer {high[0] + 1}, head {high[1] + 1} ({distance[high]:.1f} px)."
    )
