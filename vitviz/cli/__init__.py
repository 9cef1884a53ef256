"""The `vitviz` command: app, report, profile, merge, compare, train, evaluate, fetch, prepare."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import __version__
from ..language import LANGUAGES, speaking
from ..options import Options, add_device, add_options, check, options_in
from .comparing import add_compare
from .lesson import fetch, prepare
from .merging import add_merge
from .terminal import add_measuring, pictures_done, print_skipped, refused


def _app(arguments: argparse.Namespace) -> int:
    """Run the app as `streamlit run app.py` does in the source tree, with the same settings."""
    try:
        _check_menu(options_in(arguments))
    except ValueError as error:
        return refused(error)
    settings = {
        "server.address": "127.0.0.1",
        "server.port": arguments.port,
        "server.fileWatcherType": "none",
        "server.maxUploadSize": 25,
        "browser.gatherUsageStats": False,
        "client.showErrorDetails": "none",
        "client.toolbarMode": "minimal",
        "theme.headingFontSizes": ["1.4rem", "1.25rem", "1.1rem"],
        "theme.light.primaryColor": "#0b57d0",
        "theme.dark.primaryColor": "#8ab4f8",
    }
    options = [f"--checkpoint={text}" for text in arguments.checkpoint]
    options += [f"--models={arguments.models}"] if arguments.models else []
    options += [f"--labels={arguments.labels}"] if arguments.labels else []
    options += ["--hub"] if arguments.hub else []
    options += [f"--device={arguments.device}"] if arguments.device != "cpu" else []
    options += [f"--image-size={arguments.image_size}"] if arguments.image_size else []
    options += [f"--words={arguments.words}"] if arguments.words else []
    options += [f"--profile={path}" for path in arguments.profile]
    sys.argv = ["vitviz", *options]  # the pages read it
    from ..app.server import run

    with suppress(KeyboardInterrupt):  # which ends this process
        run(settings)
    return 0


def _check_menu(options: Options) -> None:
    """Check the options before the server starts.

    Raises
    ------
    OptionError, ModelError, ProfileError
        When a model, a file or a device that was named is not there, or cannot be read.
    """
    _check_device(options.device)
    if options.words:
        from ..words import Words

        Words.read(options.words)
    if options.profiles:
        from ..profiling import load_profile

        for path in options.profiles:
            load_profile(path)
    if not (options.models or options.checkpoints or options.labels):
        return  # the usual start needs no import of timm
    from ..zoo import architecture_named, catalogue

    menu = [entry.name for entry in catalogue()]
    check(options, menu)
    for name, path, _ in options.checkpoints.values():
        if name not in menu and not path.is_dir():
            architecture_named(name)


def _check_device(name: str) -> None:
    """Raise a ModelError when there is no such device."""
    if name != "cpu":  # the usual start needs no import of torch
        from ..devices import device_named

        device_named(name)


def _profile(arguments: argparse.Namespace) -> int:
    """Profile a model; the exit code is 1 where a picture was skipped, 130 after Ctrl-C."""
    from .. import load_model
    from ..profiling import ProfileError, profile
    from ..zoo import ModelError

    try:
        model = load_model(
            arguments.model,
            checkpoint=arguments.checkpoint,
            image_size=arguments.image_size,
            device=arguments.device,
        )
        found = profile(
            model,
            arguments.pictures,
            labels=arguments.labels,
            limit=arguments.limit,
            seed=arguments.seed,
            batch_size=arguments.batch,
            importance=arguments.importance,
            workers=arguments.workers,
            engine=arguments.engine,
            called=arguments.called,
            out=arguments.out,
            resume=arguments.resume,
            progress=pictures_done(),
        )
    except (ProfileError, ModelError, OSError) as error:  # the last: a disk that is full, say
        return refused(error)
    except KeyboardInterrupt:
        again = "the same command with --resume goes on"
        print(f"\nStopped; what was done is kept in {arguments.out}: {again}.", file=sys.stderr)
        return 130
    table = found.pictures
    skipped = [
        (name, why) for name, why in zip(table["picture"], table["skipped"], strict=True) if why
    ]
    print_skipped(skipped, "profile.parquet")
    measured = found.about["pictures"] - len(skipped)
    print(f"{measured:,} pictures measured, {len(skipped):,} skipped: {arguments.out}")
    return 1 if skipped else 0


def _report(arguments: argparse.Namespace) -> int:
    """Write what a model does with some photos into one HTML file."""
    import hashlib

    from .. import capture, load_model
    from ..activations import check_finite
    from ..images import ImageError, open_image
    from ..report import Captured, html
    from ..zoo import ModelError

    captured = []
    try:
        model = load_model(arguments.model)
        for photo in arguments.photos:
            data = photo.read_bytes()
            image, checksum = open_image(data), hashlib.sha256(data).hexdigest()
            acts = capture(model, image)
            check_finite(model, acts)
            captured.append(Captured(model, photo.name, acts, image, checksum))
        with speaking(arguments.lang):
            content = html(captured)
        arguments.out.write_text(content, encoding="utf-8")
    except OSError as error:
        return refused(f"{error.filename}: {error.strerror}.")
    except (ModelError, ImageError) as error:
        return refused(error)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")
    return 0


def _train(arguments: argparse.Namespace) -> int:
    import torch

    from ..malloc import keep_freed_memory
    from ..training import RECIPES, train

    if arguments.recipe not in RECIPES:
        return refused(
            f"There is no recipe {arguments.recipe}: expected one of {', '.join(RECIPES)}."
        )
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    try:
        print(train(RECIPES[arguments.recipe], data=arguments.data, out=arguments.out))
    except ValueError as error:
        return refused(error)
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from ..malloc import keep_freed_memory
    from ..training import evaluate

    keep_freed_memory()
    try:
        found = evaluate(
            arguments.model, data=arguments.data, split=arguments.split, device=arguments.device
        )
    except ValueError as error:
        return refused(error)
    print(f"accuracy                      {found.accuracy:7.2%}")
    print(f"label among the best five     {found.among_five:7.2%}")
    print(f"mean confidence               {found.confidence:7.2%}")
    print(f"expected calibration error    {found.error:7.2%}")
    print(f"fitted temperature            {found.temperature:7.3f}")
    print(f"calibration error with it     {found.error_at_temperature:7.2%}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vitviz", description="See inside a Vision Transformer.")
    parser.add_argument("--version", action="version", version=f"vitviz {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    app = commands.add_parser("app", help="open the app in a browser")
    app.add_argument("--port", type=int, default=8501)
    add_options(app)
    app.set_defaults(run=_app)

    profile = commands.add_parser("profile", help="measure a model over many pictures")
    profile.add_argument("model", metavar="MODEL", help="a shipped model, or an architecture")
    profile.add_argument(
        "pictures",
        nargs="+",
        metavar="PICTURES",
        help="picture files, folders, globs, parquet files or tar shards",
    )
    profile.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights of a local file")
    add_measuring(profile)
    profile.add_argument(
        "--importance",
        action="append",
        default=[],
        choices=["zero", "mean"],
        help="mute every head in turn, to zero or to its mean: a forward pass a head",
    )
    profile.add_argument(
        "--workers", type=int, default=0, metavar="N", help="so many processes, each with the model"
    )
    profile.add_argument(
        "--engine",
        default="local",
        choices=["local", "ray"],
        help="where they are: this machine (default), or the Ray cluster of RAY_ADDRESS",
    )
    profile.add_argument("--called", metavar="TEXT", help="what figures call the pictures")
    profile.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    profile.set_defaults(run=_profile)

    add_merge(commands)
    add_compare(commands)

    report = commands.add_parser("report", help="write what a model sees into one HTML file")
    report.add_argument("photos", nargs="+", type=Path, metavar="PHOTO", help="files of pictures")
    report.add_argument("--model", default="vitviz_things200", help="as in load_model")
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
    add_device(evaluate)
    evaluate.set_defaults(run=_evaluate)

    fetching = commands.add_parser("fetch", help="download weights of timm, to work offline")
    fetching.add_argument("names", nargs="+", metavar="NAME", help="architectures of timm")
    fetching.set_defaults(run=fetch)

    preparing = commands.add_parser(
        "prepare", help="fetch, check and try a lesson's models, and say what will work offline"
    )
    preparing.add_argument(
        "names", nargs="*", metavar="NAME", help="models (default: those that come with vitviz)"
    )
    preparing.add_argument(
        "--lesson",
        action="store_true",
        help="try what the seven lessons need too: sample pictures, training records, profiles",
    )
    add_options(preparing)
    preparing.set_defaults(run=prepare)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    code: int = arguments.run(arguments)
    return code
