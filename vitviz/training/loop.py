"""One loop for every recipe: build, train in stages, resume, evaluate once, publish."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from ..vit import VisionTransformer, resize_position_embedding
from .attention import PlainAttention
from .data import Split, augment, load_cifar, normalise
from .evaluation import accuracy, calibration
from .publishing import publish
from .recipes import Recipe, Stage


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
    if "temperature" not in about:
        about["temperature"] = calibration(model, held_out).temperature
        _save(checkpoint, model, about)
    per_epoch = len(split.labels) // recipe.batch_size
    return publish(model, recipe, held_out, about, out, per_epoch=per_epoch)


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
