"""What the operator said: `streamlit run app.py -- --checkpoint NAME=FILE`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True)
class Options:
    """What stood behind `--` when the app was started.

    Attributes
    ----------
    checkpoints : mapping of str to (str, Path)
        Of what the menu says: the architecture's name, and the file with its weights.
    models : tuple of str, or None
        The only models that the menu offers; all of the catalogue where it is None.
    """

    checkpoints: Mapping[str, tuple[str, Path]] = field(default_factory=dict)
    models: tuple[str, ...] | None = None


class OptionError(ValueError):
    """An option that cannot be read; the message is one sentence."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(f"The command that started the app cannot be read: {message}.")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="offer the weights of a local file, for an architecture of timm or of ours",
    )
    parser.add_argument("--models", metavar="NAME,...", help="offer these models alone")


def parse(arguments: Sequence[str]) -> Options:
    """Read what stands behind `--`.

    Raises
    ------
    OptionError
        When it cannot be read.
    """
    parser = _Parser(add_help=False)
    add_options(parser)
    return options_in(parser.parse_args(arguments))


def options_in(said: argparse.Namespace) -> Options:
    """What a parser with `add_options` has read.

    Raises
    ------
    OptionError
        When a file has no name.
    """
    checkpoints = {}
    for text in said.checkpoint:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise OptionError(f"Expected --checkpoint NAME=FILE, got {text}.")
        path = Path(file).expanduser().absolute()
        checkpoints[f"{name} · {path.name}"] = (name, path)
    models = None if said.models is None else tuple(said.models.split(","))
    return Options(checkpoints, models)
