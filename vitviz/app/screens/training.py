"""The page Training: the recorded training runs of the shipped models, and experiments."""

import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app.screens import training_experiments
from vitviz.app.settings import setting
from vitviz.app.shared import lessons
from vitviz.app.shared.view import View
from vitviz.app.widgets.data_table import Columns, Data, Table
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.player import player
from vitviz.checkpoints import assets, load_shipped
from vitviz.language import Message, as_percent, tr

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

# Test accuracy of the ViT with which this project began, which was written for a course.
OF_A_COURSE = {"cifar10": 0.7136, "cifar100": 0.4408}
SHOWN_COMPONENTS = 12


def page(view: View) -> Data:
    runs = _runs()
    name = view.model.name if view.model.name in runs else next(iter(runs))
    if name != view.model.name:
        st.info(
            tr(
                "{name} has no recorded training run: that of {shown} is shown.",
                name=view.model.name,
                shown=name,
            )
        )
    moment = _run(name, runs) if lessons.shows("moment") else None
    if lessons.shows("hunger"):
        training_experiments.hunger()
    if lessons.shows("conditions"):
        training_experiments.conditions()
    line = tr("{name} · recorded during training", name=name)
    if moment is not None:
        line += f" · {_moment_words(*_moments(name)[moment])}"
    return Data(partial(_tables, name, runs[name], moment), record=line)


def _run(name: str, runs: dict[str, Any]) -> int | None:
    """Draw a run; returns the moment on screen, where weights were kept."""
    run, moments = runs[name], _moments(name)
    moment = _slider(moments) if moments else 0
    curve, *beside = st.columns([5, 3, 4] if moments else [8, 4])
    with curve:
        st.subheader(tr("The run of {name}", name=name), anchor=False)
        dataset = name.removeprefix("vitviz_tiny_")
        show(
            plots.training_curves(
                {"": run["epochs"]},
                test_accuracy={"": run["test_accuracy"]},
                reference=OF_A_COURSE.get(dataset),
                chosen=moments[moment][0] if moments else None,
            )
        )
    if moments:
        curve.markdown(_growth_words(run) + _test_words(run))
        st.markdown(_loss_words(run) + _teacher_words(run))
        _as_it_was(name, moment, *beside)
    else:
        kept = [other for other in runs if other != name and _record(other)]
        beside[0].info(
            tr(
                "No weights were kept during the run of {name}, so only its curve is shown; there "
                "are some of {kept}.",
                name=name,
                kept=tr(" and ").join(kept),
            )
        )
        beside[0].markdown(_growth_words(run) + _test_words(run))
        beside[0].markdown(_loss_words(run) + _teacher_words(run))
    return moment if moments else None


def _tables(name: str, run: dict[str, Any], moment: int | None) -> list[Table]:
    rows = run["epochs"]
    headings = {
        "image_size": Message("input, px"),
        "epoch": Message("epoch"),
        "loss": Message("loss"),
        "held_out_accuracy": Message("held-out accuracy"),
    }
    columns: Columns = {words: [row[key] for row in rows] for key, words in headings.items()}
    about = tr(
        "The run of {name}; epochs count from each size of the input. {loss}",
        name=name,
        loss=_loss_words(run),
    )
    tables = [Table(about, columns)]
    record = _record(name)
    if record is not None and moment is not None:
        distance = record[f"distance_{moment}"]
        layers, heads = np.indices(distance.shape).reshape(2, -1) + 1
        epoch, size = _moments(name)[moment]
        found: Columns = {
            Message("layer"): layers,
            Message("head"): heads,
            Message("distance, px"): distance.ravel(),
        }
        if f"entropy_{moment}" in record:
            found[Message("entropy, bits")] = record[f"entropy_{moment}"].ravel()
        about = tr(
            "Attention at {moment}, the mean of 16 pictures.", moment=_moment_words(epoch, size)
        )
        tables.append(Table(about, found))
    return [*tables, *training_experiments.tables()]


@st.cache_data
def _runs() -> dict[str, Any]:
    """The recorded runs by their models' names."""
    files = sorted((assets() / "curves").glob("vitviz_*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


@st.cache_data(max_entries=4)
def _record(name: str) -> dict[str, np.ndarray] | None:
    path = assets() / "curves" / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as arrays:
        return dict(arrays)


@st.cache_data
def _prefix_tokens(name: str) -> int:
    """How many tokens of a shipped model are no patches."""
    told = load_shipped(name).configuration
    tokens = told.get("class_token", True), told.get("distillation_token", False)
    return sum(tokens) + int(told.get("registers", 0))


def _moments(name: str) -> list[tuple[float, int]]:
    """The epoch (from the beginning of the run) and the input size of each recorded moment."""
    record = _record(name)
    if record is None:
        return []
    sizes, epochs = record["image_size"], record["epoch"]
    whole = {row["image_size"]: row["epoch"] for row in _runs()[name]["epochs"]}  # of each size
    before = {size: sum(whole[one] for one in whole if one < size) for size in np.unique(sizes)}
    return [
        (float(before[size] + epoch), int(size)) for size, epoch in zip(sizes, epochs, strict=True)
    ]


def _slider(moments: list[tuple[float, int]]) -> int:
    numbers = range(1, len(moments) + 1)
    chosen = setting("moment", numbers, len(moments)) - 1
    play, slider = st.columns([1, 7], vertical_alignment="bottom")
    with play:
        player("moment", chosen, len(moments))
    slider.select_slider(
        tr("Moment of the training"),
        numbers,
        key="moment",
        format_func=lambda number: _moment_words(*moments[number - 1]),
    )
    return chosen


def _moment_words(epoch: float, size: int) -> str:
    return (
        tr("epoch {epoch:.1f}, input of {size} px", epoch=epoch, size=size)
        if epoch
        else tr("before training")
    )


def _loss_words(run: dict[str, Any]) -> str:
    """The definition of the recorded loss, which the run minimised."""
    smoothing, temperature = run["label_smoothing"], run.get("temperature")
    what = tr("cross-entropy with the labels")
    if smoothing:
        what = tr(
            "cross-entropy with smoothed labels (ε = {smoothing:g}: that share of each "
            "label is spread evenly over all classes)",
            smoothing=smoothing,
        )
    if mixed := run.get("cutmix"):
        what += tr(
            ", and in {mixed} of the batches part of each picture and of its label comes "
            "from another picture (CutMix)",
            mixed=as_percent(mixed),
        )
    words = tr("The loss is the {what}", what=what)
    if temperature and not run["distillation_token"]:
        words = tr(
            "The loss is the mean of two terms: the {what}, and the divergence from the teacher's "
            "answer (both softened by a temperature τ = {temperature:g}, and the divergence "
            "multiplied by τ²)",
            what=what,
            temperature=temperature,
        )
    elif temperature:
        words = tr(
            "The loss is the mean of two terms: the {what}, for the CLS token, and the "
            "divergence from the teacher's answer, for the distillation token (both "
            "softened by a temperature τ = {temperature:g}, and the divergence multiplied "
            "by τ²)",
            what=what,
            temperature=temperature,
        )
    return tr(
        "{words}; each point is the mean over the batches since the point before it.", words=words
    )


def _teacher_words(run: dict[str, Any]) -> str:
    """Who taught the model, where it had a teacher."""
    teacher = run.get("teacher")
    if teacher is None:
        return ""
    return " " + tr(
        "The teacher is a CNN with a test accuracy of {accuracy:.1f} %, whose own training took "
        "{minutes} minutes; that of {name} took {own}.",
        accuracy=100 * teacher["test_accuracy"],
        minutes=teacher["minutes"],
        name=run["model"],
        own=run["minutes"],
    )


def _growth_words(run: dict[str, Any]) -> str:
    """How the last stage, with larger inputs, changed the accuracy."""
    rows, side = run["epochs"], run["picture_side"]
    small = [row for row in rows if row["image_size"] == rows[0]["image_size"]]
    if len(small) == len(rows):
        return ""
    before, after, size = small[-1]["held_out_accuracy"], rows[-1], rows[-1]["image_size"]
    pictures = tr("pictures of {size} px", size=size)
    if size > side:
        pictures = tr("the same pictures of {side} px, enlarged to {size} px", side=side, size=size)
    return tr(
        "The last {epochs:.3g} epochs were on {pictures}, with {factor} times as many "
        "patches and the position embeddings interpolated: held-out accuracy was "
        "{before:.1f} % before and {after:.1f} % after.",
        epochs=after["epoch"],
        pictures=pictures,
        factor=_side_factor(rows),
        before=100 * before,
        after=100 * after["held_out_accuracy"],
    )


def _test_words(run: dict[str, Any]) -> str:
    """When the test pictures were used."""
    if "tested_before" not in run:
        return " " + tr("The test pictures were used only once, after the last step.")
    times = [
        tr(
            "{accuracy:.1f} % right at epoch {epoch:g} at {size} px",
            accuracy=100 * one["test_accuracy"],
            epoch=one["epoch"],
            size=one["image_size"],
        )
        for one in run["tested_before"]
    ]
    return " " + tr(
        "The test pictures were used after the last step, and also earlier, when the training was "
        "to end but went on because more was wanted ({times}).",
        times=", ".join(times),
    )


def _side_factor(rows: list[dict[str, Any]]) -> str:
    return f"{(rows[-1]['image_size'] / rows[0]['image_size']) ** 2:g}"


def _as_it_was(
    name: str, moment: int, filters: "DeltaGenerator", positions: "DeltaGenerator"
) -> None:
    record = _record(name)
    assert record is not None
    kernel = record[f"filters_{moment}"].astype(np.float32)
    size, patch = int(record["image_size"][moment]), kernel.shape[-1]
    grid = (size // patch, size // patch)
    table = record[f"positions_{moment}"].astype(np.float32)
    with filters:
        st.subheader(tr("Filters"), anchor=False)
        components, explained = inspection.filter_components(kernel, n_components=SHOWN_COMPONENTS)
        show(plots.filter_components(components, explained, columns=4))
        st.markdown(tr("They explain {share} of the variance.", share=as_percent(explained.sum())))
    with positions:
        st.subheader(
            tr("Positions, {rows} x {columns}", rows=grid[0], columns=grid[1]), anchor=False
        )
        similarity = inspection.position_similarity(table, grid=grid)
        show(plots.position_similarity(similarity, height=380))
        near = inspection.neighbour_similarity(similarity)
        st.markdown(tr("Neighbours have a cosine of {near:.2f} on average.", near=near))
    far, even = st.columns(2)
    first = int(record["image_size"][0])
    with far:
        st.subheader(tr("Attention distance of the heads"), anchor=False)
        show(
            plots.distance_by_layer(
                record[f"distance_{moment}"] / size,
                record["distance_0"] / first,
                equal_sharing=inspection.uniform_distance(grid, patch) / size,
            )
        )
    if f"entropy_{moment}" in record:  # older records have none
        outside = _prefix_tokens(name)
        with even:
            st.subheader(tr("Entropy of their attention"), anchor=False)
            show(
                plots.entropy_by_layer(
                    record[f"entropy_{moment}"] / math.log2((size // patch) ** 2 + outside),
                    record["entropy_0"] / math.log2((first // patch) ** 2 + outside),
                )
            )
