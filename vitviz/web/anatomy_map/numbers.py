"""The numbers of Anatomy: computed from a capture, and packed for the browser."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.language import Message
from ...text.class_names import common_names, full_names

if TYPE_CHECKING:
    from ...activations import Activations
    from ...model import Model
    from ...model.families import Layer
    from ...model.inputs import Picture
    from ..anatomy import Box, Residual

_HALF = float(np.finfo(np.float16).max)


def pack_numbers(
    stack_id: str,
    exact: Mapping[str, np.ndarray],
    half: Mapping[str, np.ndarray],
    *,
    only: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Pack arrays for the browser.

    Parameters
    ----------
    exact, half : mappings of names to ndarrays
        Arrays sent as float32, and arrays for which half precision is enough if its range is.
    only : mapping of names to int, optional
        The row to send of an array whose other rows are left out.

    Returns
    -------
    dict
        `stack`, the description of the arrays; `exact`, a flat ndarray of float32; and `half`, a
        flat ndarray of uint16, the bits of float16.
    """
    only = only or {}
    large = {name: array for name, array in half.items() if np.abs(array).max(initial=0) > _HALF}
    exact, half = {**exact, **large}, {name: half[name] for name in half if name not in large}
    tensors: list[dict[str, Any]] = []
    flat: list[list[np.ndarray]] = []
    for precise, arrays in ((True, exact), (False, half)):
        numbers: list[np.ndarray] = [np.zeros(0, np.float32)]
        first = 0
        for name, array in arrays.items():
            row = only.get(name)
            part = array if row is None else array[row]
            tensors.append(
                {
                    "name": name,
                    "shape": list(array.shape),
                    "exact": precise,
                    "first": first,
                    "only": row,
                }
            )
            numbers.append(part.ravel())
            first += part.size
        flat.append(numbers)
    single, short = (np.concatenate(numbers, dtype=np.float32) for numbers in flat)
    bits = short.astype(np.float16).view(np.uint16)
    return {"stack": {"id": stack_id, "tensors": tensors}, "exact": single, "half": bits}


MAX_LAYER_BYTES = 24_000_000  # above this, the browser gets some tensors for one token only
CLASSES = 5  # that the answer shows
_EXACT = {"flatten", "project.kernel", "project.bias", "queries", "keys", "bias"}


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A picture's way through a model, with one layer opened.

    Attributes
    ----------
    acts : the capture of the picture
    layer : the opened layer
    query : the chosen token, or None
    steps, boxes, residual : as `vitviz.web.anatomy` computes them
    """

    model: "Model"
    acts: "Activations"
    layer: int
    query: int | None
    steps: "tuple[Box, ...]"
    boxes: "tuple[Box, ...]"
    residual: "Residual"

    @property
    def layer_info(self) -> "Layer":
        return self.acts.layers[self.layer]

    @property
    def token(self) -> int:
        """The token whose numbers are shown: the query, or the patch in the middle."""
        rows, cols = self.layer_info.query_grid
        middle = len(self.layer_info.prefix) + rows // 2 * cols + cols // 2
        return middle if self.query is None else self.query

    def at(self, layer: int, query: int | None) -> "Anatomy":
        """Return the same picture with another layer opened or another token chosen."""
        from .. import anatomy

        boxes = self.boxes
        if layer != self.layer:
            boxes = anatomy.layer_boxes(self.model, self.acts, layer)
        return replace(self, layer=layer, query=query, boxes=boxes)


def compute_anatomy(
    model: "Model", image: "Picture", acts: "Activations", layer: int, query: int | None
) -> Anatomy:
    """Compute all of Anatomy, for a host without caches.

    Raises
    ------
    ModelError
        As `vitviz.web.anatomy.steps`.
    """
    from .. import anatomy

    return Anatomy(
        model=model,
        acts=acts,
        layer=layer,
        query=query,
        steps=anatomy.steps(model, image, acts),
        boxes=anatomy.layer_boxes(model, acts, layer),
        residual=anatomy.residual_stream(acts),
    )


def token_name(layer: "Layer", token: int) -> str:
    """Return the name of a token; `tr` translates it."""
    patch = token - len(layer.prefix)
    if patch < 0:
        return layer.prefix[token].upper()
    row, col = divmod(patch, layer.query_grid[1])
    return Message("row {row} column {column}", row=row + 1, column=col + 1)


def residual_message(of: Anatomy) -> dict[str, list[float | None]]:
    return {
        name: [None if np.isnan(value) else float(value) for value in values]
        for name, values in vars(of.residual).items()
    }


def steps_message(of: Anatomy, stack_id: str, photo: str, max_bytes: int) -> dict[str, Any]:
    """Pack the numbers of the steps; of a kernel above `max_bytes` only the first filter."""
    steps = of.steps
    arrays: dict[str, np.ndarray] = {}
    for name, box in name_steps(steps).items():
        if box.values is None or box.name == "patches":  # "flatten" has the same numbers
            continue
        parts = {f"{box.name}.{part}": values for part, values in box.parts.items()}
        if box.name == "head":
            best = _top_classes(box.parts["probabilities"])
            parts = {part: values[best] for part, values in parts.items() if "probab" not in part}
            features = steps[-2].values
            assert features is not None
            parts["head.read"] = np.atleast_2d(features)
        if box.name.startswith("output") and "mean" in box.parts:
            parts["output.read"] = _final_norm_input(steps, box)
        arrays |= {name: box.values, **parts}
    exact, half = _split(arrays)
    kernel = exact.get("project.kernel")
    large = kernel is not None and kernel.nbytes > max_bytes
    message = pack_numbers(stack_id, exact, half, only={"project.kernel": 0} if large else {})
    message["stack"]["picture"] = photo
    return message


def _final_norm_input(steps: "tuple[Box, ...]", output: "Box") -> np.ndarray:
    """Return the input of the final LayerNorm: tokens of z_L, or their mean."""
    last = next(box.values for box in reversed(steps) if box.layers)
    assert last is not None
    if output.name != "output_mean_norm":
        return last[: len(output.parts["mean"])]
    prefix = len(last) - next(
        len(b.values) for b in steps if b.name == "flatten" and b.values is not None
    )
    return last[prefix:].mean(axis=0, keepdims=True)


def layer_message(of: Anatomy, stack_id: str, max_bytes: int) -> dict[str, Any]:
    """Pack the numbers of the opened layer.

    If the float16 tensors exceed `max_bytes`, send the largest ones for the shown token only.
    Queries, keys and values are always sent for all tokens, before and after a rotation.
    """
    arrays: dict[str, np.ndarray] = {}
    for box in of.boxes:
        if box.values is not None:
            arrays[box.name] = box.values
            arrays |= {f"{box.name}.{part}": values for part, values in box.parts.items()}
    arrays.pop("heads", None)  # "concatenated" has the same numbers
    if "queries" in arrays:
        _, bias = of.acts.score_terms(of.layer)
        if bias is not None:
            arrays["bias"] = bias
    exact, half = _split(arrays)
    only: dict[str, int] = {}
    always = {"values", "unrotated_queries", "unrotated_keys"}
    largest = sorted(half.keys() - always, key=lambda name: (-half[name].size, name))
    for name in largest:
        if 2 * sum(half[each].size for each in half.keys() - only.keys() - always) > max_bytes:
            only[name] = of.token
    return pack_numbers(f"{stack_id}-{of.token}" if only else stack_id, exact, half, only=only)


def _split(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Separate the arrays that are sent as float32 (worked out in all digits, or small)."""
    exact = {name: array for name, array in arrays.items() if name in _EXACT or array.ndim < 2} | {
        name: array for name, array in arrays.items() if name.startswith(("head.", "output"))
    }
    return exact, {name: array for name, array in arrays.items() if name not in exact}


def _top_classes(probabilities: np.ndarray) -> np.ndarray:
    return np.argsort(-probabilities, kind="stable")[:CLASSES]


def answer_message(acts: "Activations") -> dict[str, Any]:
    """Return the most probable classes for the browser."""
    if acts.probabilities is None or acts.logits is None:
        return {"answers": [], "classes": 0, "sigmoid": False}
    return {
        "sigmoid": acts.answers == "labels",
        "classes": len(acts.logits),
        "answers": [
            {
                "label": common_names(acts.output_names)[index],
                "full": full_names(acts.output_names)[index],
                "logit": float(acts.logits[index]),
                "share": float(acts.probabilities[index]),
            }
            for index in _top_classes(acts.probabilities)
        ],
    }


def name_steps(steps: "tuple[Box, ...]") -> "dict[str, Box]":
    """Return the boxes by unique names, with numbered stages."""
    stages = [box for box in steps if box.name == "stage"]
    return {f"stage{stages.index(box) + 1}" if box in stages else box.name: box for box in steps}
