"""The page Explain: which patches an answer rests on, by several methods, and how to judge them."""

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.screens import explain_curves, explain_recorded
from vitviz.app.screens.explain_recorded import TITLES_OF_NO_CLASS, label, marked_label
from vitviz.app.settings import text_setting
from vitviz.app.shared import models, results
from vitviz.app.shared.view import View, describe_reading
from vitviz.app.widgets import class_menu, experiment, lesson
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.experiment import Pending, find_result, run_button, run_pending
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.common.language import Markdown, Message, as_percent, literal, tr, tr_md
from vitviz.inspection.comparison import correlation
from vitviz.text.class_names import table_names

if TYPE_CHECKING:
    from vitviz.intervention import Progress

FEW = 4  # passes of a map that is drawn without being asked for
LEAST = 3  # patches, of which a correlation says something


@dataclass
class Maps:
    """The maps of one class.

    Attributes
    ----------
    values : by name, of each patch (rows, columns)
    refusals : by name, why there is none
    pending : maps that were asked for
    """

    values: dict[str, np.ndarray] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)

    @property
    def ranks(self) -> dict[str, np.ndarray]:
        return {name: inspection.patch_ranks(each) for name, each in self.values.items()}


def page(view: View) -> Data | None:
    from vitviz.attribution import shared_gradients

    acts = view.acts
    if acts.probabilities is None:
        st.info(models.explain_no_classes(view.model))
        return None
    index = class_menu.chosen_index(acts)
    class_menu.draw_class_menu(acts, "bar")
    chosen = _choose_maps(view)
    removal = experiment.choose_removal(view)
    experiment.removal_control(view)
    maps = Maps()
    with places().stage:
        place = st.container()
        with shared_gradients():
            for name in chosen:
                _add(view, maps, name, index)
        if maps.values:
            with place:
                _draw(view, maps)
        for name, refusal in maps.refusals.items():
            st.info(f"**{literal(label(name))}**: {refusal}")
    _say_how_alike(maps)
    curves: dict[str, explain_curves.Pair] = {}
    if maps.values and lesson.shows("curves"):
        by_label = {marked_label(name): each for name, each in maps.values.items()}
        curves, pending = explain_curves.draw_curves(view, by_label, index, removal)
        maps.pending.extend([pending] if pending else [])
    _explain(view, maps, index)
    explain_recorded.draw_recorded(view, removal)
    run_pending(*maps.pending)
    if not maps.values:
        return None
    name = table_names(acts.output_names)[index]

    def tables() -> list[Table]:
        recorded = explain_recorded.find_recorded(view)
        return [
            _table(view, maps, name),
            *([explain_curves.curves_table(curves, removal, name)] if curves else []),
            *([explain_recorded.recorded_table(recorded)] if recorded else []),
        ]

    return Data(tables)


def _labels(view: View) -> dict[str, str]:
    """Return the marked names of all maps that this model may have."""
    from vitviz.attribution import METHODS

    labels = {name: method.label for name, method in METHODS.items()}
    return labels | (TITLES_OF_NO_CLASS if view.acts.all_to_all else {})


def _passes(name: str) -> int:
    from vitviz.attribution import METHODS

    return METHODS[name].passes if name in METHODS else 1


def _choose_maps(view: View) -> list[str]:
    """Return the names of the chosen maps, and draw their menu."""
    labels = _labels(view)
    usual = " ".join(name for name in labels if _passes(name) <= FEW)

    def fits(text: str) -> bool:
        return bool(text.split()) and set(text.split()) <= {*labels, *TITLES_OF_NO_CLASS}

    settings.follow_default("maps", usual)
    text = text_setting("maps", fits, usual)
    chosen = [name for name in labels if name in text.split()]
    if lesson.shows("maps"):
        key = "chosen_maps"
        st.session_state[key] = chosen

        def change() -> None:
            settings.change(maps=" ".join(st.session_state[key]) or usual)

        at = places().bar if lesson.current_step() else places().settings
        at.pills(
            tr("Maps"),
            list(labels),
            key=key,
            selection_mode="multi",
            format_func=lambda name: tr(labels[name]),
            on_change=change,
        )
    return chosen


def _add(view: View, maps: Maps, name: str, index: int) -> None:
    """Compute a map, or find it, or draw the button that asks for it; or say why there is none."""
    from vitviz import ModelError

    try:
        values = _map(view, name, index)
    except ModelError as error:
        maps.refusals[name] = tr_md(error)
        return
    if values is not None:
        maps.values[name] = values
        return
    words = tr("{method} ({passes} passes)", method=label(name), passes=_passes(name))
    pending = run_button(view, words, _cache_key(name, index), partial(_run, view, name, index))
    if pending is not None:
        maps.pending.append(pending)


def _cache_key(name: str, index: int) -> tuple[str, str, int]:
    return f"class map {name}", name, index


def _map(view: View, name: str, index: int) -> np.ndarray | None:
    """Return the map (rows, columns), cached; None where it takes many passes and was not made.

    Raises
    ------
    ModelError
        When the method is not defined for the model.
    """
    acts = view.acts
    if name in TITLES_OF_NO_CLASS:
        measures = results.measure(view)
        if name == "last":
            last: np.ndarray = measures.mean_query_attention[-1]
            return last
        return measures.rollout[acts.num_prefix_tokens :].reshape(acts.grid)
    if _passes(name) > FEW:
        values: np.ndarray | None = find_result(view, *_cache_key(name, index))
        return values

    def make() -> np.ndarray:
        with st.spinner(tr("One pass forward and one back …")):
            return _run(view, name, index)

    return results.compute((*view.key, *_cache_key(name, index)), make)


def _run(view: View, name: str, index: int, progress: "Progress | None" = None) -> np.ndarray:
    from vitviz.attribution import METHODS

    return METHODS[name](view.model, results.model_input(view), index, progress=progress)


def _draw(view: View, maps: Maps) -> None:
    """Draw the picture and the maps beside it; a patch that was chosen elsewhere has a frame."""
    (image, crop), ranks = results.seen_part(view), maps.ranks
    query = view.query_patch if view.acts.all_to_all else None
    figure = plots.ranked_maps(
        {label(name): each for name, each in ranks.items()},
        image,
        crop=crop,
        values={label(name): each for name, each in maps.values.items()},
        patch=query,
    )
    with st.container(key="swipe" if len(ranks) > 1 else None):
        show_figure(figure, key="ranked_maps")


def _say_how_alike(maps: Maps) -> None:
    """Say which two maps agree most, and which least, by their ranks."""
    alike = {
        (one, other): correlation(first, second)
        for (one, first), (other, second) in itertools.combinations(maps.ranks.items(), 2)
        if first.size >= LEAST
    }
    finite = {pair: like for pair, like in alike.items() if np.isfinite(like)}
    if len(finite) < 2:
        return
    (most, least) = max(finite, key=finite.__getitem__), min(finite, key=finite.__getitem__)
    draw_finding(
        tr_md(
            "Most alike are the ranks of {one} and {other} (correlation {like:.2f}), least those "
            "of {third} and {fourth} ({unlike:.2f}).",
            one=label(most[0]),
            other=label(most[1]),
            like=finite[most],
            third=label(least[0]),
            fourth=label(least[1]),
            unlike=finite[least],
        )
    )


def _explain(view: View, maps: Maps, index: int) -> None:
    """Say of each map what its numbers are, and which patch has the largest."""
    from vitviz.attribution import METHODS

    acts = view.acts
    assert acts.probabilities is not None
    share = as_percent(acts.probabilities[index])
    name = Markdown(f"**{literal(class_menu.names(acts)[index])}** ({share})")
    lines = []
    for which, values in maps.values.items():
        row, col = np.unravel_index(int(values.argmax()), values.shape)
        largest, method = float(values.max()), METHODS.get(which)
        peak = as_percent(largest) if method is None or method.is_share else f"{largest:.3g}"
        peak_words = tr_md(" All patches are equal: {value}.", value=peak)
        if np.ptp(values):
            peak_words = tr_md(
                " Largest: row {row}, column {col}, {largest}.",
                row=row + 1,
                col=col + 1,
                largest=peak,
            )
        explanation = _of_attention(view, which)
        if method is not None:
            where = describe_reading(acts)
            explanation = tr_md(method.explanation, where=where, name=name)
            if method.begins_at_identity:
                explanation += Markdown(
                    tr(
                        " Not only the scale of this map depends on the size of the logit, but its "
                        "pattern too."
                    )
                )
        lines.append(
            tr_md(
                "- **{method}**: {explanation}",
                method=label(which),
                explanation=Markdown(explanation),
            )
            + peak_words
        )
    with st.expander(tr("What each map counts"), key="what_maps_count"):
        st.markdown("\n".join(lines))


def _of_attention(view: View, name: str) -> str:
    where = describe_reading(view.acts)
    if name == "last":
        return tr("The attention of the last layer, mean of its heads, read {where}.", where=where)
    return tr(
        "The attention of all layers multiplied, heads fused by their mean, r = 0.5, read {where}. "
        "It is the same map for every class.",
        where=where,
    )


def _table(view: View, maps: Maps, name: str) -> Table:
    ranks = maps.ranks
    columns: Columns = {}
    for which, values in maps.values.items():
        label = Message(marked_label(which))
        columns[Message("{map}", map=label)] = values.ravel()
        columns[Message("{map}, rank", map=label)] = ranks[which].ravel()
    about = tr(
        "Maps of {name}, in the grid of the first layer; a rank is the share of the other patches "
        "with a smaller value, and equal ones count half.",
        name=name,
    )
    return Table(about, {**patch_columns(view, grid=next(iter(ranks.values())).shape), **columns})
