"""Measurements of a model of ours beside those of its initialisation: the table of its card.

    python benchmarks/specimens.py MODEL... [--samples FOLDER] [--objects FOLDER] [--orders 20]

MODEL is a shipped model's name, or the folder of a run of `vitviz train`, of which the averaged
weights are taken as they stand and grown to the last picture size of the recipe. Each figure of
the trained model stands before that of its own initialisation, in brackets. Distances are shares
of that of equal sharing, where each patch looks at all alike; entropies are in bits.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from objects import scores
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import vitviz
from vitviz import attribution, inspection, intervention
from vitviz.model import Preprocessing
from vitviz.training import RECIPES, Recipe, build, grow
from vitviz.training.data import CIFAR_SIDE, MEAN, STD, THINGS_MEAN, THINGS_STD
from vitviz.training.loop import AVERAGE
from vitviz.vit import VisionTransformer

SAMPLES = Path(__file__).parents[1] / "assets" / "samples"
COMPONENTS = 8  # of the filters, the first


def initial(recipe: Recipe) -> VisionTransformer:
    """The recipe's initialisation at its last picture size."""
    model = build(recipe, recipe.stages[0])
    for stage in recipe.stages[1:]:
        model = grow(model, build(recipe, stage))
    return model


def specimen(name: str) -> tuple[vitviz.Model, vitviz.Model, str]:
    """The trained model, its initialisation and a line that says what it is."""
    if (Path(name) / "checkpoint.safetensors").exists():
        trained, recipe, state = of_run(Path(name))
    else:
        trained = vitviz.load_model(name)
        recipe = next(recipe for recipe in RECIPES.values() if recipe.model == name)
        state = trained.weights
    start = vitviz.Model(
        initial(recipe).eval(),
        name=f"{name}, initialisation",
        preprocessing=trained.preprocess,
        trained=False,
        weights="random weights",
        labels=trained.labels,
    )
    return trained, start, state


def of_run(folder: Path) -> tuple[vitviz.Model, Recipe, str]:
    """The averaged weights of a run that may be under way, at the last picture size."""
    path = folder / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["vitviz"])
    recipe = next(r for r in RECIPES.values() if r.model == about["recipe"]["model"])
    model = build(recipe, recipe.stages[about["stage"]])
    saved = load_file(path)
    model.load_state_dict({key: saved[AVERAGE + key] for key in model.state_dict()})
    for stage in recipe.stages[about["stage"] + 1 :]:
        model = grow(model, build(recipe, stage))
    seen = sum(stage.epochs for stage in recipe.stages[: about["stage"]])
    rows = about["history"]
    state = f"averaged weights, stage {about['stage'] + 1}, step {about['step']}"
    if rows:
        begun = rows[-1]["image_size"] == recipe.stages[about["stage"]].image_size
        state += f"; {seen + begun * rows[-1]['epoch']:.2f} epochs, held out {rows[-1]}"
    side = recipe.stages[-1].image_size
    things = recipe.dataset == "tiny_imagenet"
    preprocessing = Preprocessing(
        input_size=(side, side),
        mean=THINGS_MEAN if things else MEAN,
        std=THINGS_STD if things else STD,
        detail=1.0 if things else min(1.0, CIFAR_SIDE / side),
    )
    name = recipe.model
    trained = vitviz.Model(
        model.eval(), name=name, preprocessing=preprocessing, trained=True, weights=state
    )
    return trained, recipe, state


def pictures(folder: Path) -> Iterator[tuple[str, Image.Image]]:
    for path in sorted(folder.glob("*.jpg")):
        yield path.stem, Image.open(path).convert("RGB")


def attention(model: vitviz.Model, samples: Path) -> tuple[np.ndarray, np.ndarray]:
    """Distance as a share of that of equal sharing, and entropy: (layers, heads), means."""
    distances, entropies = [], []
    for _, image in pictures(samples):
        found = inspection.measurements(vitviz.capture(model, image))
        distances.append(found.distance)
        entropies.append(found.entropy)
    side = model.preprocess.input_size[0]
    grid = model.layers[0].query_grid
    equal = inspection.uniform_distance(grid, side // grid[0])
    return np.mean(distances, axis=0) / equal, np.mean(entropies, axis=0)


def colours(kernel: np.ndarray) -> np.ndarray:
    """Correlation of the red and the green plane of each of the first components."""
    components, _ = inspection.filter_components(kernel, n_components=COMPONENTS)
    return np.array([np.corrcoef(c[0].ravel(), c[1].ravel())[0, 1] for c in components])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    length = np.linalg.norm(one) * np.linalg.norm(other)
    return float((one * other).sum() / length) if length else 0.0


def neighbours_and_mirror(model: vitviz.Model) -> tuple[float, float]:
    """Mean cosine of a position with those beside it, and with its mirror image across."""
    assert model.position_embedding is not None
    rows, cols = grid = model.layers[0].query_grid
    similarity = inspection.position_similarity(model.position_embedding[-rows * cols :], grid=grid)
    return inspection.neighbour_similarity(similarity), inspection.mirror_similarity(similarity)[0]


def deletions(model: vitviz.Model, samples: Path, orders: int) -> dict[str, list[str]]:
    """Names of the samples on which each map's deletion falls faster than random order."""
    better: dict[str, list[str]] = {"CLS attention": [], "relevance": []}
    grid = model.layers[0].query_grid
    for name, image in pictures(samples):
        acts = vitviz.capture(model, image)
        answer = int(np.argmax(acts.logits))
        layers = [inspection.query_attention(acts, layer=n) for n in range(acts.depth)]
        maps = {
            "CLS attention": np.mean(layers, axis=(0, 1)),
            "relevance": attribution.relevance(model, image, answer),
        }
        areas = [
            intervention.deletion_curve(
                model, image, intervention.random_map(grid, seed=seed), target=answer
            ).area
            for seed in range(orders)
        ]
        for kind, values in maps.items():
            curve = intervention.deletion_curve(model, image, values, target=answer)
            if curve.area < np.mean(areas):
                better[kind].append(name)
    return better


def show(name: str, samples: Path, objects: Path | None, orders: int) -> None:
    trained, start, state = specimen(name)
    print(f"\n## {name}\n\n{state}; {trained.parameter_count / 1e6:.1f} M parameters\n")
    (far, bits), (far_0, bits_0) = (attention(model, samples) for model in (trained, start))
    print("| layer | distance / equal | entropy |\n|---|---|---|")
    for layer in range(len(far)):
        print(
            f"| {layer + 1} | {far[layer].min():.2f}-{far[layer].max():.2f} "
            f"({far_0[layer].min():.2f}-{far_0[layer].max():.2f}) "
            f"| {bits[layer].mean():.2f} ({bits_0[layer].mean():.2f}) |"
        )
    mean = bits.mean(axis=1)
    print(
        f"\n- distance: {far.min():.2f} in layer {far.min(axis=1).argmin() + 1} to {far.max():.2f}"
    )
    print(f"- entropy of layers: {mean.min():.2f} to {mean.max():.2f} bits")
    kernel, kernel_0 = trained.patch_kernel, start.patch_kernel
    assert kernel is not None
    assert kernel_0 is not None
    planes, planes_0 = colours(kernel), colours(kernel_0)
    print(f"- filters, red with green: {listed(planes)}; {counted(planes)}")
    print(f"  (initialisation: {listed(planes_0)}; {counted(planes_0)})")
    print(f"- filters, cosine with their initialisation: {cosine(kernel, kernel_0):.3f}")
    pairs = zip(
        ("neighbours", "mirror image"),
        neighbours_and_mirror(trained),
        neighbours_and_mirror(start),
        strict=True,
    )
    found = ", ".join(f"{what} {value:.2f} ({before:.2f})" for what, value, before in pairs)
    print(f"- positions, mean cosine: {found}")
    if objects:
        auc, auc_0 = scores(trained, objects), scores(start, objects)
        areas = ", ".join(f"{k} {v.mean():.3f} ({auc_0[k].mean():.3f})" for k, v in auc.items())
        print(f"- AUC on {len(auc['rollout'])} masked objects: {areas}")
    if orders:
        count = sum(1 for _ in pictures(samples))
        for kind, names in deletions(trained, samples, orders).items():
            print(f"- deletion by {kind} beats {orders} random orders on {len(names)} of {count}")


def listed(values: np.ndarray) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def counted(planes: np.ndarray) -> str:
    """How many components are of brightness, and of colour: red against green."""
    alike, opposed = (planes >= 0.6).sum(), (planes <= -0.6).sum()
    return f"{alike} of {COMPONENTS} by .6 or more, {opposed} by -.6 or less"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--samples", type=Path, default=SAMPLES)
    parser.add_argument("--objects", type=Path, help="masked objects, see benchmarks/objects.py")
    parser.add_argument("--orders", type=int, default=20, help="random orders; 0: no deletion")
    arguments = parser.parse_args()
    for name in arguments.models:
        show(name, arguments.samples, arguments.objects, arguments.orders)


if __name__ == "__main__":
    main()
