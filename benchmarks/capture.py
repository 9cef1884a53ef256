"""The overhead of captures over timm's own transform and forward pass, in CPU time and memory.

    python benchmarks/capture.py [--rounds 15] [--device cuda] [--case vit_tiny_patch16_224]

Everything is as a user has it: a fresh process for each model, no settings of the environment, and
every way prepares the picture itself. All ways run in inference mode and on one thread; their order
turns from round to round, and each figure is a median of ratios within a round. Seconds are of the
processor.

    plain      timm's transform of the picture and its forward pass, with fused attention
    capture    vitviz.capture: q, k, v and the residual stream kept
    layers     the same, and acts.layers: a few rows of every layer proved
    measured   a capture, and acts.measure(): all measurements of all layers and heads, all rows
               proved
    matrices   the same measurements of whole matrices in place of blocks of their rows
    hooks      timm with fused attention switched off, and hooks that keep every matrix
    batch      vitviz.captures of 16 pictures and acts.measure() of each, over timm's transform of
               each and its forward pass of all of them

With --device the forward passes run there, time is that of a clock, memory is the device's, and the
bars, which are those of the CPU, are not asked for. What the device computes is compared with what
the CPU does.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image

import vitviz
from vitviz import inspection
from vitviz.model.devices import find_device, use_threads

#: Architecture and pixels of a side, and the bars for `capture`, `measured` and `batch`.
CASES = {
    "vit_tiny_patch16_224": (224, 1.12, 1.40, 1.30),
    "vit_small_patch16_224": (224, 1.06, 1.22, 1.20),
    "vit_base_patch16_224": (224, 1.03, 1.10, 1.12),
    "vit_small_patch14_dinov2": (518, 1.06, 1.45, None),
}
MEMORY = 150e6  # bytes above plain that `measured` may take in the last case
BATCH = 16
WAYS = ("plain", "capture", "layers", "measured", "matrices", "hooks")


def ways(name: str, device: str = "cpu") -> dict[str, Callable[[], Any]]:
    """What is timed, by name; each returns its logits."""
    side = CASES[name][0]
    model, transform = prepared(name, device)
    image = noise(side, 0)

    def plain() -> Any:
        with torch.inference_mode():
            return model.module(model.to_device(transform(image)[None]))[0].cpu()

    def capture() -> Any:
        return torch.tensor(vitviz.capture(model, image).logits)

    def layers() -> Any:
        acts = vitviz.capture(model, image)
        assert acts.refusal is None
        return torch.tensor(acts.logits)

    def measured() -> Any:
        acts = vitviz.capture(model, image)
        acts.measure()
        return torch.tensor(acts.logits)

    def matrices() -> Any:
        acts = vitviz.capture(model, image)
        layer = acts.layers[0]
        inspection.measurements(
            map(acts.attention, range(acts.depth)),
            grid=layer.query_grid,
            patch_size=layer.patch_size,
            num_prefix_tokens=len(layer.prefix),
        )
        return torch.tensor(acts.logits)

    def hooks() -> Any:
        kept = []
        handles = []
        for block in model.module.blocks:
            block.attn.fused_attn = False
            drop = block.attn.attn_drop
            handles.append(drop.register_forward_hook(lambda *call: kept.append(call[2])))
        logits = plain()
        for handle, block in zip(handles, model.module.blocks, strict=True):
            handle.remove()
            block.attn.fused_attn = True
        return logits

    return {
        "plain": plain,
        "capture": capture,
        "layers": layers,
        "measured": measured,
        "matrices": matrices,
        "hooks": hooks,
    }


def batch_ways(name: str) -> dict[str, Callable[[], Any]]:
    """The same of a batch; each returns the logits of the last picture."""
    model, transform = prepared(name, "cpu")
    images = [noise(CASES[name][0], number) for number in range(BATCH)]

    def plain() -> Any:
        with torch.inference_mode():
            return model.module(torch.stack([transform(image) for image in images]))[-1]

    def captures() -> Any:
        for acts in vitviz.captures(model, images, batch_size=BATCH):
            acts.measure()
        return torch.tensor(acts.logits)

    return {"plain": plain, "batch": captures}


def prepared(name: str, device: str) -> tuple[Any, Callable[[Image.Image], Any]]:
    """A model with random weights, the same at every call, and timm's own transform for it."""
    model: Any = vitviz.load_model(name, pretrained=False, image_size=CASES[name][0])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.module.reset_classifier(1000)  # DINOv2 comes without a head
    model.module.to(find_device(device))
    data = timm.data.resolve_model_data_config(model.module)
    data["input_size"] = (3, *model.preprocess.input_size)
    return model, timm.data.create_transform(**data)


def noise(side: int, seed: int) -> Image.Image:
    """A picture of noise, a third larger than the input."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side * 4 // 3, 3), np.uint8)
    return Image.fromarray(pixels)


def parity(name: str, device: str) -> tuple[float, float]:
    """The largest difference from the CPU: of the logits, as a share of the largest, and of A."""
    found = []
    for each in ("cpu", device):
        model, _ = prepared(name, each)
        acts: Any = vitviz.capture(model, noise(CASES[name][0], 0))
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


def own_process(*words: str) -> str:
    """What this script prints in a process of its own, with other words."""
    call = [sys.executable, __file__, *words]
    return subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout


def highest_memory(device: str) -> int:
    """The most memory that this process has held; getrusage would count its parent's (Linux)."""
    if device != "cpu":
        return torch.accelerator.max_memory_allocated(find_device(device))
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def measure(name: str, rounds: int, device: str) -> bool:
    """Time one model, and print it; returns whether it is below its bars."""
    _, *bars, bar = CASES[name]
    timed, kept = ways(name, device), True
    difference = (timed["capture"]() - timed["plain"]()).abs().max()
    assert difference <= 1e-4, f"watching changed the answer by {difference:.1e}"
    base, found = ratios(timed, rounds, device)
    print(f"{name} at {CASES[name][0]}: {1000 * base:.0f} ms plain", flush=True)
    barred = dict(zip(("capture", "measured"), bars, strict=True))
    if bar is not None and device == "cpu":
        found |= ratios(batch_ways(name), max(5, rounds // 3))[1]
        barred["batch"] = bar
    for way in list(found)[1:]:
        words = ""
        if device == "cpu" and way in barred:
            words = f"   bar {barred[way]:.2f}x"
            kept &= found[way] <= barred[way]
        print(f"    {way:9} {found[way]:5.2f}x{words}", flush=True)
    if device != "cpu":
        logits, attention = parity(name, device)
        print(f"    from the CPU: logits {logits:.1e} of the largest, A {attention:.1e}")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split(":")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps")
    parser.add_argument("--case", choices=CASES, help="this one alone, in this process")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device, name = arguments.device, arguments.case
    try:
        find_device(device)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    use_threads(1)
    if arguments.peak:
        ways(name, device)[arguments.peak]()
        print(highest_memory(device))
        return 0
    if name:
        return 0 if measure(name, arguments.rounds, device) else 1
    words, missed = ["--device", device, "--rounds", str(arguments.rounds)], 0
    for name in CASES:
        call = [sys.executable, __file__, *words, "--case", name]
        missed += subprocess.run(call).returncode
    peaks = {way: int(own_process(*words, "--case", name, "--peak", way)) for way in WAYS}
    for way in WAYS[1:]:
        above = peaks[way] - peaks["plain"]
        barred = way == "measured" and device == "cpu"
        bar = f"   bar {MEMORY / 1e6:.0f} MB" if barred else ""
        missed += barred and above > MEMORY
        print(f"    {way:9} {above / 1e6:5.0f} MB above plain{bar}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
