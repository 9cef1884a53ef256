"""Train any recipe in one loop: build, train in stages, resume, evaluate once, publish."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from ..common.files import lock_folder, replace_file
from ..model.initialisation import build_random_model
from ..vit import VisionTransformer, resize_position_embedding
from .augmentation import colour_jitter, cutmix, flip_and_shift, random_resized_crop
from .cnn import Cnn, WhitenedCnn
from .data import CIFAR_SIDE, Split, load, normalise
from .evaluation import accuracy, calibration
from .objective import (
    Network,
    Objective,
    build_optimisers,
    rate_factor,
    reduced_precision,
    set_rate,
    update_average,
)
from .publishing import add_snapshot, publish, write_curve
from .recipes import RECIPES, Recipe, Stage

AVERAGE = "average."  # prefix of the averaged weights' names in a checkpoint
WHITENED = 5000  # training pictures from which a whitening layer is computed
RESTART = 50  # steps of warm-up after a run is resumed without its momentum


def build(recipe: Recipe, stage: Stage) -> VisionTransformer:
    """Build the recipe's model, initialised from its seed."""
    size, start = stage.image_size, recipe.initialisation
    return build_random_model(recipe.configuration, size, start, seed=recipe.seed)


def grow(model: VisionTransformer, larger: VisionTransformer) -> VisionTransformer:
    """Copy `model` into one for larger pictures, and interpolate its positions."""
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


def _build_network(recipe: Recipe, stage: Stage) -> Network:
    if recipe.network == "vit":
        return build(recipe, stage)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        kind = Cnn if recipe.network == "cnn" else WhitenedCnn
        return kind(**recipe.configuration)


def _batches(
    split: Split, recipe: Recipe, stage: int, first: int, last: int, mine: slice
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this process's part `mine` of batches `first` to `last` - 1 of a stage.

    A batch holds augmented pictures and their labels, which depend on the seed alone.
    """
    pictures, labels = torch.from_numpy(split.pictures), torch.from_numpy(split.labels)
    if recipe.cutmix:
        labels = F.one_hot(labels, len(split.classes)).float()
    per_epoch = len(labels) // recipe.batch_size
    for step in range(first, last):
        epoch, place = divmod(step, per_epoch)
        order = torch.Generator().manual_seed(recipe.seed * 10_007 + stage * 1009 + epoch)
        indices = torch.randperm(len(labels), generator=order)
        indices = indices[place * recipe.batch_size : (place + 1) * recipe.batch_size]
        noise = torch.Generator().manual_seed(recipe.seed * 10_007 + stage * 1_000_003 + step)
        batch, targets = pictures[indices], labels[indices]
        if recipe.crop < 1:
            batch = random_resized_crop(batch, recipe.stages[stage].image_size, recipe.crop, noise)
        else:
            batch = flip_and_shift(batch, recipe.shift, noise)
        if recipe.colour:
            batch = colour_jitter(batch, recipe.colour, noise)
        if recipe.cutmix and torch.rand((), generator=noise) < recipe.cutmix:
            batch, targets = cutmix(batch, targets, noise)
        yield batch[mine], targets[mine]


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
    """Train, or resume the run in `out`; evaluate once on the test split; write the model.

    A finished run continues if the last stage of its recipe now has more epochs: the rates are
    those of the longer stage, and files and page report the earlier test result too.

    A row of the history holds the mean loss on augmented pictures since the row before, with label
    smoothing, mixed labels and the teacher's term if the recipe has them; and the accuracy of the
    averaged weights on the held-out pictures.

    Parameters
    ----------
    recipe : Recipe
    data : Path
        Folder with the recipe's dataset, see `load`.
    out : Path
        Folder of the run.
    save_every : int
        Steps between two checkpoints.

    Returns
    -------
    Path of the fp16 safetensors file, beside its model card and its curve.

    Raises
    ------
    ValueError
        When the data are missing or too few, `out` holds a run of another recipe, or accelerate is
        not installed.
    OSError
        When a file cannot be read or written, or another process trains in `out`. The last
        checkpoint stays as it was.
    """
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise ValueError('Training needs accelerate: pip install "vitviz[train]".') from error
    accelerator = Accelerator()
    checkpoint = out / "checkpoint.safetensors"
    everything = load(data, recipe.dataset, "train")
    test = load(data, recipe.dataset, "test")  # now, so that missing data are noticed early
    count = len(everything.labels) - recipe.held_out
    if count < recipe.batch_size:
        raise ValueError(
            f"{len(everything.labels)} training pictures are too few: "
            f"{recipe.held_out} are held out and a batch takes {recipe.batch_size}."
        )
    run = _Run(
        accelerator=accelerator,
        recipe=recipe,
        split=_share(everything[:count], recipe),
        held_out=everything[count:],
        test=test,
        checkpoint=checkpoint,
        save_every=save_every,
        report=report if accelerator.is_main_process else lambda line: None,
    )
    with lock_folder(out) if accelerator.is_main_process else nullcontext():  # creates `out`
        return _train_stages(run, data)


def _train_stages(run: "_Run", data: Path) -> Path:
    """Train all stages from where the run stands, publish, and return the path of the weights."""
    accelerator, recipe, folder = run.accelerator, run.recipe, run.checkpoint.parent
    model, run.average = run.resume()
    accelerator.wait_for_everyone()  # until all have read the files that the first will overwrite
    about = run.about
    if recipe.teacher and "test_accuracy" not in about:
        teacher = _teacher(recipe.teacher, data, folder / "teacher", run.report)
        run.teacher = teacher.to(accelerator.device)
    for number in range(about["stage"], len(recipe.stages)):
        if number > about["stage"]:
            model, run.average = (
                grow(network.cpu(), build(recipe, recipe.stages[number]))
                if isinstance(network, VisionTransformer)
                else network
                for network in (model, run.average)
            )
            about.update(stage=number, step=0)
        run.average = run.average.to(accelerator.device)
        _run_stage(run, model.to(accelerator.device), number)
    if accelerator.is_main_process:
        _finish(run, model)
    accelerator.wait_for_everyone()
    return folder / f"{recipe.model}.safetensors" if recipe.network == "vit" else run.checkpoint


@dataclass(kw_only=True)
class _Run:
    """The state of a run; `about` is its progress, which is saved with the checkpoint."""

    accelerator: Any
    recipe: Recipe
    split: Split
    held_out: Split
    test: Split
    checkpoint: Path
    save_every: int
    report: Callable[[str], None]
    teacher: Network | None = None
    average: Any = None  # the moving average of the weights, which is published
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def per_epoch(self) -> int:
        return len(self.split.labels) // self.recipe.batch_size

    @property
    def moments(self) -> Path:
        return self.checkpoint.with_name("moments.npz")

    def resume(self) -> tuple[Network, Network]:
        """Return the model and its moving average, from the checkpoint or newly initialised."""
        recipe = json.loads(json.dumps(asdict(self.recipe)))
        if not self.checkpoint.exists():
            self.about = {"recipe": recipe, "stage": 0, "step": 0, "seconds": 0.0, "history": []}
            model = _build_network(self.recipe, self.recipe.stages[0])
            if isinstance(model, WhitenedCnn):
                few = torch.from_numpy(self.split.pictures[:WHITENED])
                model.set_whitening(normalise(few, CIFAR_SIDE, self.split.mean, self.split.std))
            return model, deepcopy(model)
        self.about = _read_about(self.checkpoint)
        if self.about["recipe"] != recipe:
            if not _is_longer(recipe, self.about["recipe"]):
                folder = self.checkpoint.parent
                raise ValueError(f"{folder} holds a run of another recipe. Choose another folder.")
            self.about["recipe"] = recipe
            _reopen(self.about)
        state = load_file(self.checkpoint)
        networks = []
        for prefix in ("", AVERAGE):
            network = _build_network(self.recipe, self.recipe.stages[self.about["stage"]])
            network.load_state_dict({name: state[prefix + name] for name in network.state_dict()})
            networks.append(network)
        self.report(f"resuming at stage {self.about['stage'] + 1}, step {self.about['step']}")
        return networks[0], networks[1]

    def save(self, model: Network) -> None:
        """Write model and average as fp16, small enough for version control."""
        averages = {AVERAGE + name: value for name, value in self.average.state_dict().items()}
        state = {
            name: value.half() if value.is_floating_point() else value
            for name, value in (model.state_dict() | averages).items()
        }
        replace_file(self.checkpoint, save(state, metadata={"vitviz": json.dumps(self.about)}))

    def snapshot(self, stage: int, step: int) -> None:
        """Add a snapshot of the averaged model to the run's file."""
        if isinstance(self.average, VisionTransformer):
            epoch = round(step / self.per_epoch, 3)
            add_snapshot(
                self.average, self.held_out, self.moments, stage=stage, step=step, epoch=epoch
            )


def _is_longer(recipe: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether a recipe differs from `before` only by more epochs in the last stage."""
    *stages, last = before["stages"]
    longer: float = recipe["stages"][-1]["epochs"]
    same = {**before, "stages": [*stages, {**last, "epochs": longer}]}
    return longer > last["epochs"] and recipe == same


def _reopen(about: dict[str, Any]) -> None:
    """Let a finished run continue, and keep the result of its test."""
    if "test_accuracy" not in about:
        return
    last = about["history"][-1]
    result = {name: last[name] for name in ("image_size", "epoch")}
    result["test_accuracy"] = about.pop("test_accuracy")
    about["tested_before"] = [*about.get("tested_before", []), result]
    for name in ("test_pictures", "temperature"):
        about.pop(name, None)


def _finish(run: _Run, model: Network) -> None:
    """Measure and publish; each figure is measured once, even if a finished run is resumed."""
    about, average = run.about, run.average
    if "test_accuracy" not in about:
        average.half().float()  # the weights are measured as they are shipped, rounded to fp16
        about["test_accuracy"] = accuracy(average, run.test)
        about["test_pictures"] = len(run.test.labels)
        run.save(model)
    run.report(f"test accuracy {about['test_accuracy']:.2%} of {about['test_pictures']} pictures")
    if "temperature" not in about:
        about["temperature"] = calibration(average, run.held_out).temperature
        run.save(model)
    folder = run.checkpoint.parent
    if isinstance(average, VisionTransformer):
        publish(average.cpu(), run.recipe, run.held_out, about, folder)
    else:
        write_curve(run.recipe, run.held_out, about, folder)


def _share(split: Split, recipe: Recipe) -> Split:
    """Draw the recipe's share of the training pictures by its seed."""
    if recipe.share == 1:
        return split
    order = np.random.default_rng(recipe.seed).permutation(len(split.labels))
    return split[order[: round(recipe.share * len(split.labels))]]


def _teacher(name: str, data: Path, out: Path, report: Callable[[str], None]) -> Network:
    """Return the frozen network of this recipe, trained if it is not yet."""
    recipe = RECIPES[name]
    report(f"the teacher, {recipe.model}")
    state = load_file(train(recipe, data=data, out=out, report=report))
    teacher = _build_network(recipe, recipe.stages[-1])
    teacher.load_state_dict({name: state[AVERAGE + name] for name in teacher.state_dict()})
    return teacher.eval().requires_grad_(False)


def _teacher_logits(run: _Run, pictures: Tensor) -> Tensor | None:
    """Compute the teacher's logits for the pictures as the pupil sees them, augmented and mixed.

    Beyer et al., "Knowledge distillation: A good teacher is patient and consistent" (CVPR 2022),
    https://arxiv.org/abs/2106.05237, section 3.
    """
    if run.teacher is None or run.recipe.teacher is None:
        return None
    size = RECIPES[run.recipe.teacher].stages[-1].image_size
    with torch.no_grad(), reduced_precision(pictures.device):
        return run.teacher(normalise(pictures, size, run.split.mean, run.split.std)).float()


def _run_stage(run: _Run, model: Network, number: int) -> None:
    from accelerate.utils import broadcast_object_list

    recipe, about, accelerator = run.recipe, run.about, run.accelerator
    stage, per_epoch = recipe.stages[number], run.per_epoch
    if has_converged(about["history"], stage.image_size, recipe.patience):
        return  # the run was stopped after this stage ended early
    steps = math.ceil(stage.epochs * per_epoch)
    first = about["step"]
    every = per_epoch * math.ceil(stage.epochs / recipe.looks)
    main, device = accelerator.is_main_process, accelerator.device
    early = {math.ceil(epoch * per_epoch) for epoch in recipe.early} if number == 0 else set()
    if first == 0 and main:
        if number == 0:  # a run that was begun in this folder before left its own
            run.moments.unlink(missing_ok=True)
        run.snapshot(number, 0)
    optimisers = build_optimisers(model, recipe)
    mean, std = run.split.mean, run.split.std
    objective = accelerator.prepare_model(Objective(model, recipe, mean, std))
    part = recipe.batch_size // accelerator.num_processes
    mine = slice(accelerator.process_index * part, (accelerator.process_index + 1) * part)
    losses: list[float] = [*about.get("losses", [])]  # since the last row of the history
    clock = time.monotonic()
    bar = tqdm(
        _batches(run.split, recipe, number, first, steps, mine),
        desc=f"{stage.image_size} px",
        initial=first,
        total=steps,
        unit="batch",
        mininterval=2,
        disable=not main,
    )
    for step, (pictures, labels) in enumerate(bar, start=first):
        model.train()
        restart = min(1.0, (step - first + 1) / RESTART) if first else 1.0
        set_rate(optimisers, restart * rate_factor(step, steps, stage.rate, stage.last))
        pictures = pictures.to(device)
        loss = objective(
            pictures, labels.to(device), _teacher_logits(run, pictures), stage.image_size
        )
        accelerator.backward(loss)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        # Each stage begins an average of its own: otherwise weights that never saw larger pictures
        # would prevail in the average of a short stage with larger pictures.
        update_average(run.average, model, min(recipe.average, (1 + step) / (10 + step)))
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)

        count = step + 1
        is_evaluation = count % every == 0 or count == steps
        if is_evaluation:
            # One process measures. All keep its result, so that all end the stage at this step.
            (rate,) = broadcast_object_list([_held_out_accuracy(run) if main else None])
            row = {
                "image_size": stage.image_size,
                "epoch": round(count / per_epoch, 3),
                "loss": round(sum(losses) / len(losses), 4),
                "held_out_accuracy": round(rate, 4),
            }
            about["history"].append(row)
            run.report(json.dumps(row))
            losses = []
        if main and (is_evaluation or count in early):
            run.snapshot(number, count)
        if main and (is_evaluation or count % run.save_every == 0):
            now = time.monotonic()
            about.update(step=count, seconds=about["seconds"] + now - clock, losses=[*losses])
            clock = now
            run.save(model)
        if is_evaluation and has_converged(about["history"], stage.image_size, recipe.patience):
            break


def has_converged(history: Sequence[Mapping[str, Any]], image_size: int, patience: int) -> bool:
    """Return whether the last `patience` evaluations at this size brought no higher accuracy."""
    rates = [row["held_out_accuracy"] for row in history if row["image_size"] == image_size]
    return 0 < patience < len(rates) and max(rates[-patience:]) <= max(rates[:-patience])


def _held_out_accuracy(run: _Run) -> float:
    """Measure accuracy on the held-out pictures, in the precision of training."""
    with reduced_precision(run.accelerator.device):
        return accuracy(run.average, run.held_out)
