"""The first figure of every page: where it begins, and how much of the screen figures take."""

from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from vitviz.app.pages import PAGES

from .conftest import Server, watched
from .walk import opened as walked

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Budget(NamedTuple):
    """Of a window: at most so many pixels above the first figure, at least such a share of it."""

    width: int
    height: int
    top: int
    share: float
    presenter: bool = False

    def __str__(self) -> str:
        return f"{'presenter_' if self.presenter else ''}{self.width}"


BUDGETS = (
    Budget(1280, 720, 240, 0.45),
    Budget(1280, 720, 250, 0.5, presenter=True),
    Budget(1093, 614, 240, 0.35),
    Budget(390, 844, 300, 0.35),
    Budget(1920, 1080, 260, 0.45),
)
#: Where a page shows less than its budget: small pictures beside words (Anatomy), two maps with
#: their photos side by side (Compare). The pages of one map show a picture of 4:3 here; of the
#: wide one with which the app opens, the model sees half.
LESS = {
    **{("anatomy", str(one)): 0.2 for one in BUDGETS},
    **{("compare", str(one)): 0.15 for one in BUDGETS},
    **{(page, "presenter_1280"): 0.4 for page in ("positions", "attention", "rollout", "tokens")},
}

MEASURED = """() => {
  const found = [];
  const look = (root) => {
    for (const one of root.querySelectorAll("*")) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (!one.matches(".stPlotlyChart, canvas, .stImage img") || !one.checkVisibility()) continue;
      const box = one.getBoundingClientRect();
      if (box.width > 90 && box.height > 60) found.push(box);
    }
  };
  look(document.querySelector("main"));
  found.sort((one, other) => one.top - other.top);
  const cells = new Set();
  for (const { left, top, right, bottom } of found)
    for (let y = Math.max(0, top) >> 2; y < Math.min(innerHeight, bottom) >> 2; y++)
      for (let x = Math.max(0, left) >> 2; x < Math.min(innerWidth, right) >> 2; x++)
        cells.add(y * 4096 + x);
  const [{ top, bottom } = { top: Infinity, bottom: Infinity }] = found;
  return { top, bottom, share: (16 * cells.size) / (innerWidth * innerHeight) };
}"""


@pytest.fixture(scope="module", params=BUDGETS, ids=str)
def opened(
    request: pytest.FixtureRequest, browser: "Browser", server: Server
) -> "Iterator[tuple[Budget, Page]]":
    budget: Budget = request.param
    with watched(browser) as page:
        page.set_viewport_size({"width": budget.width, "height": budget.height})
        yield budget, page


@pytest.mark.parametrize("name", PAGES)
def test_the_figure_comes_first(opened: "tuple[Budget, Page]", server: Server, name: str) -> None:
    budget, page = opened
    walked(page, server, f"{name}?picture=dog&presenter={budget.presenter}")

    def misses() -> list[str]:
        """What the page misses of its budget, in words."""
        measured: Any = page.evaluate(MEASURED)
        top, bottom, share = (measured[part] for part in ("top", "bottom", "share"))
        found = []
        if top > budget.top:
            found.append(f"the first figure begins at {top:.0f} px")
        if share < LESS.get((name, str(budget)), budget.share):
            found.append(f"figures take {share:.2f} of the screen")
        if budget.width == 1280 and bottom > budget.height:
            found.append(f"the first figure ends at {bottom:.0f} px")
        return found

    page.wait_for_timeout(300)
    deadline = monotonic() + 10  # figures follow a little later
    while (missed := misses()) and monotonic() < deadline:
        page.wait_for_timeout(200)
    assert not missed
