"""What profiles cost, against timm's plain forward pass.

    python benchmarks/throughput.py [--only profiles|memory] [--engine local|ray] ...

profiles: pictures a second of vitviz.profile, with all that it measures, in this process and by
workers of one thread each, against timm's plain forward pass of the same batches. Both read and
prepare the pictures' files. Pictures a second are by the clock, from the start of the workers to
the files of the profile; the time for a million pictures is extrapolated from them, and too long by
what the start takes. Seconds of the processor are of all processes, and unknown of Ray's.

memory: what this process holds while it profiles 10,000 small pictures with a small model into a
folder, after 1,024 of them and at its most after that; it may grow by 5 %.

On an AMD EPYC with two cores, otherwise idle, memory grew by 0.9 % at most. Of 1,024 pictures with
ViT-Ti:

                         pictures/s  1,000,000 pictures
    plain                      39.8               7.0 h
    profile                    27.3              10.2 h
    local, 1 / 2 / 4 workers   25.8 / 46.2 / 37.7    10.8 / 6.0 / 7.4 h
    Ray, 1 / 2 / 4 workers     21.2 / 33.7 / 27.9    13.1 / 8.2 / 9.9 h

Four workers on two cores are too many.
"""

import argparse
import os
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
from PIL import Image

import vitviz
from vitviz.model import Preprocessing
from vitviz.model.devices import use_threads
from vitviz.profiling import list_pictures
from vitviz.vit import VisionTransformer

WARM = 1024  # pictures after which memory is looked at

MODEL = "vit_tiny_patch16_224"


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
        entries = list_pictures(folder)
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
    parser.add_argument("--only", choices=["profiles", "memory"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--model", default=MODEL, help="an architecture of timm")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--pictures", type=int, help="of profiles (1,024), of memory (10,000)")
    arguments = parser.parse_args()
    use_threads(1)
    if arguments.only == "memory":
        return 0 if memory(arguments.pictures or 10_000) else 1
    count = arguments.pictures or 1024
    profiles(arguments.model, count, arguments.batch, arguments.engine, arguments.workers)
    if arguments.only is None:  # in a process of its own, which has freed nothing yet
        return subprocess.run([sys.executable, __file__, "--only", "memory"]).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
