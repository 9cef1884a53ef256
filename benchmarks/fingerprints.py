"""What captures hold, as digests: two versions of vitviz that agree bit by bit print the same.

    PYTHONPATH=BEFORE python benchmarks/fingerprints.py > before.txt
    python benchmarks/fingerprints.py > after.txt
    diff before.txt after.txt

One line a model: shipped ones, and one of each family at random weights of seed 0. Each number is
the beginning of a SHA-256 of the types, shapes and bytes of arrays, on one thread; "none" where the
model has no such arrays, as an MLP-Mixer has no attention. Digests differ between processors and
between releases of torch: compare those of one machine only.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import vitviz
from vitviz import inspection
from vitviz.activations import edited_input

PICTURE = Path(__file__).parents[1] / "assets" / "samples" / "dog.jpg"
SHIPPED = ("vitviz_things200", "vitviz_tiny_cifar10", "vitviz_tiny_cifar100")
RANDOM = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_tiny_r_s16_p8_224",  # a hybrid
    "vit_small_patch14_reg4_dinov2",  # large enough to be kept in memory of its own
    "vit_small_patch16_dinov3",
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "swin_tiny_patch4_window7_224",
    "pvt_v2_b0",
    "maxvit_pico_rw_256",
    "mixer_s32_224",
)


def digest(arrays: Iterable[Any]) -> str:
    """Of all arrays, one after the other."""
    found = hashlib.sha256()
    try:
        for values in map(np.ascontiguousarray, arrays):
            found.update(f"{values.dtype} {values.shape}".encode())
            found.update(values.tobytes())
    except vitviz.ModelError:
        return f"{'none':16}"
    return found.hexdigest()[:16]


def attention(acts: vitviz.Activations) -> Iterator[Any]:
    for layer in range(acts.depth):
        yield acts.attention(layer)
        yield acts.attention_map(layer)
        for window in acts.windows(layer):
            yield from window


def vectors(acts: vitviz.Activations) -> Iterator[Any]:
    for layer in range(acts.depth):
        yield from (acts.queries(layer), acts.keys(layer), acts.values(layer))


def measured(acts: vitviz.Activations) -> Iterator[Any]:
    """All that is measured of a chain of layers; of others, the distances."""
    try:
        yield from astuple(inspection.measurements(acts))
        yield inspection.attention_rollout(acts, fusion="max", discard=0.5)
    except vitviz.ModelError:
        yield from (inspection.windowed_distance(acts, layer=n) for n in range(acts.depth))


def tokens(acts: vitviz.Activations) -> Iterator[Any]:
    yield from (acts.tokens(depth) for depth in range(acts.depth + 1))
    for layer in range(acts.depth):
        yield from (acts.crop_of(layer), acts.crop_of(layer, keys=True))


def logits(acts: vitviz.Activations) -> Iterator[Any]:
    if acts.logits is None:
        raise vitviz.ModelError("The model has no head.")
    yield acts.logits


def filled(model: vitviz.Model, image: Any) -> Iterator[Any]:
    """The input with every third patch painted over."""
    grid = model.layers[0].query_grid
    mask = np.arange(np.prod(grid)).reshape(grid) % 3 == 0
    for fill in ("mean", "blur"):
        yield edited_input(model, image, [vitviz.FillPatches(mask, fill)])


def main() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")  # of numpy
    image = vitviz.open_image(PICTURE.read_bytes())
    for name in SHIPPED + RANDOM:
        seed: dict[str, Any] = {} if name in SHIPPED else dict(pretrained=False, seed=0)
        model = vitviz.load_model(name, **seed)
        acts = vitviz.capture(model, image)
        found = {part.__name__: digest(part(acts)) for part in PARTS}
        found["filled"] = digest(filled(model, image))
        print(f"{name:31}", *(f"{part} {value}" for part, value in found.items()), flush=True)


PARTS = (attention, vectors, measured, tokens, logits)

if __name__ == "__main__":
    main()
