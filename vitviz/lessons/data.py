"""What the recorded training runs say, of how much data a ViT takes."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import inspection
from ..checkpoints import assets
from ..language import as_percent, tr

COMPONENTS = 12  # of the filters, as the page Training shows them
#: Pictures of JFT-300M from which ViT-B/32 was better than ResNet50 (Dosovitskiy et al., ICLR 2021,
#: Figure 4), and those with which it was much worse.
OVERTAKES, FALLS_BEHIND = 90_000_000, 9_000_000


def data(name: str) -> Iterable[str]:
    records = assets() / "curves"
    shown = name if (records / f"{name}.npz").exists() else "vitviz_things200"
    run = json.loads((records / f"{shown}.json").read_text(encoding="utf-8"))
    with np.load(records / f"{shown}.npz") as arrays:
        kept: Mapping[str, np.ndarray] = dict(arrays)
    size = int(kept["image_size"][0])
    last = int(np.flatnonzero(kept["image_size"] == size)[-1])  # before the input was enlarged
    start, end = (_moment(kept, moment) for moment in (0, last))
    yield tr(
        "In the run of {name}, held-out accuracy went from {low:.1f} % after the first epoch to "
        "{high:.1f} %. Until epoch {epoch:.0f} the first {components} components of the filters "
        "went from {filters} to **{filters_then}** of the variance, neighbouring positions from a "
        "cosine of {near:.2f} to **{near_then:.2f}**, and the heads from {far} to **{far_then}** "
        "of the side.",
        name=shown,
        low=100 * run["epochs"][0]["held_out_accuracy"],
        high=100 * run["epochs"][-1]["held_out_accuracy"],
        epoch=float(kept["epoch"][last]),
        components=COMPONENTS,
        filters=as_percent(start[0]),
        filters_then=as_percent(end[0]),
        near=start[1],
        near_then=end[1],
        far=as_percent(start[2]),
        far_then=as_percent(end[2]),
    )
    yield from _hunger(json.loads((records / "data_hunger.json").read_text(encoding="utf-8")))


def _moment(kept: Mapping[str, np.ndarray], moment: int) -> tuple[float, float, float]:
    """Variance in the first components, cosine of neighbours, and mean distance over the side."""
    kernel = kept[f"filters_{moment}"].astype(np.float32)
    size = int(kept["image_size"][moment])
    side = size // kernel.shape[-1]
    _, explained = inspection.filter_components(kernel, n_components=COMPONENTS)
    table = kept[f"positions_{moment}"].astype(np.float32)
    similarity = inspection.position_similarity(table, grid=(side, side))
    near = inspection.neighbour_similarity(similarity)
    return float(explained.sum()), float(near), float(np.nanmean(kept[f"distance_{moment}"]) / size)


def _hunger(record: Mapping[str, Any]) -> Iterable[str]:
    """Accuracy by the number of training pictures, of a ViT and of a CNN."""
    shares = sorted({run["share"] for run in record["runs"]})

    def accuracy(network: str, share: float) -> float:
        runs = (run for run in record["runs"] if (run["network"], run["share"]) == (network, share))
        return 100 * float(np.mean([run["test_accuracy"] for run in runs]))

    pictures = [round(share * record["pictures"]) for share in shares]
    vit, cnn = ([accuracy(each, share) for share in shares] for each in ("vit", "cnn"))
    yield tr(
        "With {few:,} pictures the ViT reached {vit:.1f} % and the CNN {cnn:.1f} %; with {many:,} "
        "they reached {vit_then:.1f} % and {cnn_then:.1f} %.",
        few=pictures[0],
        vit=vit[0],
        cnn=cnn[0],
        many=pictures[-1],
        vit_then=vit[-1],
        cnn_then=cnn[-1],
    )
    ahead = [count for count, one, other in zip(pictures, vit, cnn, strict=True) if one > other]
    if ahead:
        yield tr("The ViT was ahead of the CNN with {count:,} pictures.", count=ahead[0])
    else:
        yield tr(
            "The ViT was never ahead. In the paper ViT-B/32 was much worse than ResNet50 with "
            "{few:,} pictures and better with {many:,}, which is {times:,.0f} times as many as the "
            "most that were used here.",
            few=FALLS_BEHIND,
            many=OVERTAKES,
            times=OVERTAKES / pictures[-1],
        )
