"""Pictures a second of batched captures with their measurements, against timm's plain forward.

    python benchmarks/throughput.py [--rounds 9] [--batch 16] [--fresh]

Every way starts from the same prepared batch, in inference mode and on one thread; their order
turns from round to round. Seconds are of the processor, so that other work of the machine does not
count; each ratio is the median of the ratios within a round.

    plain       timm's forward pass of the batch, with fused attention
    captures    vitviz.captures of the batch: every layer of every picture proved
    measured    the same, and acts.measure() of each picture: distance, entropy, prefix mass, the
                map of CLS and rollout, with every layer proved as a whole
    one by one  vitviz.capture and acts.measure() of one picture after another

The process keeps the memory that it frees, by the variables KEEPING of benchmarks/capture.py; with
--fresh it gives memory back and pays for each page again.

On one core of an AMD EPYC that had other work, `measured` took 1.25 (ViT-Ti), 1.14 (ViT-S) and 1.09
(ViT-B) plain passes.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from capture import KEEPING, Prepared
from PIL import Image
from threadpoolctl import threadpool_limits

import vitviz

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


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split(":")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--case", choices=[name for name, _ in CASES])
    parser.add_argument("--fresh", action="store_true", help="give freed memory back")
    arguments = parser.parse_args()
    if not (arguments.fresh or set(KEEPING) <= set(os.environ)):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KEEPING)
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")  # of numpy
    missed = 0
    for name, bar in CASES:
        if arguments.case not in (None, name):
            continue
        timed = ways(name, arguments.batch)
        difference = (timed["measured"]() - timed["plain"]()).abs().max()
        assert difference <= 1e-5, f"watching changed the logits by {difference:.1e}"
        taken = rounds(timed, arguments.rounds)
        print(f"{name}, batches of {arguments.batch}", flush=True)
        for way, seconds in taken.items():
            within = [t / p for t, p in zip(seconds, taken["plain"], strict=True)]
            rate = arguments.batch / statistics.median(seconds)
            ratio = statistics.median(within)
            words = f"   bar {bar:.2f}x" if way == "measured" else ""
            missed += way == "measured" and ratio > bar
            print(f"    {way:10} {rate:6.1f} pictures/s {ratio:5.2f}x{words}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
