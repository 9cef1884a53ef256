"""Load tests of the real server, by visitors without a browser.

    python benchmarks/load.py uploads [--sessions 30] [--rounds 3]
    python benchmarks/load.py mixed [--sessions 20] [--seconds 300] [--still]
    python benchmarks/load.py beside [--sessions 3] [--maps 20]
    python benchmarks/load.py sizes [--count 120] [--max-tokens 1024] [--weights trained]
    python benchmarks/load.py giants [--size 352x352] [--sessions 3] [--max-tokens 20000]
    python benchmarks/load.py limits [--sessions 30]
    python benchmarks/load.py walks [--visitors 0 1 5 10 20] [--cache 64]

Each session speaks the protocol of Streamlit's page over its own websocket (tests/visitor.py).
Nothing is drawn by a browser, so what a browser costs is not in it.

uploads: all sessions upload a picture of their own at the same moment, and the clock stops when a
session's page is drawn to its last line. Every session's maps are then compared with those that
this process makes of all the pictures: they must be its own picture's, and no other's. From round
SETTLED on, when the caches are full, memory should grow no more: the slope of the peak is printed,
by least squares.

mixed: sessions turn pages and layers, upload, choose input sizes, run experiments, write reports,
and one waits for a hub that never answers; half-way the server is killed and started again. The
maps of each upload are compared with those that this process makes, and each page must name the
visitor's own picture. The time of a map is that of a page with a new picture. With --still nobody
runs an experiment, to compare with.

beside: one visitor uploads picture after picture, alone and then while others run experiments
without a break; the slowest map beside them may take AFTER seconds more than the slowest alone.

sizes: one visitor asks for so many input sizes, which must not fill the memory: the weights are
promised 2 GB at most, captures 512 MB and pictures 256 MB.

giants: visitors ask at once for one large input each, which the operator allowed by --max-tokens;
each is shown or refused, and the server goes on.

limits: tries to break the limits of a public server. More visitors come than are let in, and each
gets in when others leave, in the order of arrival; one sends more pictures than they may, from
several sessions at once; one asks for experiments without a break, from several sessions, while
others look at their pictures; and one opens pages without end.

walks: a new server for each number of visitors. Each visitor uploads a picture of their own and
walks through all pages with every model that ships, all at the same time, and stays. The memory is
that of the server as `vitviz app` starts it: its peak, what it holds in the end, and how much of
that lies in libraries for CUDA, which torch without CUDA lacks.
"""

import argparse
import io
import os
import random
import re
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import cpu_count
from PIL import Image

import vitviz
from vitviz.app.pages import PAGES
from vitviz.app.shared.limits import MAX_WAITING_VISITORS
from vitviz.common import DEFAULT_MODEL
from vitviz.web.token_map import encode_frame
from vitviz.zoo.checkpoints import shipped_names

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from app_server import Server, free_port, serving
from visitor import Visitor
from websockets.exceptions import InvalidStatus

GOAL = 10.0  # seconds, of 95 in 100
AFTER = 2.0  # seconds that a map may wait for an experiment, or without a place in the queue
SETTLED = 15  # rounds
GROWTH = 0.05  # of the peak after those, at most
PROMISED = 2000 + 512 + 256  # MB of weights, captures and pictures
WORKING = 700  # MB of one pass and its page, and of what Python and its allocator keep
INSIDE, UPLOADS, SECONDS = 5, 10, 20  # limits of `limits`
BARS = 700, 1000  # MB of a server without visitors, and with ten
VISITED = ("attention", "distance", "classify", "rollout", "tokens", "positions", "filters")
SIZES = ("32x48", "48x48", "96x64", "whole")
PICTURES = 4  # of each visitor
SAMPLES = ("dog", "cat", "duck", "koala", "horse", "moose", "pig", "bison", "coffee")
Pictures = Iterator[int]  # their numbers


def photo(seed: int, size: tuple[int, int] = (4000, 3000)) -> bytes:
    """A JPEG of 12 megapixels, as a telephone takes them, unlike that of any other seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def maps_of(data: bytes, model: vitviz.Model) -> np.ndarray:
    acts = vitviz.capture(model, vitviz.open_image(data))
    frames = [encode_frame(layer, acts.attention(layer), 1, "share") for layer in range(acts.depth)]
    return np.concatenate([frame.codes.ravel() for frame in frames])


def memory(pid: int, field: str) -> float:
    """Of a process, in MB: VmRSS now, VmHWM at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field))
    return int(line.split()[1]) / 1000


def upload_at_once(visitors: list[Visitor], pictures: list[bytes]) -> list[float]:
    """Seconds from the beginning of each upload to the last line of its page."""
    together = threading.Barrier(len(visitors))

    def upload(number: int) -> float:
        together.wait()
        begun = time.monotonic()
        visitors[number].upload(f"{number}.jpg", pictures[number])
        return time.monotonic() - begun

    with ThreadPoolExecutor(len(visitors)) as pool:
        return list(pool.map(upload, range(len(visitors))))


def wrong(visitors: list[Visitor], pictures: list[bytes], model: vitviz.Model) -> int:
    """How many do not show the maps and the name of their own picture, or fit another's too."""
    expected, count = [maps_of(data, model) for data in pictures], 0
    for number, visitor in enumerate(visitors):
        codes = visitor.codes.astype(int)
        fits = [n for n, maps in enumerate(expected) if abs(codes - maps).max() <= 1]  # rounding
        count += fits != [number] or not visitor.provenance.endswith(f" · {number}.jpg")
    return count


def grown(peaks: list[float]) -> float:
    """Print the growth of the memory peak from round to round; returns it as a share."""
    later = peaks[SETTLED - 1 :]
    if len(later) < 2:
        return 0.0
    slope = np.polyfit(range(len(later)), later, 1)[0]
    growth = later[-1] / later[0] - 1
    print(f"peak from round {SETTLED} on: {slope:+.2f} MB a round, {growth:+.1%} in all")
    return growth


def uploads(sessions: int, rounds: int) -> bool:
    """Upload in all sessions at once, round after round; returns whether the goals are met."""
    model, slowest, mistakes = vitviz.load_model(DEFAULT_MODEL), 0.0, 0
    peaks: list[float] = []
    with started() as server:
        visitors = [Visitor(server.url) for _ in range(sessions)]
        for visitor in visitors:
            visitor.run()
        print(f"server with all sessions open: {memory(server.pid, 'VmRSS'):.0f} MB")
        for number in range(rounds):
            seeds = range(number * sessions, (number + 1) * sessions)
            pictures = [photo(seed) for seed in seeds]
            times = upload_at_once(visitors, pictures)
            p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
            errors = wrong(visitors, pictures, model)
            slowest, mistakes = max(slowest, p95), mistakes + errors
            peaks.append(memory(server.pid, "VmHWM"))
            now = memory(server.pid, "VmRSS")
            print(
                f"round {number + 1}: {spread(times)}; {sessions - errors} of {sessions} right; "
                f"peak {peaks[-1]:.0f} MB, now {now:.0f} MB",
                flush=True,
            )
        for visitor in visitors:
            visitor.close()
    good = grown(peaks) <= GROWTH and not mistakes and slowest < GOAL
    print(f"goal: all right, 95 of 100 under {GOAL:.0f} s, and at most {GROWTH:.0%} more memory")
    return good


def spread(times: list[float]) -> str:
    if len(times) < 2:
        return f"{len(times)} times"
    p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
    return (
        f"median {statistics.median(times):.1f} s, 95th percentile {p95:.1f} s, "
        f"maximum {max(times):.1f} s"
    )


class Mixed:
    """What visitors of all kinds do until the end, with the times that it took."""

    def __init__(self, sessions: int, still: bool) -> None:
        self.still = still
        model = vitviz.load_model(DEFAULT_MODEL)
        seeds = range(PICTURES * sessions)
        self.pictures = [photo(seed, (1200, 900)) for seed in seeds]  # before the clock starts
        self.maps = [maps_of(data, model) for data in self.pictures]
        self.times: dict[str, list[float]] = defaultdict(list)
        self.mistakes: list[str] = []
        self.heard: list[tuple[float, list[str]]] = []  # seconds of a map, and what was said of it
        self.visitors: list[Visitor] = []
        self.lost = 0  # actions that the kill cut off
        self.down = threading.Event()  # the server is being started again
        self.starts = 0  # of the server
        self.url = ""
        self.until = 0.0

    def run(self, number: int) -> None:
        """Behave as one visitor of the kind that the number has."""
        self.visit(
            number, (self.look, self.look, self.map, self.experiment, self.report)[number % 5]
        )

    def visit(self, number: int, does: Callable[..., None]) -> None:
        """Do one thing again and again, and come back where the server was killed."""
        choice = random.Random(number)
        pictures = cycle(range(PICTURES * number, PICTURES * (number + 1)))
        query, page, view = "", "attention", ""
        while time.monotonic() < self.until:
            if self.down.is_set():
                time.sleep(0.2)
                continue
            starts = self.starts
            try:
                with Visitor(self.url, query, page=page) as visitor:
                    self.visitors.append(visitor)
                    visitor.run()
                    if view and view_of(visitor) != view:
                        self.mistakes.append(
                            f"{number} came back to {view_of(visitor)!r}, and had {view!r}"
                        )
                    mine = f"{number}.jpg"
                    visitor.upload(mine, self.pictures[next(pictures)])
                    while time.monotonic() < self.until:
                        query, page, view = visitor.query, visitor.page, view_of(visitor)
                        does(visitor, number, choice, pictures)
                        if not visitor.provenance.endswith(f" · {mine}"):
                            self.mistakes.append(f"{number} sees {visitor.provenance!r}")
                        time.sleep(choice.uniform(0.5, 2.0))
            except (OSError, TimeoutError, EOFError) as error:
                self.cut_off(number, starts, error)
            except Exception as error:
                if type(error).__module__.startswith("websockets"):
                    self.cut_off(number, starts, error)
                else:
                    self.mistakes.append(f"{number}: {type(error).__name__}: {error}")
                    time.sleep(1)

    def cut_off(self, number: int, starts: int, error: Exception) -> None:
        if self.starts > starts or self.down.wait(2):
            self.lost += 1
        else:
            self.mistakes.append(f"{number}: {type(error).__name__}: {error}")
            time.sleep(1)

    @property
    def passes(self) -> int:
        """Passes of experiments that visitors were told of; Streamlit leaves some out."""
        said = (text for visitor in self.visitors for text in [*visitor.progress])
        return sum(text.startswith("Pass ") for text in said)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.times[what].append(time.monotonic() - begun)

    def look(
        self, visitor: Visitor, number: int, choice: random.Random, pictures: Pictures
    ) -> None:
        """Turn a page, and choose a layer and a size there."""
        page = choice.choice(VISITED)
        with self.timed(f"page {page}"):
            visitor.turn_to(page)
        size = choice.choice((*SIZES, "own", "own"))
        with self.timed("size and layer"):
            if "layer" in PAGES[page].settings:
                visitor.choose("Layer", choice.randint(1, 6))
            visitor.choose("Size of the input", size).run()

    def map(self, visitor: Visitor, number: int, choice: random.Random, pictures: Pictures) -> None:
        """Show a new picture, and compare its map with that of this process."""
        if visitor.page != "attention":
            visitor.turn_to("attention")
        seed, heard = next(pictures), len(visitor.progress)
        with self.timed("map of a new picture"):
            visitor.upload(f"{number}.jpg", self.pictures[seed])
        self.heard.append((self.times["map of a new picture"][-1], visitor.progress[heard:]))
        codes, expected = visitor.codes.astype(int), self.maps[seed]
        if codes.shape != expected.shape or abs(codes - expected).max() > 1:
            self.mistakes.append(f"{number} has a map that is not its picture's")

    def experiment(
        self, visitor: Visitor, number: int, choice: random.Random, pictures: Pictures
    ) -> None:
        if self.still:
            return self.look(visitor, number, choice, pictures)
        if visitor.page != "classify":
            visitor.turn_to("classify")
        labels = [button.label for button in visitor.elements("button")]
        offered = [label for label in labels if re.search("passes", label)]
        if not offered:  # all were run: a new picture
            visitor.upload(f"{number}.jpg", self.pictures[next(pictures)])
            return None
        with self.timed("experiment"):
            visitor.press(choice.choice(offered))
            visitor.read_until("script_finished", patience=120)
        return None

    def report(
        self, visitor: Visitor, number: int, choice: random.Random, pictures: Pictures
    ) -> None:
        visitor.upload(f"{number}.jpg", self.pictures[next(pictures)])
        with self.timed("report"):
            written = visitor.download("Report")
        if f"{number}.jpg".encode() not in written:
            self.mistakes.append(f"{number} got a report of another picture")


def mixed(sessions: int, seconds: float, still: bool) -> bool:
    """Let visitors of all kinds come for so long; returns whether nothing was wrong or lost."""
    work, port = Mixed(sessions, still), free_port()
    with ExitStack() as hub, ThreadPoolExecutor(sessions) as pool:
        os.environ["HF_ENDPOINT"] = hub.enter_context(silent())
        work.until = time.monotonic() + seconds
        done, peaks = [], []
        for part in range(2):
            with started("--", "--hub", port=port) as server:
                work.url, work.starts = server.url, part + 1
                work.down.clear()
                with Visitor(server.url, "model=hf-hub:nobody/answers") as waiting:
                    waiting.ask()
                    done += done or [pool.submit(work.run, number) for number in range(sessions)]
                    while time.monotonic() < work.until - (1 - part) * seconds / 2:
                        time.sleep(0.5)
                    if part:
                        for one in done:
                            one.result()
                peaks.append(memory(server.pid, "VmHWM"))
                if part == 0:
                    work.down.set()
                    os.kill(server.pid, signal.SIGKILL)
    for what, times in sorted(work.times.items()):
        print(f"{what:22} {len(times):4} times: {spread(times)}")
    for mistake in work.mistakes[:20]:
        print(mistake)
    slow = [any("ahead of you" in text for text in heard) for s, heard in work.heard if s > AFTER]
    print(f"{sum(slow)} of {len(slow)} that waited over {AFTER} s for a map were told their place")
    print(
        f"peak {peaks[0]:.0f} and {peaks[1]:.0f} MB; {work.lost} visitors came back after the kill"
    )
    print(f"goal: nothing wrong ({len(work.mistakes)} were)")
    return not work.mistakes


def beside(sessions: int, maps: int) -> bool:
    """Upload alone and beside experiments; returns whether these stop the maps for too long."""
    own = -(-2 * maps // PICTURES)  # visitors' worth of pictures, so that no map is from a cache
    work, slowest = Mixed(own + sessions, still=False), []
    pictures = iter(range(1, PICTURES * own))
    with ThreadPoolExecutor(sessions) as pool, started() as server, Visitor(server.url) as visitor:
        work.url = server.url
        visitor.run().upload("0.jpg", work.pictures[0])
        for busy in range(2):
            if busy:
                work.until = float("inf")
                for number in range(own, own + sessions):
                    pool.submit(work.visit, number, work.experiment)
                time.sleep(5)  # until they run
            work.times.pop("map of a new picture", None)
            before = work.passes
            for _ in range(maps - 1):
                work.map(visitor, 0, random.Random(0), pictures)
            times = work.times["map of a new picture"]
            passes = work.passes - before
            print(f"{passes} passes of experiments meanwhile: {spread(times)}", flush=True)
            slowest.append(max(times))
        work.until = 0.0
        work.down.set()  # experiments that still run are cut off
    print(f"{len(work.times['experiment'])} experiments ended", *work.mistakes, sep="\n")
    print(f"goal: at most {AFTER} s more for the slowest map, passes meanwhile, and no mistake")
    return slowest[1] - slowest[0] <= AFTER and passes > 0 and not work.mistakes


def view_of(visitor: Visitor) -> str:
    """What is on screen, without the picture: a new server cannot know an uploaded one.

    Nor then the size of the input, where that follows the shape of the picture.
    """
    shown = visitor.provenance.rpartition(" · ")[0]
    return re.sub("positions resampled.* px, (?=the whole picture)", "", shown)


@contextmanager
def silent() -> Iterator[str]:
    """The address of a hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def sizes(number: int, most: int, weights: str) -> bool:
    """Ask for so many sizes; returns whether the memory stays within what is promised."""
    asked = [
        (4 * rows, 4 * cols)
        for rows, cols in product(range(4, 64), repeat=2)
        if 1 + rows * cols <= most and (rows, cols) != (16, 16)
    ]
    asked = sorted(asked, key=lambda size: -size[0] * size[1])[:number]
    with started("--", f"--max-tokens={most}") as server:
        with Visitor(server.url) as visitor:
            visitor.run()
        opened = memory(server.pid, "VmRSS")
        with ExitStack() as leaving:
            for height, width in asked:
                query = f"size={height}x{width}" + (
                    "" if weights == "trained" else f"&weights={weights}"
                )
                visitor = leaving.enter_context(Visitor(server.url, query))
                visitor.run()
                assert f"input {height} × {width} px" in visitor.provenance, visitor.complaints
            now, peak = (memory(server.pid, field) for field in ("VmRSS", "VmHWM"))
        print(
            f"{len(asked)} sizes, {weights}: {opened:.0f} MB at first, peak {peak:.0f} MB, "
            f"{now:.0f} MB with all sessions open"
        )
    print(f"goal: at most {PROMISED + WORKING} MB more")
    return peak - opened <= PROMISED + WORKING


GIANT_PATIENCE = 300  # seconds for a page of 7,745 tokens, after those that came before


def giants(size: str, sessions: int, most: int) -> bool:
    """Ask for large inputs at once; returns whether the server goes on."""
    with started("--", f"--max-tokens={most}") as server:
        opened = memory(server.pid, "VmRSS")

        def ask(number: int) -> str:
            with Visitor(server.url, f"size={size}&picture={SAMPLES[number % 3]}") as one:
                one.ask()
                one.read_until("script_finished", GIANT_PATIENCE)
                return "; ".join(one.complaints) or one.provenance

        with ThreadPoolExecutor(sessions) as pool:
            for said in pool.map(ask, range(sessions)):
                print(f"    {said}")
        peak, now = (memory(server.pid, field) for field in ("VmHWM", "VmRSS"))
        with Visitor(server.url) as visitor:
            good = visitor.run().codes.size > 0
    print(f"{sessions} x {size}: {opened:.0f} MB at first, peak {peak:.0f} MB, then {now:.0f} MB")
    return good


def limits(sessions: int) -> bool:
    """Try to break each limit; returns whether all held."""
    words = ("--", f"--max-visitors={INSIDE}", f"--visitor-uploads={UPLOADS}")
    with started(*words, f"--visitor-seconds={SECONDS}") as server:
        with Visitor(server.url) as visitor:
            visitor.run()  # so that all is loaded
        tried = {
            f"at most {INSIDE} inside, and {sessions} let in in order": crowd(server, sessions),
            f"{UPLOADS} uploads of one visitor": flood(server),
            f"{SECONDS} seconds of one visitor, and others are served": greed(server),
            f"{INSIDE + MAX_WAITING_VISITORS} pages open": siege(server),
        }
    for what, held in tried.items():
        print(f"{'held' if held else 'BROKEN'}: {what}")
    return all(tried.values())


def crowd(server: Server, count: int) -> bool:
    """Let so many come at once, each of whom leaves once they have seen a map."""
    inside, most, order, lock = 0, 0, list[int](), threading.Lock()

    def come(number: int) -> None:
        nonlocal inside, most
        time.sleep(number / 5)  # so that there is an order
        with Visitor(server.url, address=f"198.51.100.{number}") as visitor:
            while not visitor.run().codes.size:
                assert "in line" in visitor.elements("markdown")[0].body
                time.sleep(1)
            with lock:
                inside, most = inside + 1, max(most, inside + 1)
                order.append(number)
            time.sleep(2)
            with lock:
                inside -= 1

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(come, range(count)))
    early = max(place - number for place, number in enumerate(order))  # they ask once a second
    print(f"at most {most} of {count} inside; nobody was overtaken by more than {early}")
    return most <= INSIDE and sorted(order) == list(range(count)) and early < INSIDE


def flood(server: Server) -> bool:
    """Send pictures from several sessions of one address."""
    with ExitStack() as leaving:
        visitors = [
            leaving.enter_context(Visitor(server.url, address="203.0.113.1")) for _ in range(4)
        ]
        for visitor in visitors:
            visitor.run()

        def send(number: int) -> int:
            visitor = visitors[number % len(visitors)]
            place = f"/_stcore/upload_file/{visitor.session}/{number}"
            return visitor.put(place, f"{number}.jpg", bytes(1000))

        with ThreadPoolExecutor(8) as pool:
            answers = Counter(pool.map(send, range(200)))
    print(f"200 uploads of one visitor were answered by {dict(answers)}")
    return answers == {204: UPLOADS, 429: 200 - UPLOADS}


def greed(server: Server) -> bool:
    """Ask for experiments from several sessions of one address, also after the first refusal."""
    end, refused, late = time.monotonic() + 120, list[float](), list[str]()

    def ask(number: int) -> None:
        after, page = 0, dict(page="classify", address="203.0.113.2")
        for block, picture in product((4, 2), SAMPLES[number::3]):
            query = f"picture={picture}&block={block}"
            with Visitor(server.url, query, **page) as visitor:
                visitor.run()
                if any("seconds of computing" in said for said in visitor.complaints):
                    refused.append(time.monotonic())  # the picture itself
                    after += 1
                labels = [one.label for one in visitor.elements("button")]
                for label in [label for label in labels if "passes" in label]:
                    heard = len(visitor.progress)
                    visitor.press(label)
                    visitor.read_until("script_finished", patience=120)
                    passes = [said for said in visitor.progress[heard:] if said.startswith("Pass")]
                    late.extend(passes if after else [])
                    if any("seconds of computing" in said for said in visitor.complaints):
                        refused.append(time.monotonic())
                        after += 1
            if after > 5 or time.monotonic() > end:
                return

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask, number) for number in range(3)]
        times = []
        with Visitor(server.url, address="203.0.113.3") as other:
            other.run()
            for number in range(UPLOADS):
                begun = time.monotonic()
                other.upload(f"{number}.jpg", photo(900 + number, (1200, 900)))
                times.append(time.monotonic() - begun)
                time.sleep(1)
        for one in asking:
            one.result()
    print(f"refused {len(refused)} times; passes after a refusal: {len(late)}")
    print(f"maps of another visitor meanwhile: {spread(times)}")
    return len(refused) >= 6 and not late  # twice in each session; a busy machine gets no further


def siege(server: Server) -> bool:
    """Open pages until no more are let into the line, and see that the server goes on."""
    with ExitStack() as leaving:
        opened = 0
        with suppress(InvalidStatus):
            while opened < 2 * MAX_WAITING_VISITORS:
                address = f"192.0.2.{opened}"
                leaving.enter_context(Visitor(server.url, address=address)).ask()
                opened += 1
    time.sleep(3)
    print(f"{opened} pages could be opened; peak {memory(server.pid, 'VmHWM'):.0f} MB")
    with Visitor(server.url, address="203.0.113.4") as visitor:
        return opened <= INSIDE + MAX_WAITING_VISITORS and visitor.run().codes.size > 0


def walks(counts: list[int], cache: int) -> bool:
    """Let so many visitors walk through all pages; returns whether the memory keeps its bars."""
    good = True
    print(f"visitors   at the peak   in the end   of it CUDA   seconds   (--cache {cache})")
    for count in counts:
        pictures = [photo(number, (1600, 1200)) for number in range(count)]
        with ExitStack() as leaving, ThreadPoolExecutor(max(count, 1)) as pool:
            command = (sys.executable, "-m", "vitviz", "app")
            server = leaving.enter_context(started(f"--cache={cache}", command=command))
            visitors = [leaving.enter_context(Visitor(server.url)) for _ in range(count)]
            begun = time.monotonic()
            list(pool.map(walk, visitors, range(count), pictures))
            seconds = time.monotonic() - begun
            if not count:
                time.sleep(30)  # until all libraries are loaded that are loaded unasked
            peak, now = (memory(server.pid, field) for field in ("VmHWM", "VmRSS"))
            cuda = in_libraries(server.pid, ("/nvidia/", "/cuda/", "_cuda", "/triton/"))
        print(f"{count:8} {peak:10.0f} MB {now:9.0f} MB {cuda:9.0f} MB {seconds:9.0f}", flush=True)
        good &= peak < BARS[0] if not count else peak < BARS[1] or count > 10
    print(f"goal: under {BARS[0]} MB without visitors, and under {BARS[1]} MB with up to 10")
    return good


def in_libraries(pid: int, names: tuple[str, ...]) -> float:
    """Of a process, the MB in memory that come from files with one of these in their paths."""
    total, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *words = line.split()
        if not first.endswith(":"):
            counts = any(name in line for name in names)
        elif first == "Rss:" and counts:
            total += int(words[0])
    return total / 1000


def walk(visitor: Visitor, number: int, picture: bytes) -> None:
    """Go through all pages with each model that ships, and the visitor's own picture."""

    def settle() -> None:
        visitor.ask()
        visitor.read_until("script_finished", patience=900)  # 20 who do so at once wait for long

    settle()
    place = visitor.place_for("mine.jpg")
    assert visitor.put(place.upload_url, f"{number}.jpg", picture) == 204
    visitor.hold(place, f"{number}.jpg", len(picture))
    settle()
    names = shipped_names()
    for name in names[number % len(names) :] + names[: number % len(names)]:
        visitor.choose("Model", name)
        for page in PAGES:
            visitor.go_to(page)
            settle()
            assert not visitor.elements("exception"), (page, name)
            assert visitor.provenance.startswith(name) or page == "zoo", (page, name)


@contextmanager
def started(*words: str, **how: Any) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "log", *words, **how) as server,
    ):
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    ways = parser.add_subparsers(required=True, dest="way")
    way = ways.add_parser("uploads")
    way.add_argument("--sessions", type=int, default=30)
    way.add_argument("--rounds", type=int, default=3)
    way.set_defaults(run=lambda asked: uploads(asked.sessions, asked.rounds))
    way = ways.add_parser("mixed")
    way.add_argument("--sessions", type=int, default=20)
    way.add_argument("--seconds", type=float, default=300)
    way.add_argument("--still", action="store_true", help="without experiments")
    way.set_defaults(run=lambda asked: mixed(asked.sessions, asked.seconds, asked.still))
    way = ways.add_parser("beside")
    way.add_argument("--sessions", type=int, default=3)
    way.add_argument("--maps", type=int, default=20)
    way.set_defaults(run=lambda asked: beside(asked.sessions, asked.maps))
    way = ways.add_parser("sizes")
    way.add_argument("--count", type=int, default=120)
    way.add_argument("--max-tokens", type=int, default=1024)
    way.add_argument("--weights", choices=["trained", "random", "mimetic"], default="trained")
    way.set_defaults(run=lambda asked: sizes(asked.count, asked.max_tokens, asked.weights))
    way = ways.add_parser("giants")
    way.add_argument("--size", default="352x352")
    way.add_argument("--sessions", type=int, default=3)
    way.add_argument("--max-tokens", type=int, default=20_000)
    way.set_defaults(run=lambda asked: giants(asked.size, asked.sessions, asked.max_tokens))
    way = ways.add_parser("limits")
    way.add_argument("--sessions", type=int, default=30)
    way.set_defaults(run=lambda asked: limits(asked.sessions))
    way = ways.add_parser("walks")
    way.add_argument("--visitors", type=int, nargs="+", default=[0, 1, 5, 10, 20])
    way.add_argument("--cache", type=int, default=64)
    way.set_defaults(run=lambda asked: walks(asked.visitors, asked.cache))
    asked = parser.parse_args()
    print(f"{cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    good = asked.run(asked)
    print("met" if good else "missed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
