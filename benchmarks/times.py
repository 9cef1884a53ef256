"""What each page of the app costs the server and the browser.

    python benchmarks/times.py [PAGE...] [--rounds 3]

A visitor in a real browser turns to each page for the first time, with a picture that the server
has not seen, and then changes its main control a few times. Printed are processor seconds, which
other work on the machine disturbs less than a clock: of the server for the first visit and for a
change, and of the browser's page for a change. Beside them stand their bars, times the slowness of
the machine; `!` marks what is above. The pages are walked through once before, as a server imports
and loads only once.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import CDPSession, Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from app_server import Server, serving  # noqa: E402
from browser.conftest import CHROMIUM, FLAGS, HEIGHT, WIDTH  # noqa: E402
from browser.walk import opened, settled, slowness, turn, until  # noqa: E402

from vitviz.app.pages import OPENING, PAGES  # noqa: E402

FIRST, CHANGE, BROWSER = 0.6, 0.25, 0.5  # seconds
PAUSE = 1500  # milliseconds until figures are drawn
#: The control that is changed, and the key that does it; a menu is opened first.
CONTROLS = {
    **dict.fromkeys(("anatomy", "attention", "distance", "rollout", "tokens", "compare"), "layer"),
    **{"filters": "filter", "positions": "grid", "training": "moment", "zoo": "zoo_layer"},
    "classify": "class",
    "explain": "class",
}
MENUS = {"class"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pages", nargs="*", help="only these")
    parser.add_argument("--rounds", type=int, default=3, help="changes of each page")
    words = parser.parse_args()
    if unknown := set(words.pages) - set(PAGES):
        parser.error(f"unknown pages: {', '.join(sorted(unknown))}")
    pages = words.pages or list(PAGES)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "log") as server:
        with visitor(server, "red_panda") as (page, _):
            for name in pages:
                turn(page, name)
        with visitor(server, "horse") as (page, session):
            print_table(measure(page, session, server, pages, words.rounds))
    return 0


@contextmanager
def visitor(server: Server, picture: str) -> Iterator[tuple[Page, CDPSession]]:
    """Open the app with a picture in a browser of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(120_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        opened(page, server, f"{OPENING}?picture={picture}")
        page.wait_for_timeout(PAUSE)
        yield page, session
        browser.close()


def measure(
    page: Page, session: CDPSession, server: Server, pages: Iterable[str], rounds: int
) -> Iterator[tuple[str, float, float, float]]:
    """Measure the server's first visit and change, and the browser's change, of each page."""
    process = psutil.Process(server.pid)

    def spent(act: Callable[[], Any]) -> tuple[float, float]:
        begun = clocks()
        act()
        settled(page)
        page.wait_for_timeout(PAUSE)
        server_s, browser_s = (after - b for after, b in zip(clocks(), begun, strict=True))
        return server_s, browser_s

    def clocks() -> tuple[float, float]:
        times = process.cpu_times()
        metrics = session.send("Performance.getMetrics")["metrics"]
        task = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
        return times.user + times.system, task

    for name in pages:
        first, _ = spent(lambda name=name: turn(page, name))
        changes = [spent(lambda name=name: change(page, CONTROLS[name])) for _ in range(rounds)]
        server_s, browser_s = (statistics.median(one) for one in zip(*changes, strict=True))
        yield name, first, server_s, browser_s


def change(page: Page, control: str) -> None:
    """Change a control by one step, down where there is one."""
    field = page.locator(f".stMainBlockContainer .st-key-{control} input").first
    before = page.url
    if control in MENUS:
        field.click()
        field.press("ArrowDown")
        field.press("Enter")
    elif field.get_attribute("type") == "number":
        field.press("ArrowUp")
        field.press("Enter")
    else:
        lowest = field.get_attribute("value") == field.get_attribute("min")
        field.press("ArrowRight" if lowest else "ArrowLeft")
    until(page, lambda: page.url != before)


def print_table(rows: Iterable[tuple[str, float, float, float]]) -> None:
    """Print each row as it is measured."""
    print(f"{'page':12}{'first visit':>14}{'change':>14}{'browser':>14}   seconds of a processor")
    for name, *taken in rows:
        slow = slowness(time.process_time)
        cells = [
            f"{seconds:6.2f}/{bar * slow:.2f}{'!' if seconds > bar * slow else ' '}"
            for seconds, bar in zip(taken, (FIRST, CHANGE, BROWSER), strict=True)
        ]
        print(
            f"{name:12}{''.join(f'{cell:>14}' for cell in cells)}   slowness {slow:.1f}", flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
