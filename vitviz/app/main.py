"""The shell of every page: navigation, the shared controls, the provenance line.

torch and timm are imported when the model is loaded, after the first title is on screen.
"""

from functools import partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import state
from vitviz.text import PAGES, lesson

if TYPE_CHECKING:
    from vitviz import Model

_STYLE = """<style>
.stMainBlockContainer { padding: 3.4rem 1.5rem 3rem; }
.stMainBlockContainer h1 { font-size: 1.4rem; line-height: 1.5; padding: 0; }
.stMainBlockContainer [data-testid="stVerticalBlock"] { gap: 0.6rem; }
.st-key-provenance { position: fixed; left: 0; bottom: 0; z-index: 9; width: 100%;
  padding: 0.2rem 1.5rem; background: light-dark(#f0f2f6, #262730); }
.stMainBlockContainer h3 { font-size: 1.1rem; line-height: 1.5; padding: 0 0 0.3rem; }
.stMainBlockContainer [data-testid="stHeading"] { margin: 0; overflow: visible; }
</style>"""


def main() -> None:
    """Draw the page that the browser asks for."""
    st.set_page_config(page_title="vitviz", layout="wide")
    views: list[state.View] = []  # filled by the controls before the page runs
    chosen = st.navigation(
        [
            st.Page(
                partial(_page, name, views),
                title=lesson(name).title,
                url_path=name,
                default=name == "attention",
            )
            for name in PAGES
        ],
        position="top",
    )
    st.html(_STYLE)
    name = chosen.url_path or "attention"
    st.title(f"{lesson(name).title}: {lesson(name).question}", anchor=False)
    # Here and not in the page: a widget drawn inside a page loses its value at a change of page.
    if view := _controls():
        views.append(view)
        chosen.run()


def _page(name: str, views: list[state.View]) -> None:
    (view,) = views
    import_module(f"vitviz.app.{name}").page(view)
    _caption_card(name)
    with st.container(key="provenance"):
        st.text(provenance(view))  # plain text: a file's name must never become markup


def provenance(view: state.View) -> str:
    """What was measured, in one line."""
    head = "mean of heads" if view.head is None else f"head {view.head + 1}"
    model = view.model
    return (
        f"{model.name} ({model.family}, {model.parameter_count / 1e6:.1f} M parameters) · "
        f"{model.weights} · layer {view.layer + 1} of {view.acts.depth} · {head} · "
        f"each map on its own scale · {view.picture.name}"
    )


def _caption_card(name: str) -> None:
    words = lesson(name)
    with st.container(border=True):
        equation, see, try_this = st.columns([3, 5, 3])
        equation.latex(words.equation)
        see.markdown(words.see)
        try_this.markdown(f"**Try this.** {words.try_this}")


def _controls() -> state.View | None:
    """The shared controls; None where there is no model to show."""
    st.session_state.setdefault("picture", state.DEFAULT_PICTURE)
    row = st.columns([2, 1.5, 3.2, 2, 1.6, 2], vertical_alignment="bottom")
    _picture_controls(row[0], row[1])
    picture = state.chosen_picture()
    loaded = _model_control(row[2])
    if loaded is None:
        return None
    model, forward = loaded
    layer = _layer_control(row[3], len(model.layers))
    head = _head_control(row[4], model.layers[layer].num_heads)
    query = _query_control(row[5], model.layers[layer].prefix, model.layers[layer].query_grid)
    acts = state.capture(model, forward, picture)
    return state.View(model, picture, acts, layer, head, query)


def _picture_controls(menu: DeltaGenerator, upload: DeltaGenerator) -> None:
    names = list(state.samples())
    uploaded: state.Picture | None = st.session_state.get("uploaded")
    if uploaded is not None:
        names.insert(0, state.UPLOAD)

    def shown(name: str) -> str:
        if name == state.UPLOAD and uploaded is not None:
            return uploaded.name
        return state.samples()[name]

    menu.selectbox("Picture", names, key="picture", format_func=shown)
    with upload.popover("Upload", width="stretch"):
        st.file_uploader(
            "Your picture: JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, at most 25 MB",
            key="uploader",
            on_change=state.receive_upload,
        )
    if error := st.session_state.get("upload_error"):
        st.error(f"{error} The last picture stays.")


def _model_control(place: DeltaGenerator) -> "tuple[Model, Lock] | None":
    from vitviz import ModelError
    from vitviz.zoo import catalogue

    options = [(entry, trained) for entry in catalogue() for trained in (True, False)]
    titles = [
        f"{entry.name} · {'trained' if trained else 'random weights'}" for entry, trained in options
    ]
    title = place.selectbox("Model", titles, key="model")
    entry, trained = options[titles.index(title or titles[0])]
    try:
        st.session_state.loaded = state.load(entry.name, trained)
    except ModelError as error:
        st.error(f"{error} The last model stays.")
    loaded: tuple[Model, Lock] | None = st.session_state.get("loaded")
    return loaded


def _layer_control(place: DeltaGenerator, depth: int) -> int:
    if depth == 1:
        place.markdown("Layer 1 of 1")
        return 0
    st.session_state.layer = min(st.session_state.get("layer", depth), depth)
    return int(place.slider("Layer", 1, depth, key="layer")) - 1


def _head_control(place: DeltaGenerator, heads: int) -> int | None:
    if st.session_state.get("head", 0) > heads:
        st.session_state.head = 0
    chosen = place.selectbox(
        "Head",
        range(heads + 1),
        key="head",
        format_func=lambda head: f"head {head}" if head else "mean",
    )
    return chosen - 1 if chosen else None


def _query_control(place: DeltaGenerator, prefix: tuple[str, ...], grid: tuple[int, int]) -> int:
    names = [name.upper() for name in prefix]
    names += [
        f"row {row + 1}, column {col + 1}" for row in range(grid[0]) for col in range(grid[1])
    ]
    if st.session_state.get("query") not in names:
        st.session_state.query = names[0]
    query = place.selectbox("Query token", names, key="query")
    return names.index(query or names[0])


if __name__ == "__main__":
    main()
