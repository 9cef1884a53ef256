"""The `vitviz` command: app, report, profile, faithfulness, compare, words, train and others."""

from .early import STOPPED, allow_interrupts  # isort: skip

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import __version__
from ..app.options import Options, add_device, add_options, check, options_in
from ..common import DEFAULT_MODEL
from ..common.files import printable, replace_file
from ..common.language import LANGUAGES, use_language
from .comparing import add_compare, add_merge
from .measuring import add_faithfulness, add_model_and_pictures, measure_named
from .terminal import (
    add_workers,
    print_accuracy,
    print_refusal,
    safe_terminal,
)
from .words import add_words


def _app(arguments: argparse.Namespace) -> int:
    """Run the app as `streamlit run app.py` does in the source tree, with the same settings."""
    try:
        _check_menu(options_in(arguments))
    except ValueError as error:
        return print_refusal(error)
    settings = {
        "server.address": "127.0.0.1",
        "server.port": 8501,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 25,
        "browser.gatherUsageStats": False,
        "client.showErrorDetails": "none",
        "client.toolbarMode": "minimal",
        "theme.headingFontSizes": ["1.4rem", "1.25rem", "1.1rem"],
        "theme.light.primaryColor": "#0b57d0",
        "theme.dark.primaryColor": "#8ab4f8",
    }
    own = {"server.address": arguments.address, "server.port": arguments.port}
    parser = argparse.ArgumentParser("vitviz app", add_help=False)
    _add_server(parser)
    _, options = parser.parse_known_args(arguments.argv[1:])  # without the command's name
    sys.argv = ["vitviz", *options]  # which the pages read
    from ..app.server import run

    allow_interrupts()
    with suppress(KeyboardInterrupt):  # which ends this process
        run(settings, {name: value for name, value in own.items() if value})
    return 0


def _check_menu(options: Options) -> None:
    """Check the options before the server starts.

    Raises
    ------
    OptionError, ModelError, ProfileError
        When a named model, file or device does not exist or cannot be read.
    """
    _check_device(options.device)
    if options.words:
        from ..model.words import Words

        Words.read(options.words)
    if options.profiles:
        from ..profiling import load_profile

        for path in options.profiles:
            load_profile(path)
    if not (options.models or options.checkpoints or options.labels):
        return  # so that the usual start does not import timm
    from ..zoo import catalogue, check_adapter, find_architecture

    for _, path, *_ in options.checkpoints.values():
        check_adapter(path)
    menu = [entry.name for entry in catalogue()]
    check(options, menu)
    for name, path, *_ in options.checkpoints.values():
        if name not in menu and not path.is_dir():
            find_architecture(name)


def _check_device(name: str) -> None:
    """Raise a ModelError if there is no such device."""
    if name != "cpu":  # so that the usual start does not import torch
        from ..model.devices import find_device

        find_device(name)


def _profile(arguments: argparse.Namespace) -> int:
    """Profile a model; the exit code is 1 if a picture was skipped, 130 after Ctrl-C."""
    from ..profiling import profile

    own = {"importance": arguments.importance, "sinks": arguments.sinks}
    return measure_named(arguments, profile, print_accuracy, "profile.parquet", **own)


def _report(arguments: argparse.Namespace) -> int:
    """Write a report of a model on some photos into one HTML file."""
    import hashlib

    from .. import capture, load_model
    from ..activations import check_finite
    from ..common.images import ImageError, open_image, read_file
    from ..web.report import CapturedPicture, html
    from ..zoo import ModelError

    captures = []
    try:
        why = _why_not_written(arguments.out, arguments.photos)
        if why is not None:
            return print_refusal(why)
        model = load_model(arguments.model)
        allow_interrupts()
        for photo in arguments.photos:
            try:
                photo.stat()  # so that a missing file raises the system's own error
                data = read_file(photo)
                image, checksum = open_image(data), hashlib.sha256(data).hexdigest()
                acts = capture(model, image)
                check_finite(model, acts)
            except (ModelError, ImageError) as error:
                return print_refusal(f"{printable(photo)}: {error}")
            captures.append(CapturedPicture(model, printable(photo.name), acts, image, checksum))
        with use_language(arguments.lang):
            content = html(captures).encode(errors="backslashreplace")
        replace_file(arguments.out, content)
    except (ModelError, OSError) as error:
        return print_refusal(error)
    print(f"{printable(arguments.out)}: {len(content) / 1e6:.1f} MB")
    return 0


def _why_not_written(out: Path, photos: Sequence[Path]) -> str | None:
    """Explain why a report cannot be written to a file: it may replace only another report."""
    if any(photo.exists() and out.exists() and out.samefile(photo) for photo in photos):
        return f"{printable(out)} is one of the photos. Name another file for the report."
    if out.is_file():
        with out.open("rb") as file:
            head = file.read(100).lstrip().lower()
        if head and not head.startswith((b"<!doctype html", b"<html")):
            return f"{printable(out)} exists and is not a report. Name another file."
    return None


def _train(arguments: argparse.Namespace) -> int:
    import torch

    from ..common.malloc import keep_freed_memory
    from ..training import RECIPES, train

    if arguments.recipe not in RECIPES:
        return print_refusal(f"There is no recipe {arguments.recipe}. Known: {', '.join(RECIPES)}.")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    allow_interrupts()
    try:
        print(train(RECIPES[arguments.recipe], data=arguments.data, out=arguments.out))
    except (ValueError, OSError) as error:  # such as a full disk
        return print_refusal(error)
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from ..common.malloc import keep_freed_memory
    from ..training import evaluate

    keep_freed_memory()
    allow_interrupts()
    if arguments.grades:
        return _grades(arguments)
    try:
        result = evaluate(
            arguments.model, data=arguments.data, split=arguments.split, device=arguments.device
        )
    except (ValueError, OSError) as error:
        return print_refusal(error)
    print(f"accuracy                      {result.accuracy:7.2%}")
    print(f"label among the best five     {result.among_five:7.2%}")
    print(f"mean confidence               {result.confidence:7.2%}")
    print(f"expected calibration error    {result.error:7.2%}")
    print(f"fitted temperature            {result.temperature:7.3f}")
    print(f"calibration error with it     {result.error_at_temperature:7.2%}")
    return 0


def _add_server(parser: argparse.ArgumentParser) -> None:
    """Add the options of the app that its pages do not read."""
    parser.add_argument("--port", type=_port, help="8501 by default")
    parser.add_argument(
        "--address",
        help="where the server listens: 127.0.0.1 by default; 0.0.0.0 serves a class",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 65535, got {text}")
    return int(text)


def _fetch(arguments: argparse.Namespace) -> int:
    from .lesson import run_fetch

    return run_fetch(arguments)


def _prepare(arguments: argparse.Namespace) -> int:
    from .lesson import run_prepare

    return run_prepare(arguments)


def _grades(arguments: argparse.Namespace) -> int:
    """Fit the grades of answers, print how often they are right, and write them to the weights."""
    from ..training import fit_grades
    from ..zoo.checkpoints import weights_file, write_metadata

    try:
        grades = fit_grades(arguments.model, data=arguments.data, device=arguments.device)
        write_metadata(weights_file(arguments.model), grades=grades)
    except (ValueError, OSError) as error:
        return print_refusal(error)
    low, high = grades["weak_below"], grades["confident_from"]
    print(f"weak below {low:.1%}, confident from {high:.1%}")
    for split in ("held_out", "test"):
        print(f"\n{grades[f'{split}_pictures']:,} {split.replace('_', '-')} pictures")
        for grade, (share, right) in grades[split].items():
            print(f"{grade:10} {share:7.2%} of the answers, of which {right:7.2%} are right")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vitviz", description="See inside a Vision Transformer.")
    parser.add_argument("--version", action="version", version=f"vitviz {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    app = commands.add_parser("app", help="open the app in a browser")
    _add_server(app)
    add_options(app)
    app.set_defaults(run=_app)

    profile = commands.add_parser("profile", help="measure a model over many pictures")
    add_model_and_pictures(profile)
    profile.add_argument(
        "--importance",
        action="append",
        default=[],
        choices=["zero", "mean"],
        help="mute every head in turn, to zero or to its mean: one forward pass per head",
    )
    profile.add_argument(
        "--sinks",
        action="store_true",
        help="count the pictures with a no-op sink or a broadcast in each layer; takes longer",
    )
    add_workers(profile)
    profile.set_defaults(run=_profile)

    add_faithfulness(commands)
    add_merge(commands)
    add_compare(commands)
    add_words(commands)

    report = commands.add_parser(
        "report", help="write a report on some pictures into one HTML file"
    )
    report.add_argument("photos", nargs="+", type=Path, metavar="PHOTO", help="files of pictures")
    report.add_argument("--model", default=DEFAULT_MODEL, help="as in load_model")
    report.add_argument("-o", "--out", type=Path, default=Path("report.html"), metavar="FILE")
    report.add_argument(
        "--lang", choices=LANGUAGES, default="en", help="the language of the file (default: en)"
    )
    report.set_defaults(run=_report)

    train = commands.add_parser("train", help="train a model of our own, or resume its run")
    train.add_argument("--data", type=Path, required=True, help="folder with the dataset")
    train.add_argument("--recipe", default="cifar10", help="a recipe of vitviz.training.RECIPES")
    train.add_argument("--out", type=Path, required=True, help="folder of the run")
    train.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="accuracy and calibration of a model of ours")
    evaluate.add_argument("model", help="a shipped model's name, or a file that `train` wrote")
    evaluate.add_argument("--data", type=Path, required=True, help="folder with the dataset")
    evaluate.add_argument("--split", choices=["test", "train"], default="test")
    evaluate.add_argument(
        "--grades",
        action="store_true",
        help="fit when an answer is confident, unsure or weak on held-out training pictures, "
        "measure it on the test pictures, and write it into the weights",
    )
    add_device(evaluate)
    evaluate.set_defaults(run=_evaluate)

    fetching = commands.add_parser("fetch", help="download weights of timm, to work offline")
    fetching.add_argument(
        "names", nargs="+", metavar="NAME", help="architectures of timm, or hf-hub:owner/name"
    )
    fetching.set_defaults(run=_fetch)

    preparing = commands.add_parser(
        "prepare", help="fetch, check and try a lesson's models, and list what will work offline"
    )
    preparing.add_argument(
        "names", nargs="*", metavar="NAME", help="models (default: those that come with vitviz)"
    )
    preparing.add_argument(
        "--lesson",
        action="store_true",
        help="also try what the seven lessons need: sample pictures, training records, profiles",
    )
    add_options(preparing)
    preparing.set_defaults(run=_prepare)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    if os.path.expanduser("~") == "~":  # a container's random user: libraries raise or write to ./~
        os.environ["HOME"] = "/"
    with safe_terminal():
        words = sys.argv[1:] if argv is None else [*argv]
        arguments = _parser().parse_args(words, argparse.Namespace(argv=words))
        try:
            code: int = arguments.run(arguments)
        except KeyboardInterrupt:
            print("\nStopped.", file=sys.stderr)
            return STOPPED
        return code
