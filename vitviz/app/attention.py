"""Who looks where: one row or column of A, for every head of the layer."""

from typing import Literal

import numpy as np
import streamlit as st

from vitviz import ModelError, plots
from vitviz.app.figure import show
from vitviz.app.state import View

WAYS: tuple[Literal["row", "column"], ...] = ("row", "column")


def page(view: View) -> None:
    chosen_way = st.segmented_control(
        "Read",
        WAYS,
        default="row",
        format_func=lambda way: "row: looks at" if way == "row" else "column: looked at by",
        key="direction",
        label_visibility="collapsed",
    )
    direction = chosen_way or "row"  # None where the reader switched it off
    try:
        maps = view.acts.attention_map(view.layer, view.query, direction=direction)
        attention = view.acts.attention(view.layer)
    except ModelError as refusal:
        st.warning(str(refusal))
        return
    chosen = maps.mean(axis=0) if view.head is None else maps[view.head]
    photo, one, all_heads = st.columns([3, 3, 4])
    with photo:
        st.subheader("The query", anchor=False)
        show(
            plots.picture(
                view.picture.image,
                crop=view.acts.crop,
                grid=view.acts.grid,
                query=view.query_patch,
                query_name=view.query_name,
            )
        )
        _outside(view, attention, direction)
    with one:
        name = "Mean of heads" if view.head is None else f"Head {view.head + 1}"
        where = "where it looks" if direction == "row" else "who looks at it"
        st.subheader(f"{name}: {where}", anchor=False)
        show(
            plots.query_attention(
                chosen,
                view.picture.image,
                crop=view.acts.crop,
                query=view.query_patch,
                equal_share=1 / attention.shape[-1],
                name=f"{name}, {where}",
            )
        )
        _numbers(chosen, attention.shape[-1], direction)
    with all_heads:
        st.subheader(f"All heads of layer {view.layer + 1}", anchor=False)
        names = [f"head {head + 1}" for head in range(len(maps))]
        show(plots.heads(maps, selected=view.head, names=names))
        if len(maps) > plots.MAX_SUBPLOTS:
            st.caption(f"The first {plots.MAX_SUBPLOTS} of {len(maps)} heads are drawn.")


def _numbers(chosen: np.ndarray, tokens: int, direction: str) -> None:
    """What the map adds up to, read off the data shown."""
    strongest = np.sort(chosen.ravel())[::-1][:10].sum()
    words = f"Equal sharing gives each of {tokens} tokens {100 / tokens:.2f} %."
    if direction == "row":
        words += f" The 10 strongest of {chosen.size} patches take {100 * strongest:.0f} %."
    st.markdown(words)


def _outside(view: View, attention: np.ndarray, direction: str) -> None:
    """The shares of tokens that are no patch, beside the map that cannot show them."""
    heads = attention.mean(axis=0) if view.head is None else attention[view.head]
    count = len(view.prefix)
    if not count:
        return
    if direction == "row":
        names = [name.upper() for name in view.prefix]
        show(plots.prefix_shares(heads[view.query, :count], names=names))
        return
    words = ", ".join(
        f"{name.upper()} puts {100 * share:.2g} % on it"
        for name, share in zip(view.prefix, heads[:count, view.query], strict=True)
    )
    st.markdown(f"Outside the picture: {words}. A column does not add up to 100 %.")
