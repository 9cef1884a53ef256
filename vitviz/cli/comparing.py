"""`vitviz compare` and `vitviz merge`: two models over the same pictures, and saved profiles."""

import argparse
import sys
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..app.options import OptionError
from ..common.language import format_count
from .early import STOPPED, allow_interrupts
from .measuring import load_with
from .terminal import add_measuring, print_left_out, print_refusal, progress_printer

if TYPE_CHECKING:
    from ..model import Model
    from ..profiling import Profile


def add_merge(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("merge", help="merge profiles of parts of a list of pictures")
    parser.add_argument(
        "profiles",
        nargs="+",
        metavar="PROFILE",
        help="folders that profile wrote, in the order of the list; all but the last need a "
        "multiple of 256 pictures for the CKA of the whole",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.set_defaults(run=merge)


def merge(arguments: argparse.Namespace) -> int:
    from ..profiling import Profile, ProfileError, load_profile
    from ..profiling.running import check_unused, hold_folder

    allow_interrupts()
    try:
        with hold_folder(arguments.out):
            check_unused(arguments.out)
            result = reduce(Profile.merge, map(load_profile, arguments.profiles))
            result.save(arguments.out)
    except (ProfileError, OSError) as error:
        return print_refusal(error)
    if "note" in result.about:
        print(result.about["note"], file=sys.stderr)
    pictures = format_count(result.about["pictures"], "picture")
    parts = format_count(len(arguments.profiles), "profile")
    print(f"{pictures} of {parts}: {arguments.out}")
    return 0


def add_compare(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("compare", help="measure how two models differ over pictures")
    sides = (
        "a shipped model, an architecture, ARCHITECTURE=FILE[#PART] with weights, or a saved "
        "profile"
    )
    parser.add_argument("first", metavar="A", help=sides)
    parser.add_argument("second", metavar="B", help="likewise; differences are B minus A")
    parser.add_argument(
        "pictures",
        nargs="*",
        metavar="PICTURES",
        help="as in profile; leave out for two saved profiles, which have their own",
    )
    add_measuring(parser)
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare two models; return exit code 1 if a picture was left out, 130 after Ctrl-C."""
    from .. import profiling
    from ..zoo import ModelError

    try:
        first, second = (_side(text, arguments) for text in (arguments.first, arguments.second))
        allow_interrupts()
        result = profiling.compare(
            first,
            second,
            arguments.pictures or None,
            labels=arguments.labels,
            limit=arguments.limit,
            seed=arguments.seed,
            batch_size=arguments.batch,
            out=arguments.out,
            progress=progress_printer(),
        )
    except (profiling.ProfileError, ModelError, OptionError, OSError) as error:
        return print_refusal(error)
    except KeyboardInterrupt:
        print("\nStopped. Nothing was written.", file=sys.stderr)
        return STOPPED
    print_left_out(result.first.about.get("notes", ()), "run.json")
    print_left_out([f"{name}: {why}" for name, why in result.left_out.items()], "run.json")
    for why in dict.fromkeys(result.not_compared.values()):
        print(f"Not compared: {why}", file=sys.stderr)
    left_out = len(result.left_out)
    compared = format_count(result.pictures, "picture")
    print(f"{compared} compared, {left_out:,} left out: {arguments.out}")
    return 1 if left_out else 0


def _side(text: str, arguments: argparse.Namespace) -> "Model | Profile":
    """Load the model or profile that A or B names."""
    from .. import load_profile

    if (Path(text) / "profile.npz").is_file():
        return load_profile(text)
    name, equals, weights = ("", "", "") if Path(text).exists() else text.partition("=")
    return load_with(arguments, name or text, weights if equals else None)
