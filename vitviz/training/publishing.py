"""What a finished run leaves: weights, model card, curve, and a record of how it came about."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from .. import inspection
from ..vit import VisionTransformer
from .attention import PlainAttention
from .data import MEAN, SIDE, STD, Split, normalise
from .recipes import RECIPES, Recipe

RECORDED = 12  # snapshots of a run in its record
LOOKED_AT = 16  # held-out pictures over which the record's attention distance is averaged


def publish(
    model: VisionTransformer,
    recipe: Recipe,
    held_out: Split,
    about: Mapping[str, Any],
    out: Path,
    *,
    per_epoch: int,
) -> Path:
    """Write what assets/ ships: fp16 weights that describe themselves, card, curve and record."""
    path = out / f"{recipe.model}.safetensors"
    shipped = {
        "configuration": {**recipe.configuration, "image_size": recipe.stages[-1].image_size},
        "classes": held_out.classes,
        "mean": MEAN,
        "std": STD,
        "test_accuracy": about["test_accuracy"],
        "temperature": round(about["temperature"], 4),
    }
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    save_file(state, path, metadata={"vitviz": json.dumps(shipped)})
    path.with_suffix(".md").write_text(_card(recipe, about, path.stat().st_size))
    write_curve(recipe, about, out)
    arrays: Any = record(recipe, out, held_out, per_epoch=per_epoch)
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return path


def write_curve(recipe: Recipe, about: Mapping[str, Any], out: Path) -> None:
    """Loss and held-out accuracy by epoch, what the loss is, and the one figure of the test split.

    `minutes` are those of the run itself, without those of its teacher.
    """
    curve: dict[str, Any] = {
        "model": recipe.model,
        "test_accuracy": about["test_accuracy"],
        "minutes": round(about["seconds"] / 60),
        "picture_side": SIDE,
        "label_smoothing": recipe.label_smoothing,
    }
    if recipe.teacher:
        curve["temperature"] = recipe.temperature
        teacher = json.loads(
            (out / "teacher" / f"{RECIPES[recipe.teacher].model}.json").read_text()
        )
        curve["teacher"] = {name: teacher[name] for name in ("model", "test_accuracy", "minutes")}
    text = json.dumps({**curve, "epochs": about["history"]}, indent=1)
    (out / f"{recipe.model}.json").write_text(text + "\n")


def _card(recipe: Recipe, about: Mapping[str, Any], size: int) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    name = next((key for key, known in RECIPES.items() if known == recipe), recipe.dataset)
    last = about["history"][-1]["held_out_accuracy"]
    return f"""# {recipe.model}

A Vision Transformer trained from scratch by `vitviz train --recipe {name}`.

- **Test accuracy: {about["test_accuracy"]:.2%}** of all {about["test_pictures"]:,} test pictures,
  measured once, after the last step; the test split chose nothing.
- Accuracy on the {recipe.held_out:,} held-out training pictures at the end: {last:.2%}.
- Temperature fitted on the held-out pictures: {about["temperature"]:.2f}.
- Data: {recipe.dataset} (Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
  2009), its training split less the held-out pictures, and nothing else. The training pictures were
  read from nearly lossless copies (42 dB), the test pictures from bit-exact ones.
- Wall time: {about["seconds"] / 60:.0f} minutes on one core of a CPU.
- File: {size / 1e6:.1f} MB of fp16 safetensors; configuration, classes and preprocessing in its
  metadata.
- Known limits: it knows {recipe.configuration["num_classes"]} classes of 32-pixel pictures. A photo
  of anything else is still given one of their names.

| recipe | |
|---|---|
{rows}
"""


def record(recipe: Recipe, run: Path, held_out: Split, *, per_epoch: int) -> dict[str, np.ndarray]:
    """What about twelve snapshots of a run show, from its beginning to its end.

    Parameters
    ----------
    run : Path
        The run's folder, with its snapshots.
    held_out : Split
    per_epoch : int
        Batches in an epoch.

    Returns
    -------
    dict of ndarray
        `image_size` and `epoch` (snapshots,); for snapshot number 0, 1, ...: `filters_0` of shape
        (D, C, P, P), `positions_0` of shape (rows * cols, D), both float16, and `distance_0` of
        shape (layers, heads), in pixels, the mean over the first 16 held-out pictures.
    """
    snapshots = sorted(run.glob("stage*_step*.safetensors"), key=_when)
    chosen = np.unique(np.linspace(0, len(snapshots) - 1, RECORDED).round().astype(int))
    arrays: dict[str, Any] = {"image_size": [], "epoch": []}
    for number, path in enumerate(snapshots[index] for index in chosen):
        stage, step = _when(path)
        size = recipe.stages[stage].image_size
        model = VisionTransformer(image_size=size, **recipe.configuration)
        model.load_state_dict({name: value.float() for name, value in load_file(path).items()})
        arrays["image_size"].append(size)
        arrays["epoch"].append(round(step / per_epoch, 3))
        kernel = model.patch_embed.proj.weight.detach()
        arrays[f"filters_{number}"] = kernel.half().numpy()
        positions = model.state_dict()["pos_embed"][0, model.num_prefix_tokens :]
        arrays[f"positions_{number}"] = positions.half().numpy()
        arrays[f"distance_{number}"] = _distance(model, held_out)
    return {name: np.asarray(values) for name, values in arrays.items()}


def _when(snapshot: Path) -> tuple[int, int]:
    """Stage and step of a snapshot, by its name."""
    stage, step = (int(number) for number in re.findall(r"\d+", snapshot.stem))
    return stage, step


def _distance(model: VisionTransformer, pictures: Split) -> np.ndarray:
    """Mean attention distance (layers, heads), in pixels of the model's input."""
    size = model.patch_embed.image_size[0]
    x = normalise(torch.from_numpy(pictures.pictures[:LOOKED_AT]), size)
    with torch.inference_mode(), PlainAttention(keep=True) as attention:
        model.eval()(x)
    layers = [layer.numpy() for layer in attention.kept]  # each (pictures, heads, tokens, tokens)
    distances = [
        inspection.attention_distance(
            [layer[picture] for layer in layers],
            grid=model.patch_embed.grid_size,
            patch_size=size // model.patch_embed.grid_size[0],
            num_prefix_tokens=model.num_prefix_tokens,
        )
        for picture in range(len(x))
    ]
    return np.mean(distances, axis=0)
