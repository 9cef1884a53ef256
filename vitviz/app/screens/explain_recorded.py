"""The recorded figures of Explain: how the maps of a shipped model fare over many pictures."""

from typing import TYPE_CHECKING, cast

import streamlit as st

from vitviz import plots
from vitviz.app.screens.explain_curves import RANDOM_TITLE
from vitviz.app.shared import results
from vitviz.app.shared.view import View, model_key
from vitviz.app.widgets import lesson
from vitviz.app.widgets.data_table import Table, columns_of
from vitviz.app.widgets.experiment import REMOVALS
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Message, mark, tr, tr_md

if TYPE_CHECKING:
    from vitviz.intervention import Removal
    from vitviz.profiling import Faithfulness

#: Maps that know no class, by their names in the address.
TITLES_OF_NO_CLASS = {"rollout": mark("rollout"), "last": mark("attention of the last layer")}
#: Measures in the order in which they are drawn: name, unit, and what is good.
RECORDED_MEASURES = {
    "deletion": (mark("Deletion"), mark("area"), mark("less is better")),
    "insertion": (mark("Insertion"), mark("area"), mark("more is better")),
    "pointing": (
        mark("Pointing: does the largest value lie on the object?"),
        mark("share of the pictures"),
        mark("more is better"),
    ),
    "overlap": (
        mark("Overlap with the object"),
        mark("area under the ROC curve"),
        mark("more is better"),
    ),
    "other_class": (
        mark("Does the map change with the class?"),
        mark("rank correlation"),
        mark("1 is the same map"),
    ),
    "random_weights": (
        mark("Does the map change with the weights?"),
        mark("rank correlation"),
        mark("1 is the same map"),
    ),
    "seconds": (mark("Time"), mark("seconds for a map"), mark("less is better")),
}
CORRELATIONS = ("other_class", "random_weights")
_SAME = 0.99  # a correlation above it is of the same map


def find_recorded(view: View) -> "Faithfulness | None":
    """Return what was recorded of these very weights with this preprocessing; None without."""
    from vitviz.common.files import assets
    from vitviz.profiling import fits, load_faithfulness

    def make() -> "Faithfulness | None":
        paths = {path.stem: path for path in (assets() / "faithfulness").glob("*.json")}
        if view.model.name not in paths:
            return None
        recorded = load_faithfulness(paths[view.model.name])
        return recorded if fits(recorded, view.model) else None

    return results.capture_cache().get((*model_key(view.model), "recorded maps"), make)


@lesson.part("recorded")
def draw_recorded(view: View, removal: "Removal") -> None:
    """Draw the fold, and in it, when it is opened, a figure for each measure."""
    folded = st.expander(
        tr("Over many pictures: which maps may I trust?"), key="recorded", on_change="rerun"
    )
    if not folded.open:
        return
    with folded:
        recorded = find_recorded(view)
        if recorded is None:
            st.markdown(
                tr_md(
                    "Nothing is recorded of {name} with these weights and this input. Measure it "
                    "over pictures of your own: `vitviz faithfulness MODEL PICTURES --out FOLDER`.",
                    name=view.model.name,
                )
            )
            return
        _draw_measures(recorded, removal)


def _draw_measures(record: "Faithfulness", removal: "Removal") -> None:
    st.markdown(_about(record))
    chosen = _choose_measures(record, removal)
    for start in range(0, len(chosen), 2):
        for column, (measure, title, unit, good) in zip(
            st.columns(2), chosen[start : start + 2], strict=False
        ):
            by_map = record.means[measure].items()
            figure = plots.judged_maps(
                {label(name): (mean, low, high) for name, (mean, low, high, _) in by_map},
                measure=title,
                unit=unit,
                better=[label(name) for name in _better(record, measure)],
                chance=tr(RANDOM_TITLE),
                logarithmic=measure == "seconds",
            )
            with column:
                st.markdown(f"**{title}** · {good}")
                show_figure(figure, key=f"recorded_{measure}")
    st.markdown("\n".join(_judge(record, measure, title) for measure, title, _, _ in chosen))


def _choose_measures(record: "Faithfulness", removal: "Removal") -> list[tuple[str, str, str, str]]:
    """Return the recorded measures: name, title, unit and what is good.

    Deletion and insertion are those of the removal that was chosen, or of the first recorded one.
    """
    recorded: list[Removal] = record.about["removals"]
    fill = removal if removal in recorded else recorded[0]
    chosen = []
    for measure, (_, unit, good) in RECORDED_MEASURES.items():
        name = measure if measure in record.means else f"{measure}_{fill}"
        if name in record.means:
            chosen.append((name, tr(_title_and_unit(name)[0]), tr(unit), tr(good)))
    return chosen


def _title_and_unit(name: str) -> tuple[Message, Message]:
    """Return what a recorded measure is called, as "deletion_mean" is one of a removal."""
    measure, fill = (name, "") if name in RECORDED_MEASURES else name.rsplit("_", 1)
    title, unit, _ = map(Message, RECORDED_MEASURES[measure])
    if fill:
        removal = Message(REMOVALS[cast("Removal", fill)])
        title = Message("{measure}, {removal}", measure=title, removal=removal)
    return title, unit


def label(name: str) -> str:
    """Return what a map is called on screen."""
    return tr(marked_label(name))


def marked_label(name: str) -> str:
    """Return the marked name of a map, also by its name in a record."""
    from vitviz.attribution import METHODS

    others = {**TITLES_OF_NO_CLASS, "attention": TITLES_OF_NO_CLASS["last"], "random": RANDOM_TITLE}
    return others.get(name) or METHODS[name].label


def _better(record: "Faithfulness", measure: str) -> list[str]:
    """Return the maps whose dots are filled.

    They are better than random orders; of a correlation, they are not the same map.
    """
    by_map = record.means[measure]
    if "random" in by_map:
        return [name for name in by_map if record.is_better(measure, name, "random")]
    correlates = measure in CORRELATIONS
    return [name for name, (mean, *_) in by_map.items() if not correlates or mean < _SAME]


def _about(record: "Faithfulness") -> str:
    """Say over what was measured, and how the figures are to be read."""
    words = tr_md(
        "vitviz drew the maps of **{count:,} pictures** of {source}, each for the answer that the "
        "model gave, right or wrong. A dot is the mean over these pictures, and its line the 95 % "
        "interval. The dashed line is the mean of {orders} random orders of the patches. A filled "
        "dot is better than random orders, picture by picture; a hollow one is not. Where a map is "
        "compared with another one, a hollow dot means that it does not change.",
        count=record.about["pictures"] - record.about["skipped"],
        source=tr(record.about["source"]),
        orders=record.about["orders"],
    )
    of_object = record.means.get("pointing", {}).get("random")
    if of_object is not None:
        words += tr_md(
            " Pointing and overlap are measured on the {count:,} pictures in which the object is "
            "marked, and covers some patches but not all.",
            count=of_object[3],
        )
    return words


def _judge(record: "Faithfulness", measure: str, title: str) -> str:
    """Say which maps are no better than chance, and whether one is better than all others."""
    by_map, better = record.means[measure], _better(record, measure)
    others = ", ".join(label(name) for name in by_map if name not in {*better, "random"})
    words = tr_md("- **{measure}**:", measure=title)
    if measure in CORRELATIONS:
        same = tr_md(" These do not change: {maps}.", maps=others)
        return words + (same if others else tr_md(" All maps change."))
    if "random" in by_map:
        worse = tr_md(" These are no better than random orders: {maps}.", maps=others)
        words += worse if others else tr_md(" All maps are better than random orders.")
    winner = record.winner(measure)
    if winner is None:
        return words + tr_md(" No map is clearly better than all others.")
    return words + tr_md(" {map} is better than all others.", map=label(winner))


def recorded_table(faithfulness: "Faithfulness") -> Table:
    """Return all recorded means with their intervals."""
    rows = [
        (*_title_and_unit(measure), Message(marked_label(name)), *interval)
        for measure, by_map in faithfulness.means.items()
        for name, interval in by_map.items()
    ]
    headings = (
        Message("measure"),
        Message("unit"),
        Message("map"),
        Message("mean"),
        Message("95 % interval, low"),
        Message("95 % interval, high"),
        Message("pictures"),
    )
    about = faithfulness.about
    record = tr(
        "{provenance} · {count:,} pictures of {source} · recorded with vitviz {version}, of "
        "weights with sha256 {sha256}",
        provenance=tr(about["provenance"]),
        count=about["pictures"] - about["skipped"],
        source=tr(about["source"]),
        version=about["versions"]["vitviz"],
        sha256=about["weights_sha256"],
    )
    return Table(
        tr("How the maps of the answers fare over many pictures."),
        columns_of(headings, rows),
        record,
    )
