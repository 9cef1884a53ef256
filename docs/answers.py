"""Compute the numbers of the seven lessons, for docs/teaching.py, from the files that ship."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import vitviz
from vitviz import attribution, inspection, intervention
from vitviz.activations import DropPatches, Edit, FillPatches
from vitviz.app import cells, lessons, records
from vitviz.common import DEFAULT_MODEL
from vitviz.common.files import assets
from vitviz.intervention.equivariance import shuffle_patches
from vitviz.text.class_names import common_names
from vitviz.text.families import CARDS
from vitviz.text.lessons import settings_of
from vitviz.zoo import toy_model
from vitviz.zoo.checkpoints import load_shipped

_NEAR = 0.005  # relative: values closer than this are not ranked, as machines round differently


class Scene(NamedTuple):
    """A sample picture and its capture."""

    image: Image.Image
    acts: vitviz.Activations

    @property
    def answer(self) -> int:
        return largest(not_none(self.acts.probabilities))


class Place(NamedTuple):
    """The largest value of a map and its patch; rows and columns count from 1."""

    row: int
    column: int
    value: float


@cache
def model(name: str = DEFAULT_MODEL) -> vitviz.Model:
    return vitviz.load_model(name)


@cache
def scene(picture: str, name: str = DEFAULT_MODEL) -> Scene:
    image = vitviz.open_image((assets() / "samples" / f"{picture}.jpg").read_bytes())
    return Scene(image, vitviz.capture(model(name), image))


def of_step(number: int, step: int) -> tuple[Scene, dict[str, str]]:
    """Return the scene of a lesson's step, and the settings of its link."""
    settings = settings_of(number, step)
    return scene(settings["picture"], settings.get("model", DEFAULT_MODEL)), settings


def largest(values: np.ndarray) -> int:
    """Return the index of the largest value.

    Raises
    ------
    ValueError
        When a second value is within `_NEAR` of it.
    """
    behind = np.max(values) - np.ravel(values)
    numbers = [int(number) for number in np.flatnonzero(behind < _NEAR * abs(np.max(values)))]
    if len(numbers) > 1:
        near = np.ravel(values)[numbers]
        raise ValueError(f"{near} are too near to each other to name the largest one.")
    return numbers[0]


def peak(values: np.ndarray) -> Place:
    number = largest(values)
    row, column = divmod(number, values.shape[1])
    return Place(row + 1, column + 1, float(values.flat[number]))


def not_none(values: np.ndarray | None) -> np.ndarray:
    assert values is not None
    return values


def _query(settings: Mapping[str, str]) -> tuple[int, int]:
    row, column = settings["query"].split(".")
    return int(row) - 1, int(column) - 1


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(np.ravel(one), np.ravel(other))[0, 1])


def _spread(rows: np.ndarray) -> float:
    """Return the mean share of a row's attention that must move to make all rows equal."""
    return float(np.abs(rows - rows.mean(axis=0)).sum(axis=1).mean() / 2)


def final_sentences(number: int) -> tuple[str, ...]:
    """Return the sentences that the app shows at the end of a lesson."""
    shown, settings = of_step(number, 1)
    of = model(settings.get("model", DEFAULT_MODEL))
    return lessons.findings(number, of, shown.image, shown.acts)


def path() -> dict[str, Any]:
    """Compute lesson 1: from picture to answer."""
    shown, settings = of_step(1, 2)
    acts = shown.acts
    tokens, width = acts.tokens(0).shape
    small = model(settings["model"])
    kernel = not_none(small.patch_kernel)
    query = int(np.ravel_multi_index(_query(settings), acts.grid)) + acts.num_prefix_tokens
    row = acts.attention(int(settings["layer"]) - 1)[int(settings["head"]) - 1, query]
    return {
        "tokens": tokens,
        "width": width,
        "numbers": tokens * width,
        "accuracy": load_shipped(settings["model"]).test_accuracy,
        "patches": len(acts.patches),
        "grid": acts.grid,
        "side": kernel.shape[-1],
        "in_patch": kernel[0].size,
        "input": small.preprocess.input_size,
        "most": peak(row[acts.num_prefix_tokens :].reshape(acts.grid)),
        "reached": count_changed(acts, query, small),
    }


def count_changed(acts: vitviz.Activations, token: int, of: vitviz.Model) -> dict[str, int]:
    """Count the tokens that change in each half of layer 1 when one token is exchanged."""
    block: Any = of.module.get_submodule("blocks.0")
    halves: dict[str, Any] = {
        "attention": lambda z: block.attn(block.norm1(z)),
        "mlp": lambda z: block.mlp(block.norm2(z)),
    }
    before = torch.tensor(acts.tokens(0))[None]
    after = before.clone()
    after[0, token] = before[0, acts.num_prefix_tokens]
    with torch.inference_mode():
        return {
            name: int(((half(before) - half(after)).abs() > 1e-6).any(dim=-1).sum())
            for name, half in halves.items()
        }


def positions() -> dict[str, Any]:
    """Compute lesson 2: a filter, the order of the patches, and their positions."""
    shown, settings = of_step(2, 3)
    shuffled = shuffle_patches(model(), shown.image, seed=1)  # order number 1 of the page
    top_answers = [
        [
            (class_name(shown.acts, largest(row)), float(row.max()), float(row[shown.answer]))
            for row in two
        ]
        for two in shuffled.outputs
    ]
    if shuffled.changes[1] > 1e-5:
        raise ValueError("Without E_pos the order of the patches changes the answer.")
    grid = shown.acts.grid
    row, column = _query(settings)
    learned = inspection.position_similarity(not_none(model().position_embedding), grid=grid)
    table = inspection.position_table("random", grid=grid, embed_dim=shown.acts.tokens(0).shape[1])
    drawn = inspection.position_similarity(table, grid=grid)
    component = int(of_step(2, 1)[1]["filter"])
    tiles, _ = inspection.filter_components(not_none(model().patch_kernel), n_components=component)
    pixels = model().preprocess(shown.image).numpy()
    response = inspection.filter_response(pixels, tiles[-1])
    beside = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return {
        "component": component,
        "products": tiles[-1].size,
        "like": peak(response),
        "opposite": peak(-response),
        "with": top_answers[0],
        "without": top_answers[1],
        "answer": class_name(shown.acts, shown.answer),
        "query": (row + 1, column + 1),
        "beside": float(np.mean([learned[row, column][place] for place in beside])),
        "corner": float(learned[row, column, -1, -1]),
        "last": grid,
        "all_beside": inspection.neighbour_similarity(learned),
        "random_beside": inspection.neighbour_similarity(drawn),
    }


TENTH = 0.1  # of the patches, those that rank highest
#: The columns of cat and ball in each row of patches from the fourth on, by eye.
CAT = ((3, 5), (3, 12), (2, 16), (3, 16), (4, 16), (5, 16), (6, 16), (13, 16), (13, 14))


def looks() -> dict[str, Any]:
    """Compute lesson 3: where CLS and the patches look."""
    shown, first = of_step(3, 1)
    acts, prefix = shown.acts, shown.acts.num_prefix_tokens
    mean = acts.attention(int(first.get("layer", acts.depth)) - 1).mean(axis=0)
    _, second = of_step(3, 2)
    heads = acts.attention(int(second["layer"]) - 1)[:, prefix:, prefix:]
    moved = np.array([_spread(head / head.sum(axis=1, keepdims=True)) for head in heads])
    query = np.ravel_multi_index(_query(second), acts.grid)
    return {
        "peak": peak(mean[0, prefix:].reshape(acts.grid)),
        "cls": float(mean[0, 0]),
        "equal": 1 / len(mean),
        "tokens": len(mean),
        "answer": class_name(acts, shown.answer),
        "probability": float(not_none(acts.probabilities)[shown.answer]),
        "follows": (largest(moved) + 1, float(moved.max())),
        "same": (largest(-moved) + 1, float(moved.min())),
        "itself": float(heads[int(second["head"]) - 1, query, query]),
        "query": tuple(number + 1 for number in _query(second)),
        "cat": _cat(),
    }


def _cat() -> dict[str, Any]:
    """Compute step 3.3: the map lies on cat and ball, and the answer is another class."""
    shown, _ = of_step(3, 3)
    acts = shown.acts
    if "cat" in class_name(acts, shown.answer):
        raise ValueError("The guide says that the answer for the cat is another class.")
    grades = model().grades
    if grades is None or grades.of(float(not_none(acts.probabilities)[shown.answer])) != "weak":
        raise ValueError("The guide says that the answer for the cat is a weak one.")
    values = attribution.relevance(model(), shown.image, shown.answer)
    highest = inspection.patch_ranks(values) >= 1 - TENTH
    covered = np.zeros(acts.grid, bool)
    for row, (first, end) in enumerate(CAT, start=3):
        covered[row, first:end] = True
    if highest[covered].sum() < 0.8 * highest.sum():
        raise ValueError("The guide says that the class map lies on cat and ball.")
    return {
        "peak": peak(values / values.sum()),
        "highest": int(highest.sum()),
        "covered": int(highest[covered].sum()),
        "patches": highest.size,
        "of_cat": int(covered.sum()),
        "answer": class_name(acts, shown.answer),
        "probability": float(not_none(acts.probabilities)[shown.answer]),
    }


def class_name(acts: vitviz.Activations, index: int) -> str:
    """Return the name of a class as the app shows it."""
    return common_names(acts.output_names)[index]


def local() -> dict[str, Any]:
    """Compute lesson 4: attention distance, and what a first layer may look at."""
    acts = of_step(4, 1)[0].acts
    distance = inspection.attention_distance(acts)
    near = divmod(largest(-distance), distance.shape[1])
    equal = inspection.uniform_distance(acts.grid, acts.patch_size)
    wide = divmod(largest(-np.abs(distance - equal)), distance.shape[1])
    whole = {family: sees_all(family) for family in CARDS}
    return {
        "layers": [float(value) for value in distance.mean(axis=1)],
        "most_local": largest(-distance.mean(axis=1)) + 1,
        "equal": equal,
        "near": (near[0] + 1, near[1] + 1, float(distance[near])),
        "wide": (wide[0] + 1, wide[1] + 1, float(distance[wide])),
        "itself": (_itself(acts, *near), _itself(acts, *wide)),
        "itself_equal": 1 / len(acts.patches),
        "whole": [family for family, sees in whole.items() if sees],
        "windows": [family for family, sees in whole.items() if not sees],
    }


def sees_all(family: str) -> bool:
    """Return whether every patch of the first layer may attend to every key."""
    toy = toy_model(family)
    acts = vitviz.capture(toy, scene("dog").image)
    if acts.layers[0].kind == "mixing":
        return bool(inspection.allowed_pairs(np.abs(toy.token_mixing(0))).all())
    return bool(inspection.allowed_pairs(acts.attention(0)).all())


def _itself(acts: vitviz.Activations, layer: int, head: int) -> float:
    """Return the mean share of its attention to patches that a patch gives to itself."""
    prefix = acts.num_prefix_tokens
    rows = acts.attention(layer)[head, prefix:, prefix:]
    return float((rows.diagonal() / rows.sum(axis=1)).mean())


def reaches() -> dict[str, Any]:
    """Compute lesson 5: rollout, and maps of a class."""
    shown, _ = of_step(5, 1)
    acts, prefix = shown.acts, shown.acts.num_prefix_tokens
    rows = [step[0] for step in inspection.rollout_steps(acts)]
    final = rows[-1][prefix:]
    if "cls" not in acts.read_tokens:
        raise ValueError("The guide says what the residual connection carries of CLS.")
    probabilities = not_none(acts.probabilities)
    order = probabilities.argsort()[::-1]
    absent = acts.output_names.index("goldfish")
    maps = [
        attribution.relevance(model(), shown.image, int(index))
        for index in (order[0], order[1], absent)
    ]
    return {
        "own": [float(row[0]) for row in rows],
        "carried": [float(share) for share in lessons.carried(acts)],
        "alike": [correlation(row[prefix:], final) for row in rows],
        "answer": (class_name(acts, order[0]), float(probabilities[order[0]])),
        "second": (class_name(acts, order[1]), float(probabilities[order[1]])),
        "absent": (acts.output_names[absent], float(probabilities[absent])),
        "peaks": [peak(values / values.sum()) for values in maps],
        "class_alike": [correlation(maps[0], values) for values in maps[1:]],
    }


def changes() -> dict[str, Any]:
    """Compute lesson 6: the answer without some blocks or patches."""
    shown, settings = of_step(6, 2)
    acts, side = shown.acts, 4  # of a block, as the page begins with
    before = float(not_none(acts.probabilities)[shown.answer])
    falls = intervention.occlusion(
        model(), shown.image, target=shown.answer, block=side, removal="drop"
    )[::side, ::side]
    painted = cells.read_cells(settings["painted"], acts.grid)
    assert painted is not None
    edits: dict[str, Edit] = {
        "removed": DropPatches(painted),
        "alone": DropPatches(~painted),
        "blurred": FillPatches(painted, "blur"),
    }
    answers = {}
    for name, edit in edits.items():
        changed = not_none(vitviz.capture(model(), shown.image, edits=[edit]).probabilities)
        top = largest(changed)
        answers[name] = (class_name(acts, top), float(changed[top]), float(changed[shown.answer]))
    return {
        "answer": class_name(acts, shown.answer),
        "before": before,
        "blocks": [[float(fall) for fall in row] for row in falls],
        "most": peak(falls),
        "least": peak(-falls),
        "patches": int(painted.sum()),
        "answers": answers,
    }


def data() -> dict[str, Any]:
    """Compute lesson 7: what training changed, and how much data it took."""
    hunger = records.read("data_hunger")
    shares = sorted({one["share"] for one in hunger["runs"]})
    curves = {
        name: [float(np.mean(records.accuracies(hunger, name, share))) for share in shares]
        for name in ("vit", "cnn")
    }
    profile = vitviz.load_profile(assets() / "profiles" / f"{DEFAULT_MODEL}.npz")
    return {
        "moments": moments(DEFAULT_MODEL, (0, 1, 2, -1)),
        "components": records.COMPONENTS,
        "accuracy": not_none(np.array(profile.accuracy))[0],
        "five": not_none(np.array(profile.accuracy))[1],
        "test": profile.about["pictures"],
        "classes": len(model().labels or ()),
        "pictures": [round(share * hunger["pictures"]) for share in shares],
        **curves,
        "gaps": [cnn - vit for vit, cnn in zip(curves["vit"], curves["cnn"], strict=True)],
        "seen": hunger["most_seen"],
        "runs": len(hunger["runs"]),
        "cut": sum(not one["converged"] for one in hunger["runs"]),
    }


def moments(name: str, chosen: Sequence[int]) -> list[dict[str, float]]:
    """Measure filters, positions and distance at some moments of a recorded run; -1 is the last."""
    record, run = records.read_moments(name), records.read(name)
    whole = {row["image_size"]: row["epoch"] for row in run["epochs"]}  # epochs of each size
    measured = []
    for each in chosen:
        number = range(len(record["epoch"]))[each]
        size = int(record["image_size"][number])
        before = sum(epochs for smaller, epochs in whole.items() if smaller < size)
        kernel = records.filters_at(name, number)
        _, explained = inspection.filter_components(kernel, n_components=records.COMPONENTS)
        similarity = records.positions_at(name, number)
        measured.append(
            {
                "epoch": before + float(record["epoch"][number]),
                "size": size,
                "explained": float(explained.sum()),
                "near": inspection.neighbour_similarity(similarity),
                "distance": float(record[f"distance_{number}"].mean() / size),
            }
        )
    return measured


#: The function that computes each lesson, in their order.
LESSONS = (path, positions, looks, local, reaches, changes, data)
