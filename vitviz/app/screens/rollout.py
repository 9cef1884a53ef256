"""The page Rollout: attention through all layers."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import streamlit as st

from vitviz import inspection
from vitviz.app.lessons import count_half
from vitviz.app.settings import setting
from vitviz.app.shared import results
from vitviz.app.shared.view import View, describe_reading
from vitviz.app.widgets import lesson
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Data, Table, patch_columns
from vitviz.app.widgets.places import places
from vitviz.app.widgets.token_map import frames_to_send, patch_number, token_map
from vitviz.common.language import Message, mark, tr, tr_md
from vitviz.inspection.comparison import correlation
from vitviz.inspection.rollout import Fusion
from vitviz.plots.maps import share_words
from vitviz.web.token_map import Frame, encode_frame

FUSIONS: dict[Fusion, str] = {"mean": mark("mean"), "max": mark("max"), "min": mark("min")}
TWENTIETHS = [step / 20 for step in range(21)]
COLLAPSED = 0.03  # share of the patches that hold half of a collapsed map


class Settings(NamedTuple):
    """The matrices that are rolled out, and the options of `inspection.attention_rollout`.

    Where a layer is "measured", each key counts by the length of what it adds, and each token keeps
    what was measured: nothing is fused, assumed or discarded.
    """

    of: Literal["weights", "measured"] = "weights"
    fusion: Fusion = "mean"
    residual: float = 0.5
    discard: float = 0.0
    start_layer: int = 0


USUAL = Settings()
LAYERS = {"weights": mark("attention and r"), "measured": mark("what is added, measured")}


def page(view: View) -> Data | None:
    if refusal := view.acts.refusal:
        st.warning(tr_md(refusal))
        return None
    settings = _controls(view)
    rollout = _patches(view, settings)
    attention = results.query_shares(view).mean(axis=0)
    _draw(view, settings, [_attention_beside(view, attention, rollout)])
    if lesson.shows("fusion"):
        _compare_with_usual(view, settings)
        st.markdown(_describe_map(view, settings))
    return Data(lambda: [_table(view, settings, attention)])


def _controls(view: View) -> Settings:
    from vitviz import ModelError

    starts = range(1, view.layer + 2)
    start = setting("start_layer", starts, USUAL.start_layer + 1)
    of = choose("layer_counts", tr("A layer counts by"), LAYERS, USUAL.of, "settings", "selectbox")
    if of == "measured":
        settings = USUAL._replace(of="measured", start_layer=start - 1)
        try:
            _measure_carried(view)
        except ModelError as error:
            st.warning(tr_md(error))
            settings = USUAL
        if len(starts) > 1:
            control("start_layer", tr("From layer"), starts, "settings", "select_slider")
        return settings
    fusion = choose("fusion", tr("Fuse heads by"), FUSIONS, USUAL.fusion, "settings", "selectbox")
    label = tr("Weight of the residual r")
    residual = choose("residual", label, TWENTIETHS, USUAL.residual, "settings", "select_slider")
    label, shares = tr("Discard the smallest"), TWENTIETHS[:-1]
    discard = choose("discard", label, shares, USUAL.discard, "settings", "select_slider")
    if len(starts) > 1:
        control("start_layer", tr("From layer"), starts, "settings", "select_slider")
    return Settings("weights", fusion, residual, discard, start - 1)


@dataclass(frozen=True, eq=False)
class _Measured:
    """For each layer, the shares of the keys in what is added, and what each token keeps."""

    added: list[np.ndarray]  # (1, tokens, tokens)
    kept: np.ndarray  # (layers, tokens)


def _measure_carried(view: View) -> _Measured:
    """Measure what attention carries in every layer, cached."""

    def make() -> _Measured:
        added, kept = [], []
        for layer in range(view.acts.depth):
            carried = view.acts.carried(view.model, layer)
            lengths = carried.lengths
            added.append((lengths / lengths.sum(axis=1, keepdims=True))[None].astype(np.float32))
            kept.append(carried.own_shares(view.acts.tokens(layer)))
        return _Measured(added, np.array(kept))

    return results.compute((*view.key, "carried"), make)


def _layers_and_options(
    view: View, settings: Settings
) -> tuple[Iterable[np.ndarray], dict[str, Any]]:
    """Return what counts as the layers, and the options that combine them."""
    options = settings._asdict()
    del options["of"]
    if settings.of == "weights":
        return view.acts.attention_layers(), options
    share = _measure_carried(view)
    return share.added, {**options, "kept": share.kept}


def _compare_with_usual(view: View, settings: Settings) -> None:
    """Write beside the controls how the map correlates with that of the usual settings."""
    if settings == USUAL:
        return
    like = correlation(_patches(view, settings), _patches(view, USUAL))
    if np.isfinite(like):
        words = tr("Correlation with *mean*, r = 0.5: **{like:.2f}**", like=like)
        places().bar.markdown(words, width="content")


def _attention_beside(view: View, attention: np.ndarray, rollout: np.ndarray) -> dict[str, object]:
    """Return the attention of the layer on screen alone, for the row of maps."""
    patches = attention[len(view.prefix) :]
    title = tr("Attention in layer {layer}", layer=view.layer + 1)
    return {
        "title": title,
        "note": _likeness(rollout, patches),
        "words": share_words(patches.reshape(view.grid), title),
        "values": patches.tolist(),
    }


def _likeness(rollout: np.ndarray, values: np.ndarray) -> str:
    """Say how like a map is to the rollout; nothing where one of them does not vary."""
    like = correlation(rollout, values)
    return tr("Correlation with rollout: {like:.2f}", like=like) if np.isfinite(like) else ""


@lesson.part("rollout")
def _draw(
    view: View,
    settings: Settings,
    beside: list[dict[str, object]],
) -> None:
    """Draw the token map of all steps, in a row with the maps beside it."""
    depth = view.acts.depth
    with places().stage:
        token_map(
            view,
            _frames(view, settings),
            name="rollout",
            kind="share",
            strip="frames",
            titles={
                "row": tr("Rollout: what reaches it"),
                "column": tr("Rollout: what it reaches"),
                "strip": tr("From layer {start} up to", start=settings.start_layer + 1),
            },
            frame_setting=("layer", range(1, depth + 1)),
            frame_names=[tr("layer {layer}", layer=number) for number in range(1, depth + 1)],
            version="-".join(map(str, settings)),
            beside=beside,
        )


def _describe_map(view: View, settings: Settings) -> str:
    """Say where the answer is read, how concentrated the map is, and how the fusions differ."""
    compared: list[Fusion] = [settings.fusion]
    if settings.of == "weights" and any(layer.num_heads > 1 for layer in view.acts.layers):
        # Each fusion reads all attention once more, so large models compare the chosen one alone.
        small = len(_layers_to_send(view)) == view.acts.depth
        compared = list(FUSIONS) if small else list(dict.fromkeys(("mean", settings.fusion)))
    maps = {one: _patches(view, settings._replace(fusion=one)) for one in compared}
    words = tr(
        "While no token is chosen, the map is read {where}. ", where=describe_reading(view.acts)
    )
    query = None if view.query_patch is None else patch_number(view.grid, view.query_patch)
    words += _concentration(maps[settings.fusion], _half_of(view), query)
    if len(maps) == 1 or not all(map(np.ptp, maps.values())):
        return words
    like = np.corrcoef(list(maps.values()))
    pairs = [
        tr(
            "*{one}* with *{other}* **{correlation:.2f}**",
            one=tr(FUSIONS[one]),
            other=tr(FUSIONS[other]),
            correlation=like[row, column],
        )
        for (row, one), (column, other) in itertools.combinations(enumerate(maps), 2)
    ]
    words += tr(" Correlation of the maps by fusion: {pairs}.", pairs=", ".join(pairs))
    if len(maps) == len(FUSIONS):
        odd = compared[int(like.sum(axis=1).argmin())]
        words += tr(
            " The map that differs most from the other two here is *{odd}*.", odd=tr(FUSIONS[odd])
        )
    return words


def _compute_map(view: View, settings: Settings) -> np.ndarray:
    """Return the map on screen: the query's row or column up to the layer on screen, (tokens,)."""
    prefix, row = len(view.prefix), view.style.direction == "row"

    def make() -> np.ndarray:
        if row:
            layers, options = _layers_and_options(view, settings)
            return inspection.attention_rollout(
                itertools.islice(layers, view.layer + 1),
                num_prefix_tokens=prefix,
                query=view.query,
                cls=False,
                **options,
            )
        steps = _steps(view, settings)
        columns: np.ndarray = next(
            itertools.islice(steps, view.layer - settings.start_layer, None)
        ).T
        return columns[prefix:].mean(axis=0) if view.query is None else columns[view.query]

    key = ("rollout shown", settings, view.layer, view.query, row)
    return results.compute((*view.key, *key), make)


def _patches(view: View, settings: Settings) -> np.ndarray:
    """Return the patches of the map on screen."""
    return _compute_map(view, settings)[len(view.prefix) :]


def _half_of(view: View) -> str:
    """Say from how few patches half of the map comes, or to how few it goes."""
    if view.style.direction == "row":
        return tr(
            "Half of what reaches {query} from patches up to layer {layer} comes from",
            query=view.query_name,
            layer=view.layer + 1,
        )
    return tr(
        "Half of what goes out from {query} to patches up to layer {layer} goes to",
        query=view.query_name,
        layer=view.layer + 1,
    )


def _concentration(values: np.ndarray, half_of: str, query: int | None = None) -> str:
    """Say how few patches hold half of the map, and whether that is a collapse.

    What a patch that is the query keeps of itself, by r, is none: the others are looked at alone.
    """
    if not values.any():
        return ""  # r = 1 lets nothing pass from patch to token
    half = count_half(values)
    words = tr(
        "{half_of} **{half} of {count}** patches.",
        half_of=half_of,
        half=half,
        count=len(values),
    )
    others = values if query is None else np.delete(values, query)
    if others.any() and count_half(others) <= len(values) * COLLAPSED:
        words += tr(
            " The map has collapsed onto few patches, which may be outliers with large "
            "attention rather than the object: compare single layers on the page "
            "Attention."
        )
    return words


def _table(view: View, settings: Settings, attention: np.ndarray) -> Table:
    """Return the rollout of the query up to the layer on screen, and the maps beside it."""
    percents = 100 * _compute_map(view, settings)
    what = tr("What goes from {query} to each token", query=view.query_name)
    if view.style.direction == "row":
        what = tr("What goes from each token to {query}", query=view.query_name)
    span = {"what": what, "start": settings.start_layer + 1, "end": view.layer + 1}
    about = tr(
        "{what} through layers {start} to {end}: heads fused by {fusion}, residual {residual}, the "
        "smallest {discard} discarded.",
        **span,
        fusion=tr(FUSIONS[settings.fusion]),
        residual=settings.residual,
        discard=settings.discard,
    )
    if settings.of == "measured":
        about = tr(
            "{what} through layers {start} to {end}: each layer by what its keys add and what each "
            "token keeps, measured.",
            **span,
        )
    alone = Message("attention of layer {layer}, mean of heads, %", layer=view.layer + 1)
    columns = {
        **patch_columns(view, prefix=True),
        Message("rollout, %"): percents,
        alone: 100 * attention,
    }
    return Table(about, columns)


def _steps(view: View, settings: Settings) -> Iterator[np.ndarray]:
    layers, options = _layers_and_options(view, settings)
    return inspection.rollout_steps(layers, num_prefix_tokens=len(view.prefix), **options)


def _frames(view: View, settings: Settings) -> list[Frame]:
    """Return the frames of all steps where these are small enough, else of the one on screen."""
    layers = _layers_to_send(view)

    def make() -> list[Frame]:
        start, end = settings.start_layer, layers[-1] + 1
        steps = itertools.islice(_steps(view, settings), end - start)
        return [
            encode_frame(layer, matrix[None], len(view.prefix), "share")
            for layer, matrix in enumerate(steps, start)
            if layer in layers
        ]

    return results.compute((*view.key, "rollout", settings, tuple(layers)), make)


def _layers_to_send(view: View) -> Sequence[int]:
    return frames_to_send(view.acts.depth, view.layer, len(view.acts.tokens(0)) ** 2)
