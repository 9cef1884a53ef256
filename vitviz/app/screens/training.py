"""The page Training: recorded runs, and experiments with more data and other conditions."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import records
from vitviz.app.settings import setting
from vitviz.app.shared.classroom import PredictionQuestion
from vitviz.app.shared.view import View
from vitviz.app.widgets import lesson, prediction
from vitviz.app.widgets.control import control
from vitviz.app.widgets.data_table import Columns, Data, Table, head_columns
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import places
from vitviz.app.widgets.player import player
from vitviz.common.language import Message, as_percent, mark, tr, tr_md
from vitviz.text import guesses, page_text
from vitviz.zoo.checkpoints import load_shipped

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

# Test accuracy of the ViT with which this project began, which was written for a course.
OF_A_COURSE = {"cifar10": 0.7136, "cifar100": 0.4408}
NETWORKS = {"vit": mark("ViT"), "cnn": mark("small CNN")}
CONDITIONS = (
    mark("plain initialisation"),
    mark("mimetic initialisation"),
    mark("CutMix"),
    mark("a CNN as teacher"),
)
_RECORD = "a ViT of 6 layers of 4 heads, D = 128, and a small CNN, trained on CIFAR-10"

# Student's t for three seeds, and the normal distribution's: 95 % lie within so many deviations.
_T_TWO, _NORMAL = 4.303, 1.96


def page(view: View) -> Data:
    names = records.run_names()
    name = view.model.name if view.model.name in names else names[0]
    if name != view.model.name:
        places().top.info(
            tr_md(
                "{name} has no recorded training run: that of {shown} is shown.",
                name=view.model.name,
                shown=name,
            )
        )
    moment = _run(name)
    guessed = _draw_hunger()
    _draw_conditions()
    line = tr("{name} · recorded during training", name=name)
    if moment is not None:
        line += f" · {_moment_words(*_moments(name)[moment])}"
    tables = partial(_tables, name, moment)
    return Data(tables, record=line, hidden=guessed is False)


@lesson.part("moment")
def _run(name: str) -> int:
    """Draw a run; return the moment on screen."""
    run, moments = records.read(name), _moments(name)
    moment = _slider(moments)
    curve, filters, positions = places().stage.columns([5, 3, 4])
    with curve:
        st.subheader(tr("The run of {name}", name=name), anchor=False)
        dataset = name.removeprefix("vitviz_tiny_")
        show_figure(
            plots.training_curves(
                {"": run["epochs"]},
                test_accuracy={"": run["test_accuracy"]},
                reference=OF_A_COURSE.get(dataset),
                chosen=moments[moment][0],
            ),
            key="curve",
        )
        st.markdown(_growth_words(run) + _test_words(run))
    _fold(_loss_words(run) + _teacher_words(run))
    _as_it_was(name, moment, filters, positions)
    return moment


def _tables(name: str, moment: int | None) -> list[Table]:
    run = records.read(name)
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
    if moment is not None:
        moments = records.read_moments(name)
        distance = moments[f"distance_{moment}"]
        epoch, size = _moments(name)[moment]
        columns = {
            **head_columns(distance.shape),
            Message("distance, px"): distance.ravel(),
            Message("entropy, bits"): moments[f"entropy_{moment}"].ravel(),
        }
        about = tr(
            "Attention at {moment}, the mean of 16 pictures.", moment=_moment_words(epoch, size)
        )
        tables.append(Table(about, columns))
    return [*tables, *_experiment_tables()]


@st.cache_data
def _prefix_tokens(name: str) -> int:
    """Return how many tokens of a shipped model are no patches."""
    configuration = load_shipped(name).configuration
    tokens = (
        configuration.get("class_token", True),
        configuration.get("distillation_token", False),
        configuration.get("registers", 0),
    )
    return int(sum(tokens))


def _moments(name: str) -> list[tuple[float, int]]:
    """Return epoch (from the beginning of the run) and input size of each recorded moment."""
    moments = records.read_moments(name)
    sizes, epochs = moments["image_size"], moments["epoch"]
    whole = {row["image_size"]: row["epoch"] for row in records.read(name)["epochs"]}
    before = {size: sum(whole[one] for one in whole if one < size) for size in np.unique(sizes)}
    return [
        (float(before[size] + epoch), int(size)) for size, epoch in zip(sizes, epochs, strict=True)
    ]


def _slider(moments: list[tuple[float, int]]) -> int:
    numbers = range(1, len(moments) + 1)
    chosen = setting("moment", numbers, len(moments)) - 1
    with places().bar:
        player("moment", chosen, len(moments))
    control(
        "moment",
        tr("Moment of the training"),
        numbers,
        "bar",
        "select_slider",
        lambda number: _moment_words(*moments[number - 1]),
        width=420,
    )
    return chosen


def _moment_words(epoch: float, size: int) -> str:
    return (
        tr("epoch {epoch:.1f}, input of {size} px", epoch=epoch, size=size)
        if epoch
        else tr("before training")
    )


def _loss_words(run: dict[str, Any]) -> str:
    """Define the recorded loss, which the run minimised."""
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
    """Say who taught the model, where it had a teacher."""
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
    """Say how the last stage, with larger inputs, changed the accuracy."""
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
        factor=f"{(rows[-1]['image_size'] / rows[0]['image_size']) ** 2:g}",
        before=100 * before,
        after=100 * after["held_out_accuracy"],
    )


def _test_words(run: dict[str, Any]) -> str:
    """Say when the test pictures were used."""
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


def _lowest_cosine(name: str) -> float:
    """Return where the scale of cosines begins, the same at every moment of a run.

    On a scale from -1, cosines that are all positive are painted nearly alike.
    """
    moments = range(len(records.read_moments(name)["epoch"]))
    least = min(float(records.positions_at(name, moment).min()) for moment in moments)
    return math.floor(100 * least) / 100 if least > 0 else -1.0


def _as_it_was(
    name: str, moment: int, filters: "DeltaGenerator", positions: "DeltaGenerator"
) -> None:
    moments, kernel = records.read_moments(name), records.filters_at(name, moment)
    first, size, patch = *(int(moments["image_size"][at]) for at in (0, moment)), kernel.shape[-1]
    similarity = records.positions_at(name, moment)
    grid = similarity.shape[:2]
    with filters:
        st.subheader(tr("Filters"), anchor=False)
        components, explained = inspection.filter_components(
            kernel, n_components=records.COMPONENTS
        )
        show_figure(plots.filter_components(components, explained, columns=3))
        st.markdown(tr("They explain {share} of the variance.", share=as_percent(explained.sum())))
    with positions:
        st.subheader(
            tr("Positions, {rows} x {columns}", rows=grid[0], columns=grid[1]), anchor=False
        )
        show_figure(
            plots.position_similarity(similarity, height=300, low=_lowest_cosine(name)),
            key="as_it_was",
        )
        near = inspection.neighbour_similarity(similarity)
        st.markdown(tr("Neighbours have a cosine of {near:.2f} on average.", near=near))
    far, even = st.columns(2)
    with far:
        st.subheader(tr("Attention distance of the heads"), anchor=False)
        show_figure(
            plots.distance_by_layer(
                moments[f"distance_{moment}"] / size,
                moments["distance_0"] / first,
                equal_sharing=inspection.uniform_distance(grid, patch) / size,
            )
        )
    outside = _prefix_tokens(name)
    with even:
        st.subheader(tr("Entropy of their attention"), anchor=False)
        show_figure(
            plots.entropy_by_layer(
                moments[f"entropy_{moment}"] / math.log2((size // patch) ** 2 + outside),
                moments["entropy_0"] / math.log2((first // patch) ** 2 + outside),
            )
        )


@lesson.part("hunger")
def _draw_hunger() -> bool:
    """Draw accuracy by the number of pictures; return False where it is to be guessed first."""
    record = records.read("data_hunger")
    st.subheader(tr("Data hunger: accuracy by the number of training pictures"), anchor=False)
    results = {
        tr(words): [
            (
                round(share * record["pictures"]),
                *_interval(records.accuracies(record, network, share)),
            )
            for share in sorted({run["share"] for run in record["runs"]})
        ]
        for network, words in NETWORKS.items()
    }
    papers = lesson.current_step() is not None and lesson.shows("papers")
    guess = None
    if prediction.is_on():
        question = PredictionQuestion("training", "data hunger", None)
        guess = prediction.current_guess(question)
        if guess is None:
            whole = float(np.mean(records.accuracies(record, "vit", 1.0)))
            words = guesses.ask_with_a_tenth(whole, record["pictures"])
            prediction.ask_percent(question, words, draw=plots.guesses_of_percent)
            return False
        vit, cnn = (
            float(np.mean(records.accuracies(record, network, 0.1))) for network in ("vit", "cnn")
        )
        prediction.draw_verdict(guess, partial(guesses.describe_accuracy, vit, cnn))
    columns = st.columns([1, 1] if papers else [3, 2])
    with columns[0]:
        figure = plots.data_hunger(results)
        if guess is not None and guess.answer is not None:
            figure.add_scatter(
                x=[record["pictures"] / 10],
                y=[guess.answer],
                name=tr("your guess"),
                mode="markers",
                marker=dict(symbol="star", size=16, color=plots.KEY),
            )
        show_figure(figure)
        if guess is not None:
            prediction.draw_class_guesses(guess.question, plots.guesses_of_percent)
    if papers:
        columns[1].markdown(page_text("training").papers)
        return True
    what = tr("A small ViT and a small CNN were trained on parts of CIFAR-10.")
    points = tr(
        "Points with several seeds show the mean and its 95 % confidence interval "
        "over the seeds (Student's t). The others show one run, with the 95 % "
        "confidence interval of an accuracy on 10,000 test pictures."
    )
    sentences = [what]
    done = max((run["share"] for run in record["runs"] if run["converged"]), default=1.0)
    if cut := [run["share"] for run in record["runs"] if run["share"] > done]:
        least = round(min(cut) * record["pictures"])
        flat = tr(
            "All runs with {least:,} training pictures or more are among them: the flat lines at "
            "the right do not show that more data would be useless.",
            least=least,
        )
        sentences.append(flat)
    with columns[1]:
        st.markdown(" ".join(sentences))
        _fold(f"{_end_words(record)} {points}")
    return True


def _fold(words: str) -> None:
    """Draw how something was measured in a closed expander."""
    with st.expander(tr("How it was measured")):
        st.markdown(words)


def _end_words(record: dict[str, Any]) -> str:
    """Say when the runs ended."""
    cut = sum(not run["converged"] for run in record["runs"])
    if cut == len(record["runs"]):
        return tr(
            "Every run ended when it had seen about {seen:,} pictures.", seen=record["most_seen"]
        )
    return tr(
        "A run ended when its accuracy on the held-out pictures no longer rose, or when it had "
        "seen about {seen:,} pictures. {cut} of the {count} runs ended at this limit; longer "
        "training might have made them better.",
        seen=record["most_seen"],
        cut=cut,
        count=len(record["runs"]),
    )


@lesson.part("conditions")
def _draw_conditions() -> None:
    record = records.read("inductive_bias")
    st.subheader(tr("Where inductive bias can come from"), anchor=False)
    runs = {
        name: sorted(
            (run for run in record["runs"] if run["condition"] == name), key=lambda run: run["seed"]
        )
        for name in CONDITIONS
    }
    accuracy = {name: [run["test_accuracy"] for run in kept] for name, kept in runs.items()}
    half = {tr(name): _interval(values)[1] for name, values in accuracy.items()}
    shares = {
        what: {
            tr(name): np.concatenate([np.ravel(run[what]) for run in kept])
            for name, kept in runs.items()
        }
        for what in ("distance", "entropy")
    }
    columns = st.columns(3)
    with columns[0]:
        measured = {tr(name): values for name, values in accuracy.items()}
        show_figure(plots.conditions(measured, axis=tr("test accuracy, %"), half=half))
    with columns[1]:
        axis = tr("distance, % of equal sharing")
        show_figure(plots.conditions(shares["distance"], axis=axis, reference=1.0))
    with columns[2]:
        axis = tr("entropy, % of equal sharing")
        show_figure(plots.conditions(shares["entropy"], axis=axis, reference=1.0))
    passes = tr(
        "That is {passes:.0f} passes over the training pictures; in longer training the conditions "
        "may rank otherwise.",
        passes=record["most_seen"] / record["pictures"],
    )
    what = tr(
        "A ViT of 6 layers of 4 heads, D = 128, was trained on CIFAR-10 under four conditions, "
        "with three seeds each."
    )
    figures = tr(
        "Diamonds are means. In the figure of accuracy a circle is the run of one seed, and a bar "
        "is the 95 % confidence interval of the mean over the seeds (Student's t). In the other "
        "two figures a circle is one head, and the dashed line is at the value of a head that "
        "attends to all tokens equally."
    )
    st.markdown(f"{what}\n\n{_differences(accuracy, runs)}")
    _fold("\n\n".join([f"{_end_words(record)} {passes}", figures, _neighbour_words(runs)]))


def _experiment_tables() -> list[Table]:
    """Return the numbers of both figures: by run, and by head at the end of a run."""
    record = records.read("data_hunger")
    hunger: Columns = {
        Message("network"): [Message(NETWORKS[run["network"]]) for run in record["runs"]],
        Message("training pictures"): [
            round(run["share"] * record["pictures"]) for run in record["runs"]
        ],
        Message("seed"): [run["seed"] for run in record["runs"]],
        Message("pictures seen"): [run["pictures_seen"] for run in record["runs"]],
        Message("test accuracy"): [run["test_accuracy"] for run in record["runs"]],
    }
    runs = records.read("inductive_bias")["runs"]
    bias: Columns = {
        Message("condition"): [Message(run["condition"]) for run in runs],
        Message("seed"): [run["seed"] for run in runs],
        Message("test accuracy"): [run["test_accuracy"] for run in runs],
        Message("minutes of one core"): [run["core_minutes"] for run in runs],
        Message("cosine of neighbours before"): [run["neighbours"][0] for run in runs],
        Message("cosine of neighbours after"): [run["neighbours"][1] for run in runs],
    }
    distance, entropy = (np.array([run[of] for run in runs]) for of in ("distance", "entropy"))
    number, layers, heads = np.indices(distance.shape).reshape(3, -1)
    by_head: Columns = {
        Message("condition"): [Message(runs[each]["condition"]) for each in number],
        Message("seed"): [runs[each]["seed"] for each in number],
        Message("layer"): layers + 1,
        Message("head"): heads + 1,
        Message("distance / equal sharing"): distance.ravel(),
        Message("entropy / equal sharing"): entropy.ravel(),
    }
    return [
        Table(about, columns, record=_RECORD)
        for about, columns in (
            (tr("Data hunger: accuracy by the number of training pictures"), hunger),
            (tr("Where inductive bias can come from"), bias),
            (tr("Where inductive bias can come from: the heads at the end of each run"), by_head),
        )
    ]


def _differences(accuracy: dict[str, list[float]], runs: dict[str, list[dict[str, Any]]]) -> str:
    """List what each condition changed beside the first, from runs of the same seed."""
    plain, sentences = np.array(accuracy[CONDITIONS[0]]), []
    for name in CONDITIONS[1:]:
        mean, half = _interval((np.array(accuracy[name]) - plain).tolist())
        sentences.append(
            tr(
                "{name}: {mean:+.1f} percentage points (95 % interval from {low:+.1f} to "
                "{high:+.1f}), {minutes:.0f} minutes",
                name=tr(name),
                mean=100 * mean,
                low=100 * (mean - half),
                high=100 * (mean + half),
                minutes=_minutes(runs[name]),
            )
        )
    intro = tr(
        "All runs saw the same number of pictures, but they took different times: with plain "
        "initialisation {minutes:.0f} minutes of one core on average. This is how the accuracy "
        "changed compared with plain initialisation and the same seeds; where an interval contains "
        "0, three seeds show no difference.",
        minutes=_minutes(runs[CONDITIONS[0]]),
    )
    return intro + "\n\n" + "\n".join(f"- {each}" for each in sentences)


def _minutes(runs: list[dict[str, Any]]) -> float:
    """Return the minutes of the runs that were not interrupted."""
    known = [run["core_minutes"] for run in runs if run["core_minutes"] is not None]
    return float(np.mean(known))


def _neighbour_words(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Say how alike neighbouring positions were before training and after it."""
    cosines = [
        f"{tr(name)} {before:.2f} → {after:.2f}"
        for name, kept in runs.items()
        for before, after in [np.mean([run["neighbours"] for run in kept], axis=0)]
    ]
    return tr(
        "Mean cosine of neighbouring position embeddings before training and after it: {cosines}.",
        cosines="; ".join(cosines),
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of accuracies, and half the width of its 95 % interval.

    The interval is over three runs or, for one accuracy, over the test pictures.
    """
    mean = float(np.mean(values))
    if len(values) == 3:
        return mean, _T_TWO * float(np.std(values, ddof=1)) / math.sqrt(3)
    return mean, _NORMAL * math.sqrt(mean * (1 - mean) / 10_000)
