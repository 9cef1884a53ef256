"""`vitviz merge`: profiles of parts of a list of pictures become that of the whole."""

import argparse
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from .terminal import refused


def add_merge(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("merge", help="make one profile of those of several parts")
    parser.add_argument(
        "profiles",
        nargs="+",
        metavar="PROFILE",
        help="folders that profile wrote, in the order of the list; all but the last with a "
        "multiple of 256 pictures, or CKA is not that of the whole",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.set_defaults(run=merge)


def merge(arguments: argparse.Namespace) -> int:
    """Merge profiles."""
    from ..profiling import Profile, ProfileError, load_profile
    from ..profiling.running import check_unused

    try:
        check_unused(arguments.out)
        found = reduce(Profile.merge, map(load_profile, arguments.profiles))
        found.save(arguments.out)
    except (ProfileError, OSError) as error:
        return refused(error)
    if "note" in found.about:
        print(found.about["note"], file=sys.stderr)
    parts = len(arguments.profiles)
    print(f"{found.about['pictures']:,} pictures of {parts} profiles: {arguments.out}")
    return 0
