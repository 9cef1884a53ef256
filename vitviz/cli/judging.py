"""`vitviz faithfulness`: judge the maps of a model's answers over many pictures."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .measuring import add_model_and_pictures, measure_named
from .terminal import add_workers

if TYPE_CHECKING:
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
    parser.set_defaults(run=faithfulness)


def faithfulness(arguments: argparse.Namespace) -> int:
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
