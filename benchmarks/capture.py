"""The overhead of a capture over a plain forward pass of timm, in CPU time and memory.

    python benchmarks/capture.py [--rounds 9] [--fresh] [--device cuda]

Every way starts from the same prepared picture, in inference mode and on one thread; their order
turns from round to round, and each figure is a median of ratios within a round.

    plain      timm as it is, with fused attention
    capture    vitviz.capture: every layer proved, q, k and the residual stream kept
    measured   the same, and inspection.measurements of all layers and heads
    hooks      timm with fused attention switched off, and hooks that keep every matrix

The process keeps the memory that it frees, as one does that captures picture after picture and
lets glibc do so by the variables KEEPING. With --fresh it gives memory back, and every way pays
again for each page that it touches first: a tenth of a small model's forward pass.

With --device the forward passes run there, time is that of a clock, memory is the device's, and the
bars, which are those of the CPU, are not asked for. What the device computes is compared with what
the CPU does.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from threadpoolctl import threadpool_limits
from torch import Tensor

import vitviz
from vitviz import inspection
from vitviz.devices import device_named

#: Architecture, pixels of a side, and the bars for `capture` and for `measured`.
CASES = (
    ("vit_tiny_patch16_224", 224, 1.12, 1.40),
    ("vit_small_patch16_224", 224, 1.06, 1.22),
    ("vit_base_patch16_224", 224, 1.05, 1.12),
    ("vit_small_patch14_dinov2", 518, 1.06, 1.55),
)
MEMORY = 150e6  # bytes above plain that `measured` may take in the last case
KEEPING = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
WAYS = ("plain", "capture", "measured", "hooks")


class Prepared:
    """A preprocessing that returns pictures prepared before."""

    def __init__(self, preprocess: Any, images: Sequence[Image.Image]) -> None:
        self.preprocess = preprocess
        self.prepared = {id(image): preprocess(image) for image in images}

    def __call__(self, image: Image.Image) -> Tensor:
        return self.prepared[id(image)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.preprocess, name)


def ways(name: str, side: int, device: str = "cpu") -> dict[str, Callable[[], Any]]:
    """What is timed, by name; each returns its logits."""
    model, image = prepared(name, side, device)
    x = model.preprocess(image)[None]

    def plain() -> Any:
        with torch.inference_mode():
            return model.module(model.placed(x))[0].cpu()

    def capture() -> Any:
        return torch.tensor(vitviz.capture(model, image).logits)

    def measured() -> Any:
        acts = vitviz.capture(model, image)
        inspection.measurements(
            acts.attention_layers(),
            grid=acts.grid,
            patch_size=acts.patch_size,
            num_prefix_tokens=acts.num_prefix_tokens,
        )
        return torch.tensor(acts.logits)

    def hooks() -> Any:
        kept = []
        handles = []
        for block in model.module.blocks:
            block.attn.fused_attn = False
            drop = block.attn.attn_drop
            handles.append(drop.register_forward_hook(lambda *call: kept.append(call[2])))
        with torch.inference_mode():
            logits = model.module(model.placed(x))[0].cpu()
        for handle, block in zip(handles, model.module.blocks, strict=True):
            handle.remove()
            block.attn.fused_attn = True
        return logits

    return {"plain": plain, "capture": capture, "measured": measured, "hooks": hooks}


def prepared(name: str, side: int, device: str) -> tuple[Any, Image.Image]:
    """A model with random weights and a picture of noise, the same at every call."""
    model: Any = vitviz.load_model(name, pretrained=False, image_size=side)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.module.reset_classifier(1000)  # DINOv2 comes without a head
    model.module.to(device_named(device))
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    image = Image.fromarray(noise)
    model.preprocess = Prepared(model.preprocess, [image])
    return model, image


def parity(name: str, side: int, device: str) -> tuple[float, float]:
    """The largest difference from the CPU: of the logits, as a share of the largest, and of A."""
    found = []
    for each in ("cpu", device):
        model, image = prepared(name, side, each)
        acts: Any = vitviz.capture(model, image)
        found.append((acts.logits, acts.attention(0), acts.attention(acts.depth - 1)))
    (logits, *attention), (other, *others) = found
    share = float(np.abs(logits - other).max() / np.abs(logits).max())
    return share, max(float(np.abs(a - b).max()) for a, b in zip(attention, others, strict=True))


def seconds(way: Callable[[], Any], device: str = "cpu") -> float:
    """CPU time; on a device the clock's, as the CPU only waits."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    begun = clock()
    way()
    if device != "cpu":
        torch.accelerator.synchronize()
    return clock() - begun


def ratios(
    timed: dict[str, Callable[[], Any]], rounds: int, device: str = "cpu"
) -> tuple[float, dict[str, float]]:
    """Seconds of a plain pass, and the median ratio of each way to it."""
    for way in timed.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in timed}
    names = list(timed)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            taken[name].append(seconds(timed[name], device))
    found = {
        name: statistics.median(t / p for t, p in zip(times, taken["plain"], strict=True))
        for name, times in taken.items()
    }
    return statistics.median(taken["plain"]), found


def peak(name: str, side: int, way: str, device: str) -> int:
    """The most memory that a process of its own takes for this way alone, in bytes."""
    call = [sys.executable, __file__, "--peak", way, "--case", name, str(side)]
    call += ["--device", device]
    usual = {key: value for key, value in os.environ.items() if key not in KEEPING}
    run = subprocess.run(call, check=True, capture_output=True, text=True, env=usual)
    return int(run.stdout)


def highest_memory(device: str) -> int:
    """The most memory that this process has held; getrusage would count its parent's (Linux)."""
    if device != "cpu":
        return torch.accelerator.max_memory_allocated(device_named(device))
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split(":")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fresh", action="store_true", help="give freed memory back")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs=2, default=CASES[-1][:2], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = arguments.device
    try:
        device_named(device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not (arguments.fresh or arguments.peak or set(KEEPING) <= set(os.environ)):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | KEEPING)
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")  # of numpy
    if arguments.peak:
        timed = ways(arguments.case[0], int(arguments.case[1]), device)
        timed[arguments.peak]()
        print(highest_memory(device))
        return 0
    missed = 0
    for name, side, *bars in CASES:
        timed = ways(name, side, device)
        assert torch.equal(timed["capture"](), timed["plain"]()), "watching changed the answer"
        base, found = ratios(timed, arguments.rounds, device)
        print(f"{name} at {side}: {1000 * base:.0f} ms plain", flush=True)
        for way, bar in zip(("capture", "measured"), bars, strict=True):
            missed += device == "cpu" and found[way] > bar
            against = f"   bar {bar:.2f}x" if device == "cpu" else ""
            print(f"    {way:9} {found[way]:5.2f}x{against}", flush=True)
        print(f"    hooks     {found['hooks']:5.2f}x", flush=True)
        if device != "cpu":
            logits, attention = parity(name, side, device)
            print(f"    from the CPU: logits {logits:.1e} of the largest, A {attention:.1e}")
    base = peak(name, side, "plain", device)
    for way in WAYS[1:]:
        above = peak(name, side, way, device) - base
        barred = way == "measured" and device == "cpu"
        bar = f"   bar {MEMORY / 1e6:.0f} MB" if barred else ""
        missed += barred and above > MEMORY
        print(f"    {way:9} {above / 1e6:5.0f} MB above plain{bar}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
