"""On grids that are not square, of patches that are not: rows stay rows, and columns columns.

What is measured of a transposed picture, by the transposed model, is the transposed measurement;
a fault that exchanges both axes everywhere is seen where the definition is written out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import timm
from examples import picture, randomise, timm_module, watched
from numpy.testing import assert_allclose
from PIL import Image
from torch import nn

from vitviz import Activations, Model, attribution, capture, inspection, plots
from vitviz.activations import DropPatches, FillPatches, edited_input
from vitviz.common.images import fit, place
from vitviz.intervention import deletion_curve, occlusion, patch_lens
from vitviz.intervention.equivariance import repeat_patch
from vitviz.model.families.staged import dilated_windows, shifted_windows
from vitviz.plots.template import centre

GRID, PATCH = (4, 8), (8, 4)
RANDOM = np.random.default_rng(0)
ATTENTION = RANDOM.dirichlet(np.full(33, 0.3), size=(2, 33))
TABLE = RANDOM.normal(size=(32, 8))
RANKS = RANDOM.permutation(32).reshape(GRID)
MASK = RANKS < 9


@dataclass(frozen=True)
class Side:
    """The picture, model and arrays as they are, or transposed."""

    flip: bool

    def both(self, pair: tuple[int, int]) -> tuple[int, int]:
        return pair[::-1] if self.flip else pair

    def turned(self, cells: np.ndarray, *axes: int) -> np.ndarray:
        """Exchange two axes, by default the last, of arrays on their way in or out."""
        return cells.swapaxes(*(axes or (-1, -2))) if self.flip else cells

    @property
    def grid(self) -> tuple[int, int]:
        return self.both(GRID)

    @property
    def order(self) -> np.ndarray:
        return self.turned(np.arange(32).reshape(GRID)).ravel()

    @property
    def attention(self) -> np.ndarray:
        tokens = np.append(0, 1 + self.order)
        return ATTENTION[:, tokens][:, :, tokens]

    @property
    def cosines(self) -> np.ndarray:
        return inspection.position_similarity(TABLE[self.order], grid=self.grid)

    @property
    def model(self) -> Model:
        size = (GRID[0] * PATCH[0], GRID[1] * PATCH[1])
        options: Any = dict(embed_dim=24, depth=2, num_heads=3, num_classes=5)
        name = "vit_tiny_patch16_224"
        module = timm_module(name, img_size=size, patch_size=PATCH, **options)
        if self.flip:
            state = module.state_dict()
            kernel, positions = state["patch_embed.proj.weight"], state["pos_embed"]
            tokens = np.append(0, 1 + self.order)
            state |= {"patch_embed.proj.weight": kernel.mT, "pos_embed": positions[:, tokens]}
            module = timm_module(name, img_size=size[::-1], patch_size=PATCH[::-1], **options)
            module.load_state_dict(state)
            size = size[::-1]
        return watched(module, size)

    def picture(self, width: int = 32, height: int = 32) -> Image.Image:
        image = picture(width, height)
        return image.transpose(Image.Transpose.TRANSPOSE) if self.flip else image

    @property
    def acts(self) -> Activations:
        return capture(self.model, self.picture())


def filled(side: Side, fill: Any) -> np.ndarray:
    edits = [FillPatches(side.turned(MASK), fill)]
    return side.turned(edited_input(side.model, side.picture(), edits), 0, 1)


def fitted(side: Side, width: int, height: int, mode: str) -> np.ndarray:
    image, size = side.picture(width, height), side.both((24, 40))
    found = fit(image, place(image.size, input_size=size, crop_mode=mode, crop_pct=0.9))
    return side.turned(np.asarray(found, int), 0, 1)


def patterns(side: Side) -> np.ndarray:
    found = inspection.attention_patterns(side.attention, grid=side.grid, num_prefix_tokens=1)
    row, column = ("column", "row") if side.flip else ("row", "column")
    names = (row, column, "neighbours", "one offset", "one patch")
    offset = found.offset[:, ::-1] if side.flip else found.offset
    uniform = [found.uniform[name] for name in names]
    shares = [found.shares[name] for name in names]
    return np.concatenate([*shares, uniform, offset.ravel(), side.order[found.patch]])


def mirrors(side: Side) -> tuple[float, ...]:
    found = inspection.mirror_similarity(side.cosines)
    return found[::-1] if side.flip else found


def profile(side: Side) -> list[np.ndarray]:
    found = inspection.position_profile(side.cosines, position=side.both((1, 6)))
    return [*found["column" if side.flip else "row"], *found["row" if side.flip else "column"]]


def together(side: Side, windows: Any) -> np.ndarray:
    """Which patches are in one window, by their numbers in the picture as it is: (N, N)."""
    found = np.zeros((32, 32), bool)
    for window in windows.queries:
        places = side.order[window[window >= 0]]
        found[np.ix_(places, places)] = True
    return found


def resized(side: Side) -> np.ndarray:
    table = inspection.resized_positions(
        TABLE[side.order], grid=side.grid, new_grid=side.both((3, 12)), interpolation="bilinear"
    )
    return side.turned(table.reshape(*side.both((3, 12)), -1), 0, 1)


def common(side: Side) -> np.ndarray:
    crop, other = ((0, 0, 16, 8), (2, 1, 12, 9))
    if side.flip:
        crop, other = ((0, 0, 8, 16), (1, 2, 9, 12))
    maps = [side.turned(RANKS), side.turned(RANKS[:3, :5])]
    return side.turned(np.stack(inspection.common_maps(*maps, crop=crop, other_crop=other)))


def logits(side: Side, edit: Any) -> Any:
    return capture(side.model, side.picture(), edits=[edit]).logits


#: What is measured, each as of the picture as it is.
MEASURED: dict[str, Callable[[Side], Any]] = {
    "distance": lambda side: inspection.attention_distance(
        [side.attention], grid=side.grid, patch_size=side.both(PATCH)
    ),
    "equal distance": lambda side: inspection.uniform_distance(side.grid, side.both(PATCH)),
    "histogram": lambda side: inspection.distance_histogram(
        side.attention, grid=side.grid, patch_size=side.both(PATCH), bin_width=4
    ),
    "offsets": lambda side: side.turned(
        inspection.offset_attention(side.attention, grid=side.grid)
    ),
    "query": lambda side: side.turned(
        inspection.query_attention(side.attention, grid=side.grid, query=side.both((1, 6)))
    ),
    "patterns": patterns,
    "neighbours": lambda side: inspection.neighbour_similarity(side.cosines),
    "mirrors": mirrors,
    "profile": lambda side: np.concatenate(profile(side)),
    "resized positions": resized,
    "common maps": common,
    "shifted windows": lambda side: together(
        side, shifted_windows(side.grid, side.both((2, 4)), side.both((1, 3)))
    ),
    "dilated windows": lambda side: together(side, dilated_windows(side.grid, side.both((2, 4)))),
    "squashed": lambda side: fitted(side, 50, 70, "squash"),
    "centred": lambda side: fitted(side, 50, 70, "center"),
    "long": lambda side: fitted(side, 3, 2000, "center"),
    "very long": lambda side: fitted(side, 2, 20_000, "center"),
    "filled by the mean": lambda side: filled(side, "mean").astype(int),
    "filled by blur": lambda side: filled(side, "blur").astype(int),
    "dropped": lambda side: side.turned(
        edited_input(side.model, side.picture(), [DropPatches(side.turned(MASK))])[..., 3]
    ).astype(int),
    "answer without patches": lambda side: logits(side, DropPatches(side.turned(MASK))),
    "answer with blur": lambda side: logits(side, FillPatches(side.turned(MASK), "blur")),
    "map": lambda side: side.turned(side.acts.attention_map(1, side.both((1, 6)))),
    "map of a key": lambda side: side.turned(
        side.acts.attention_map(1, side.both((1, 6)), direction="column")
    ),
    "repeated patch": lambda side: [
        *vars(
            repeat_patch(side.model, side.picture(), side.both((0, 5)), side.both((3, 2)))
        ).values()
    ],
    "occlusion": lambda side: side.turned(occlusion(side.model, side.picture(), 2, block=3)),
    "deletion": lambda side: (
        deletion_curve(side.model, side.picture(), side.turned(RANKS), 2).probabilities
    ),
    "relevance": lambda side: side.turned(attribution.relevance(side.model, side.picture(), 2)),
    "answers of patches": lambda side: side.turned(patch_lens(side.model, side.acts, 1), 0, 1),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_transposed_picture_has_the_transposed_measurement(name: str) -> None:
    upright, transposed = (np.asarray(MEASURED[name](Side(flip))) for flip in (False, True))
    # Pixels are whole numbers, and are rounded after each axis.
    assert_allclose(transposed, upright, rtol=1e-4, atol=2 if upright.dtype.kind == "i" else 1e-5)


def test_blur_is_over_a_patch_in_height_and_in_width() -> None:
    module = timm_module(
        "vit_tiny_patch16_224",
        img_size=(32, 24),
        patch_size=(16, 2),
        embed_dim=24,
        depth=1,
        num_heads=3,
    )
    model, everything = watched(module, (32, 24)), np.ones((2, 12), bool)
    stripes = np.where(np.indices((32, 24)) // 4 % 2, 255, 0).astype(np.uint8)  # of 4 pixels
    left = [
        edited_input(model, Image.fromarray(each).convert("RGB"), [FillPatches(everything, "blur")])
        for each in stripes
    ]
    down, across = (each[..., 0].std() / stripes[0].std() for each in left)
    assert down < 0.2  # over patches 16 pixels high
    assert across > 0.6  # and 2 wide


def narrow(name: str, **options: Any) -> nn.Module:
    module: nn.Module = timm.create_model(name, **options).eval()
    randomise(module)
    return module


PYRAMID: Any = dict(depths=(1, 1, 1, 1), embed_dims=(8, 16, 20, 32))


def lopsided() -> nn.Module:
    """A PVT whose first kernel is 7 pixels high and 5 wide."""
    module: Any = narrow("pvt_v2_b0", **PYRAMID)
    module.patch_embed.proj = nn.Conv2d(3, 8, (7, 5), stride=4, padding=(3, 1))
    nn.init.ones_(module.patch_embed.proj.weight)
    return module.eval()


PLACED: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "lopsided": (lopsided, (96, 160)),
    "strided keys": (lambda: narrow("pvt_v2_b0", **PYRAMID), (96, 160)),
    "pooled keys": (lambda: narrow("pvt_v2_b2_li", **PYRAMID), (64, 160)),
    "windows": (
        lambda: narrow(
            "swin_tiny_patch4_window7_224", img_size=(64, 96), embed_dim=24, depths=(2, 1, 1, 1)
        ),
        (64, 96),
    ),
}


def test_a_kernel_of_other_height_than_width_is_centred_by_the_definition() -> None:
    # (k - 1) / 2 - p - (s - 1) / 2, down and to the right
    model = watched(lopsided(), (96, 160))
    assert_allclose(model.offsets[0], (3 - 3 - 1.5, 2 - 1 - 1.5), atol=0.05)


@pytest.mark.parametrize("name", PLACED)
def test_each_token_lies_in_the_middle_of_its_cell(name: str) -> None:
    """Queries and keys lie in the pixels of the input where their grids lie in the picture."""
    make, size = PLACED[name]
    acts = capture(watched(make(), size), picture(size[1], size[0]))
    for number, layer in enumerate(acts.layers):
        windows, layout = list(acts.windows(number)), acts.layout(number)
        for keys, grid in ((False, layer.query_grid), (True, layer.key_grid)):
            crop = acts.crop_of(number, keys=keys)
            numbers = layout.keys if keys else layout.queries
            for window, places in zip(numbers, (each[1 + keys] for each in windows), strict=True):
                there = window >= 0
                x, y = centre(crop, grid, *np.divmod(window[there], grid[1]))
                assert_allclose(places[there], np.stack([y, x], axis=1), atol=1e-3)


@pytest.mark.parametrize("shape", [(8, 4), (4, 8)])
def test_filters_of_patches_that_are_not_square_are_drawn(shape: tuple[int, int]) -> None:
    kernel = np.zeros((5, 3, *shape))
    kernel[4, :, -1, -1] = 1  # the last pixel of the last filter
    canvas = np.asarray(plots.filters(kernel, columns=5).data[0].z)
    assert canvas.shape[:2] == (shape[0], 4 * (shape[1] + -(-shape[1] // 8)) + shape[1])
    assert canvas[-1, -1, :3].tolist() == [255, 255, 255]
    assert canvas[0, 0, :3].tolist() == canvas[-1, -2, :3].tolist() == [128, 128, 128]
    tile = plots.filter_tile(kernel[4], name="Filter 5")
    assert np.shape(tile.data[0].z) == (*shape, 3)
    assert tile.layout.meta["alt"].endswith(f"+1.000 at row {shape[0]}, column {shape[1]}.")


def test_windows_are_shifted_by_rows_and_by_columns() -> None:
    windows = shifted_windows((4, 6), (2, 3), (1, 2))
    assert windows.queries[0].tolist() == [8, 9, 10, 14, 15, 16]
