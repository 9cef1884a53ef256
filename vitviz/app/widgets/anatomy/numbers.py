"""The numbers that the component of Anatomy is sent, and those that its words name."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vitviz.anatomy_map import packed
from vitviz.app.shared import results
from vitviz.app.shared.queue import turn

if TYPE_CHECKING:
    from vitviz.anatomy import Box, Residual
    from vitviz.app.shared.view import View

MAX_BYTES = 24_000_000  # of the numbers of one layer; where it takes more, those of one token
CLASSES = 5  # shown of the answer
_EXACT = {"flatten", "project.kernel", "project.bias", "queries", "keys", "bias"}


def steps_of(view: "View") -> "tuple[Box, ...]":
    """The picture at each step, cached."""
    from vitviz import anatomy

    def make() -> "tuple[Box, ...]":
        with turn():  # some families make a pass of their own
            return anatomy.steps(view.model, view.picture.image, view.acts)

    return results.captures().get((*view.key, "steps"), make, _bytes_of)


def layer_of(view: "View") -> "tuple[Box, ...]":
    """The layer on screen, box by box, cached."""
    from vitviz import anatomy

    return results.captures().get(
        (*view.key, "boxes", view.layer),
        lambda: anatomy.layer_boxes(view.model, view.acts, view.layer),
        _bytes_of,
    )


def scores_of(view: "View", head: int) -> np.ndarray:
    """What softmax is applied to: ndarray of shape (queries, keys)."""
    from vitviz import anatomy

    return anatomy.scores(view.acts, view.layer, head)[1]


def _bytes_of(boxes: "tuple[Box, ...]") -> int:
    arrays = [box.values for box in boxes if box.values is not None]
    return sum(a.nbytes for a in [*arrays, *(p for box in boxes for p in box.parts.values())])


def residual_of(view: "View") -> dict[str, list[float | None]]:
    from vitviz import anatomy

    def make() -> "Residual":
        return anatomy.residual_stream(view.acts)

    found = results.captures().get((*view.key, "residual stream"), make, lambda made: 1000)
    return {
        name: [None if np.isnan(value) else float(value) for value in values]
        for name, values in vars(found).items()
    }


def sent_steps(steps: "tuple[Box, ...]", stack_id: str, photo: str) -> dict[str, Any]:
    arrays: dict[str, np.ndarray] = {}
    for name, box in named(steps).items():
        if box.values is None or box.name == "patches":  # the same numbers as flattened
            continue
        parts = {f"{box.name}.{part}": values for part, values in box.parts.items()}
        if box.name == "head":
            best = _best(box.parts["probabilities"])
            parts = {part: values[best] for part, values in parts.items() if "probab" not in part}
            read = steps[-2].values
            assert read is not None
            parts["head.read"] = np.atleast_2d(read)
        if box.name.startswith("output") and "mean" in box.parts:
            parts["output.read"] = _read(steps, box)
        arrays |= {name: box.values, **parts}
    exact, half = _split(arrays)
    sent = packed(stack_id, exact, half)
    sent["stack"]["picture"] = photo
    return sent


def _read(steps: "tuple[Box, ...]", output: "Box") -> np.ndarray:
    """What the last LayerNorm gets: tokens of z_L, or their mean."""
    last = next(box.values for box in reversed(steps) if box.layers)
    assert last is not None
    if output.name != "output_mean_norm":
        return last[: len(output.parts["mean"])]
    prefix = len(last) - next(
        len(b.values) for b in steps if b.name == "flatten" and b.values is not None
    )
    return last[prefix:].mean(axis=0, keepdims=True)


def sent_layer(view: "View", boxes: "tuple[Box, ...]", stack_id: str) -> dict[str, Any]:
    arrays: dict[str, np.ndarray] = {}
    for box in boxes:
        if box.values is not None:
            arrays[box.name] = box.values
            arrays |= {f"{box.name}.{part}": values for part, values in box.parts.items()}
    arrays.pop("heads", None)  # their sum is made in the browser, and they come side by side
    if "queries" in arrays:
        _, bias = view.acts.score_terms(view.layer)
        if bias is not None:
            arrays["bias"] = bias
    exact, half = _split(arrays)
    values = {"values": half.pop("values")} if "values" in half else {}
    if sum(array.nbytes for array in half.values()) // 2 <= MAX_BYTES:
        return packed(stack_id, exact, {**values, **half})
    described = view.acts.layers[view.layer]
    count = len(described.prefix) + math.prod(described.query_grid)
    only = view.query if view.query is not None else count // 2
    return packed(f"{stack_id}-{only}", {**exact, **values}, half, only=only)


def _split(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What is worked out to the last digit, or is small; and the rest."""
    exact = {name: array for name, array in arrays.items() if name in _EXACT or array.ndim < 2} | {
        name: array for name, array in arrays.items() if name.startswith(("head.", "output"))
    }
    return exact, {name: array for name, array in arrays.items() if name not in exact}


def _best(probabilities: np.ndarray) -> np.ndarray:
    return np.argsort(-probabilities, kind="stable")[:CLASSES]


def answers(view: "View") -> dict[str, Any]:
    acts = view.acts
    if acts.probabilities is None or acts.logits is None:
        return {"answers": [], "classes": 0}
    return {
        "classes": len(acts.logits),
        "answers": [
            {
                "label": acts.output_names[index],
                "logit": float(acts.logits[index]),
                "share": float(acts.probabilities[index]),
            }
            for index in _best(acts.probabilities)
        ],
    }


def named(steps: "tuple[Box, ...]") -> "dict[str, Box]":
    """Boxes by names that are all different: stages are numbered."""
    stages = [box for box in steps if box.name == "stage"]
    return {f"stage{stages.index(box) + 1}" if box in stages else box.name: box for box in steps}
