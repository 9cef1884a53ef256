"""Pictures of the pages as they should look, which people have looked at, and what is on screen.

`VITVIZ_GOLDEN=write pytest -n 2 tests/browser/test_every_screen.py` draws them anew. Look at each
of them before it is committed.
"""

import io
import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parents[1] / "golden"
KEPT = 4  # pixels on screen for one that is kept
BLOCK = 16  # pixels on screen whose mean colour is compared
APART = 24  # of 255, in any of the three colours: two blocks look different
SHARE = 0.02  # of the blocks may: letters are drawn a little differently elsewhere
PATIENCE = 30.0  # seconds: what is drawn late counts too


def expect_to_look(page: "Page", name: str) -> None:
    """What is on screen looks like the picture of this name."""
    file = FOLDER / f"{name}.webp"
    if os.environ.get("VITVIZ_GOLDEN") == "write":
        page.wait_for_timeout(1500)
        FOLDER.mkdir(exist_ok=True)
        _shot(page).save(file, quality=60, method=6)
        return
    with Image.open(file) as kept:
        expected = kept.convert("RGB")
    until = monotonic() + PATIENCE
    while wrong := _difference(_shot(page), expected):
        assert monotonic() < until, f"{file.name}: {wrong}"
        page.wait_for_timeout(200)


def _shot(page: "Page") -> Image.Image:
    shot = page.screenshot(animations="disabled", type="jpeg", quality=90)  # quicker than PNG
    return Image.open(io.BytesIO(shot)).convert("RGB").reduce(KEPT)


def _difference(found: Image.Image, expected: Image.Image) -> str:
    """In words; nothing where they look alike."""
    if found.size != expected.size:
        return f"it has {found.size} instead of {expected.size} pixels"
    blocks = [np.asarray(one.reduce(BLOCK // KEPT), dtype=float) for one in (found, expected)]
    share = float((abs(blocks[0] - blocks[1]).max(axis=2) > APART).mean())
    return f"{share:.1%} of it look different" if share > SHARE else ""
