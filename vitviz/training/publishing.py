"""Write a finished run: weights, model card, training curve, and snapshots of its training."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from .. import inspection
from ..common.files import open_replacement, replace_file
from ..vit import VisionTransformer
from .data import Split, normalise
from .evaluation import fitted_preprocessing
from .objective import PlainAttention
from .recipes import RECIPES, Recipe

SNAPSHOTS = 12  # of a run, in the published file
_CIFAR = """{} (Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009)."""
_DATA = {
    "cifar10": _CIFAR.format("CIFAR-10"),
    "cifar100": _CIFAR.format("CIFAR-100"),
    "tiny_imagenet": """Tiny-ImageNet-200 (Stanford CS231n), a part of ImageNet, whose terms are
  non-commercial research and education; no picture is in the file. Its validation pictures
  are the test split, as those of its own test split have no labels.""",
}
SNAPSHOT_PICTURES = 16  # held out, over which a snapshot's distance and entropy are averaged


_HUB = {  # the names of the data on the hub, for the head of a card
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny_imagenet": "zh-plus/tiny-imagenet",
}
_CIFAR_TERMS = (
    "CIFAR states no licence, and its pictures come from 80 Million Tiny Images, which its authors "
    "withdrew in 2020."
)
_TERMS = {
    "cifar10": _CIFAR_TERMS,
    "cifar100": _CIFAR_TERMS,
    "tiny_imagenet": "ImageNet's pictures may be used for non-commercial research and education.",
}


def publish(
    model: VisionTransformer,
    recipe: Recipe,
    held_out: Split,
    about: Mapping[str, Any],
    out: Path,
) -> Path:
    """Write the files of assets/: fp16 weights with metadata, model card, curve and snapshots."""
    path = out / f"{recipe.model}.safetensors"
    shipped = {
        "configuration": {**recipe.configuration, "image_size": recipe.stages[-1].image_size},
        "classes": held_out.classes,
        "mean": held_out.mean,
        "std": held_out.std,
        "detail": fitted_preprocessing(model, held_out).detail,
        "test_accuracy": about["test_accuracy"],
        "temperature": round(about["temperature"], 4),
    }
    if recipe.initialisation:
        shipped["initialisation"] = {
            **asdict(recipe.initialisation),
            "image_size": recipe.stages[0].image_size,
            "seed": recipe.seed,
        }
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    replace_file(path, save(state, metadata={"vitviz": json.dumps(shipped)}))
    card = _card(recipe, held_out, about, path.stat().st_size, model)
    replace_file(path.with_suffix(".md"), card.encode())
    write_curve(recipe, held_out, about, out)
    arrays: Any = record(out / "moments.npz")
    with open_replacement(path.with_suffix(".npz")) as file:
        np.savez_compressed(file, **arrays)
    return path


def write_curve(recipe: Recipe, held_out: Split, about: Mapping[str, Any], out: Path) -> None:
    """Write the training curve: loss and held-out accuracy by epoch, and the test accuracy.

    `minutes` are those of the run itself, without its teacher. A run that continued after its test
    has `tested_before`: picture size, epoch and accuracy each time.
    """
    curve: dict[str, Any] = {
        "model": recipe.model,
        "test_accuracy": about["test_accuracy"],
        "minutes": round(about["seconds"] / 60),
        "picture_side": held_out.pictures.shape[1],
        "label_smoothing": recipe.label_smoothing,
        "cutmix": recipe.cutmix,
    }
    if "tested_before" in about:
        curve["tested_before"] = about["tested_before"]
    if recipe.teacher:
        curve["temperature"] = recipe.temperature
        curve["distillation_token"] = recipe.configuration.get("distillation_token", False)
        teacher = json.loads(
            (out / "teacher" / f"{RECIPES[recipe.teacher].model}.json").read_text()
        )
        curve["teacher"] = {name: teacher[name] for name in ("model", "test_accuracy", "minutes")}
    text = json.dumps({**curve, "epochs": about["history"]}, indent=1)
    replace_file(out / f"{recipe.model}.json", f"{text}\n".encode())


def _card(
    recipe: Recipe,
    held_out: Split,
    about: Mapping[str, Any],
    size: int,
    model: VisionTransformer,
) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    name = next((key for key, other in RECIPES.items() if other == recipe), None)
    by = "`vitviz.training.train` and the recipe below"
    if name:
        by = f"`vitviz train --recipe {name}`"
    copies = held_out.lossy_format
    data_note = f" The training pictures were read from lossy copies ({copies})." if copies else ""
    last = about["history"][-1]["held_out_accuracy"]
    weights = "the moving average of the weights" if recipe.average else "the weights"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    side = recipe.stages[-1].image_size
    but = " but W_q, W_k and W_v" if recipe.qkv == "adamw" else ""
    test_note = "; the test split chose nothing"
    if "tested_before" in about:
        times = ", ".join(
            f"{one['test_accuracy']:.1%} at epoch {one['epoch']:g} at {one['image_size']} pixels"
            for one in about["tested_before"]
        )
        test_note = f""". It was measured
  earlier too, when the training was to end but went on, as more was wanted
  ({times}); the test split chose nothing else"""
    return f"""---
license: mit
library_name: vitviz
pipeline_tag: image-classification
datasets: [{_HUB[recipe.dataset]}]
model-index:
  - name: {recipe.model}
    results:
      - task: {{type: image-classification}}
        dataset: {{type: {_HUB[recipe.dataset]}, name: {recipe.dataset}, split: test}}
        metrics: [{{type: accuracy, value: {about["test_accuracy"]:.4f}}}]
---

# {recipe.model}

A Vision Transformer trained from scratch by {by}.

- **Test accuracy: {about["test_accuracy"]:.2%}** of all {about["test_pictures"]:,} test pictures,
  measured after the last step, as `capture` prepares a picture{test_note}.
- Accuracy on the {recipe.held_out:,} held-out training pictures at the end: {last:.2%}.
- Temperature fitted on the held-out pictures: {about["temperature"]:.2f}. Divide the logits by it
  for probabilities that can be believed.
- Data: {_DATA[recipe.dataset]}{data_note} The training
  split less the held-out pictures was trained on, and nothing else.
- Published: {weights}.
- Size: {parameters:,} parameters; the input has {side} x {side} pixels.
- Optimiser: Muon for the matrices of the encoder's layers{but}, AdamW for the rest;
  seed {recipe.seed}.
- Wall time: {about["seconds"] / 60:.0f} minutes by the clock.
- File: {size / 1e6:.1f} MB of fp16 safetensors; configuration, classes and preprocessing in its
  metadata.
- Known limits: it knows {len(held_out.classes)} classes of {held_out.pictures.shape[1]}-pixel
  pictures. A photo of anything else is still given one of their names.
- Intended use: to show in lessons and studies how a Vision Transformer works. Nothing that matters
  to anybody should be decided by its answers.
- Licence: MIT, like vitviz, as far as its authors can give one. The data have terms of their own.
  {_TERMS[recipe.dataset]}
  Whether such terms bind weights that were trained on the data is not settled: before you use them
  commercially, find out.

| recipe | |
|---|---|
{rows}
"""


def add_snapshot(
    model: VisionTransformer, held_out: Split, file: Path, *, stage: int, step: int, epoch: float
) -> None:
    """Add a snapshot of the model to a run's file, in place of one of the same step.

    It holds E, (D, C, P, P), and the positions, (rows * cols, D), both float16; attention distance
    in pixels of the model's input and entropy of attention in bits, both (layers, heads), averaged
    over the first 16 held-out pictures.
    """
    arrays = dict(np.load(file)) if file.exists() else {}
    key = f"{stage}_{step:07d}"
    distance, entropy = _attention(model, held_out)
    positions = model.state_dict()["pos_embed"][0, model.num_prefix_tokens :]
    arrays[f"epoch/{key}"] = np.asarray(epoch)
    arrays[f"image_size/{key}"] = np.asarray(model.patch_embed.image_size[0])
    arrays[f"filters/{key}"] = model.patch_embed.proj.weight.detach().cpu().half().numpy()
    arrays[f"positions/{key}"] = positions.cpu().half().numpy()
    arrays[f"distance/{key}"], arrays[f"entropy/{key}"] = distance, entropy
    with open_replacement(file) as replacement:
        np.savez_compressed(replacement, **arrays)


def record(file: Path) -> dict[str, np.ndarray]:
    """Return about twelve snapshots of a run, equally spaced from its beginning to its end.

    Returns
    -------
    dict of ndarray
        `image_size` and `epoch` (snapshots,); for snapshot 0, 1, ...: `filters_0`,
        `positions_0`, `distance_0` and `entropy_0`, see `add_snapshot`.
    """
    arrays = np.load(file)
    keys = sorted(name.split("/")[1] for name in arrays if name.startswith("epoch/"))
    indices = np.unique(np.linspace(0, len(keys) - 1, SNAPSHOTS).round().astype(int))
    snapshots = {
        f"{name}_{number}": arrays[f"{name}/{keys[index]}"]
        for number, index in enumerate(indices)
        for name in ("filters", "positions", "distance", "entropy")
    }
    times = {
        name: np.asarray([arrays[f"{name}/{keys[index]}"] for index in indices])
        for name in ("image_size", "epoch")
    }
    return {**times, **snapshots}


def _attention(model: VisionTransformer, pictures: Split) -> tuple[np.ndarray, np.ndarray]:
    """Measure mean attention distance in pixels and entropy in bits: (layers, heads) each."""
    size = model.patch_embed.image_size[0]
    few = torch.from_numpy(pictures.pictures[:SNAPSHOT_PICTURES])
    x = normalise(few, size, pictures.mean, pictures.std)
    x = x.to(next(model.parameters()).device)
    with torch.inference_mode(), PlainAttention(keep=True) as attention:
        model.eval()(x)
    layers = [layer.cpu().numpy() for layer in attention.kept]  # (pictures, heads, tokens, tokens)
    distances = [
        inspection.attention_distance(
            [layer[picture] for layer in layers],
            grid=model.patch_embed.grid_size,
            patch_size=size // model.patch_embed.grid_size[0],
            num_prefix_tokens=model.num_prefix_tokens,
        )
        for picture in range(len(x))
    ]
    entropies = [torch.special.entr(layer).sum(dim=-1).mean(dim=(0, 2)) for layer in attention.kept]
    return np.mean(distances, axis=0), torch.stack(entropies).cpu().numpy() / np.log(2)
