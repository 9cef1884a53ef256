"""What reaches the output token through all layers."""

from typing import Literal

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import state
from vitviz.app.figure import show
from vitviz.app.state import View

FUSIONS: tuple[Literal["mean", "max", "min"], ...] = ("mean", "max", "min")


def page(view: View) -> None:
    if refusals := [layer.refusal for layer in view.acts.layers if layer.refusal]:
        st.warning(refusals[0])
        return
    first, second, third, fourth = st.columns(4)
    fusion = first.selectbox("Fuse heads by", FUSIONS, key="fusion")
    residual = second.slider("Weight of the residual r", 0.0, 1.0, 0.5, 0.05, key="residual")
    discard = third.slider("Discard the smallest", 0.0, 0.95, 0.0, 0.05, key="discard")
    depth = view.acts.depth
    start = fourth.slider("From layer", 1, depth, 1, key="start_layer") - 1 if depth > 1 else 0
    acts = view.acts
    prefix = acts.num_prefix_tokens
    rollout = inspection.attention_rollout(
        acts.attention_layers(),
        num_prefix_tokens=prefix,
        query=view.query,
        fusion=fusion or "mean",
        discard=discard,
        residual=residual,
        start_layer=start,
    )
    photo, final, layers = st.columns([3, 3, 4])
    with photo:
        st.subheader("The output token" if view.query_patch is None else "The token", anchor=False)
        show(
            plots.picture(
                view.picture.image,
                crop=acts.crop,
                grid=acts.grid,
                query=view.query_patch,
                query_name=view.query_name,
            )
        )
    with final:
        st.subheader(f"What reaches {view.query_name}", anchor=False)
        show(
            plots.attention_rollout(
                rollout[prefix:].reshape(acts.grid),
                view.picture.image,
                crop=acts.crop,
                equal_share=1 / len(rollout),
            )
        )
        st.markdown(
            f"All tokens together: {100 * rollout.sum():.1f} %; "
            f"{100 * rollout[:prefix].sum():.1f} % stay on tokens outside the picture."
        )
    with layers:
        st.subheader(f"{view.reader_name} in each layer, mean of heads", anchor=False)
        maps = state.measurements(view).query_attention.mean(axis=1)
        names = [f"layer {number + 1}" for number in range(len(maps))]
        show(plots.heads(np.asarray(maps), selected=view.layer, names=names))
