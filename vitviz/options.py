"""Command-line options of the app: `streamlit run app.py -- --checkpoint NAME=FILE`."""

import argparse
import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True)
class Options:
    """The options with which the app was started.

    Attributes
    ----------
    checkpoints : mapping of str to (str, Path)
        By the title in the menu: the architecture's name, and the file with its weights.
    models : tuple of str, or None
        The only models that the menu offers; all of the catalogue where it is None.
    device : str
        Where the models compute: "cpu", "cuda", "cuda:1", "mps", ...
    """

    checkpoints: Mapping[str, tuple[str, Path]] = field(default_factory=dict)
    models: tuple[str, ...] | None = None
    device: str = "cpu"


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
    add_device(parser)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="cpu", help="where models compute: cpu (default), cuda, cuda:1, mps"
    )


def parse(arguments: Sequence[str]) -> Options:
    """Parse the arguments after `--`.

    Raises
    ------
    OptionError
        When they cannot be parsed.
    """
    parser = _Parser(add_help=False)
    add_options(parser)
    return options_in(parser.parse_args(arguments))


def options_in(arguments: argparse.Namespace) -> Options:
    """The options in the result of a parser with `add_options`.

    Raises
    ------
    OptionError
        When a file has no name, or no model is named.
    """
    files = []
    for text in arguments.checkpoint:
        name, equals, file = (part.strip() for part in text.partition("="))
        if not (name and equals and file):
            raise OptionError(f"Expected --checkpoint NAME=FILE, got {text}.")
        files.append((name, Path(file).expanduser().absolute()))
    models = None
    if arguments.models is not None:
        models = tuple(name.strip() for name in arguments.models.split(",") if name.strip())
        if not models:
            raise OptionError(f"Expected --models NAME,NAME, got {arguments.models!r}.")
    titles = {_menu_title(each, files): each for each in files}
    return Options(titles, models, device=arguments.device)


def _menu_title(one: tuple[str, Path], files: Sequence[tuple[str, Path]]) -> str:
    """The architecture and the file's name, with as many of its folders as make it unique."""
    name, path = one
    others = {other.parts for same, other in files if same == name} - {path.parts}
    length = 1
    while any(parts[-length:] == path.parts[-length:] for parts in others):
        length += 1
    return f"{name} · {'/'.join(path.parts[-length:])}"


def check(options: Options, menu: Collection[str]) -> None:
    """Refuse models and files that are not there, which the menu would silently lack.

    Parameters
    ----------
    menu : the names of the catalogue

    Raises
    ------
    OptionError
        When one of the models is not in the menu, or one of the files is not there.
    """
    for name in options.models or ():
        if name not in menu:
            near = difflib.get_close_matches(name, menu, n=1)
            hint = f": did you mean {near[0]}?" if near else "."
            raise OptionError(f"The menu has no model named {name}{hint}")
    for _, path in options.checkpoints.values():
        if not path.is_file():
            raise OptionError(f"There is no file {path.name} in {path.parent}.")
