"""The numbers that the component is sent of a capture, and those that its words name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..language import told, tr
from .packing import packed

if TYPE_CHECKING:
    from PIL import Image

    from ..activations import Activations
    from ..anatomy import Box, Residual
    from ..families import Layer
    from ..model import Model

CLASSES = 5  # shown of the answer
_EXACT = {"flatten", "project.kernel", "project.bias", "queries", "keys", "bias"}


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A picture's way through a model, with one layer opened.

    Attributes
    ----------
    acts : the capture of the picture
    layer : the one that is opened
    query : the token that is followed; None where none is chosen
    steps, boxes, residual : as `vitviz.anatomy` makes them of the three
    """

    model: "Model"
    acts: "Activations"
    layer: int
    query: int | None
    steps: "tuple[Box, ...]"
    boxes: "tuple[Box, ...]"
    residual: "Residual"

    @property
    def described(self) -> "Layer":
        return self.acts.layers[self.layer]

    @property
    def followed(self) -> int:
        """The token that is followed: the query, or the patch in the middle."""
        rows, cols = self.described.query_grid
        middle = len(self.described.prefix) + rows // 2 * cols + cols // 2
        return middle if self.query is None else self.query

    def at(self, layer: int, query: int | None) -> "Anatomy":
        """The same picture with another layer opened, or another token followed."""
        from .. import anatomy

        boxes = self.boxes
        if layer != self.layer:
            boxes = anatomy.layer_boxes(self.model, self.acts, layer)
        return replace(self, layer=layer, query=query, boxes=boxes)


def anatomy_of(
    model: "Model", image: "Image.Image", acts: "Activations", layer: int, query: int | None
) -> Anatomy:
    """All of it computed, for a host that keeps nothing.

    Raises
    ------
    ModelError
        As `vitviz.anatomy.steps`.
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
    """What a token of a layer is called on screen."""
    patch = token - len(layer.prefix)
    if patch < 0:
        return layer.prefix[token].upper()
    row, col = divmod(patch, layer.query_grid[1])
    return tr("row {row} column {column}", row=row + 1, column=col + 1)


def sent_residual(of: Anatomy) -> dict[str, list[float | None]]:
    return {
        name: [None if np.isnan(value) else float(value) for value in values]
        for name, values in vars(of.residual).items()
    }


def sent_steps(of: Anatomy, stack_id: str, photo: str, max_bytes: int) -> dict[str, Any]:
    """The numbers of the steps; of a kernel that is larger than `max_bytes`, the first filter's."""
    steps = of.steps
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
    kernel = exact.get("project.kernel")
    large = kernel is not None and kernel.nbytes > max_bytes
    sent = packed(stack_id, exact, half, only={"project.kernel": 0} if large else {})
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


def sent_layer(of: Anatomy, stack_id: str, max_bytes: int) -> dict[str, Any]:
    """The numbers of the layer.

    Where those in half precision take more than `max_bytes`, the largest of them are sent of the
    token alone that is followed; queries, keys and values are whole.
    """
    arrays: dict[str, np.ndarray] = {}
    for box in of.boxes:
        if box.values is not None:
            arrays[box.name] = box.values
            arrays |= {f"{box.name}.{part}": values for part, values in box.parts.items()}
    arrays.pop("heads", None)  # their sum is made in the browser, and they come side by side
    if "queries" in arrays:
        _, bias = of.acts.score_terms(of.layer)
        if bias is not None:
            arrays["bias"] = bias
    exact, half = _split(arrays)
    only: dict[str, int] = {}
    largest = sorted(half.keys() - {"values"}, key=lambda name: (-half[name].size, name))
    for name in largest:
        if 2 * sum(half[each].size for each in half.keys() - only.keys() - {"values"}) > max_bytes:
            only[name] = of.followed
    return packed(f"{stack_id}-{of.followed}" if only else stack_id, exact, half, only=only)


def _split(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What is worked out to the last digit, or is small; and the rest."""
    exact = {name: array for name, array in arrays.items() if name in _EXACT or array.ndim < 2} | {
        name: array for name, array in arrays.items() if name.startswith(("head.", "output"))
    }
    return exact, {name: array for name, array in arrays.items() if name not in exact}


def _best(probabilities: np.ndarray) -> np.ndarray:
    return np.argsort(-probabilities, kind="stable")[:CLASSES]


def answers(acts: "Activations") -> dict[str, Any]:
    """The most probable classes, as the browser gets them."""
    if acts.probabilities is None or acts.logits is None:
        return {"answers": [], "classes": 0}
    return {
        "classes": len(acts.logits),
        "answers": [
            {
                "label": told(acts.output_names[index]),
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
