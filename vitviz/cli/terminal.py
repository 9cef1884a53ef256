"""Options and terminal output that several commands share."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

from ..app.options import add_device, add_meaning
from ..common.files import printable
from ..common.language import format_count
from .early import allow_interrupts, leave_on_interrupt

if TYPE_CHECKING:
    from ..profiling import Profile

CLEAR_LINE = "\r\x1b[K"  # moves to the beginning of a terminal's line and erases it


@contextmanager
def safe_terminal() -> Iterator[None]:
    """Escape letters that the terminal lacks, and end at once on Ctrl-C until `allow_interrupts`.

    Libraries that are being imported answer KeyboardInterrupt with errors of their own, and nothing
    is lost while they are.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if current_thread() is main_thread():
        leave_on_interrupt()
    try:
        yield
    finally:
        if current_thread() is main_thread():
            allow_interrupts()


def print_refusal(error: object) -> int:
    """Print why a command is refused, and return its exit code."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{printable(error.filename)}: " if error.filename else ""
        error = f"{place}{error.strerror}."
    print(error, file=sys.stderr)
    return 2


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that measure models over many pictures."""
    parser.add_argument("--image-size", type=int, metavar="N", help="pixels of a side of the input")
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="CSV of names and labels, or a folder of class folders",
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="class names for weights that have none: one per line, a table, or JSON",
    )
    add_meaning(parser, "the weights")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="number of pictures, chosen by --seed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16, help="pictures in one forward pass")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    add_device(parser)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the options of runs that workers share and that can be resumed."""
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="number of processes, each with the model",
    )
    parser.add_argument(
        "--engine",
        default="local",
        choices=["local", "ray"],
        help="where the workers run: this machine (default), or the Ray cluster of RAY_ADDRESS",
    )
    parser.add_argument("--resume", action="store_true", help="continue a run that was stopped")


def progress_printer() -> Callable[[int, int], None]:
    """Return a callback that prints pictures done, their rate and the time left to a terminal."""
    first: tuple[float, int] | None = None  # time and number of pictures done at the first call

    def progress(done: int, total: int) -> None:
        nonlocal first
        first = first or (time.monotonic(), done)
        rate = (done - first[1]) / max(time.monotonic() - first[0], 1e-9)
        rest = f", {rate:,.1f} a second, {_duration((total - done) / rate)} left" if rate else ""
        line = f"{done:,} of {format_count(total, 'picture')}{rest}"
        if sys.stderr.isatty():
            print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)

    return progress


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_left_out(sentences: Sequence[str], record: str) -> None:
    """Print the first ten sentences on what was left out; the file `record` lists all."""
    print(CLEAR_LINE if sys.stderr.isatty() else "", end="", file=sys.stderr)
    for sentence in sentences[:10]:
        print(sentence, file=sys.stderr)
    if len(sentences) > 10:
        print(f"and {len(sentences) - 10:,} more, see {record}", file=sys.stderr)


def print_accuracy(profile: "Profile") -> None:
    """Print the accuracy of a profile with labels, and the confusions that happened most often."""
    if profile.accuracy is None:
        return
    first, five = profile.accuracy
    labelled = format_count(profile.labelled, "labelled picture")
    print(f"accuracy {first:.1%} of {labelled}, top five {five:.1%}")
    for label, answer, count, share in profile.top_confusions():
        names = f"{printable(label)} answered with {printable(answer)}"
        print(f"  {names}: {format_count(count, 'picture')}, {share:.1%} of the label's")
