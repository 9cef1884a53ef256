"""Command-line options of the app: `streamlit run app.py -- --checkpoint NAME=FILE`."""

import argparse
import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from ..common.language import MessageError

#: A class shares one machine: time and memory grow with the square of the tokens.
MAX_TOKENS = 1024
CACHE = 512  # MB
#: Whole numbers of at least 1, by their names in `Options`.
COUNT_OPTIONS = {
    "max_tokens": "the most tokens of an input size that a visitor may choose "
    f"(default: {MAX_TOKENS}); a model's own size is always offered",
    "cache": "megabytes of captures that are kept in memory, and half as much of pictures "
    f"(default: {CACHE})",
    "max_visitors": "let in so many visitors at once; the others wait in line (default: all)",
    "visitor_uploads": "let each visitor send so many pictures in an hour (default: no limit)",
    "visitor_seconds": "compute so many seconds for each visitor in an hour; what was computed "
    "before still opens (default: no limit)",
}


class LocalFile(NamedTuple):
    """A file of weights that the menu offers, or a folder as timm or transformers saves it.

    Attributes
    ----------
    name : str
        Of its architecture; of a folder, what it is called.
    path : Path
    image_size : (height, width), optional
        Of the input in pixels; the size that the file was trained at where it is left out.
    part : str, optional
        Which model in the file is meant, where it holds several.
    """

    name: str
    path: Path
    image_size: tuple[int, int] | None = None
    part: str | None = None


@dataclass(frozen=True)
class Options:
    """The options with which the app was started.

    Attributes
    ----------
    checkpoints : mapping of str to LocalFile
        By the title in the menu.
    models : tuple of str, or None
        The only models that the menu offers; all of the catalogue where it is None.
    device : str
        Where the models compute: "cpu", "cuda", "cuda:1", "mps", ...
    labels : Path, or None
        A file of class names, for local files and repositories without names of their own.
    preprocessing : mapping of str
        What `--mean`, `--std` and `--crop` say of the local files of weights.
    answers : str, or None
        What their outputs mean, where it cannot be found out: see `Model.answers`.
    hub : bool
        Whether names of repositories may be typed into the menu, where only localhost is served.
    image_size : (height, width), or None
        Of the input in pixels, for every model of the catalogue that can have it.
    profiles : tuple of Path
        Folders that `vitviz profile` wrote, or their files profile.npz.
    words : Path, or None
        File with the vectors of words, the classes of models that give an embedding.
    max_tokens : int
        The most tokens of an input size that a visitor may choose.
    cache : int
        Megabytes of captures that are kept in memory; of decoded pictures it is half as much.
    max_visitors : int, or None
        How many visitors are let in at once.
    visitor_uploads : int, or None
        How many pictures one visitor may send in an hour.
    visitor_seconds : int, or None
        For how many seconds the server computes for one visitor in an hour.
    """

    checkpoints: Mapping[str, LocalFile] = field(default_factory=dict)
    models: tuple[str, ...] | None = None
    device: str = "cpu"
    image_size: tuple[int, int] | None = None
    words: Path | None = None
    labels: Path | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    answers: Literal["classes", "labels", "values", "embedding"] | None = None
    hub: bool = False
    profiles: tuple[Path, ...] = ()
    max_tokens: int = MAX_TOKENS
    cache: int = CACHE
    max_visitors: int | None = None
    visitor_uploads: int | None = None
    visitor_seconds: int | None = None


class OptionError(MessageError):
    """An option that cannot be read, or names what is not there."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(
            "The command that started the app cannot be read: {message}.", message=message
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="NAME=FILE[#PART][@SIZE]",
        help="offer the weights of a local file, for an architecture of timm or of ours; or a "
        "folder as timm or transformers saves it, for which NAME= may be left out; PART is one of "
        "several models in the file, such as teacher",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="names of the classes of local files without any",
    )
    add_meaning(parser, "the files of --checkpoint")
    parser.add_argument(
        "--hub",
        action="store_true",
        help="let names of the hub, hf-hub:owner/name, be typed into the menu (localhost only)",
    )
    parser.add_argument("--models", metavar="NAME,...", help="offer these models alone")
    parser.add_argument(
        "--image-size",
        metavar="SIZE",
        help="height and width of the input in pixels, such as 224 or 320x480 "
        "(default: each model's own)",
    )
    for name, words in COUNT_OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="COUNT", help=words)
    parser.add_argument(
        "--words",
        type=Path,
        metavar="FILE.npz",
        help="text vectors of words, as the classes of CLIP and SigLIP",
    )
    parser.add_argument(
        "--profile",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="show a profile beside the model of its weights: a folder that `vitviz profile` "
        "wrote, or its profile.npz",
    )
    add_device(parser)


def add_meaning(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that say what a file of weights takes and gives."""
    for name in ("mean", "std"):
        parser.add_argument(
            f"--{name}",
            metavar="R,G,B",
            help=f"{name} of the channels that {what} were trained with, for values in 0..1",
        )
    parser.add_argument(
        "--crop", metavar="SHARE", help=f"share of the shorter side that {what} see, such as 0.9"
    )
    parser.add_argument(
        "--answers",
        choices=("classes", "labels", "values", "embedding"),
        help=f"what the outputs of {what} mean: one of several classes, labels of which several "
        "may apply, values, or features (default: found out)",
    )


def preprocessing_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `--mean`, `--std` and `--crop` say, by the names of `Preprocessing`.

    Raises
    ------
    OptionError
        When one cannot be read.
    """
    chosen: dict[str, Any] = {}
    for name in ("mean", "std"):
        if (text := getattr(arguments, name)) is not None:
            numbers = _numbers_in(text)
            if len(numbers) not in (1, 3) or (name == "std" and min(numbers) <= 0):
                raise OptionError(
                    "Expected --{name} as three numbers such as 0.5,0.5,0.5, got {said!r}.",
                    name=name,
                    said=text,
                )
            chosen[name] = tuple(numbers) * (3 // len(numbers))
    if arguments.crop is not None:
        shares = _numbers_in(arguments.crop)
        if len(shares) != 1 or not 0 < shares[0] <= 1:
            raise OptionError(
                "Expected --crop as a share such as 0.9, got {said!r}.", said=arguments.crop
            )
        chosen["crop_pct"] = shares[0]
    return chosen


def _numbers_in(text: str) -> list[float]:
    """Return the numbers in a text with commas; none where one is not finite."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="cpu", help="where models compute: cpu (default), cuda, cuda:1, mps"
    )


def image_size_in(text: str) -> tuple[int, int] | None:
    """Return height and width from "224" or "320x480"; None if the text is no size."""
    match = re.fullmatch(r"(\d{1,5})(?:\s*[x×]\s*(\d{1,5}))?", text.strip())
    if not match or not int(match[1]) or not int(match[2] or 1):
        return None
    return int(match[1]), int(match[2] or match[1])


def file_and_part(text: str) -> tuple[Path, str | None]:
    """Split FILE#PART into the file and the name of the model in it."""
    path = Path(text).expanduser()
    file, _, part = text.rpartition("#")
    if not file or not part or path.exists():  # a name may have the sign
        return path, None
    return Path(file).expanduser(), part


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
    """Return the options in the result of a parser with `add_options`.

    Raises
    ------
    OptionError
        When --checkpoint, --models, --image-size or a count is invalid.
    """
    files = []
    for text in arguments.checkpoint:
        start, _, wanted = text.strip().rpartition("@")
        size = image_size_in(wanted) if start else None
        if Path(text.strip()).expanduser().is_dir():
            size = None
        # a folder's own path may have the sign
        is_folder = Path(start if size else text.strip()).expanduser().is_dir()
        before, equals, file = ("", "", "") if is_folder else text.partition("=")
        name, file = before.strip(), file.strip()
        if is_folder:
            file = text.strip()
        elif not (name and equals and file):
            raise OptionError("Expected --checkpoint NAME=FILE or a folder, got {text}.", text=text)
        if size and Path(file).expanduser().is_file():  # whose name has the sign
            size = None
        path, part = file_and_part(file.rpartition("@")[0] if size else file)
        files.append(LocalFile(name if equals else path.name, path.absolute(), size, part))
    models = None
    if arguments.models is not None:
        models = tuple(name.strip() for name in arguments.models.split(",") if name.strip())
        if not models:
            raise OptionError("Expected --models NAME,NAME, got {said!r}.", said=arguments.models)
    size = None
    if arguments.image_size is not None:
        size = image_size_in(arguments.image_size)
        if size is None:
            raise OptionError(
                "Expected --image-size as 224 or as 320x480 (rows x columns), got {said!r}.",
                said=arguments.image_size,
            )
    counts = {name: getattr(arguments, name) for name in COUNT_OPTIONS}
    counts = {name: count for name, count in counts.items() if count is not None}
    for name, count in counts.items():
        if count < 1:
            raise OptionError(
                "Expected --{name} of at least 1, got {said}.",
                name=name.replace("_", "-"),
                said=count,
            )
    return Options(
        {_menu_title(each, files): each for each in files},
        models,
        device=arguments.device,
        image_size=size,
        words=_absolute(arguments.words),
        labels=_absolute(arguments.labels),
        preprocessing=preprocessing_options(arguments),
        answers=arguments.answers,
        hub=arguments.hub,
        profiles=tuple(path.expanduser().absolute() for path in arguments.profile),
        **counts,
    )


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


def _menu_title(one: LocalFile, files: Sequence[LocalFile]) -> str:
    """Return architecture and file name, with as many of its folders as make it unique."""
    name, path, size, part = one
    others = {other.path.parts for other in files if other.name == name} - {path.parts}
    length = 1
    while any(parts[-length:] == path.parts[-length:] for parts in others):
        length += 1
    place = "/".join(path.parts[-length:])
    place += f"#{part}" if part else ""
    title = place if name == path.name else f"{name} · {place}"
    return title if size is None else f"{title} @ {size[0]}x{size[1]}"


def check(options: Options, menu: Collection[str]) -> None:
    """Refuse models and files that do not exist; the menu would silently lack them.

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
            if near:
                raise OptionError(
                    "The menu has no model named {name}. Did you mean {near}?",
                    name=name,
                    near=near[0],
                )
            raise OptionError("The menu has no model named {name}.", name=name)
    if options.labels is not None and not options.labels.is_file():
        raise OptionError(
            "There is no file {file} in {folder}.",
            file=options.labels.name,
            folder=options.labels.parent,
        )
    for _, path, *_ in options.checkpoints.values():
        configs = (path / "config.json", path / "open_clip_config.json")
        if path.is_dir() and not any(map(Path.is_file, configs)):
            raise OptionError(
                "The folder {path} has no config.json, which says what its model is.", path=path
            )
        if not path.exists():
            raise OptionError(
                "There is no file {file} in {folder}.", file=path.name, folder=path.parent
            )
