"""`vitviz compare`: two models over the same pictures, or two saved profiles."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .terminal import add_measuring, pictures_done, print_skipped, refused

if TYPE_CHECKING:
    from ..model import Model
    from ..profiling import Profile


def add_compare(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("compare", help="measure how two models differ over pictures")
    sides = "a shipped model, an architecture, ARCHITECTURE=FILE with weights, or a saved profile"
    parser.add_argument("first", metavar="A", help=sides)
    parser.add_argument("second", metavar="B", help="likewise; differences are B minus A")
    parser.add_argument(
        "pictures",
        nargs="*",
        metavar="PICTURES",
        help="as of profile; none of two saved profiles, which have their own",
    )
    add_measuring(parser)
    parser.set_defaults(run=compare)


def compare(arguments: argparse.Namespace) -> int:
    """Compare; the exit code is 1 where a picture was left out, 130 after Ctrl-C."""
    from .. import profiling
    from ..zoo import ModelError

    try:
        found = profiling.compare(
            _side(arguments.first, arguments),
            _side(arguments.second, arguments),
            arguments.pictures or None,
            labels=arguments.labels,
            limit=arguments.limit,
            seed=arguments.seed,
            batch_size=arguments.batch,
            out=arguments.out,
            progress=pictures_done(),
        )
    except (profiling.ProfileError, ModelError, OSError) as error:
        return refused(error)
    except KeyboardInterrupt:
        print("\nStopped; nothing was written.", file=sys.stderr)
        return 130
    print_skipped([*found.left_out.items()], "run.json")
    for why in dict.fromkeys(found.not_compared.values()):
        print(f"Not compared: {why}", file=sys.stderr)
    left_out = len(found.left_out)
    print(f"{found.pictures:,} pictures compared, {left_out:,} left out: {arguments.out}")
    return 1 if left_out else 0


def _side(text: str, arguments: argparse.Namespace) -> "Model | Profile":
    """What A or B stands for."""
    from .. import load_model, load_profile

    if (Path(text) / "profile.npz").is_file():
        return load_profile(text)
    name, equals, file = text.partition("=")
    return load_model(
        name if equals else text,
        checkpoint=file if equals else None,
        image_size=arguments.image_size,
        device=arguments.device,
    )
