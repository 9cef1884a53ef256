"""Compute the numbers that refute common errors about Vision Transformers, for docs/teaching.py."""

import json
from itertools import combinations
from typing import Any

import numpy as np
import torch
from answers import correlation, count_changed, largest, model, not_none, scene

import vitviz
from vitviz import attribution, inspection
from vitviz.common import DEFAULT_MODEL
from vitviz.common.files import assets

PICTURE = "red_panda"  # with which the app opens


def residual() -> dict[str, float]:
    """Return the relative error |z_L - sum| / |z_L| of the right and of the wrong residual sum."""
    acts, depth = scene(PICTURE).acts, scene(PICTURE).acts.depth
    before, between, after = (
        torch.tensor(tokens)
        for tokens in (
            acts.tokens(depth - 1),
            acts.tokens_after_attention(depth - 1),
            acts.tokens(depth),
        )
    )
    block: Any = model().module.get_submodule(f"blocks.{depth - 1}")
    with torch.inference_mode():
        mlp = block.mlp(block.norm2(between[None]))[0]
    off = {
        name: float((after - mlp - stream).norm() / after.norm())
        for name, stream in (("right", between), ("wrong", before))
    }
    if off["right"] > 1e-5:
        raise ValueError(
            "The last layer does not add the MLP's output to the tokens after attention."
        )
    return off


def scale() -> dict[str, Any]:
    """Return the largest weight of CLS in the last layer, with the right and a wrong scale."""
    acts = scene(PICTURE).acts
    layer, width = acts.depth - 1, acts.tokens(0).shape[1]
    attention, query, key = acts.attention(layer), acts.queries(layer), acts.keys(layer)
    head, token = divmod(largest(attention[:, 0, 1:]), attention.shape[2] - 1)
    scores = query[head, 0] @ key[head].T
    weights = [float(_softmax(scores / np.sqrt(by))[token + 1]) for by in (key.shape[2], width)]
    if abs(weights[0] - attention[head, 0, token + 1]) > 1e-5:
        raise ValueError("The scores are not divided by the square root of the head's width.")
    row, column = divmod(token, acts.grid[1])
    return {
        "head": head + 1,
        "layer": layer + 1,
        "patch": (row + 1, column + 1),
        "right": weights[0],
        "wrong": weights[1],
        "head_width": key.shape[2],
        "width": width,
    }


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


def learned() -> dict[str, Any]:
    """Return the cosine of neighbouring positions before and after training."""
    path = assets() / "curves" / "inductive_bias.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    plain = [run["neighbours"] for run in runs if run["condition"] == "plain initialisation"]
    before, after = np.mean(plain, axis=0)
    return {"runs": len(plain), "before": before, "after": after}


def head() -> dict[str, Any]:
    """Count the inputs, outputs and numbers of the classification head."""
    linear: Any = model().module.get_submodule("head")
    if not isinstance(linear, torch.nn.Linear):
        raise ValueError("The classification head is not a linear layer.")
    outputs, inputs = linear.weight.shape
    return {"inputs": inputs, "outputs": outputs, "numbers": outputs * inputs + outputs}


def depth() -> dict[str, Any]:
    """Return the head with the largest distance, and a head of a later layer with the smallest."""
    acts = scene(PICTURE).acts
    profile = vitviz.load_profile(assets() / "profiles" / f"{model().name}.npz")
    here, there = inspection.attention_distance(acts), profile.mean("distance")
    pairs = combinations(range(acts.depth), 2)
    layers = max(pairs, key=lambda pair: here[pair[0]].max() - here[pair[1]].min())
    heads = []
    for layer, sign in zip(layers, (1, -1), strict=True):
        head = largest(sign * here[layer])
        heads.append(
            {
                "layer": layer + 1,
                "head": head + 1,
                "distance": float(here[layer, head]),
                "over_many": float(there[layer, head]),
            }
        )
    if heads[0]["over_many"] <= heads[1]["over_many"]:
        raise ValueError("Over many pictures the head of the later layer looks farther.")
    means = there.mean(axis=1)
    profiles = sorted((assets() / "profiles").glob("*.npz"))
    growing = [
        path.stem
        for path in profiles
        if (np.diff(vitviz.load_profile(path).mean("distance").mean(axis=1)) > 0).all()
    ]
    if DEFAULT_MODEL not in growing:
        raise ValueError(f"The mean distance does not grow with depth in {DEFAULT_MODEL}.")
    return {
        "heads": heads,
        "means": (float(means[0]), float(means[-1])),
        "pictures": profile.about["pictures"],
        "models": {(3, 4): "three of the four"}[len(growing), len(profiles)],
    }


def class_maps() -> dict[str, Any]:
    """Correlate the maps of the two most probable classes on one picture."""
    shown = scene("bison")
    order = not_none(shown.acts.probabilities).argsort()[::-1][:2]
    maps = [attribution.relevance(model(), shown.image, int(index)) for index in order]
    return {
        "classes": [shown.acts.output_names[index] for index in order],
        "index": int(order[1]),
        "alike": correlation(*maps),
    }


def certain() -> dict[str, Any]:
    """Return a wrong answer and its high probability."""
    acts = scene("duck").acts
    values = not_none(acts.probabilities)
    top = largest(values)
    if "duck" in acts.output_names:
        raise ValueError("The model knows ducks.")
    return {"answer": acts.output_names[top], "probability": float(values[top])}


def numbers() -> dict[str, Any]:
    """Return all numbers, by their names in the guide."""
    acts = scene(PICTURE).acts
    tokens = len(acts.tokens(0))
    equal = inspection.uniform_distance((7, 7), 32)
    return {
        "residual": residual(),
        "scale": scale(),
        "learned": learned(),
        "head": head(),
        "tokens": tokens,
        "patches": len(acts.patches),
        "reached": count_changed(acts, tokens // 2, model()),
        "depth": depth(),
        "class_maps": class_maps(),
        "certain": certain(),
        "hybrid_equal": equal,
    }
