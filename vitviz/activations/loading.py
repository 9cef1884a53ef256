"""`load_activations`: read a capture from a file."""

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..common.language import Phrase
from ..model.families import Layer, ModelError, Windows
from ..model.origin import Origin
from .activations import FORMAT, Activations, plain_norm, read_only
from .calls import Call, ComparedOutput, FusedCall, SoftmaxCall

Optionally = Callable[[str], Tensor | None]


class _MissingNorm(nn.Module):
    """Stands for a final norm that the file does not hold."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens: Tensor) -> Tensor:
        raise ModelError(
            f"A saved capture keeps only a LayerNorm as final norm, and this one is a {self.kind}. "
            "For normalised tokens, capture the picture again with the model."
        )


def load_activations(path: str | os.PathLike[str]) -> Activations:
    """Load a capture that `Activations.save` wrote.

    It has all that the pass computed, in the same numbers: attention, maps, queries, keys, values,
    tokens and logits, and so every measurement of `vitviz.inspection` and every figure of a
    capture. Each layer is proved as before. What runs the model again (`vitviz.attribution`,
    `vitviz.intervention`) needs the model.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Activations

    Raises
    ------
    ModelError
        When the file is not a saved capture, is damaged, or was saved by a later version of vitviz;
        and when normalised tokens are asked for and the model's final norm was not a LayerNorm.
    OSError
        When the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        return _decode(arrays)
    except ModelError:
        raise
    except Exception as error:  # damaged archives and JSON raise nearly anything
        raise ModelError(
            f"{Path(path).name} is not a capture that vitviz saved, or it is damaged."
        ) from error


def _decode(arrays: Mapping[str, np.ndarray]) -> Activations:
    about: dict[str, Any] = json.loads(str(arrays["about"]))
    if about["format"] != FORMAT:
        raise ModelError(
            f"The file has format {about['format']} of saved captures, expected {FORMAT}."
        )

    def tensor(name: str) -> Tensor:
        values = torch.from_numpy(arrays[name])
        if order := about["orders"].get(name):
            values = values.permute(order).contiguous().permute(np.argsort(order).tolist())
        return values.view(torch.bfloat16) if name in about["bfloat16"] else values

    def optional(name: str) -> Tensor | None:
        return tensor(name) if name in arrays else None

    layers = tuple(_layer(**record) for record in about["layers"])
    label_type = Phrase if about.get("phrases") else str  # files of earlier versions do not say
    answer = optional("logits") if "logits" in arrays else optional("features")
    patches = arrays["patches"]
    patches.flags.writeable = False
    acts = Activations(
        _layers=layers,
        _known_labels=None if about["labels"] is None else tuple(map(label_type, about["labels"])),
        read_tokens=tuple(about["read_tokens"]),
        _crops=tuple(map(tuple, about["crops"])),
        _offsets=tuple(map(tuple, about["offsets"])),
        output=None if answer is None else read_only(answer),
        _headless="logits" not in arrays,
        answers=about["answers"],
        _calls=tuple(_call(layer, tensor, optional) for layer in range(len(layers))),
        _windows=tuple(_windows(layer, arrays) for layer in range(len(layers))),
        _stream=tuple(tensor(f"tokens_{depth}") for depth in range(len(layers) + 1)),
        _after_attention=tuple(optional(f"tokens_after_attention_{n}") for n in range(len(layers))),
        patches=patches,
        _final_norm=_norm(about, optional),
        _arena=None,
        photo=Image.fromarray(arrays["photo"]),
        picture_size=tuple(about["picture_size"]),
        provenance=about["provenance"],
        _origin=Origin.of_record(about),
    )
    _check_shapes(acts)
    return acts


def _check_shapes(acts: Activations) -> None:
    """Raise a ValueError where the attention of a layer does not fit its tokens and windows."""
    for number, (layer, call) in enumerate(zip(acts.layers, acts._calls, strict=True)):
        if call is None:
            continue
        layout = acts.layout(number)
        for places, (rows, cols) in (
            (layout.queries, layer.query_grid),
            (layout.keys, layer.key_grid),
        ):
            if places.max(initial=-1) >= rows * cols:
                raise ValueError(f"The windows of {layer.name} name patches beyond its grid.")
        tokens = layout.queries.shape[1], layout.keys.shape[1]
        if call.shape != (len(layout.queries), layer.num_heads, *tokens):
            raise ValueError(f"The attention of {layer.name} does not fit its windows.")


def _layer(**record: Any) -> Layer:
    """Build a layer from JSON, which turned tuples into lists."""
    for name, value in record.items():
        record[name] = tuple(value) if isinstance(value, list) else value
    return Layer(**record)


def _windows(layer: int, arrays: Mapping[str, np.ndarray]) -> Windows | None:
    queries, keys, step = (
        arrays.get(f"windows_{name}_{layer}") for name in ("queries", "keys", "key_step")
    )
    if queries is None or keys is None or step is None:
        return None
    return Windows(queries=queries, keys=keys, key_step=(float(step[0]), float(step[1])))


def _call(layer: int, tensor: Callable[[str], Tensor], optional: Optionally) -> Call | None:
    v = optional(f"v_{layer}")
    if v is None:
        return None
    output = ComparedOutput(tensor(f"rows_{layer}"), tensor(f"projected_{layer}"))
    weights = optional(f"weights_{layer}")
    if weights is None:
        q, k, bias = tensor(f"q_{layer}"), tensor(f"k_{layer}"), optional(f"bias_{layer}")
        return FusedCall(
            q=q,
            k=k,
            v=v,
            output=output,
            scale=float(tensor(f"scale_{layer}")),
            bias=None if bias is None else bias.expand(*q.shape[:-1], k.shape[-2]),
        )
    mixing = None
    if optional(f"mixing_weight_{layer}") is not None:
        mixing = tensor(f"mixing_weight_{layer}"), tensor(f"mixing_bias_{layer}")
    return SoftmaxCall(weights=weights, v=v, output=output, mixing=mixing)


def _norm(about: Mapping[str, Any], optional: Optionally) -> nn.Module | None:
    if about["norm"] is None:
        return None
    if about["norm"] == "Identity":
        return nn.Identity()
    if about["norm_eps"] is None:
        return _MissingNorm(about["norm"])
    width = about["norm_width"]
    return plain_norm(optional("norm_weight"), optional("norm_bias"), about["norm_eps"], width)
