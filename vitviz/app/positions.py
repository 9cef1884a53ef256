"""Does it know where patches are: similarity of position embeddings."""

import streamlit as st

from vitviz import inspection, plots
from vitviz.app.figure import show
from vitviz.app.state import View


def page(view: View) -> None:
    table = view.model.position_embedding
    if table is None:
        st.info(
            f"{view.model.name} adds no position embedding to its tokens. Choose a model that "
            "does, such as vitviz_tiny_cifar10."
        )
        return
    grid = view.model.position_grid
    similarity = inspection.position_similarity(table, grid=grid)
    position = view.query_patch or (grid[0] // 2, grid[1] // 2)
    one, every = st.columns([4, 5])
    with one:
        row, col = position[0] + 1, position[1] + 1
        st.subheader(f"The position at row {row}, column {col}", anchor=False)
        show(plots.position_tile(similarity, position=position))
        if view.query_patch is None:
            st.markdown("Choose a patch as the query token to move it.")
    with every:
        st.subheader(f"All {grid[0]} x {grid[1]} positions", anchor=False)
        show(plots.position_similarity(similarity))
