"""Planted attention in models with stages, and an oracle of which patches meet in their windows."""

from typing import Any

import numpy as np
from examples import patch_box
from numpy.testing import assert_array_equal
from planting import plant_stages, scene

from vitviz.activations import capture
from vitviz.model import Model

CELL = 32  # pixels: one patch of the last stage


def blocks(count: int, size: int, shift: int) -> np.ndarray:
    """Neighbours in blocks that start `shift` later; what lies before is a block of its own."""
    return (np.arange(count) - shift) // size


def strides(count: int, size: int) -> np.ndarray:
    """Every count / size -th belongs together."""
    return np.arange(count) % (count // size)


def pair(value: Any) -> Any:
    """Of one number for both axes, two."""
    return (value, value) if isinstance(value, int) else value


def meeting(model: Model, number: int) -> np.ndarray:
    """Whether query and key meet: bool (query rows, query columns, key rows, key columns)."""
    layer = model.layers[number]
    block: Any = model.sites[number].block
    groups = []
    shifted = getattr(block, "attn", block)  # where torchvision keeps the shift
    shifted = shifted if hasattr(shifted, "shift_size") else block
    for axis, count in enumerate(layer.query_grid):
        if layer.kind == "window" and hasattr(shifted, "shift_size"):
            side, shift = (pair(n)[axis] for n in (shifted.window_size, shifted.shift_size))
            groups.append(blocks(count, side, shift if side < count else 0))
        elif hasattr(getattr(block, "attn", None), "ws"):  # of Twins
            groups.append(blocks(count, block.attn.ws, 0))
        elif layer.kind == "window":
            groups.append(blocks(count, block.partition_size[axis], 0))
        elif layer.kind == "grid":
            groups.append(strides(count, block.partition_size[axis]))
        else:
            groups.append(np.zeros(count, int))
    keys = [
        group if layer.kind != "pooled" else np.zeros(count, int)
        for group, count in zip(groups, layer.key_grid, strict=True)
    ]
    rows = groups[0][:, None] == keys[0]
    cols = groups[1][:, None] == keys[1]
    return rows[:, None, :, None] & cols[None, :, None, :]


def bright(grid: tuple[int, int], size: tuple[int, int], cell: tuple[int, int]) -> np.ndarray:
    """Which patches of a layer's grid lie in the bright cell."""
    inside = [
        (np.arange(count) * extent // count) // CELL == place
        for count, extent, place in zip(grid, size, cell, strict=True)
    ]
    return inside[0][:, None] & inside[1]


def assert_found_in_stages(model: Model, grid: tuple[int, int], cell: tuple[int, int]) -> None:
    """Plant weights, make one cell of the picture bright, and find it in every layer."""
    size = (grid[0] * CELL, grid[1] * CELL)
    plant_stages(model)
    image, box = scene(CELL, grid, cell)  # of which the model gets the middle
    acts = capture(model, image)
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth
    for number, layer in enumerate(acts.layers):
        meet = meeting(model, number)
        lit = bright(layer.key_grid, size, cell)
        assert lit.any()
        seen = meet & lit
        expected = np.where(seen.any(axis=(2, 3), keepdims=True), seen, meet).astype(np.float32)
        expected /= expected.sum(axis=(2, 3), keepdims=True)
        whole = acts.attention(number).reshape(-1, *layer.query_grid, *layer.key_grid)
        off = np.empty_like(whole[0])
        for head in whole:
            assert np.abs(np.subtract(head, expected, out=off), out=off).max() <= 1e-3, layer.name
        rows, cols = layer.query_grid
        for query in ((0, 0), (rows // 2, cols - 1), (rows - 1, cols // 3)):
            assert_array_equal(acts.attention_map(number, query), whole[:, query[0], query[1]])
        for key in np.argwhere(lit)[[0, -1]]:
            looked_at = acts.attention_map(number, (int(key[0]), int(key[1])), direction="column")
            assert_array_equal(looked_at, whole[:, :, :, key[0], key[1]])
        # What looks at the bright place lies there, and nothing else does.
        crop, there = acts.crop_of(number), bright(layer.query_grid, size, cell)
        x = [sum(patch_box(crop, (rows, cols), 0, col)[::2]) / 2 for col in range(cols)]
        y = [sum(patch_box(crop, (rows, cols), row, 0)[1::2]) / 2 for row in range(rows)]
        across, down = (
            np.minimum(np.array(middle) - box[axis], box[axis + 2] - np.array(middle))
            for axis, middle in enumerate((x, y))
        )
        inside = np.minimum(across, down[:, None])  # pixels
        assert (inside[there] > -1).all()
        assert (inside[~there] < 1).all()
