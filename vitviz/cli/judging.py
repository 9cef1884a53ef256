"""`vitviz faithfulness`: judge the maps of a model's answers over many pictures."""

import argparse
import sys
from typing import Any

from ..app.options import OptionError
from ..common.language import MessageError
from .early import STOPPED, allow_interrupts
from .terminal import add_workers, print_notes, print_refusal, print_skipped, progress_printer
from .words import add_model_and_pictures, load_named


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
    parser.set_defaults(run=faithfulness)


def faithfulness(arguments: argparse.Namespace) -> int:
    """Judge maps; the exit code is 1 if a picture was skipped, 130 after Ctrl-C."""
    from .. import profiling

    try:
        model = load_named(arguments)
        allow_interrupts()
        result = profiling.faithfulness(
            model,
            arguments.pictures,
            methods=arguments.method,
            baseline=arguments.baseline or ("mean", "blur", "drop"),
            masks=arguments.masks,
            steps=arguments.steps,
            orders=arguments.orders,
            labels=arguments.labels,
            limit=arguments.limit,
            seed=arguments.seed,
            batch_size=arguments.batch,
            workers=arguments.workers,
            engine=arguments.engine,
            out=arguments.out,
            resume=arguments.resume,
            progress=progress_printer(),
        )
    except (MessageError, OptionError, OSError) as error:
        return print_refusal(error)
    except KeyboardInterrupt:
        print(
            f"\nStopped. The results so far are in {arguments.out}. Run the same command with "
            "--resume to continue.",
            file=sys.stderr,
        )
        return STOPPED
    print_notes(result.about.get("notes", ()))
    table = result.about["table"]
    skipped = [
        (name, why) for name, why in zip(table["picture"], table["skipped"], strict=True) if why
    ]
    print_skipped(skipped, "run.json")
    for name, why in result.about["refused"].items():
        print(f"Not measured, {name}: {why}", file=sys.stderr)
    print(result.table())
    measured = result.about["pictures"] - len(skipped)
    print(f"{measured:,} pictures measured, {len(skipped):,} skipped: {arguments.out}")
    return 1 if skipped else 0
