"""Options, and lines on the terminal, that several commands share."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..options import add_device

CLEAR = "\r\x1b[K"  # to the beginning of a terminal's line, and wipe it


def refused(error: object) -> int:
    """Print why a command is refused; returns its exit code."""
    print(error, file=sys.stderr)
    return 2


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """The options of commands that measure models over many pictures."""
    parser.add_argument("--image-size", type=int, metavar="N", help="pixels of a side of the input")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="CSV of names and labels")
    parser.add_argument("--limit", type=int, metavar="N", help="so many pictures, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16, help="pictures in one forward pass")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    add_device(parser)


def pictures_done() -> Callable[[int, int], None]:
    """What prints the pictures that are done, their rate and the time left onto a terminal."""
    begun: list[float] = []  # when the first batch began, and how many pictures were done by then

    def progress(done: int, total: int) -> None:
        begun.extend([] if begun else [time.monotonic(), done])
        rate = (done - begun[1]) / max(time.monotonic() - begun[0], 1e-9)
        left = f", {rate:,.1f} a second, {_duration((total - done) / rate)} left" if rate else ""
        line = f"{done:,} of {total:,} pictures{left}"
        if sys.stderr.isatty():
            print(f"{CLEAR}{line}", end="", file=sys.stderr, flush=True)

    return progress


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_skipped(skipped: Sequence[tuple[str, str]], more: str) -> None:
    """Name the first ten pictures that were skipped; `more` is where the others are."""
    print(CLEAR if sys.stderr.isatty() else "", end="", file=sys.stderr)
    for name, reason in skipped[:10]:
        print(f"{name}: {reason}", file=sys.stderr)
    if len(skipped) > 10:
        print(f"and {len(skipped) - 10:,} more, see {more}", file=sys.stderr)
