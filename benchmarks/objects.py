"""How well the maps of a model find the object: patch-wise AUC against masks, chance 0.5.

    python benchmarks/objects.py PICTURES [MODEL...]

PICTURES holds `NAME.jpg` beside `NAME_mask.png` (white where the object is). A patch counts as
object where the mask covers more than half of it.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.metrics import roc_auc_score

import vitviz
from vitviz import inspection


def patch_mask(mask: Image.Image, crop: tuple[float, ...], grid: tuple[int, int]) -> np.ndarray:
    """Share of each patch that the object covers, shape (rows, cols)."""
    rows, cols = grid
    small = mask.convert("L").resize((cols, rows), Image.Resampling.BOX, box=crop)
    return np.asarray(small) / 255


def scores(model: vitviz.Model, pictures: Path) -> dict[str, np.ndarray]:
    """AUC of each picture, for CLS attention of each layer (mean of heads) and for rollout."""
    found: dict[str, list[float]] = {}
    for path in sorted(pictures.glob("*_mask.png")):
        image = Image.open(path.with_name(path.name.replace("_mask.png", ".jpg"))).convert("RGB")
        acts = vitviz.capture(model, image)
        inside = patch_mask(Image.open(path), acts.crop, acts.grid).ravel() > 0.5
        if inside.all() or not inside.any():
            continue
        prefix = acts.num_prefix_tokens
        measured = inspection.measurements(
            acts.attention_layers(),
            grid=acts.grid,
            patch_size=acts.patch_size,
            num_prefix_tokens=prefix,
        )
        maps = {
            f"layer {number}": layer.mean(axis=0)
            for number, layer in enumerate(measured.query_attention, start=1)
        }
        maps["rollout"] = measured.rollout[prefix:]
        for name, values in maps.items():
            found.setdefault(name, []).append(roc_auc_score(inside, values.ravel()))
    return {name: np.array(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path)
    parser.add_argument("models", nargs="*", default=["vitviz_things200"])
    arguments = parser.parse_args()
    for name in arguments.models:
        print(f"\n{name}\n{'map':<10} {'mean':>6} {'worst':>6} {'pictures':>9}")
        for kind, values in scores(vitviz.load_model(name), arguments.pictures).items():
            print(f"{kind:<10} {values.mean():6.3f} {values.min():6.3f} {len(values):9d}")


if __name__ == "__main__":
    main()
