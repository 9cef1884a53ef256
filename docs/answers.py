"""The numbers of the seven lessons, computed from what comes with vitviz; docs/teaching.py asks."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import vitviz
from vitviz import attribution, inspection, intervention
from vitviz.activations import DropPatches, Edit, FillPatches
from vitviz.app.widgets import cell_sets
from vitviz.checkpoints import assets
from vitviz.cli.lesson_files import MODEL
from vitviz.equivariance import shuffle_patches
from vitviz.lessons import found
from vitviz.text.lessons import settings_of

_NEAR = 0.005  # of a value: nearer ones are not told apart by rank


class Scene(NamedTuple):
    """What the model does with one sample picture."""

    image: Image.Image
    acts: vitviz.Activations

    @property
    def answer(self) -> int:
        return largest(known(self.acts.probabilities))


class Place(NamedTuple):
    """The largest value of a map, and where it is; rows and columns count from 1."""

    row: int
    column: int
    value: float


@cache
def model(name: str = MODEL) -> vitviz.Model:
    return vitviz.load_model(name)


@cache
def scene(picture: str) -> Scene:
    image = vitviz.open_image((assets() / "samples" / f"{picture}.jpg").read_bytes())
    return Scene(image, vitviz.capture(model(), image))


def of_step(number: int, step: int) -> tuple[Scene, dict[str, str]]:
    """The picture of a step, and its settings."""
    settings = settings_of(number, step)
    return scene(settings["picture"]), settings


def leading(values: np.ndarray) -> list[int]:
    """The numbers of the largest value and of those so near to it that another machine might find
    one of them the largest."""
    behind = np.max(values) - np.ravel(values)
    return [int(number) for number in np.flatnonzero(behind < _NEAR * abs(np.max(values)))]


def largest(values: np.ndarray) -> int:
    """The number of the largest value, which must be well ahead of the second.

    Raises
    ------
    ValueError
        When it is not.
    """
    numbers = leading(values)
    if len(numbers) > 1:
        near = np.ravel(values)[numbers]
        raise ValueError(f"{near} are too near to each other to name the largest one.")
    return numbers[0]


def peak(values: np.ndarray) -> Place:
    number = largest(values)
    row, column = divmod(number, values.shape[1])
    return Place(row + 1, column + 1, float(values.flat[number]))


def known(values: np.ndarray | None) -> np.ndarray:
    assert values is not None
    return values


def _query(settings: Mapping[str, str]) -> tuple[int, int]:
    row, column = settings["query"].split(".")
    return int(row) - 1, int(column) - 1


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(np.ravel(one), np.ravel(other))[0, 1])


def _moved(rows: np.ndarray) -> float:
    """How much of the attention of rows would have to move to make them equal, on average."""
    return float(np.abs(rows - rows.mean(axis=0)).sum(axis=1).mean() / 2)


def said(number: int) -> tuple[str, ...]:
    """What the app says at the end of a lesson."""
    shown, _ = of_step(number, 1)
    others = (scene(path.stem).acts for path in samples())
    return found(number, model(), shown.image, shown.acts, others=others)


def path() -> dict[str, Any]:
    """Lesson 1: from picture to answer."""
    shown, settings = of_step(1, 2)
    acts = shown.acts
    tokens, width = acts.tokens(0).shape
    lens = intervention.logit_lens(model(), acts)
    tops = [leading(row) for row in lens]
    first = next(d for d in range(len(tops)) if all(top == [shown.answer] for top in tops[d:]))
    if first != acts.depth:
        raise ValueError("The guide says that the answer comes first only after the last layer.")
    (rival,) = tops[first - 1]
    if rival not in lens[-1].argsort()[-3:]:
        raise ValueError("The figure does not show the class that the answer has overtaken.")
    query = int(np.ravel_multi_index(_query(settings), acts.grid)) + acts.num_prefix_tokens
    row = acts.attention(int(settings["layer"]) - 1)[int(settings["head"]) - 1, query]
    return {
        "tokens": tokens,
        "width": width,
        "numbers": tokens * width,
        "patches": len(acts.patches),
        "grid": acts.grid,
        "side": known(model().patch_kernel).shape[-1],
        "in_patch": known(model().patch_kernel)[0].size,
        "input": model().preprocess.input_size,
        "most": peak(row[acts.num_prefix_tokens :].reshape(acts.grid)),
        "reached": reached(acts, query),
        "lens": [
            (
                depth,
                float(values[shown.answer]),
                float(values[rival]),
                " and ".join(acts.output_names[number] for number in top),
            )
            for depth, (top, values) in enumerate(zip(tops, lens, strict=True))
        ],
        "rival": acts.output_names[rival],
        "first": first,
        "answer": acts.output_names[shown.answer],
    }


def reached(acts: vitviz.Activations, token: int) -> dict[str, int]:
    """How many tokens change in each half of layer 1 when one token is exchanged."""
    block: Any = model().module.get_submodule("blocks.0")
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
    """Lesson 2: the order of the patches, and their positions."""
    shown, settings = of_step(2, 3)
    shuffled = shuffle_patches(model(), shown.image, seed=1)  # order number 1 of the page
    told = [
        [
            (shown.acts.output_names[largest(row)], float(row.max()), float(row[shown.answer]))
            for row in two
        ]
        for two in shuffled.outputs
    ]
    if shuffled.changes[1] > 1e-5:
        raise ValueError("Without E_pos the order of the patches changes the answer.")
    grid = shown.acts.grid
    row, column = _query(settings)
    learned = inspection.position_similarity(known(model().position_embedding), grid=grid)
    table = inspection.position_table("random", grid=grid, embed_dim=shown.acts.tokens(0).shape[1])
    drawn = inspection.position_similarity(table, grid=grid)
    beside = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return {
        "with": told[0],
        "without": told[1],
        "answer": shown.acts.output_names[shown.answer],
        "query": (row + 1, column + 1),
        "beside": float(np.mean([learned[row, column][place] for place in beside])),
        "corner": float(learned[row, column, -1, -1]),
        "last": grid,
        "all_beside": inspection.neighbour_similarity(learned),
        "random_beside": inspection.neighbour_similarity(drawn),
    }


def looks() -> dict[str, Any]:
    """Lesson 3: rows and columns of the attention."""
    shown, first = of_step(3, 1)
    acts, prefix = shown.acts, shown.acts.num_prefix_tokens
    mean = acts.attention(int(first.get("layer", acts.depth)) - 1).mean(axis=0)
    _, second = of_step(3, 2)
    heads = acts.attention(int(second["layer"]) - 1)[:, prefix:, prefix:]
    moved = np.array([_moved(head / head.sum(axis=1, keepdims=True)) for head in heads])
    query = np.ravel_multi_index(_query(second), acts.grid)
    _, third = of_step(3, 3)
    column_layer = acts.attention(int(third["layer"]) - 1).mean(axis=0)
    token = np.ravel_multi_index(_query(third), acts.grid) + prefix
    row, column = column_layer[token, prefix:].copy(), column_layer[prefix:, token].copy()
    total, patch = float(column_layer[:, token].sum()), int(token) - prefix
    others = np.delete(np.arange(len(row)), patch)
    alike = correlation(row[others], column[others])
    row[patch] = column[patch] = 0  # beside itself
    lookers = [divmod(int(at), acts.grid[1]) for at in np.argsort(-column)[:3]]
    return {
        "peak": peak(mean[0, prefix:].reshape(acts.grid)),
        "cls": float(mean[0, 0]),
        "equal": 1 / len(mean),
        "answer": acts.output_names[shown.answer],
        "probability": float(known(acts.probabilities)[shown.answer]),
        "follows": (largest(moved) + 1, float(moved.max())),
        "same": (largest(-moved) + 1, float(moved.min())),
        "itself": float(heads[int(second["head"]) - 1, query, query]),
        "query": tuple(number + 1 for number in _query(second)),
        "read": tuple(number + 1 for number in _query(third)),
        "row": peak(row.reshape(acts.grid)),
        "column": peak(column.reshape(acts.grid)),
        "lookers": [(down + 1, across + 1) for down, across in lookers],
        "column_total": total,
        "alike": alike,
    }


def local() -> dict[str, Any]:
    """Lesson 4: attention distance."""
    shown, settings = of_step(4, 2)
    acts = shown.acts
    distance = inspection.attention_distance(acts)
    layer, head = int(settings["layer"]) - 1, int(settings["head"]) - 1
    equal = inspection.uniform_distance(acts.grid, acts.patch_size)
    wide = divmod(largest(-np.abs(distance[-1] - equal)), distance.shape[1])[1]
    every = np.array([inspection.attention_distance(scene(path.stem).acts) for path in samples()])
    return {
        "layers": [float(value) for value in distance.mean(axis=1)],
        "most_local": largest(-distance.mean(axis=1)) + 1,
        "equal": equal,
        "chosen": (layer + 1, head + 1, float(distance[layer, head])),
        "wide": (acts.depth, wide + 1, float(distance[-1, wide])),
        "itself": (_itself(acts, layer, head), _itself(acts, acts.depth - 1, wide)),
        "itself_equal": 1 / len(acts.patches),
        "pictures": len(every),
        "over": (float(every[:, layer, head].mean()), float(every[:, layer, head].std())),
        "heads_apart": float(every.mean(axis=0).std()),
        "pictures_apart": float(every.std(axis=0).mean()),
    }


def samples() -> list[Path]:
    return sorted((assets() / "samples").glob("*.jpg"))


def _itself(acts: vitviz.Activations, layer: int, head: int) -> float:
    """The share of a head's attention between patches that each gives to itself, the mean."""
    prefix = acts.num_prefix_tokens
    rows = acts.attention(layer)[head, prefix:, prefix:]
    return float((rows.diagonal() / rows.sum(axis=1)).mean())


def reaches() -> dict[str, Any]:
    """Lesson 5: rollout, and maps of a class."""
    shown, _ = of_step(5, 2)
    acts, prefix = shown.acts, shown.acts.num_prefix_tokens
    rows = [step[0] for step in inspection.rollout_steps(acts)]
    final = rows[-1][prefix:]
    fused = {
        name: inspection.attention_rollout(acts, fusion=name)[prefix:] for name in ("max", "min")
    }
    weights = (0.25, 0.75, 0.9)
    probabilities = known(acts.probabilities)
    order = probabilities.argsort()[::-1]
    absent = acts.output_names.index("goldfish")
    maps = [
        attribution.relevance(model(), shown.image, int(index))
        for index in (order[0], order[1], absent)
    ]
    return {
        "own": [float(row[0]) for row in rows],
        "alike": [correlation(row[prefix:], final) for row in rows],
        "fusions": {name: correlation(values, final) for name, values in fused.items()},
        "residuals": {
            weight: correlation(inspection.attention_rollout(acts, residual=weight)[prefix:], final)
            for weight in weights
        },
        "answer": (acts.output_names[order[0]], float(probabilities[order[0]])),
        "second": (acts.output_names[order[1]], float(probabilities[order[1]])),
        "absent": (acts.output_names[absent], float(probabilities[absent])),
        "peaks": [peak(values / values.sum()) for values in maps],
        "class_alike": [correlation(maps[0], values) for values in maps[1:]],
    }


def changes() -> dict[str, Any]:
    """Lesson 6: blocks, patches and heads without which the answer is another one."""
    shown, settings = of_step(6, 2)
    acts, side = shown.acts, 4  # of a block, as the page begins with
    before = float(known(acts.probabilities)[shown.answer])
    falls = intervention.occlusion(
        model(), shown.image, class_index=shown.answer, block=side, removal="drop"
    )[::side, ::side]
    painted = cell_sets.read(settings["painted"], acts.grid)
    assert painted is not None
    edits: dict[str, Edit] = {
        "removed": DropPatches(painted),
        "alone": DropPatches(~painted),
        "blurred": FillPatches(painted, "blur"),
    }
    answers = {}
    for name, edit in edits.items():
        changed = known(vitviz.capture(model(), shown.image, edits=[edit]).probabilities)
        top = largest(changed)
        answers[name] = (acts.output_names[top], float(changed[top]), float(changed[shown.answer]))
    logits = intervention.head_effects(model(), shown.image)
    muted = np.asarray(model().probabilities(torch.tensor(logits)))
    effects = muted[..., shown.answer] - before
    fallen = logits[..., shown.answer] - known(acts.logits)[shown.answer]
    order = fallen.ravel().argsort()
    ranked = fallen.ravel()[order]
    few = [count for count in range(1, 5) if ranked[count - 1] < 1.1 * ranked[count] < 0]
    if not few:
        raise ValueError("The page does not show a few heads that are darker than all others.")
    darkest = [divmod(int(number), fallen.shape[1]) for number in order[: few[0]]]
    without = known(
        vitviz.capture(model(), shown.image, edits=[vitviz.MuteHeads(darkest)]).probabilities
    )
    others = [
        (layer + 1, head + 1, acts.output_names[largest(muted[layer, head])])
        for layer, head in np.ndindex(*effects.shape)
        if largest(muted[layer, head]) != shown.answer
    ]
    return {
        "answer": acts.output_names[shown.answer],
        "before": before,
        "blocks": [[float(fall) for fall in row] for row in falls],
        "most": peak(falls),
        "least": peak(-falls),
        "patches": int(painted.sum()),
        "answers": answers,
        "darkest": sorted(
            (layer + 1, head + 1, float(muted[layer, head, shown.answer]))
            for layer, head in darkest
        ),
        "together": (
            acts.output_names[largest(without)],
            float(without.max()),
            float(without[shown.answer]),
        ),
        "others": others,
        "heads": effects.size,
        "small": int((np.abs(effects) < 0.05).sum()),
        "helped": int((effects > 0).sum()),
    }


def data() -> dict[str, Any]:
    """Lesson 7: what training changed, and how much data it took."""
    hunger = json.loads((assets() / "curves" / "data_hunger.json").read_text(encoding="utf-8"))
    shares = sorted({one["share"] for one in hunger["runs"]})
    curves = {
        name: [
            float(
                np.mean(
                    [
                        one["test_accuracy"]
                        for one in hunger["runs"]
                        if (one["network"], one["share"]) == (name, share)
                    ]
                )
            )
            for share in shares
        ]
        for name in ("vit", "cnn")
    }
    profile = vitviz.load_profile(assets() / "profiles" / f"{MODEL}.npz")
    return {
        "moments": moments(MODEL, (0, 1, 2, -1)),
        "accuracy": known(np.array(profile.accuracy))[0],
        "five": known(np.array(profile.accuracy))[1],
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
    """Filters, positions and distance at these moments of a recorded run; -1 is the last."""
    with np.load(assets() / "curves" / f"{name}.npz") as arrays:
        record = dict(arrays)
    run = json.loads((assets() / "curves" / f"{name}.json").read_text(encoding="utf-8"))
    whole = {row["image_size"]: row["epoch"] for row in run["epochs"]}  # epochs of each size
    kept = []
    for each in chosen:
        number = range(len(record["epoch"]))[each]
        size = int(record["image_size"][number])
        kernel = record[f"filters_{number}"].astype(np.float32)
        patch = kernel.shape[-1]
        grid = (size // patch, size // patch)
        table = record[f"positions_{number}"].astype(np.float32)
        distance = record[f"distance_{number}"].mean()
        before = sum(epochs for smaller, epochs in whole.items() if smaller < size)
        explained = inspection.filter_components(kernel, n_components=12)[1].sum()
        similarity = inspection.position_similarity(table, grid=grid)
        kept.append(
            {
                "epoch": before + float(record["epoch"][number]),
                "size": size,
                "explained": float(explained),
                "near": inspection.neighbour_similarity(similarity),
                "distance": float(distance / size),
            }
        )
    return kept


#: What computes the numbers of each lesson, in their order.
LESSONS = (path, positions, looks, local, reaches, changes, data)
