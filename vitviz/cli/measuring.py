"""`vitviz faithfulness`, and what it shares with `vitviz profile`: arguments and errors."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..app.options import OptionError, file_and_part, preprocessing_options
from ..common.language import MessageError, format_count
from .early import STOPPED, allow_interrupts
from .terminal import (
    add_measuring,
    add_workers,
    print_left_out,
    print_refusal,
    progress_printer,
)
from .words import add_template, give_words

if TYPE_CHECKING:
    from ..model import Model
    from ..profiling.faithful import Faithfulness


def add_faithfulness(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser(
        "faithfulness", help="judge maps of a model's answers over many pictures"
    )
    add_model_and_pictures(parser)
    parser.add_argument(
        "--method",
        action="append",
        metavar="NAME",
        help="a map: of vitviz.attribution.METHODS, attention or rollout (default: all)",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        choices=["mean", "blur", "drop"],
        help="what stands in place of removed patches (default: all three)",
    )
    parser.add_argument(
        "--masks",
        metavar="DIR|COLUMN",
        help="a folder of object masks NAME_mask.png, or a parquet column of boxes",
    )
    parser.add_argument("--steps", type=int, default=8, help="of the curves")
    parser.add_argument("--orders", type=int, default=20, help="random orders of each picture")
    add_workers(parser)
    parser.set_defaults(run=run_faithfulness)


def run_faithfulness(arguments: argparse.Namespace) -> int:
    """Judge maps; the exit code is 1 if a picture was skipped, 130 after Ctrl-C."""
    from .. import profiling

    def say(result: "Faithfulness") -> None:
        for name, why in result.about["refused"].items():
            print(f"Not measured, {name}: {why}", file=sys.stderr)
        print(result.table())

    own = {"methods": arguments.method, "masks": arguments.masks}
    own |= {"baseline": arguments.baseline or ("mean", "blur", "drop")}
    own |= {"steps": arguments.steps, "orders": arguments.orders}
    return measure_named(arguments, profiling.faithfulness, say, "run.json", **own)


def add_model_and_pictures(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that measure one model over many pictures."""
    parser.add_argument("model", metavar="MODEL", help="a shipped model, or an architecture")
    parser.add_argument(
        "pictures",
        nargs="+",
        metavar="PICTURES",
        help="picture files, folders, globs, parquet files or tar shards",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE[#PART]",
        help="weights of a local file, or of one of several models in it",
    )
    add_measuring(parser)
    parser.add_argument(
        "--words",
        type=Path,
        metavar="FILE",
        help="classes of CLIP and SigLIP: a phrase in each line, or the NPZ of vitviz words",
    )
    add_template(parser)
    parser.add_argument("--called", metavar="TEXT", help="name of the pictures in figures")


def measure_named(
    arguments: argparse.Namespace,
    measure: Callable[..., Any],
    print_result: Callable[[Any], object],
    record: str,
    **own: Any,
) -> int:
    """Measure the pictures that a command names; return its exit code.

    The code is 1 if a picture was skipped, 2 if the command was refused, 130 after Ctrl-C.

    Parameters
    ----------
    measure : `profiling.profile` or `profiling.faithfulness`
    print_result : callable
        Prints what was measured.
    record : str
        The file that lists every picture that was skipped.
    own : keywords of `measure` that not every command has
    """
    try:
        model = _load_named(arguments)
        allow_interrupts()
        result = measure(
            model,
            arguments.pictures,
            labels=arguments.labels,
            limit=arguments.limit,
            seed=arguments.seed,
            batch_size=arguments.batch,
            workers=arguments.workers,
            engine=arguments.engine,
            called=arguments.called,
            out=arguments.out,
            resume=arguments.resume,
            progress=progress_printer(),
            **own,
        )
    except (MessageError, OptionError, OSError) as error:  # such as a full disk
        return print_refusal(error)
    except KeyboardInterrupt:
        print(
            f"\nStopped. The results so far are in {arguments.out}. Run the same command with "
            "--resume to continue.",
            file=sys.stderr,
        )
        return STOPPED
    print_left_out(result.about.get("notes", ()), "run.json")
    table = result.pictures
    skipped = [
        f"{name}: {why}"
        for name, why in zip(table["picture"], table["skipped"], strict=True)
        if why
    ]
    print_left_out(skipped, record)
    print_result(result)
    count = result.about["pictures"] - len(skipped)
    measured = format_count(count, "picture")
    print(f"{measured} measured, {len(skipped):,} skipped: {arguments.out}")
    return 1 if skipped else 0


def _load_named(arguments: argparse.Namespace) -> "Model":
    """Load the model that the arguments of `add_model_and_pictures` name, with its words."""
    if arguments.template and arguments.words is None:
        raise OptionError("A template needs phrases. Add --words FILE, or leave out --template.")
    model = load_with(arguments, arguments.model, arguments.checkpoint)
    if arguments.words is not None:
        model = give_words(model, arguments.words, arguments.template)
    return model


def load_with(arguments: argparse.Namespace, name: str, checkpoint: str | None) -> "Model":
    """Load a model with the options of `add_measuring`; `checkpoint` is FILE or FILE#PART."""
    from .. import load_model

    file, part = (None, None) if checkpoint is None else file_and_part(checkpoint)
    return load_model(
        name,
        checkpoint=file,
        part=part,
        image_size=arguments.image_size,
        labels=arguments.classes,
        preprocessing=preprocessing_options(arguments),
        answers=arguments.answers,
        device=arguments.device,
    )
