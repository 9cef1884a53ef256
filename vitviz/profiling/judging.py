"""Judge maps of the answer on a piece of a list of pictures: do they show what it rests on?"""

import copy
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from PIL import Image

from ..activations import Activations, capture, check_finite
from ..attribution import METHODS
from ..common.images import ImageError
from ..inspection import attention_rollout
from ..intervention import Removal, random_map, removal_areas
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture
from .entries import Entry, ProfileError, parquet_file, size_in_file
from .measuring import COLUMNS

# Pictures; each takes seconds to minutes, and a stopped run loses those of one piece.
JUDGED_AT_A_TIME = 4
RANDOM = "random"  # the name of random orders among those of the maps
#: Maps that do not depend on the class, to compare with.
OF_NO_CLASS = ("attention", "rollout")
#: All maps that can be judged.
MAPS = (*METHODS, *OF_NO_CLASS)
#: Whether more is better, by measure; None where 0 is best, so that less is not better than that. A
#: removal is part of the name: "deletion_mean".
IS_BETTER_HIGH: Mapping[str, bool | None] = {
    **{f"deletion_{fill}": False for fill in ("mean", "blur", "drop")},
    **{f"insertion_{fill}": True for fill in ("mean", "blur", "drop")},
    "pointing": True,
    "overlap": True,
    "other_class": None,
    "random_weights": None,
    "seconds": False,
}


@dataclass(frozen=True, eq=False)
class Judgement:
    """Measures of the maps on some pictures.

    Attributes
    ----------
    table : dict of list
        As in `Piece`.
    values : dict of ndarray
        By measure, float64 of shape (pictures, maps), NaN where it could not be measured; the last
        map is that of random orders. "agreement" has the shape (pictures, maps, maps).
    refusals : dict of str
        By map or measure, why it is missing on one of the pictures.
    """

    table: dict[str, list[Any]]
    values: dict[str, np.ndarray]
    refusals: dict[str, str]

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        about = json.dumps(dict(table=self.table, refusals=self.refusals))
        np.savez(file, allow_pickle=False, about=about, **self.values)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Judgement":
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            values = dict(file)
        return cls(values=values, **json.loads(str(values.pop("about"))))


def judge_piece(
    model: Model,
    entries: Sequence[Entry],
    *,
    maps: Sequence[str],
    removals: Sequence[Removal],
    steps: int,
    orders: int,
    masks: str | None,
    seed: int,
    batch_size: int,
    progress: Callable[[int], object] | None = None,
) -> Judgement:
    """Judge maps on one piece; the parameters are those of `faithfulness`."""
    names = [*maps, RANDOM]
    measures = [f"{kind}_{removal}" for removal in removals for kind in ("deletion", "insertion")]
    measures += ["other_class", "random_weights", "seconds"]
    measures += [] if masks is None else ["pointing", "overlap"]
    values = {name: np.full((len(entries), len(names)), np.nan) for name in measures}
    values["agreement"] = np.full((len(entries), len(names), len(names)), np.nan)
    table: dict[str, list[Any]] = {name: [None] * len(entries) for name in COLUMNS}
    table["picture"] = [entry.name for entry in entries]
    table["label"] = [entry.label for entry in entries]
    refusals: dict[str, str] = {}
    random_model = shuffle_weights(model, seed)
    order_maps = random_orders(model.layers[0].query_grid, orders, seed)
    for place, entry in enumerate(entries):
        try:
            image, table["sha256"][place] = entry.read()
            acts = capture(model, image)
            check_finite(model, acts)
        except (ImageError, ModelError) as error:
            table["skipped"][place] = str(error)
            continue
        assert acts.probabilities is not None  # `faithfulness` has checked
        answer, other = map(int, (-acts.probabilities).argsort(kind="stable")[:2])
        table["answer"][place] = answer
        table["confidence"][place] = float(acts.probabilities[answer])
        here = {name: each[place] for name, each in values.items()}
        own_maps = _judge_maps(
            model, random_model, acts, image, maps, (answer, other), here, refusals
        )
        columns = [names.index(name) for name in own_maps]
        for removal in removals:
            try:
                areas = removal_areas(
                    model,
                    image,
                    [*own_maps.values(), *order_maps],
                    answer,
                    steps=steps,
                    removal=removal,
                    batch_size=batch_size,
                )
            except ModelError as error:
                refusals[removal] = str(error)
                continue
            for kind, of_maps in zip(("deletion", "insertion"), areas, strict=True):
                here[f"{kind}_{removal}"][columns] = of_maps[: len(columns)]
                here[f"{kind}_{removal}"][-1] = of_maps[len(columns) :].mean()
        inside = None if masks is None else patches_inside(entry, masks, acts, image)
        if inside is not None and inside.any() and not inside.all():
            for column, map_ in zip(columns, own_maps.values(), strict=True):
                here["pointing"][column] = inside.flat[map_.argmax()]
                here["overlap"][column] = area_under_roc(map_, inside)
            here["pointing"][-1], here["overlap"][-1] = inside.mean(), 0.5
        if progress is not None:
            progress(place + 1)
    return Judgement(table, values, refusals)


def _judge_maps(
    model: Model,
    random_model: Model,
    acts: Activations,
    image: Picture,
    maps: Sequence[str],
    classes: tuple[int, int],
    values: Mapping[str, np.ndarray],
    refusals: dict[str, str],
) -> dict[str, np.ndarray]:
    """Draw the maps, and write how they agree with one another and with those that they should not.

    `classes` are the answer and another class.
    """
    answer, other = classes
    plain = capture(random_model, image)
    result: dict[str, np.ndarray] = {}
    for column, name in enumerate(maps):
        try:
            start_time = time.perf_counter()
            map_ = draw_map(model, acts, image, name, answer)
            values["seconds"][column] = time.perf_counter() - start_time
            result[name] = map_
            of_other = draw_map(model, acts, image, name, other)
            values["other_class"][column] = rank_correlation(map_, of_other)
            without = draw_map(random_model, plain, image, name, answer)
            values["random_weights"][column] = rank_correlation(map_, without)
        except ModelError as error:
            refusals[name] = str(error)
    for row, one in enumerate(maps):
        for column, two in enumerate(maps):
            if one in result and two in result:
                values["agreement"][row, column] = rank_correlation(result[one], result[two])
    return result


def random_orders(grid: tuple[int, int], count: int, seed: int) -> list[np.ndarray]:
    """Return random orders, each followed by its reverse, which shares all its passes."""
    half = [random_map(grid, seed=seed + number) for number in range((count + 1) // 2)]
    return [order for map_ in half for order in (map_, -map_)][:count]


def draw_map(model: Model, acts: Activations, image: Picture, name: str, target: int) -> np.ndarray:
    """Return a map of one class, or one that does not depend on it: float64 (rows, cols)."""
    if name in METHODS:
        return METHODS[name](model, image, target)
    prefix = acts.num_prefix_tokens  # refuses where layers differ in their tokens
    if name == "rollout":
        shares = attention_rollout(acts.attention_layers(), num_prefix_tokens=prefix)
        return np.asarray(shares, np.float64)[-np.prod(acts.grid) :].reshape(acts.grid)
    *_, last = acts.attention_layers()
    rows = last.mean(axis=0)  # (tokens, tokens)
    patches = "patches" in acts.read_tokens or not acts.read_tokens
    row = rows[prefix:].mean(axis=0) if patches else rows[0]
    return row[prefix:].astype(np.float64).reshape(acts.grid)


def shuffle_weights(model: Model, seed: int) -> Model:
    """Copy a model and shuffle the entries of each of its tensors: *random weights* of one scale.

    References
    ----------
    Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018, section 3, who draw the weights
    anew: a shuffled tensor has no structure either, and keeps the size of its entries.
    """
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.module.parameters():
            order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
            weight.copy_(weight.flatten()[order].reshape(weight.shape))
    return other


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation of two maps; NaN where one of them is constant."""
    from scipy.stats import spearmanr  # late: slow to import

    if np.ptp(one) == 0 or np.ptp(other) == 0:  # scipy would warn
        return float("nan")
    return float(spearmanr(one, other, axis=None).statistic)


def area_under_roc(map_: np.ndarray, inside: np.ndarray) -> float:
    """Return the share of pairs, one patch inside and one outside, that the map orders rightly.

    Equal values count as half.
    """
    from scipy.stats import mannwhitneyu  # late: slow to import

    pairs = mannwhitneyu(map_[inside], map_[~inside], method="asymptotic").statistic
    return float(pairs / (inside.sum() * (~inside).sum()))


def mask_of(entry: Entry, folder: str) -> Path | None:
    """Return the mask of a picture's own file in a folder; None if it has none.

    Letters of its name may be composed or not: macOS writes é and 고 in parts.
    """
    if not isinstance(entry.source, str) or entry.place:  # within a shard
        return None
    stem = Path(entry.source).stem
    stems = dict.fromkeys([stem, *(normalize(form, stem) for form in ("NFC", "NFD"))])
    paths = (Path(folder) / f"{each}{end}" for end in ("_mask.png", ".png") for each in stems)
    return next((path for path in paths if path.is_file()), None)


def patches_inside(
    entry: Entry, masks: str, acts: Activations, image: Picture
) -> np.ndarray | None:
    """Return the patches that the object covers by more than half (rows, cols); None if unknown."""
    if not isinstance(entry.source, str) or not isinstance(image, Image.Image):
        return None
    if Path(masks).is_dir():
        path = mask_of(entry, masks)
        if path is None:
            return None
        with Image.open(path) as file:
            mask = file.convert("L")
            has_colours = file.mode in ("P", "RGB", "RGBA")
            is_grey = not has_colours or file.convert("RGB") == mask.convert("RGB")
        if not is_grey or 0 < np.asarray(mask).max() < 128:  # such as the numbers of classes
            raise ProfileError(
                f"The mask {path} is not black and white. Make it white where the object is, and "
                "black elsewhere."
            )
        width, height = size_in_file(entry, image)
        if mask.size not in (image.size, (width, height)):
            raise ProfileError(
                f"The mask {path} has {mask.width} x {mask.height} pixels, expected "
                f"{width} x {height} as in its picture."
            )
    else:
        box = _box(entry, masks)
        if box is None:
            return None
        mask = Image.new("L", size_in_file(entry, image))
        x0, y0, x1, y1 = (round(edge) for edge in box)
        mask.paste(255, (x0, y0, x1, y1))
    rows, cols = acts.grid
    left, top, right, bottom = acts.crop
    x, y = mask.width / image.width, mask.height / image.height
    crop = left * x, top * y, right * x, bottom * y
    small = mask.resize((cols, rows), Image.Resampling.BOX, box=crop)
    return np.asarray(small) > 127


def _box(entry: Entry, column: str) -> Sequence[float] | None:
    """Read the box [left, top, right, bottom] of a picture of a parquet file, in its pixels.

    None where the cell is empty.
    """
    path = str(entry.source)
    names = parquet_file(path).schema_arrow.names if path.endswith(".parquet") else []
    if column not in names:
        raise ProfileError(
            f"{column} is neither a folder of masks nor a column of {path} with boxes [left, top, "
            "right, bottom]."
        )
    box = parquet_file(path).read(columns=[column])[column][entry.place[0]].as_py()
    if box is None:
        return None
    if not isinstance(box, list) or len(box) != 4 or box[0] > box[2] or box[1] > box[3]:
        raise ProfileError(
            f"Expected boxes [left, top, right, bottom] in {column} of {path}, got {box!r}."
        )
    return box
