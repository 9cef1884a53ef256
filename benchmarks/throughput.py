"""What captures and profiles cost, against timm's plain forward pass.

    python benchmarks/throughput.py [--only captures|profiles|memory] [--engine local|ray] ...

captures: pictures a second of batched captures with their measurements. Every way starts from the
same prepared batch, in inference mode and on one thread; their order turns from round to round.
Seconds are of the processor, so that other work of the machine does not count; each ratio is the
median of the ratios within a round.

    plain       timm's forward pass of the batch, with fused attention
    captures    vitviz.captures of the batch: every layer of every picture proved
    measured    the same, and acts.measure() of each picture: distance, entropy, prefix mass, the
                map of CLS and rollout, with every layer proved as a whole
    one by one  vitviz.capture and acts.measure() of one picture after another

profiles: pictures a second of vitviz.profile, with all that it measures, in this process and by
workers of one thread each, against timm's plain forward pass of the same batches. Both read and
prepare the pictures' files. Pictures a second are by the clock, from the start of the workers to
the files of the profile; the time for a million pictures is extrapolated from them, and too long by
what the start takes. Seconds of the processor are of all processes, and unknown of Ray's.

memory: what this process holds while it profiles 10,000 small pictures with a small model into a
folder, after 1,024 of them and at its most after that; it may grow by 5 %.

For captures and profiles the process keeps the memory that it frees, by the variables KEEPING of
benchmarks/capture.py; with --fresh it gives memory back and pays for each page again, as it always
does for memory.

On an AMD EPYC with two cores, otherwise idle, `measured` took 1.23 (ViT-Ti), 1.14 (ViT-S) and 1.07
(ViT-B) plain passes on one of them; memory grew by 0.9 % at most. Of 1,024 pictures with ViT-Ti:

                         pictures/s  1,000,000 pictures
    plain                      39.8               7.0 h
    profile                    27.3              10.2 h
    local, 1 / 2 / 4 workers   25.8 / 46.2 / 37.7    10.8 / 6.0 / 7.4 h
    Ray, 1 / 2 / 4 workers     21.2 / 33.7 / 27.9    13.1 / 8.2 / 9.9 h

Four workers on two cores are too many.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from capture import KEEPING, Prepared
from PIL import Image

import vitviz
from vitviz.devices import use_threads
from vitviz.model import Preprocessing
from vitviz.profiling import listed
from vitviz.vit import VisionTransformer

WARM = 1024  # pictures after which memory is looked at

#: Architecture, and the most that `measured` may take, in plain passes.
CASES = (
    ("vit_tiny_patch16_224", 1.25),
    ("vit_small_patch16_224", 1.18),
    ("vit_base_patch16_224", 1.10),
)


def ways(name: str, batch: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name; each returns the logits of the last picture."""
    model: Any = vitviz.load_model(name, pretrained=False)
    side = model.preprocess.input_size[0]
    pictures = [Image.effect_noise((side, side), 90).convert("RGB") for _ in range(batch)]
    model.preprocess = Prepared(model.preprocess, pictures)
    x = torch.stack([model.preprocess(picture) for picture in pictures])

    def plain() -> Any:
        with torch.inference_mode():
            return model.module(x)[-1]

    def captures() -> Any:
        *_, acts = vitviz.captures(model, pictures, batch_size=batch)
        return torch.tensor(acts.logits)

    def measured() -> Any:
        for acts in vitviz.captures(model, pictures, batch_size=batch):
            acts.measure()
        return torch.tensor(acts.logits)

    def one_by_one() -> Any:
        for picture in pictures:
            acts = vitviz.capture(model, picture)
            acts.measure()
        return torch.tensor(acts.logits)

    return {"plain": plain, "captures": captures, "measured": measured, "one by one": one_by_one}


def rounds(timed: dict[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Seconds of the processor by way and round, after a round that is not counted."""
    for way in timed.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in timed}
    names = list(timed)
    for number in range(count):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            begun = time.process_time()
            timed[name]()
            taken[name].append(time.process_time() - begun)
    return taken


def captures(rounds_of: int, batch: int, case: str | None) -> bool:
    """Time the captures; returns whether each stays below its bar."""
    kept = True
    for name, bar in CASES:
        if case not in (None, name):
            continue
        timed = ways(name, batch)
        difference = (timed["measured"]() - timed["plain"]()).abs().max()
        assert difference <= 1e-5, f"watching changed the logits by {difference:.1e}"
        taken = rounds(timed, rounds_of)
        print(f"{name}, batches of {batch}", flush=True)
        for way, seconds in taken.items():
            within = [t / p for t, p in zip(seconds, taken["plain"], strict=True)]
            rate = batch / statistics.median(seconds)
            ratio = statistics.median(within)
            words = f"   bar {bar:.2f}x" if way == "measured" else ""
            kept &= way != "measured" or ratio <= bar
            print(f"    {way:10} {rate:6.1f} pictures/s {ratio:5.2f}x{words}", flush=True)
    return kept


@contextmanager
def noise(count: int, width: int, height: int) -> Iterator[Path]:
    """A folder with so many pictures of noise."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(folder) / f"{number:06}.png", compress_level=1)
        yield Path(folder)


def profiles(name: str, pictures: int, batch: int, engine: str, workers: list[int]) -> None:
    """Print a table: a line for the plain pass, for a profile in this process, and by workers."""
    model: Any = vitviz.load_model(name, pretrained=False)
    side = model.preprocess.input_size[0]

    def plain(folder: Path) -> None:
        entries = listed(folder)
        for start in range(0, len(entries), batch):
            images = [entry.read()[0] for entry in entries[start : start + batch]]
            with torch.inference_mode():
                model.module(torch.stack([model.preprocess(image) for image in images]))

    def profiled(count: int) -> Callable[[Path], None]:
        def way(folder: Path) -> None:
            with tempfile.TemporaryDirectory() as out:
                options: Any = dict(workers=count, engine=engine) if count else {}
                vitviz.profile(model, folder, batch_size=batch, out=out, **options)

        return way

    ways = {"plain": plain, "profile": profiled(0)}
    ways |= {f"{engine}, {count} workers": profiled(count) for count in workers}
    print(f"{name}, {pictures:,} pictures in batches of {batch}, one thread a process")
    print(f"    {'':16} pictures/s  x plain  CPU s/1,000  1,000,000 pictures", flush=True)
    with noise(pictures, side, side) as folder:
        for way, run in ways.items():
            begun, used = time.monotonic(), cpu_seconds()
            run(folder)
            rate, used = pictures / (time.monotonic() - begun), cpu_seconds() - used
            if way == "plain":
                expected = rate
            seconds = "" if way.startswith("ray") else f"{1000 * used / pictures:.1f}"
            print(
                f"    {way:16} {rate:10.1f} {expected / rate:8.2f} {seconds:>12} "
                f"{1e6 / rate / 3600:15.1f} h",
                flush=True,
            )


def cpu_seconds() -> float:
    """Of the processor, by this process and those that it started and that have ended."""
    return sum(os.times()[:4])


def memory(pictures: int) -> bool:
    """Print how the memory of this process grows; returns whether it stays within 5 %."""
    shape = (16, 24)
    module = VisionTransformer(
        image_size=shape,
        patch_size=4,
        embed_dim=32,
        depth=3,
        num_heads=4,
        mlp_dim=48,
        num_classes=5,
    )
    prepared = Preprocessing(input_size=shape, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    model = vitviz.watch(module.eval(), preprocessing=prepared, name="small")
    held: dict[int, int] = {}

    def progress(done: int, total: int) -> None:
        held[done] = psutil.Process().memory_info().rss

    with noise(pictures, 24, 16) as folder, tempfile.TemporaryDirectory() as out:
        vitviz.profile(model, folder, out=out, progress=progress)
    before = held[WARM]
    last, most = held[pictures], max(size for done, size in held.items() if done >= WARM)
    print(
        f"memory over {pictures:,} pictures, of which it was {before / 1e6:.0f} MB after {WARM:,}"
    )
    for words, size in (("at the end", last), ("at its most", most)):
        print(f"    {words:12} {size / 1e6:5.0f} MB {100 * (size / before - 1):+5.1f} %")
    return most <= 1.05 * before


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=["captures", "profiles", "memory"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--case", choices=[name for name, _ in CASES])
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--pictures", type=int, help="of profiles (1,024), of memory (10,000)")
    parser.add_argument("--fresh", action="store_true", help="give freed memory back")
    arguments = parser.parse_args()
    kept, fresh = True, arguments.fresh or arguments.only == "memory"
    if not (fresh or set(KEEPING) <= set(os.environ)):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KEEPING)
    use_threads(1)
    if arguments.only in (None, "captures"):
        kept &= captures(arguments.rounds, arguments.batch, arguments.case)
    if arguments.only in (None, "profiles"):
        case, count = arguments.case or CASES[0][0], arguments.pictures or 1024
        profiles(case, count, arguments.batch, arguments.engine, arguments.workers)
    if arguments.only == "memory":
        kept = memory(arguments.pictures or 10_000)
    elif arguments.only is None:  # in a process of its own, which gives freed memory back
        rest = {name: value for name, value in os.environ.items() if name not in KEEPING}
        command = [sys.executable, __file__, "--only", "memory"]
        kept &= subprocess.run(command, env=rest).returncode == 0
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
