"""Principal components of the tokens on the page Tokens: as colours, in all layers, on two axes."""

import io
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import pictures, results
from vitviz.app.shared.view import View, model_key, token_text
from vitviz.app.widgets.control import choose
from vitviz.app.widgets.figure import Points, show_figure
from vitviz.app.widgets.file_button import file_button
from vitviz.common.language import as_percent, tr
from vitviz.plots.tokens import patch_thumbnails

if TYPE_CHECKING:
    from vitviz.profiling import Moments

# Principal components of the patches of all samples together: colours mean the same in each.


@dataclass(frozen=True, eq=False)
class Basis:
    """Components that several pictures share.

    Attributes
    ----------
    axes : ndarray of shape (n_components, D), unit vectors
    mean : ndarray of shape (D,)
    explained : ndarray of shape (n_components,), shares of the variance of all patches
    reach : ndarray of shape (n_components,)
        Two standard deviations of all patches, divided by their number n: where the colours end.
    """

    axes: np.ndarray
    mean: np.ndarray
    explained: np.ndarray
    reach: np.ndarray

    def points(self, tokens: np.ndarray) -> np.ndarray:
        """Project tokens (n, D) on the components: (n, n_components)."""
        return ((tokens - self.mean) @ self.axes.T).astype(np.float32)


def joint_bases(view: View, layers: Sequence[int], n_components: int) -> dict[int, Basis]:
    """Return the components of the patches of all samples after each of the layers, cached.

    Of the tokens after the final LayerNorm, as everywhere on the page.
    """

    def make() -> dict[int, Basis]:
        from vitviz.profiling import Moments

        by_layer: dict[int, Moments] = {}
        for _, acts in results.of_samples(view.model):
            for layer in layers:
                patches = acts.tokens(layer + 1, normalised=True)[len(view.prefix) :]
                more = Moments.of_vectors(patches)
                by_layer[layer] = by_layer[layer].merge(more) if layer in by_layer else more
        return {layer: _basis(moments, n_components) for layer, moments in by_layer.items()}

    key: tuple[Hashable, ...] = (*model_key(view.model), "joint components", *layers, n_components)
    return results.capture_cache().get(key, make)


def _basis(moments: "Moments", n_components: int) -> Basis:
    axes, variances = moments.components(n_components)
    explained = variances / max(float(np.trace(moments.m2)), np.finfo(float).tiny)
    return Basis(axes, moments.mean, explained, 2 * np.sqrt(variances / moments.count))


CHANNELS = 3  # red, green and blue
MOST_COMPONENTS = 5  # components
MAX_TILES = 16
THRESHOLDS = [step / 20 for step in range(20)]
OFF_ON = (False, True)


class Components(NamedTuple):
    """Components of one layer, and which of them are shown."""

    points: np.ndarray  # of all tokens, prefix first: (tokens, components)
    explained: np.ndarray  # shares of the variance: (components,)
    kept: np.ndarray  # the patches that are shown: bool, (rows, columns)
    first: int  # of the three that are colours, from 0
    basis: Basis | None  # that of all samples, where it was chosen

    @property
    def channels(self) -> slice:
        return slice(self.first, self.first + CHANNELS)


def choose_components(view: View, most: int) -> Components:
    """Draw the controls, and find the components of the patches that they keep."""
    first, threshold, flip, joint = _controls(most)
    basis = _bases(view, [view.layer])[view.layer] if joint else None
    points, explained = _scatter(view, view.layer, basis)
    component = points[len(view.prefix) :, 0].reshape(view.acts.grid)
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
        kept = np.ones_like(kept)
    if basis is None and not kept.all():
        points, explained = _project_tokens(view, view.layer, kept)
    return Components(points, explained, kept, first, basis)


def draw_components(view: View, components: Components) -> None:
    """Draw the components as colours: of this layer, and of every one."""
    one, all_layers = st.columns([2, 3])
    with one:
        _colours(view, components)
    with all_layers:
        _film(view, components.channels, joint=components.basis is not None)
    if not components.kept.all():
        _mask(view, components.kept)


def draw_scatter(view: View, components: Components) -> None:
    """Draw the patches as thumbnails on two of the components."""
    chosen, kept = components.channels, components.kept
    first, second, _ = _numbers(chosen)

    def clicked(points: Points) -> None:
        token = int(points[0]["customdata"][0])
        st.session_state.query_asked = True  # also where it is the default, such as the star of CLS
        settings.change(query=token_text(view.acts.layers[view.layer], token))

    prefix = [name.upper() for name in view.prefix]
    st.subheader(
        tr("The patches on components {first} and {second}", first=first, second=second),
        anchor=False,
    )
    pair = slice(chosen.start, chosen.start + 2)
    places, photo = components.points[:, pair], results.reduced_photo(view)
    crop, grid = view.acts.crop, view.acts.grid
    thumbnails = results.compute(
        (*view.key, "thumbnails", view.style.seen, places.tobytes(), kept.tobytes()),
        lambda: patch_thumbnails(places, photo, crop=crop, grid=grid, kept=kept),
    )
    show_figure(
        plots.token_scatter(
            places,
            components.explained[pair],
            photo,
            crop=crop,
            grid=grid,
            prefix=prefix,
            numbers=(first, second),
            kept=kept,
            query=view.query,
            thumbnails=thumbnails,
        ),
        key="token_scatter",
        on_click=clicked,
    )
    words = tr("Click a patch to make it the query.")
    if prefix:
        words += tr(
            " ★ {names}: projected onto the components, not used to fit them.",
            names=", ".join(prefix),
        )
    st.markdown(words)


def _controls(most: int) -> tuple[int, float, bool, bool]:
    """Draw the controls, and return what they are set to.

    Returns
    -------
    first : int
        The first component shown, from 0.
    threshold : float
    flipped : bool
        Whether its sign is exchanged.
    joint : bool
        Whether the components are those of all samples.
    """
    of, which, slider, toggle = st.columns([3, 2, 4, 2], vertical_alignment="bottom")
    names = {
        "picture": tr("this picture"),
        "samples": tr("{samples} samples", samples=len(pictures.samples())),
    }
    basis = choose(
        "basis",
        tr("Components of"),
        names,
        "picture",
        of,
        help=tr("Those of all samples give every picture the same colours for the same tokens."),
    )
    trios = {f"{n}-{n + CHANNELS - 1}": n - 1 for n in range(1, most - CHANNELS + 2)}
    label = tr("Red, green and blue show")
    chosen = choose("components", label, list(trios), "1-3", which, "selectbox", _trio)
    threshold = choose(
        "threshold",
        tr("Foreground: patches beyond this share of component 1"),
        THRESHOLDS,
        0.0,
        slider,
        "select_slider",
        lambda share: f"{100 * share:.0f} %" if share else tr("off, all patches"),
    )
    flip = setting("flip", OFF_ON, False)
    toggle.toggle(tr("Flip: keep the other end"), key="flip", disabled=not threshold)
    return trios[chosen], threshold, flip, basis == "samples"


def _bases(view: View, layers: Sequence[int]) -> dict[int, Basis]:
    width = results.final_tokens(view, view.layer).shape[1]
    return joint_bases(view, layers, min(MOST_COMPONENTS, width))


def all_samples() -> str:
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


def _scatter(view: View, layer: int, basis: Basis | None) -> tuple[np.ndarray, np.ndarray]:
    """Return all tokens on the basis, or on all patches' components, and the variance explained."""

    def make() -> tuple[np.ndarray, np.ndarray]:
        if basis:
            return basis.points(results.final_tokens(view, layer)), basis.explained
        return _project_tokens(view, layer, np.ones(view.acts.grid, bool))

    return results.compute((*view.key, "components", layer, basis is None), make)


def _project_tokens(view: View, layer: int, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all tokens on the kept patches' components, and the variance explained."""
    tokens = results.final_tokens(view, layer)
    return inspection.token_scatter(
        tokens,
        grid=view.acts.grid,
        num_prefix_tokens=len(view.prefix),
        n_components=min(MOST_COMPONENTS, int(kept.sum()), tokens.shape[1]),
        kept=None if kept.all() else kept,
    )


def _colours(view: View, parts: Components) -> None:
    kept, chosen, basis = parts.kept, parts.channels, parts.basis
    image, crop, grid = results.reduced_photo(view), view.acts.crop, view.acts.grid
    components = parts.points[len(view.prefix) :, chosen].reshape(*grid, CHANNELS)
    _, second, third = numbers = _numbers(chosen)
    show_figure(
        plots.token_components(
            np.where(kept[..., None], components, np.nan),
            image,
            crop=crop,
            query=view.query_patch,
            numbers=numbers,
            reach=basis.reach[chosen] if basis else None,
        )
    )
    shares = [as_percent(share) for share in parts.explained[chosen]]
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
            samples=all_samples(),
        )
    elif not kept.all():
        words += tr(
            " Fitted again on the {count} of {size} patches that are kept.",
            count=kept.sum(),
            size=kept.size,
        )
    else:
        words += tr(" Fitted on this picture alone: in another one, colours mean something else.")
    st.markdown(words)


def _mask(view: View, kept: np.ndarray) -> None:
    """Offer the patches that are kept as a picture of the size of the one that was given."""

    def content() -> bytes:
        from vitviz.common.images import patch_mask

        file = io.BytesIO()
        patch_mask(kept, size=view.picture.size, crop=view.acts.crop).save(file, "PNG")
        return file.getvalue()

    file_button(
        tr("Foreground mask, PNG"),
        content,
        file_name="vitviz_foreground.png",
        mime="image/png",
        key="mask",
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

    scatters = [_scatter(view, layer, bases.get(layer)) for layer in layers.tolist()]
    left, top, right, bottom = acts.crop
    show_figure(
        plots.token_film(
            np.stack(
                [p[len(view.prefix) :, chosen].reshape(*acts.grid, CHANNELS) for p, _ in scatters]
            ),
            names=[
                tr(
                    "layer {layer} · {share}",
                    layer=layer + 1,
                    share=as_percent(explained[chosen].sum()),
                )
                for layer, (_, explained) in zip(layers, scatters, strict=True)
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
            fitted=all_samples() if joint else tr("all patches"),
        )
    )
