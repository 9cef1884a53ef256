"""Experiments of the Training page: what more data, and other conditions, do to a small ViT.

    python benchmarks/experiments.py data_hunger --data FOLDER_WITH_CIFAR --out runs/hunger
    python benchmarks/experiments.py inductive_bias --data FOLDER_WITH_CIFAR --out runs/bias

`data_hunger` trains a ViT and a small CNN on shares of CIFAR-10. A run ends when the accuracy on
the held-out pictures has not risen for PATIENCE of the evaluations, or after SEEN pictures.
`inductive_bias` trains the same ViT on all of them with plain initialisation, mimetic
initialisation, CutMix, and a CNN as teacher: every run sees BUDGET pictures, and its learning rate
falls to 0. Each is measured once, on all test pictures. Finished runs are known by the result.json
in their folder, and others go on where they were stopped, but then their time is not known; with
--part, processes can share the work, one thread each. A teacher in OUT/teacher is taken for all
runs. When all are done, OUT/data_hunger.json, or inductive_bias.json, holds what the page shows,
and belongs into assets/curves.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np

from vitviz import inspection
from vitviz.common.malloc import keep_freed_memory
from vitviz.training import Recipe, Stage, train
from vitviz.training.loop import has_converged
from vitviz.training.publishing import record
from vitviz.training.recipes import Mimetic

SEEN = 360_000  # pictures a run, at most: twenty to thirty minutes of a core
BUDGET = 225_000  # pictures of every run of inductive_bias: eleven to fourteen minutes of a core
LOOKS, PATIENCE = 25, 5  # evaluations in the longest run, and without a higher accuracy at its end
HELD_OUT = 5000
TRAINING = 50_000 - HELD_OUT
SEEDS = 3
# Of the training pictures, and how many seeds have it: a run with many pictures is a long one.
SHARES = {0.01: SEEDS, 0.02: SEEDS, 0.05: SEEDS, 0.1: SEEDS, 0.25: 1, 0.5: 1, 1.0: SEEDS}
VIT = Recipe(
    model="vit",
    dataset="cifar10",
    configuration=dict(
        patch_size=4, embed_dim=128, depth=6, num_heads=4, mlp_dim=512, num_classes=10
    ),
    stages=(),
    held_out=HELD_OUT,
    looks=LOOKS,
    patience=PATIENCE,
    average=0.998,  # in place of a falling rate, whose length would have to be known before
    qkv="adamw",
)
CNN = replace(VIT, model="cnn", network="cnn", configuration=dict(width=16, num_classes=10))
# The strength of the paper in all heads; E begins with the deviation that it has otherwise.
MIMETIC = Mimetic(strengths=(1, 1, 1, 1), embedding=(3 * 3 * 4 * 4) ** -0.5)
FIXED = replace(
    VIT, patience=0, average=0.0, stages=(Stage(image_size=32, epochs=BUDGET / TRAINING),)
)
CONDITIONS = {
    "plain initialisation": FIXED,
    "mimetic initialisation": replace(FIXED, initialisation=MIMETIC),
    "CutMix": replace(FIXED, cutmix=0.5),
    "a CNN as teacher": replace(
        FIXED,
        configuration={**VIT.configuration, "distillation_token": True},
        teacher="cifar10_teacher",
    ),
}


def runs(experiment: str) -> Iterator[tuple[dict[str, Any], Recipe]]:
    """What is told of each run, and its recipe."""
    if experiment == "data_hunger":
        # All ViTs first: of runs in turn, every --part gets as many of them, and they are slow.
        for network, recipe in (("vit", VIT), ("cnn", CNN)):
            for share, seeds in SHARES.items():
                for seed in range(seeds):
                    stage = Stage(image_size=32, epochs=SEEN / (share * TRAINING), last=1.0)
                    one = replace(recipe, share=share, seed=seed, stages=(stage,))
                    yield dict(network=network, share=share, seed=seed), one
    else:
        for seed in range(SEEDS):
            for condition, recipe in CONDITIONS.items():
                yield dict(condition=condition, seed=seed), replace(recipe, seed=seed)


def measured(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The results of a finished run, but for its time.

    Of a ViT also distance and entropy of its heads at the end, (layers, heads), as shares of those
    of equal sharing; and the cosine of neighbouring positions before and after.
    """
    curve = json.loads((folder / f"{recipe.model}.json").read_text())
    last = curve["epochs"][-1]
    batches = round(recipe.share * TRAINING) // recipe.batch_size  # in an epoch
    found = {
        "test_accuracy": curve["test_accuracy"],
        "pictures_seen": round(last["epoch"] * batches) * recipe.batch_size,
        "converged": has_converged(curve["epochs"], last["image_size"], PATIENCE),
    }
    if recipe.network == "vit":
        moments = record(folder / "moments.npz")
        end = len(moments["epoch"]) - 1
        rows = last["image_size"] // recipe.configuration["patch_size"]
        tokens = rows**2 + (2 if recipe.configuration.get("distillation_token") else 1)
        equal = {
            "distance": inspection.uniform_distance((rows, rows), last["image_size"] // rows),
            "entropy": math.log2(tokens),
        }
        for what, share in equal.items():
            found[what] = np.round(moments[f"{what}_{end}"] / share, 4).tolist()
        found["neighbours"] = [
            round(_neighbours(moments[f"positions_{moment}"]), 4) for moment in (0, end)
        ]
    return found


def _neighbours(positions: np.ndarray) -> float:
    """The mean cosine of neighbouring position embeddings, (rows * rows, D)."""
    rows = math.isqrt(len(positions))
    similarity = inspection.position_similarity(positions.astype(np.float32), grid=(rows, rows))
    return inspection.neighbour_similarity(similarity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=("data_hunger", "inductive_bias"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="0/2 and 1/2 are every second run")
    arguments = parser.parse_args()
    first, step = map(int, arguments.part.split("/"))
    keep_freed_memory()
    teacher = arguments.out / "teacher"
    rows: list[dict[str, Any] | None] = []
    for number, (about, recipe) in enumerate(runs(arguments.experiment)):
        folder = arguments.out / "-".join(str(value) for value in about.values())
        result = folder / "result.json"
        if not result.exists() and number % step == first:
            if recipe.teacher and teacher.exists():
                copytree(teacher, folder / "teacher", dirs_exist_ok=True)
            whole, clock = not (folder / "checkpoint.safetensors").exists(), time.process_time()
            train(recipe, data=arguments.data, out=folder)
            minutes = round((time.process_time() - clock) / 60, 1) if whole else None
            result.write_text(
                json.dumps(about | measured(recipe, folder) | {"core_minutes": minutes}) + "\n"
            )
        rows.append(json.loads(result.read_text()) if result.exists() else None)
        if rows[-1]:
            print(json.dumps(about), f"{rows[-1]['test_accuracy']:.2%}", flush=True)
    if not all(rows):
        print(f"{rows.count(None)} runs are left.")
        return
    most = SEEN if arguments.experiment == "data_hunger" else BUDGET
    found = {"most_seen": most, "pictures": TRAINING, "runs": rows}
    path = arguments.out / f"{arguments.experiment}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
