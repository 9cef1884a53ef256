"""The page Tokens: cosine similarity, principal components and norms of the tokens."""

import io
from collections.abc import Sequence

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.screens import joint_components, token_layers, token_norms
from vitviz.app.screens.joint_components import Basis
from vitviz.app.settings import setting
from vitviz.app.shared import pictures, results
from vitviz.app.shared.view import View, token_text
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.finding import finding
from vitviz.app.widgets.token_map import MAX_BYTES, token_map
from vitviz.language import Message, as_percent, tr
from vitviz.plots.tokens import patch_thumbnails
from vitviz.text import findings
from vitviz.token_map import Frame, encode

CHANNELS = 3  # red, green and blue
MOST_COMPONENTS = 5
MAX_TILES = 16
THRESHOLDS = [step / 20 for step in range(20)]
OFF_ON = (False, True)
BASES = ("picture", "samples")
_SCATTER = "token_scatter"


def page(view: View) -> Data | None:
    depth = view.acts.depth
    finding(findings.tokens(_cosines(view), view.layer + 1))
    token_map(
        view,
        _frames(view),
        name="tokens",
        kind="cosine",
        strip="frames",
        titles={
            "row": tr("Similarity to the query"),
            "strip": tr("After each layer"),
            "slider": tr("After layer"),
        },
        frame_setting=("layer", range(1, depth + 1)),
        frame_names=[tr("layer {layer}", layer=number) for number in range(1, depth + 1)],
    )
    grid = view.acts.grid
    most = min(MOST_COMPONENTS, grid[0] * grid[1], _tokens(view, view.layer).shape[1])
    if most < CHANNELS:
        st.info(
            tr(
                "A picture of {rows} x {columns} patches has fewer than {count} components.",
                rows=grid[0],
                columns=grid[1],
                count=CHANNELS,
            )
        )
        token_norms.draw(view)
        return None
    st.subheader(
        tr("Principal components of the patches after layer {layer}", layer=view.layer + 1),
        anchor=False,
    )
    first, threshold, flip, joint = _controls(most)
    basis = _bases(view, [view.layer])[view.layer] if joint else None
    points, explained = _scatter(view, view.layer, None, basis)
    component = points[len(view.prefix) :, 0].reshape(grid)
    kept = inspection.foreground(component, threshold=threshold, flip=flip)
    if basis is None and kept.sum() < first + CHANNELS:
        st.info(
            tr(
                "Only {count} of {size} patches lie beyond the threshold, too few for "
                "components of their own: all patches are shown.",
                count=kept.sum(),
                size=kept.size,
            )
        )
        kept = np.ones(grid, bool)
    if basis is None and not kept.all():
        points, explained = _scatter(view, view.layer, kept, basis)
    chosen = slice(first, first + CHANNELS)
    _colours(view, points, explained, kept, chosen, basis)
    if not kept.all():
        _mask(view, kept)
    scatter, norms = st.columns([3, 2])
    with scatter:
        _thumbnails(view, points, explained, kept, chosen)
    with norms:
        token_norms.draw(view)
    profile = token_layers.draw(view)
    return Data(
        lambda: [
            _table(view, points, kept, joint),
            *(token_layers.tables(view, profile) if profile else ()),
        ]
    )


def _table(view: View, points: np.ndarray, kept: np.ndarray, joint: bool) -> Table:
    prefix, tokens = len(view.prefix), view.acts.tokens(view.layer + 1)
    cosines = inspection.token_similarity(_tokens(view, view.layer))[:, prefix:]
    asked = cosines[prefix:].mean(axis=0) if view.query is None else cosines[view.query]
    columns: Columns = {**patch_columns(view)}
    columns |= {Message("cosine with the query"): asked, Message("kept"): kept.ravel()}
    for number, values in enumerate(points[prefix:].T):
        columns[Message("component {number}", number=number + 1)] = values
    columns[Message("norm")] = np.linalg.norm(tokens[prefix:], axis=1)
    fitted = _all_samples() if joint else tr("the patches that are kept")
    return Table(
        tr(
            "Each patch after layer {layer}: its cosine with {query}, its place on the "
            "principal components of {fitted}, and its norm before the final LayerNorm.",
            layer=view.layer + 1,
            query=view.query_name,
            fitted=fitted,
        ),
        columns,
    )


def _frames(view: View) -> list[Frame]:
    """The frames of all layers where these are small enough, else of the one on screen."""
    acts, prefix = view.acts, len(view.prefix)
    tokens = prefix + acts.grid[0] * acts.grid[1]
    layers = range(acts.depth) if acts.depth * tokens**2 <= MAX_BYTES else [view.layer]

    def make() -> list[Frame]:
        return [
            encode(layer, inspection.token_similarity(_tokens(view, layer))[None], prefix, "cosine")
            for layer in layers
        ]

    return results.captures().get(
        (*view.key, "similarity", tuple(layers)),
        make,
        lambda frames: sum(frame.nbytes for frame in frames),
    )


def _tokens(view: View, layer: int) -> np.ndarray:
    """All tokens after a layer and the final LayerNorm: (tokens, D)."""
    return view.acts.tokens(layer + 1, normalised=True)


def _cosines(view: View) -> list[float]:
    """The mean cosine of two different patches after each layer."""

    def make() -> list[float]:
        means = []
        for layer in range(view.acts.depth):
            patches = _tokens(view, layer)[len(view.prefix) :]
            lengths = np.linalg.norm(patches, axis=1, keepdims=True)
            count, total = len(patches), (patches / np.maximum(lengths, 1e-12)).sum(axis=0)
            means.append(float((total @ total - count) / max(count**2 - count, 1)))
        return means

    return results.captures().get((*view.key, "mean cosines"), make, lambda made: 8 * len(made))


def _controls(most: int) -> tuple[int, float, bool, bool]:
    """The first component shown (from 0), the threshold, whether the sign is flipped, and whether
    the components are those of all samples."""
    of, which, slider, toggle = st.columns([3, 2, 4, 2], vertical_alignment="bottom")
    basis = setting("basis", BASES, BASES[0])
    names = {
        "picture": tr("this picture"),
        "samples": tr("{samples} samples", samples=len(pictures.samples())),
    }
    of.segmented_control(
        tr("Components of"),
        BASES,
        key="basis",
        format_func=lambda name: names[name],
        width="stretch",
        required=True,
        help=tr("Those of all samples give every picture the same colours for the same tokens."),
    )
    trios = {f"{n}-{n + CHANNELS - 1}": n - 1 for n in range(1, most - CHANNELS + 2)}
    chosen = setting("components", list(trios), "1-3")
    which.selectbox(
        tr("Red, green and blue show"), list(trios), key="components", format_func=_trio
    )
    threshold = setting("threshold", THRESHOLDS, 0.0)
    slider.select_slider(
        tr("Foreground: patches beyond this share of component 1"),
        THRESHOLDS,
        key="threshold",
        format_func=lambda share: f"{100 * share:.0f} %" if share else tr("off, all patches"),
    )
    flip = setting("flip", OFF_ON, False)
    toggle.toggle(tr("Flip: keep the other end"), key="flip", disabled=not threshold)
    return trios[chosen], threshold, flip, basis == "samples"


def _bases(view: View, layers: Sequence[int]) -> dict[int, Basis]:
    width = _tokens(view, view.layer).shape[1]
    return joint_components.of_samples(view, layers, min(MOST_COMPONENTS, width))


def _all_samples() -> str:
    return tr(
        "the patches of all {samples} sample pictures together", samples=len(pictures.samples())
    )


def _trio(name: str) -> str:
    first = int(name.split("-")[0])
    return tr(
        "components {first}, {second}, {third}",
        first=first,
        second=first + 1,
        third=first + 2,
    )


def _scatter(
    view: View, layer: int, kept: np.ndarray | None, basis: Basis | None
) -> tuple[np.ndarray, np.ndarray]:
    """All tokens on the basis or the components of the patches kept, and the variance explained.

    Cached where all patches are kept.
    """
    tokens, grid = _tokens(view, layer), view.acts.grid
    if basis:
        return basis.points(tokens), basis.explained
    patches = grid[0] * grid[1] if kept is None else int(kept.sum())

    def make() -> tuple[np.ndarray, np.ndarray]:
        return inspection.token_scatter(
            tokens,
            grid=grid,
            num_prefix_tokens=len(view.prefix),
            n_components=min(MOST_COMPONENTS, patches, tokens.shape[1]),
            kept=kept,
        )

    if kept is not None:
        return make()
    return results.captures().get(
        (*view.key, "components", layer), make, lambda made: made[0].nbytes + made[1].nbytes
    )


def _colours(
    view: View,
    points: np.ndarray,
    explained: np.ndarray,
    kept: np.ndarray,
    chosen: slice,
    basis: Basis | None,
) -> None:
    image, crop, grid = results.photo(view), view.acts.crop, view.acts.grid
    components = points[len(view.prefix) :, chosen].reshape(*grid, CHANNELS)
    one, all_layers = st.columns([2, 3])
    with one:
        _, second, third = numbers = _numbers(chosen)
        show(
            plots.token_components(
                np.where(kept[..., None], components, np.nan),
                image,
                crop=crop,
                query=view.query_patch,
                numbers=numbers,
                reach=basis.reach[chosen] if basis else None,
            )
        )
        shares = [as_percent(share) for share in explained[chosen]]
        words = tr(
            "Red is component {first} ({red} of the variance), green {second} ({green}), blue "
            "{third} ({blue}).",
            first=numbers[0],
            red=shares[0],
            second=second,
            green=shares[1],
            third=third,
            blue=shares[2],
        )
        if basis:
            words += tr(
                " Fitted on {samples}: equal colours mean equal components in every "
                "picture. They end at two standard deviations.",
                samples=_all_samples(),
            )
        elif not kept.all():
            words += tr(
                " Fitted again on the {count} of {size} patches that are kept.",
                count=kept.sum(),
                size=kept.size,
            )
        else:
            words += tr(
                " Fitted on this picture alone: in another one, colours mean something else."
            )
        st.markdown(words)
    with all_layers:
        _film(view, chosen, joint=basis is not None)


def _mask(view: View, kept: np.ndarray) -> None:
    """Offer the patches that are kept as a picture of the size of the one that was given."""

    def content() -> bytes:
        from vitviz.images import patch_mask

        file = io.BytesIO()
        patch_mask(kept, size=view.picture.size, crop=view.acts.crop).save(file, "PNG")
        return file.getvalue()

    st.download_button(
        tr("Foreground mask, PNG"),
        content,
        file_name="vitviz_foreground.png",
        mime="image/png",
        key="mask",
        on_click="ignore",
        icon=":material/download:",
        help=tr("White where a patch is kept, black elsewhere, in the size of the picture itself."),
    )


def _numbers(chosen: slice) -> tuple[int, int, int]:
    return chosen.start + 1, chosen.start + 2, chosen.start + 3


def _film(view: View, chosen: slice, *, joint: bool) -> None:
    acts = view.acts
    layers = np.unique(np.linspace(0, acts.depth - 1, min(acts.depth, MAX_TILES)).round()).astype(
        int
    )

    bases = _bases(view, layers.tolist()) if joint else {}

    def make() -> list[tuple[np.ndarray, np.ndarray]]:
        return [_scatter(view, layer, None, bases.get(layer)) for layer in layers.tolist()]

    found = results.captures().get(
        (*view.key, "token film", joint),
        make,
        lambda made: sum(points.nbytes + explained.nbytes for points, explained in made),
    )
    left, top, right, bottom = acts.crop
    show(
        plots.token_film(
            np.stack(
                [p[len(view.prefix) :, chosen].reshape(*acts.grid, CHANNELS) for p, _ in found]
            ),
            names=[
                tr(
                    "layer {layer} · {share}",
                    layer=layer + 1,
                    share=as_percent(explained[chosen].sum()),
                )
                for layer, (_, explained) in zip(layers, found, strict=True)
            ],
            selected=int(np.argmax(layers == view.layer)) if view.layer in layers else None,
            reach=np.stack([one.reach[chosen] for one in bases.values()]) if joint else None,
            aspect=(bottom - top) / acts.grid[0] / ((right - left) / acts.grid[1]),
        )
    )
    some = (
        tr("{layers} of {depth} layers, evenly spaced. ", layers=len(layers), depth=acts.depth)
        if len(layers) < acts.depth
        else ""
    )
    st.markdown(
        some
        + tr(
            "The share of the variance stands above each tile. Every layer has components of its "
            "own, fitted on {fitted}, so colours cannot be compared between tiles.",
            fitted=_all_samples() if joint else tr("all patches"),
        )
    )


def _thumbnails(
    view: View, points: np.ndarray, explained: np.ndarray, kept: np.ndarray, chosen: slice
) -> None:
    first, second, _ = _numbers(chosen)
    prefix = [name.upper() for name in view.prefix]
    st.subheader(
        tr("The patches on components {first} and {second}", first=first, second=second),
        anchor=False,
    )
    pair = slice(chosen.start, chosen.start + 2)
    places, photo, crop, grid = points[:, pair], results.photo(view), view.acts.crop, view.acts.grid
    thumbnails = results.captures().get(
        (*view.key, "thumbnails", view.style.seen, places.tobytes(), kept.tobytes()),
        lambda: patch_thumbnails(places, photo, crop=crop, grid=grid, kept=kept),
        lambda made: len(made[0]),
    )
    show(
        plots.token_scatter(
            places,
            explained[pair],
            photo,
            crop=crop,
            grid=grid,
            prefix=prefix,
            numbers=(first, second),
            kept=kept,
            query=view.query,
            thumbnails=thumbnails,
        ),
        key=_SCATTER,
        on_click=lambda: _ask(view),
    )
    words = tr("Click a patch to make it the query.")
    if prefix:
        words += tr(
            " ★ {names}: projected onto the components, not used to fit them.",
            names=", ".join(prefix),
        )
    st.markdown(words)


def _ask(view: View) -> None:
    """Make the token that was clicked the query."""
    for point in st.session_state[_SCATTER].selection.points:
        token = int(point["customdata"][0])
        settings.change(query=token_text(view.acts.layers[view.layer], token))
