"""Which maps of the shipped models can be believed: `vitviz faithfulness` over their test pictures.

    python benchmarks/faithfulness.py DATA OUT [--limit N] [--workers N] [--ship] [NAME...]

DATA holds `cifar10_test.parquet`, `cifar100_test.parquet`, `tiny_imagenet_val2000.parquet` with the
boxes of its objects in the column `bbox`, and `objects/` with `NAME.jpg` beside `NAME_mask.png`.
Each run has a folder in OUT, and is resumed if it was stopped. The tables are printed as Markdown.
--ship copies the means of the models' own test pictures into assets/faithfulness/.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import vitviz
from vitviz.profiling.judging import IS_BETTER_HIGH

#: By run: the model, its pictures, where the objects are, and steps that divide the patches.
RUNS: dict[str, tuple[str, str, str | None, int]] = {
    "vitviz_things200": ("vitviz_things200", "tiny_imagenet_val2000.parquet", "bbox", 8),
    "vitviz_things200_p16": ("vitviz_things200_p16", "tiny_imagenet_val2000.parquet", "bbox", 4),
    "vitviz_tiny_cifar10": ("vitviz_tiny_cifar10", "cifar10_test.parquet", None, 8),
    "vitviz_tiny_cifar100": ("vitviz_tiny_cifar100", "cifar100_test.parquet", None, 8),
    "objects": ("vitviz_things200", "objects/*.jpg", "objects", 8),
}

#: What the pictures are called, by file.
CALLED = {
    "tiny_imagenet_val2000.parquet": "the test split of Tiny-ImageNet-200",
    "cifar10_test.parquet": "the test split of CIFAR-10",
    "cifar100_test.parquet": "the test split of CIFAR-100",
    "objects/*.jpg": "photos with a cut-out object",
}


def judge(run: str, data: Path, out: Path, limit: int | None, workers: int) -> vitviz.Faithfulness:
    name, pictures, masks, steps = RUNS[run]
    options: dict[str, Any] = dict(steps=steps, baseline=["mean", "drop"], out=out / run)
    options |= dict(called=CALLED[pictures], limit=limit, workers=workers)
    if masks is not None:
        options["masks"] = data / masks if (data / masks).is_dir() else masks
    model = vitviz.load_model(name)
    return vitviz.faithfulness(model, str(data / pictures), resume=True, **options)


def markdown(judged: vitviz.Faithfulness) -> str:
    """Return a row for each map and a column for each measure: the mean ± half its interval.

    Bold is better than random orders, beyond the interval of the difference.
    """
    measures = [*judged.means]
    lines = ["| map | " + " | ".join(measures) + " |", "|---" * (len(measures) + 1) + "|"]
    for name in judged.maps:
        cells = []
        for measure in measures:
            interval = judged.means[measure].get(name)
            cell = ""
            if interval is not None:
                mean, low, high, _ = interval
                cell = f"{mean:.3f} ± {(high - low) / 2:.3f}"
                cell = f"**{cell}**" if judged.is_better(measure, name, "random") else cell
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ranked = [measure for measure in measures if IS_BETTER_HIGH[measure] is not None]
    wins = [f"{measure}: {judged.winner(measure) or 'none'}" for measure in ranked]
    return "\n".join([*lines, "", f"Better than every other map: {', '.join(wins)}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*RUNS])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ship", action="store_true")
    arguments = parser.parse_intermixed_args()
    for run in arguments.names:
        judged = judge(run, arguments.data, arguments.out, arguments.limit, arguments.workers)
        print(f"\n## {run}: {judged.about['pictures']} pictures\n\n{markdown(judged)}", flush=True)
        if arguments.ship and run == RUNS[run][0]:
            place = Path(__file__).parents[1] / "assets" / "faithfulness"
            place.mkdir(exist_ok=True)
            shutil.copy(arguments.out / run / "faithfulness.json", place / f"{run}.json")


if __name__ == "__main__":
    main()
