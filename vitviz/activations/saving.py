"""Writing a capture to a file: an NPZ archive of the arrays it holds, and what they are in JSON."""

import io
import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..families import Windows
from .calls import FusedCall

if TYPE_CHECKING:
    from .activations import Activations

FORMAT = 1  # of the file; one that is not known is refused
OF_WINDOWS = tuple(field.name for field in fields(Windows))


def written(acts: "Activations") -> bytes:
    """The file of a capture, as `Activations.save` describes it."""
    arrays: dict[str, np.ndarray] = {"photo": np.asarray(acts.photo)}
    halves: list[str] = []  # arrays of bfloat16, which numpy lacks
    orders: dict[str, list[int]] = {}  # axes as they lie in memory: products round by it

    def put(name: str, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        tensor = tensor.detach().cpu()
        for axis, step in enumerate(tensor.stride()):
            if step == 0:  # a bias that all windows or heads share
                tensor = tensor.narrow(axis, 0, 1)
        steps = tensor.stride()
        order = sorted(range(tensor.ndim), key=lambda axis: -steps[axis])
        if order != [*range(tensor.ndim)]:
            orders[name] = order
        if tensor.dtype == torch.bfloat16:
            halves.append(name)
            tensor = tensor.contiguous().view(torch.int16)
        arrays[name] = tensor.numpy()

    if acts.output is not None:
        arrays["features" if acts.logits is None else "logits"] = acts.output
    arrays["patches"] = acts.patches
    for depth, z in enumerate(acts._stream):
        put(f"tokens_{depth}", z)
    for layer in range(acts.depth):
        put(f"tokens_after_attention_{layer}", acts._after_attention[layer])
        call, windows = acts._calls[layer], acts._windows[layer]
        if windows is not None:
            for name in OF_WINDOWS:
                arrays[f"windows_{name}_{layer}"] = np.asarray(getattr(windows, name))
        if call is None:
            continue
        call = call.cpu()  # where it is proved again
        put(f"rows_{layer}", call.output.rows)
        put(f"projected_{layer}", call.output.projected)
        put(f"v_{layer}", call.v)
        if isinstance(call, FusedCall):
            put(f"q_{layer}", call.q)
            put(f"k_{layer}", call.k)
            put(f"bias_{layer}", call.bias)
            arrays[f"scale_{layer}"] = np.array(call.scale)
        else:
            put(f"weights_{layer}", call.weights)
            weight, bias = call.mixing or (None, None)
            put(f"mixing_weight_{layer}", weight)
            put(f"mixing_bias_{layer}", bias)
    norm = _layer_norm(acts)
    if norm is not None:
        put("norm_weight", norm.weight)
        put("norm_bias", norm.bias)
    about = {
        "format": FORMAT,
        "provenance": acts.provenance,
        "picture_size": acts.picture_size,
        "layers": [asdict(layer) for layer in acts.layers],
        "labels": acts.labels,
        "embeds": acts._embeds,
        "activation": acts.activation,
        "read_tokens": acts.read_tokens,
        "crops": acts._crops,
        "offsets": acts._offsets,
        "norm": type(acts._final_norm).__name__ if acts._final_norm is not None else None,
        "norm_eps": None if norm is None else norm.eps,
        "norm_width": None if norm is None else norm.normalized_shape[0],
        "bfloat16": halves,
        "orders": orders,
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=json.dumps(about), **arrays)
    return file.getvalue()


def _layer_norm(acts: "Activations") -> nn.LayerNorm | None:
    """The final norm, where a plain LayerNorm of its parameters does exactly the same."""
    norm, last = acts._final_norm, acts._stream[-1]
    if not isinstance(norm, nn.LayerNorm) or tuple(norm.normalized_shape) != last.shape[-1:]:
        return None
    plain = plain_norm(norm.weight, norm.bias, norm.eps, last.shape[-1])
    normalised = torch.from_numpy(acts.tokens(acts.depth, normalised=True).copy())
    with torch.inference_mode():
        return plain if torch.equal(plain(last).float().cpu(), normalised) else None


def plain_norm(weight: Tensor | None, bias: Tensor | None, eps: float, width: int) -> nn.LayerNorm:
    plain = nn.LayerNorm(width, eps, elementwise_affine=False)
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None:
            setattr(plain, name, nn.Parameter(values.detach(), requires_grad=False))
    return plain
