"""Reading a capture from a file."""

import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..families import Layer, ModelError, Windows
from .activations import Activations
from .calls import Call, FusedCall, SoftmaxCall
from .forward_pass import read_only
from .proof import ComparedOutput
from .saving import FORMAT, OF_WINDOWS, plain_norm

Maybe = Callable[[str], Tensor | None]


class _Forgotten(nn.Module):
    """Stands where a saved capture has no final norm."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens: Tensor) -> Tensor:
        raise ModelError(
            f"A saved capture keeps the final norm of a model where it is a LayerNorm, and this "
            f"one is a {self.kind}, so normalised tokens need a capture of the model itself."
        )


def load_activations(path: str | os.PathLike[str]) -> Activations:
    """A capture that `Activations.save` wrote.

    It answers every question about the pass itself, in the same numbers: attention, maps, queries,
    keys, values, tokens and logits, and so every measurement of `vitviz.inspection` and every
    figure of a capture. Each layer proves itself as before. What runs the model again
    (`vitviz.attribution`, `vitviz.intervention`) needs the model.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Activations

    Raises
    ------
    ModelError
        When the file is no saved capture, is damaged, or is of a later version of vitviz. Later,
        when normalised tokens are asked for and the model's final norm is no LayerNorm.
    OSError
        When the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        return _read(arrays)
    except ModelError:
        raise
    except (ValueError, LookupError, TypeError, EOFError, BadZipFile, RuntimeError) as error:
        raise ModelError(
            f"{Path(path).name} is no capture that vitviz saved, or it is damaged."
        ) from error


def _read(arrays: Mapping[str, np.ndarray]) -> Activations:
    about: dict[str, Any] = json.loads(str(arrays["about"]))
    if about["format"] != FORMAT:
        raise ModelError(
            f"The file has the format {about['format']} of saved captures, expected {FORMAT}."
        )

    def tensor(name: str) -> Tensor:
        found = torch.from_numpy(arrays[name])
        if order := about["orders"].get(name):
            found = found.permute(order).contiguous().permute(np.argsort(order).tolist())
        return found.view(torch.bfloat16) if name in about["bfloat16"] else found

    def maybe(name: str) -> Tensor | None:
        return tensor(name) if name in arrays else None

    layers = tuple(_layer(**described) for described in about["layers"])
    answer = maybe("logits") if "logits" in arrays else maybe("features")
    patches = arrays["patches"]
    patches.flags.writeable = False
    return Activations(
        layers=layers,
        _known_labels=None if about["labels"] is None else tuple(about["labels"]),
        _embeds=about["embeds"],
        read_tokens=tuple(about["read_tokens"]),
        _crops=tuple(map(tuple, about["crops"])),
        _offsets=tuple(map(tuple, about["offsets"])),
        output=None if answer is None else read_only(answer),
        _headless="logits" not in arrays,
        activation=about.get("activation", "softmax"),
        _calls=tuple(_call(layer, tensor, maybe) for layer in range(len(layers))),
        _windows=tuple(_windows(layer, arrays) for layer in range(len(layers))),
        _stream=tuple(tensor(f"tokens_{depth}") for depth in range(len(layers) + 1)),
        _after_attention=tuple(maybe(f"tokens_after_attention_{n}") for n in range(len(layers))),
        patches=patches,
        _final_norm=_norm(about, maybe),
        _arena=None,
        photo=Image.fromarray(arrays["photo"]),
        picture_size=tuple(about["picture_size"]),
        provenance=about["provenance"],
    )


def _layer(**described: Any) -> Layer:
    """A layer of JSON, which has lists where there were tuples."""
    for name, value in described.items():
        described[name] = tuple(value) if isinstance(value, list) else value
    return Layer(**described)


def _windows(layer: int, arrays: Mapping[str, np.ndarray]) -> Windows | None:
    found = {name: arrays.get(f"windows_{name}_{layer}") for name in OF_WINDOWS}
    queries, keys, step = found["queries"], found["keys"], found["key_step"]
    if queries is None or keys is None or step is None:
        return None
    return Windows(queries=queries, keys=keys, key_step=(float(step[0]), float(step[1])))


def _call(layer: int, tensor: Callable[[str], Tensor], maybe: Maybe) -> Call | None:
    v = maybe(f"v_{layer}")
    if v is None:
        return None
    output = ComparedOutput(tensor(f"rows_{layer}"), tensor(f"projected_{layer}"))
    weights = maybe(f"weights_{layer}")
    if weights is None:
        q, k, bias = tensor(f"q_{layer}"), tensor(f"k_{layer}"), maybe(f"bias_{layer}")
        return FusedCall(
            q=q,
            k=k,
            v=v,
            output=output,
            scale=float(tensor(f"scale_{layer}")),
            bias=None if bias is None else bias.expand(*q.shape[:-1], k.shape[-2]),
        )
    mixing = None
    if maybe(f"mixing_weight_{layer}") is not None:
        mixing = tensor(f"mixing_weight_{layer}"), tensor(f"mixing_bias_{layer}")
    return SoftmaxCall(weights=weights, v=v, output=output, mixing=mixing)


def _norm(about: Mapping[str, Any], maybe: Maybe) -> nn.Module | None:
    if about["norm"] is None:
        return None
    if about["norm"] == "Identity":
        return nn.Identity()
    if about["norm_eps"] is None:
        return _Forgotten(about["norm"])
    width = about["norm_width"]
    return plain_norm(maybe("norm_weight"), maybe("norm_bias"), about["norm_eps"], width)
