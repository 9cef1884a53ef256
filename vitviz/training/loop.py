"""One loop for every recipe: build, train in stages, resume, evaluate once, publish."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from ..vit import VisionTransformer, resize_position_embedding
from .attention import PlainAttention
from .cnn import Cnn
from .data import Split, augment, load_cifar, normalise
from .evaluation import Network, accuracy, calibration, predict
from .publishing import publish, write_curve
from .recipes import RECIPES, Recipe, Stage


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


def _fresh(recipe: Recipe, stage: Stage) -> Network:
    if recipe.network == "vit":
        return build(recipe, stage)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Cnn(**recipe.configuration)


def _batches(
    split: Split, recipe: Recipe, stage: int, first: int, last: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches number `first` to `last` - 1 of a stage; they depend on the seed alone.

    Each is augmented pictures, their labels, and their places in the split.
    """
    pictures, labels = torch.from_numpy(split.pictures), torch.from_numpy(split.labels)
    per_epoch = len(labels) // recipe.batch_size
    for step in range(first, last):
        epoch, place = divmod(step, per_epoch)
        order = torch.Generator().manual_seed(recipe.seed * 10_007 + stage * 1009 + epoch)
        chosen = torch.randperm(len(labels), generator=order)
        chosen = chosen[place * recipe.batch_size : (place + 1) * recipe.batch_size]
        noise = torch.Generator().manual_seed(recipe.seed * 10_007 + stage * 1_000_003 + step)
        yield augment(pictures[chosen], recipe.shift, noise), labels[chosen], chosen


def _optimisers(model: Network, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for everything else; SGD for a CNN."""
    if isinstance(model, Cnn):
        options: Any = dict(lr=recipe.sgd_rate, weight_decay=recipe.sgd_decay)
        return [torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **options)]
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    taken = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in taken]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_rate, weight_decay=recipe.muon_decay),
        torch.optim.AdamW(others, lr=recipe.adamw_rate, weight_decay=recipe.adamw_decay),
    ]


def _set_rate(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = optimiser.defaults["lr"] * factor


def _loss(
    model: Network, x: Tensor, labels: Tensor, taught: Tensor | None, recipe: Recipe
) -> Tensor:
    """Cross-entropy with the labels; a distillation token learns the teacher's logits `taught`.

    References
    ----------
    Touvron et al., "Training data-efficient image transformers" (ICML 2021), equation 2 with the
    two terms on tokens of their own; Hinton et al., https://arxiv.org/abs/1503.02531, section 2.
    """
    smoothing = recipe.label_smoothing
    if taught is None or not isinstance(model, VisionTransformer) or model.head_dist is None:
        return F.cross_entropy(model(x).float(), labels, label_smoothing=smoothing)
    z = model.forward_features(x)
    labelled = F.cross_entropy(model.head(z[:, 0]).float(), labels, label_smoothing=smoothing)
    said = F.log_softmax(model.head_dist(z[:, 1]).float() / recipe.temperature, dim=1)
    wanted = F.softmax(taught / recipe.temperature, dim=1)
    distance = F.kl_div(said, wanted, reduction="batchmean") * recipe.temperature**2
    return (labelled + distance) / 2


def rate_factor(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 5 % of the stage, at most 200 steps, then linear decay to 0."""
    warmup = min(200, max(1, steps // 20))
    return peak * min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def _save(path: Path, model: Network, about: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    save_file(model.state_dict(), partial, metadata={"vitviz": json.dumps(about)})
    partial.replace(path)


def _snapshot(path: Path, model: Network) -> None:
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
    split = _share(
        Split(everything.pictures[:kept], everything.labels[:kept], everything.classes), recipe
    )
    held_out = Split(everything.pictures[kept:], everything.labels[kept:], everything.classes)

    about: dict[str, Any] = {
        "recipe": json.loads(json.dumps(asdict(recipe))),
        "stage": 0,
        "step": 0,
        "seconds": 0.0,
        "history": [],
    }
    model = _fresh(recipe, recipe.stages[0])
    if checkpoint.exists():
        saved = _read_about(checkpoint)
        if saved["recipe"] != about["recipe"]:
            raise ValueError(f"{out} holds a run of another recipe; choose another folder.")
        about = saved
        model = _fresh(recipe, recipe.stages[about["stage"]])
        model.load_state_dict(load_file(checkpoint))
        report(f"resuming at stage {about['stage'] + 1}, step {about['step']}")

    taught = None
    if recipe.teacher and "test_accuracy" not in about:
        taught = _teacher_logits(recipe, split, data, out / "teacher", report)
    for number in range(about["stage"], len(recipe.stages)):
        stage = recipe.stages[number]
        if number > about["stage"]:
            if isinstance(model, VisionTransformer):
                model = grow(model, build(recipe, stage))
            about.update(stage=number, step=0)
        _run_stage(
            model, recipe, number, split, held_out, taught, checkpoint, about, save_every, report
        )

    if "test_accuracy" not in about:
        model.half().float()  # what is measured is what is shipped: weights rounded to fp16
        about["test_accuracy"] = accuracy(model, test)
        about["test_pictures"] = len(test.labels)
        _save(checkpoint, model, about)
    report(f"test accuracy {about['test_accuracy']:.2%} of {about['test_pictures']} pictures")
    if "temperature" not in about:
        about["temperature"] = calibration(model, held_out).temperature
        _save(checkpoint, model, about)
    if not isinstance(model, VisionTransformer):
        write_curve(recipe, about, out)
        return checkpoint
    per_epoch = len(split.labels) // recipe.batch_size
    return publish(model, recipe, held_out, about, out, per_epoch=per_epoch)


def _share(split: Split, recipe: Recipe) -> Split:
    """The recipe's share of the training pictures, drawn by its seed."""
    if recipe.share == 1:
        return split
    chosen = np.random.default_rng(recipe.seed).permutation(len(split.labels))
    chosen = chosen[: round(recipe.share * len(split.labels))]
    return Split(split.pictures[chosen], split.labels[chosen], split.classes)


def _teacher_logits(
    recipe: Recipe, split: Split, data: Path, out: Path, report: Callable[[str], None]
) -> Tensor:
    """What the teacher, trained where it is not yet, says of each training picture: (n, K).

    Computed once: the mean over a picture and its mirror image.
    """
    assert recipe.teacher is not None
    teaching = RECIPES[recipe.teacher]
    report(f"the teacher, {teaching.model}")
    file = train(teaching, data=data, out=out, report=report)
    teacher = _fresh(teaching, teaching.stages[-1])
    teacher.load_state_dict(load_file(file))
    mirrored = np.ascontiguousarray(split.pictures[:, :, ::-1])
    return (predict(teacher, split.pictures) + predict(teacher, mirrored)) / 2


def _run_stage(
    model: Network,
    recipe: Recipe,
    number: int,
    split: Split,
    held_out: Split,
    taught: Tensor | None,
    checkpoint: Path,
    about: dict[str, Any],
    save_every: int,
    report: Callable[[str], None],
) -> None:
    stage = recipe.stages[number]
    per_epoch = len(split.labels) // recipe.batch_size
    steps = math.ceil(stage.epochs * per_epoch)
    first = about["step"]
    every = per_epoch * math.ceil(stage.epochs / recipe.looks)
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
    for step, (pictures, labels, chosen) in enumerate(bar, start=first):
        model.train()
        _set_rate(optimisers, rate_factor(step, steps, stage.rate))
        with torch.autocast("cpu", torch.bfloat16), PlainAttention():
            x = normalise(pictures, stage.image_size)
            loss = _loss(model, x, labels, None if taught is None else taught[chosen], recipe)
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)

        done = step + 1
        look = done % every == 0 or done == steps
        if look:
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
        if look or done % save_every == 0:
            now = time.monotonic()
            about.update(step=done, seconds=about["seconds"] + now - clock)
            clock = now
            _save(checkpoint, model, about)
