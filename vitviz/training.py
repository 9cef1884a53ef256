"""Trains the models in assets/: data, recipes, one loop, one evaluation on the test split.

A run lives in one folder and can be stopped and resumed: `checkpoint.safetensors` holds the
weights and, as metadata, how far the run has come. The optimisers' momentum is not kept; it
rebuilds within some twenty steps.
"""

import io
import json
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from .vit import VisionTransformer, resize_position_embedding

# Mean and standard deviation of CIFAR-10's training pictures, per channel, of values in 0..1.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stretch of training at one picture size; the rate warms up, then falls linearly to 0."""

    image_size: int
    epochs: float
    rate: float = 1.0  # factor on both learning rates at the peak


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that makes a run repeatable."""

    model: str  # name of the files that the run writes
    dataset: str
    configuration: Mapping[str, Any]  # keywords of VisionTransformer, without the picture size
    stages: tuple[Stage, ...]
    held_out: int = 5000  # training pictures kept back for choosing; the test split chooses nothing
    batch_size: int = 128
    muon_rate: float = 0.01  # matrices of the blocks
    # Muon's steps all have the same size, so that only decay bounds the weights. With 0.01 they
    # grew tenfold in three epochs and the attention of most rows fell on a single token.
    muon_decay: float = 0.3
    adamw_rate: float = 1e-3  # everything else
    adamw_decay: float = 0.01
    label_smoothing: float = 0.1
    shift: int = 4  # pixels of random translation, edges reflected
    seed: int = 0


RECIPES = {
    # Expected: above 71.36 % of CIFAR-10's test pictures; about 90 minutes on one CPU core.
    "cifar10": Recipe(
        model="vitviz_tiny_cifar10",
        dataset="cifar10",
        configuration=dict(
            patch_size=4, embed_dim=192, depth=6, num_heads=6, mlp_dim=768, num_classes=10
        ),
        stages=(Stage(image_size=32, epochs=11), Stage(image_size=64, epochs=0.8, rate=0.3)),
    ),
    # Expected: above 52 % of CIFAR-100's test pictures; about two hours on one CPU core.
    "cifar100": Recipe(
        model="vitviz_tiny_cifar100",
        dataset="cifar100",
        configuration=dict(
            patch_size=4, embed_dim=192, depth=6, num_heads=6, mlp_dim=768, num_classes=100
        ),
        stages=(Stage(image_size=32, epochs=18), Stage(image_size=64, epochs=0.8, rate=0.3)),
    ),
    # A run of seconds on a handful of pictures, for trying the trainer itself.
    "smoke": Recipe(
        model="smoke",
        dataset="cifar10",
        configuration=dict(
            patch_size=8, embed_dim=32, depth=1, num_heads=2, mlp_dim=64, num_classes=10
        ),
        stages=(Stage(image_size=32, epochs=2), Stage(image_size=64, epochs=1, rate=0.3)),
        held_out=20,
        batch_size=20,
    ),
}


@dataclass(frozen=True)
class Split:
    """Pictures, uint8 of shape (n, 32, 32, 3), their labels of shape (n,) and class names."""

    pictures: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]


def load_cifar(folder: Path, dataset: str, split: str) -> Split:
    """Read CIFAR from parquet files of picture sheets, or from the original python pickles.

    Parameters
    ----------
    folder : Path
        Holds `cifar10_train*.parquet` and `cifar10_test*.parquet`, or `cifar-10-batches-py/`
        (or that folder's files themselves); for CIFAR-100 likewise.
    dataset : "cifar10" or "cifar100"
    split : "train" or "test"

    Raises
    ------
    ValueError
        When the folder has neither.
    """
    sheets = sorted(folder.glob(f"{dataset}_{split}*.parquet"))
    if sheets:
        return _from_sheets(sheets[0])
    batches = folder / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[dataset]
    batches = batches if batches.is_dir() else folder
    names = {"train": "data_batch_*", "test": "test_batch"} if dataset == "cifar10" else {}
    files = sorted(batches.glob(names.get(split, split)))
    if not files:
        raise ValueError(f"No {split} pictures of {dataset} in {folder}.")
    return _from_pickles(files, batches)


def _from_sheets(path: Path) -> Split:
    from pyarrow import parquet

    table = parquet.read_table(path)
    pictures = []
    for sheet in table["sheet"].to_pylist():
        tiles = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB"))
        rows, cols = tiles.shape[0] // 32, tiles.shape[1] // 32
        tiles = tiles.reshape(rows, 32, cols, 32, 3).swapaxes(1, 2)
        pictures.append(tiles.reshape(-1, 32, 32, 3))
    labels = np.frombuffer(b"".join(table["label"].to_pylist()), np.uint8)
    classes = json.loads(table.schema.metadata[b"classes"])
    return Split(np.concatenate(pictures), labels.astype(np.int64), tuple(classes))


class _ArraysOnly(pickle.Unpickler):
    """CIFAR's pickles hold dicts, bytes and arrays; anything else might run code."""

    allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),  # its name since numpy 2
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.allowed:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a CIFAR file.")


def _from_pickles(files: list[Path], folder: Path) -> Split:
    def read(path: Path) -> dict[bytes, Any]:
        with path.open("rb") as file:
            content: dict[bytes, Any] = _ArraysOnly(file, encoding="bytes").load()
        return content

    batches = [read(path) for path in files]
    label_key, name_key = (
        (b"labels", b"label_names")
        if b"labels" in batches[0]
        else (b"fine_labels", b"fine_label_names")
    )
    meta = read(folder / ("batches.meta" if label_key == b"labels" else "meta"))
    pictures = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([np.asarray(batch[label_key], np.int64) for batch in batches])
    classes = tuple(name.decode() for name in meta[name_key])
    return Split(np.ascontiguousarray(pictures.transpose(0, 2, 3, 1)), labels, classes)


class PlainAttention(TorchFunctionMode):
    """Attention as two matrix products around a softmax.

    With 65 tokens on a CPU the fused kernel's backward pass takes a third of the training step.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return torch.softmax(scores, dim=-1, dtype=q.dtype) @ v


def normalise(pictures: Tensor, image_size: int) -> Tensor:
    """uint8 (n, 32, 32, 3) -> the model's input, float32 (n, 3, image_size, image_size)."""
    x = pictures.permute(0, 3, 1, 2).float() / 255
    if image_size != x.shape[-1]:
        x = F.interpolate(x, size=image_size, mode="bicubic", antialias=True).clamp(0, 1)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (x - mean) / std


def augment(pictures: Tensor, shift: int, generator: torch.Generator) -> Tensor:
    """Flip half of the pictures and move each by up to `shift` pixels, reflecting at the edge."""
    count, size = pictures.shape[0], pictures.shape[1]
    steps = torch.randint(-shift, shift + 1, (2, count, 1), generator=generator)
    row, col = torch.arange(size) + steps  # each (n, size)
    row, col = (size - 1 - (size - 1 - axis.abs()).abs() for axis in (row, col))
    flip = torch.rand(count, 1, generator=generator) < 0.5
    col = torch.where(flip, size - 1 - col, col)
    return pictures[torch.arange(count)[:, None, None], row[:, :, None], col[:, None, :]]


def build(recipe: Recipe, stage: Stage) -> VisionTransformer:
    """The recipe's model, freshly initialised from its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return VisionTransformer(image_size=stage.image_size, **recipe.configuration)


def grow(model: VisionTransformer, larger: VisionTransformer) -> VisionTransformer:
    """Copy `model` into one for larger pictures, positions interpolated in two dimensions."""
    state = model.state_dict()
    if "pos_embed" in state:
        state["pos_embed"] = resize_position_embedding(
            state["pos_embed"],
            grid=larger.patch_embed.grid_size,
            num_prefix_tokens=model.num_prefix_tokens,
            old_grid=model.patch_embed.grid_size,
        )
    larger.load_state_dict(state)
    return larger


def predict(model: VisionTransformer, pictures: np.ndarray, batch_size: int = 250) -> Tensor:
    """Logits (n, K) of uint8 pictures (n, 32, 32, 3)."""
    size = model.patch_embed.image_size[0]
    model.eval()
    with torch.inference_mode():
        batches = torch.from_numpy(pictures).split(batch_size)
        return torch.cat([model(normalise(batch, size)).float() for batch in batches])


def accuracy(model: VisionTransformer, split: Split) -> float:
    """Share of the split's pictures whose most probable class is their label."""
    right = predict(model, split.pictures).argmax(dim=1) == torch.from_numpy(split.labels)
    return float(right.float().mean())


def _batches(
    split: Split, recipe: Recipe, stage: int, first: int, last: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented batches number `first` to `last` - 1 of a stage; they depend on the seed alone."""
    pictures, labels = torch.from_numpy(split.pictures), torch.from_numpy(split.labels)
    per_epoch = len(labels) // recipe.batch_size
    for step in range(first, last):
        epoch, place = divmod(step, per_epoch)
        order = torch.Generator().manual_seed(recipe.seed * 10_007 + stage * 1009 + epoch)
        chosen = torch.randperm(len(labels), generator=order)
        chosen = chosen[place * recipe.batch_size : (place + 1) * recipe.batch_size]
        noise = torch.Generator().manual_seed(recipe.seed * 10_007 + stage * 1_000_003 + step)
        yield augment(pictures[chosen], recipe.shift, noise), labels[chosen]


def _optimisers(model: VisionTransformer, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in taken]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, weight_decay=recipe.muon_decay),
        torch.optim.AdamW(others, lr=recipe.adamw_rate, weight_decay=recipe.adamw_decay),
    ]


def _set_rate(optimisers: list[torch.optim.Optimizer], recipe: Recipe, factor: float) -> None:
    for optimiser, rate in zip(optimisers, (recipe.muon_rate, recipe.adamw_rate), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = rate * factor


def rate_factor(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 5 % of the stage, at most 200 steps, then linear decay to 0."""
    warmup = min(200, max(1, steps // 20))
    return peak * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def _save(path: Path, model: VisionTransformer, about: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    save_file(model.state_dict(), partial, metadata={"vitviz": json.dumps(about)})
    partial.replace(path)


def _snapshot(path: Path, model: VisionTransformer) -> None:
    """Keep the weights as they are now, fp16, to look back at how they came about."""
    save_file({name: tensor.half() for name, tensor in model.state_dict().items()}, path)


def _read_about(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["vitviz"])
    return about


def train(
    recipe: Recipe,
    *,
    data: Path,
    out: Path,
    save_every: int = 100,
    report: Callable[[str], None] = tqdm.write,
) -> Path:
    """Train, resuming what `out` holds; evaluate once on the test split; write the model.

    Parameters
    ----------
    recipe : Recipe
    data : Path
        Folder with CIFAR, see `load_cifar`.
    out : Path
        Folder of the run.
    save_every : int
        Steps between two checkpoints.

    Returns
    -------
    Path of the fp16 safetensors file; its model card and its curve lie beside it.

    Raises
    ------
    ValueError
        When the data are not there or too few, or `out` holds a run of another recipe.
    """
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.safetensors"
    everything = load_cifar(data, recipe.dataset, "train")
    test = load_cifar(data, recipe.dataset, "test")  # before the work, to miss it early
    kept = len(everything.labels) - recipe.held_out
    if kept < recipe.batch_size:
        raise ValueError(
            f"{len(everything.labels)} training pictures are too few: "
            f"{recipe.held_out} are held out and a batch takes {recipe.batch_size}."
        )
    split = Split(everything.pictures[:kept], everything.labels[:kept], everything.classes)
    held_out = Split(everything.pictures[kept:], everything.labels[kept:], everything.classes)

    about: dict[str, Any] = {
        "recipe": json.loads(json.dumps(asdict(recipe))),
        "stage": 0,
        "step": 0,
        "seconds": 0.0,
        "history": [],
    }
    model = build(recipe, recipe.stages[0])
    if checkpoint.exists():
        saved = _read_about(checkpoint)
        if saved["recipe"] != about["recipe"]:
            raise ValueError(f"{out} holds a run of another recipe; choose another folder.")
        about = saved
        model = build(recipe, recipe.stages[about["stage"]])
        model.load_state_dict(load_file(checkpoint))
        report(f"resuming at stage {about['stage'] + 1}, step {about['step']}")

    for number in range(about["stage"], len(recipe.stages)):
        stage = recipe.stages[number]
        if number > about["stage"]:
            model = grow(model, build(recipe, stage))
            about.update(stage=number, step=0)
        _run_stage(model, recipe, number, split, held_out, checkpoint, about, save_every, report)

    if "test_accuracy" not in about:
        model.half().float()  # what is measured is what is shipped: weights rounded to fp16
        about["test_accuracy"] = accuracy(model, test)
        about["test_pictures"] = len(test.labels)
        _save(checkpoint, model, about)
    report(f"test accuracy {about['test_accuracy']:.2%} of {about['test_pictures']} pictures")
    return _publish(model, recipe, test.classes, about, out)


def _run_stage(
    model: VisionTransformer,
    recipe: Recipe,
    number: int,
    split: Split,
    held_out: Split,
    checkpoint: Path,
    about: dict[str, Any],
    save_every: int,
    report: Callable[[str], None],
) -> None:
    stage = recipe.stages[number]
    per_epoch = len(split.labels) // recipe.batch_size
    steps = math.ceil(stage.epochs * per_epoch)
    first = about["step"]
    if first == 0:
        _snapshot(checkpoint.parent / f"stage{number}_step0.safetensors", model)
    optimisers = _optimisers(model, recipe)
    losses: list[float] = []
    clock = time.monotonic()
    bar = tqdm(
        _batches(split, recipe, number, first, steps),
        desc=f"{stage.image_size} px",
        initial=first,
        total=steps,
        unit="batch",
        mininterval=2,
    )
    for step, (pictures, labels) in enumerate(bar, start=first):
        model.train()
        _set_rate(optimisers, recipe, rate_factor(step, steps, stage.rate))
        with torch.autocast("cpu", torch.bfloat16), PlainAttention():
            logits = model(normalise(pictures, stage.image_size))
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=recipe.label_smoothing)
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)

        done = step + 1
        epoch_ended = done % per_epoch == 0 or done == steps
        if epoch_ended:
            row = {
                "image_size": stage.image_size,
                "epoch": round(done / per_epoch, 3),
                "loss": round(sum(losses) / len(losses), 4),
                "held_out_accuracy": round(accuracy(model, held_out), 4),
            }
            about["history"].append(row)
            report(json.dumps(row))
            losses = []
            _snapshot(checkpoint.parent / f"stage{number}_step{done}.safetensors", model)
        if epoch_ended or done % save_every == 0:
            now = time.monotonic()
            about.update(step=done, seconds=about["seconds"] + now - clock)
            clock = now
            _save(checkpoint, model, about)


def _publish(
    model: VisionTransformer,
    recipe: Recipe,
    classes: tuple[str, ...],
    about: Mapping[str, Any],
    out: Path,
) -> Path:
    """Write what assets/ ships: fp16 weights that describe themselves, a model card, the curve."""
    path = out / f"{recipe.model}.safetensors"
    shipped = {
        "configuration": {**recipe.configuration, "image_size": recipe.stages[-1].image_size},
        "classes": classes,
        "mean": MEAN,
        "std": STD,
        "test_accuracy": about["test_accuracy"],
    }
    state = {name: tensor.half() for name, tensor in model.state_dict().items()}
    save_file(state, path, metadata={"vitviz": json.dumps(shipped)})
    path.with_suffix(".md").write_text(_card(recipe, about, path.stat().st_size))
    curve = {"model": recipe.model, "test_accuracy": about["test_accuracy"]}
    path.with_suffix(".json").write_text(
        json.dumps({**curve, "epochs": about["history"]}, indent=1) + "\n"
    )
    return path


def _card(recipe: Recipe, about: Mapping[str, Any], size: int) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in asdict(recipe).items())
    last = about["history"][-1]["held_out_accuracy"]
    return f"""# {recipe.model}

A Vision Transformer trained from scratch by `vitviz train --recipe {recipe.dataset}`.

- **Test accuracy: {about["test_accuracy"]:.2%}** of all {about["test_pictures"]:,} test pictures,
  measured once, after the last step; the test split chose nothing.
- Accuracy on the {recipe.held_out:,} held-out training pictures at the end: {last:.2%}.
- Data: {recipe.dataset} (Alex Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
  2009), its training split less the held-out pictures, and nothing else. The training pictures were
  read from nearly lossless copies (42 dB), the test pictures from bit-exact ones.
- Wall time: {about["seconds"] / 60:.0f} minutes on one core of a CPU.
- File: {size / 1e6:.1f} MB of fp16 safetensors; configuration, classes and preprocessing in its
  metadata.
- Known limits: it knows ten classes of 32-pixel pictures. A photo of anything else is still given
  one of the ten names.

| recipe | |
|---|---|
{rows}
"""
