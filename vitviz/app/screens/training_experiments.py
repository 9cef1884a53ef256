"""On the page Training: what more data, and other conditions, do to a small ViT."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.shared import lessons
from vitviz.app.widgets.data_table import Columns, Table
from vitviz.app.widgets.figure import show
from vitviz.checkpoints import assets
from vitviz.language import Message, mark, tr
from vitviz.text import page_text

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


def hunger() -> None:
    found = _read("data_hunger")
    if found is None:
        return
    st.subheader(tr("Data hunger: accuracy by the number of training pictures"), anchor=False)
    results = {
        tr(words): [
            (round(share * found["pictures"]), *_interval(_accuracy(found, network, share)))
            for share in sorted({run["share"] for run in found["runs"]})
        ]
        for network, words in NETWORKS.items()
    }
    papers = lessons.step() is not None and lessons.shows("papers")
    figure, words = st.columns([1, 1] if papers else [3, 2])
    with figure:
        show(plots.data_hunger(results))
    if papers:
        words.markdown(page_text("training").papers)
        return
    what = tr("A small ViT and a small CNN were trained on parts of CIFAR-10.")
    points = tr(
        "Points with several seeds show the mean and its 95 % confidence interval "
        "over the seeds (Student's t). The others show one run, with the 95 % "
        "confidence interval of an accuracy on 10,000 test pictures."
    )
    said = [what, _end_words(found), points]
    done = max((run["share"] for run in found["runs"] if run["converged"]), default=1.0)
    if cut := [run["share"] for run in found["runs"] if run["share"] > done]:
        least = round(min(cut) * found["pictures"])
        flat = tr(
            "All runs with {least:,} training pictures or more are among them: the flat lines at "
            "the right do not show that more data would be useless.",
            least=least,
        )
        said.insert(2, flat)
    words.markdown(" ".join(said))


def _end_words(found: dict[str, Any]) -> str:
    """When the runs ended."""
    cut = sum(not run["converged"] for run in found["runs"])
    if cut == len(found["runs"]):
        return tr(
            "Every run ended when it had seen about {seen:,} pictures.", seen=found["most_seen"]
        )
    return tr(
        "A run ended when its accuracy on the held-out pictures no longer rose, or when it had "
        "seen about {seen:,} pictures. {cut} of the {count} runs ended at this limit; longer "
        "training might have made them better.",
        seen=found["most_seen"],
        cut=cut,
        count=len(found["runs"]),
    )


def conditions() -> None:
    found = _read("inductive_bias")
    if found is None:
        return
    st.subheader(tr("Where inductive bias can come from"), anchor=False)
    runs = {
        name: sorted(
            (run for run in found["runs"] if run["condition"] == name), key=lambda run: run["seed"]
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
        show(plots.conditions(measured, axis=tr("test accuracy, %"), half=half))
    with columns[1]:
        axis = tr("distance, % of equal sharing")
        show(plots.conditions(shares["distance"], axis=axis, reference=1.0))
    with columns[2]:
        axis = tr("entropy, % of equal sharing")
        show(plots.conditions(shares["entropy"], axis=axis, reference=1.0))
    passes = tr(
        "That is {passes:.0f} passes over the training pictures; in longer training the conditions "
        "may rank otherwise.",
        passes=found["most_seen"] / found["pictures"],
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
    said = [f"{what} {_end_words(found)} {passes}", figures, _differences(accuracy, runs)]
    st.markdown("\n\n".join([*said, _neighbour_words(runs)]))


def tables() -> list[Table]:
    """The numbers of both figures, a row for each run; and of each head at the end of a run."""
    made = []
    if found := _read("data_hunger"):
        runs = found["runs"]
        columns: Columns = {
            Message("network"): [Message(NETWORKS[run["network"]]) for run in runs],
            Message("training pictures"): [round(run["share"] * found["pictures"]) for run in runs],
            Message("seed"): [run["seed"] for run in runs],
            Message("pictures seen"): [run["pictures_seen"] for run in runs],
            Message("test accuracy"): [run["test_accuracy"] for run in runs],
        }
        about = tr("Data hunger: accuracy by the number of training pictures")
        made.append(Table(about, columns, record=_RECORD))
    if found := _read("inductive_bias"):
        runs = found["runs"]
        columns = {
            Message("condition"): [Message(run["condition"]) for run in runs],
            Message("seed"): [run["seed"] for run in runs],
            Message("test accuracy"): [run["test_accuracy"] for run in runs],
            Message("minutes of one core"): [run["core_minutes"] for run in runs],
            Message("cosine of neighbours before"): [run["neighbours"][0] for run in runs],
            Message("cosine of neighbours after"): [run["neighbours"][1] for run in runs],
        }
        made.append(Table(tr("Where inductive bias can come from"), columns, record=_RECORD))
        distance, entropy = (np.array([run[of] for run in runs]) for of in ("distance", "entropy"))
        number, layers, heads = np.indices(distance.shape).reshape(3, -1)
        columns = {
            Message("condition"): [Message(runs[each]["condition"]) for each in number],
            Message("seed"): [runs[each]["seed"] for each in number],
            Message("layer"): layers + 1,
            Message("head"): heads + 1,
            Message("distance / equal sharing"): distance.ravel(),
            Message("entropy / equal sharing"): entropy.ravel(),
        }
        about = tr("Where inductive bias can come from: the heads at the end of each run")
        made.append(Table(about, columns, record=_RECORD))
    return made


def _differences(accuracy: dict[str, list[float]], runs: dict[str, list[dict[str, Any]]]) -> str:
    """What each condition changed beside the first, from runs of the same seed, as a list."""
    plain, said = np.array(accuracy[CONDITIONS[0]]), []
    for name in CONDITIONS[1:]:
        mean, half = _interval((np.array(accuracy[name]) - plain).tolist())
        said.append(
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
    return intro + "\n\n" + "\n".join(f"- {each}" for each in said)


def _minutes(runs: list[dict[str, Any]]) -> float:
    """Of those that were not interrupted."""
    known = [run["core_minutes"] for run in runs if run["core_minutes"] is not None]
    return float(np.mean(known))


def _neighbour_words(runs: dict[str, list[dict[str, Any]]]) -> str:
    """How alike neighbouring positions were before training and after it."""
    cosines = [
        f"{tr(name)} {before:.2f} → {after:.2f}"
        for name, kept in runs.items()
        for before, after in [np.mean([run["neighbours"] for run in kept], axis=0)]
    ]
    return tr(
        "Mean cosine of neighbouring position embeddings before training and after it: {cosines}.",
        cosines="; ".join(cosines),
    )


def _read(name: str) -> dict[str, Any] | None:
    path = assets() / "curves" / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _accuracy(found: dict[str, Any], network: str, share: float) -> list[float]:
    return [
        run["test_accuracy"]
        for run in found["runs"]
        if run["network"] == network and run["share"] == share
    ]


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Their mean, and half the width of its 95 % interval; of one accuracy, over the pictures."""
    mean = float(np.mean(values))
    if len(values) == 3:
        return mean, _T_TWO * float(np.std(values, ddof=1)) / math.sqrt(3)
    return mean, _NORMAL * math.sqrt(mean * (1 - mean) / 10_000)
