"""Load test: sessions that each upload a picture of their own to the real server at once.

    python benchmarks/load.py [--sessions 30] [--rounds 3]

Each session speaks the protocol of Streamlit's page over its own websocket (tests/visitor.py): all
have opened the app, all upload at the same moment, and the clock stops when a session's page is
drawn to its last line. Every session's maps are then compared with those that this process makes
of all the pictures: they must be its own picture's, and no other's. Nothing is drawn by a browser,
so what a browser costs is not in it.

From round SETTLED on, when the caches are full, memory should grow no more: the slope of the peak
is printed, by least squares.
"""

import argparse
import io
import os
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from joblib import cpu_count
from PIL import Image

import vitviz
from vitviz.token_map import encode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from app_server import serving
from visitor import Visitor

MODEL = "vitviz_things200"
GOAL = 10.0  # seconds, of 95 in 100
SETTLED = 15  # rounds
GROWTH = 0.05  # of the peak after those, at most


def photo(seed: int) -> bytes:
    """A JPEG of 12 megapixels, as a telephone takes them, unlike that of any other seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((4000, 3000), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def maps_of(data: bytes, model: vitviz.Model) -> np.ndarray:
    acts = vitviz.capture(model, vitviz.open_image(data))
    frames = [encode(layer, acts.attention(layer), 1, "share") for layer in range(acts.depth)]
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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    model, slowest, mistakes = vitviz.load_model(MODEL), 0.0, 0
    peaks: list[float] = []
    print(f"{asked.sessions} sessions, {cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "log") as server:
        visitors = [Visitor(server.url) for _ in range(asked.sessions)]
        for visitor in visitors:
            visitor.run()
        print(f"server with all sessions open: {memory(server.pid, 'VmRSS'):.0f} MB")
        for number in range(asked.rounds):
            seeds = range(number * asked.sessions, (number + 1) * asked.sessions)
            pictures = [photo(seed) for seed in seeds]
            times = upload_at_once(visitors, pictures)
            p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
            errors = wrong(visitors, pictures, model)
            slowest, mistakes = max(slowest, p95), mistakes + errors
            peaks.append(memory(server.pid, "VmHWM"))
            now = memory(server.pid, "VmRSS")
            print(
                f"round {number + 1}: median {statistics.median(times):.1f} s, 95th percentile "
                f"{p95:.1f} s, maximum {max(times):.1f} s; {asked.sessions - errors} of "
                f"{asked.sessions} right; peak {peaks[-1]:.0f} MB, now {now:.0f} MB",
                flush=True,
            )
        for visitor in visitors:
            visitor.close()
    good = grown(peaks) <= GROWTH and not mistakes and slowest < GOAL
    print(
        f"goal: all right, 95 of 100 under {GOAL:.0f} s, and at most {GROWTH:.0%} more memory: "
        f"{'met' if good else 'missed'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
