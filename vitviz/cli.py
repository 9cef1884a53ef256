"""The `vitviz` command."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .options import add_options


def _app(arguments: argparse.Namespace) -> int:
    """Run the app as `streamlit run app.py` does in the source tree, with the same settings."""
    settings = {
        "server.address": "127.0.0.1",
        "server.port": str(arguments.port),
        "server.maxUploadSize": "25",
        "browser.gatherUsageStats": "false",
        "client.showErrorDetails": "none",
        "client.toolbarMode": "minimal",
    }
    script = Path(__file__).with_name("app") / "main.py"
    flags = [f"--{name}={value}" for name, value in settings.items()]
    said = [f"--checkpoint={text}" for text in arguments.checkpoint]
    said += [f"--models={arguments.models}"] if arguments.models else []
    command = ["streamlit", "run", str(script), *flags, "--", *said]
    return subprocess.call([sys.executable, "-m", *command])


def _train(arguments: argparse.Namespace) -> int:
    import torch

    from .training import RECIPES, train

    if arguments.recipe not in RECIPES:
        print(f"There is no recipe {arguments.recipe}: expected one of {', '.join(RECIPES)}.")
        return 2
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        print(train(RECIPES[arguments.recipe], data=arguments.data, out=arguments.out))
    except ValueError as error:
        print(error)
        return 2
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from .training import evaluate

    try:
        found = evaluate(arguments.model, data=arguments.data, split=arguments.split)
    except ValueError as error:
        print(error)
        return 2
    print(f"accuracy                      {found.accuracy:7.2%}")
    print(f"mean confidence               {found.confidence:7.2%}")
    print(f"expected calibration error    {found.error:7.2%}")
    print(f"fitted temperature            {found.temperature:7.3f}")
    print(f"calibration error with it     {found.error_at_temperature:7.2%}")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    """Fill the cache; the exit code is 1 where a model could not be had, 130 after Ctrl-C."""
    from .checkpoints import shipped_names
    from .zoo import ModelError, fetch_weights

    live = sys.stdout.isatty()
    clear = "\r\x1b[K" if live else ""  # to the beginning of the line, and wipe it
    code = 0
    for name in arguments.names:
        if name in shipped_names():
            print(f"{name}: comes with vitviz.")
            continue

        def progress(done: int, total: int | None, name: str = name) -> None:
            of = "" if total is None else f" of {total / 1e6:,.1f}"
            if live:
                print(f"{clear}{name}: {done / 1e6:,.1f}{of} MB", end="", flush=True)

        try:
            path = fetch_weights(name, progress=progress, verify=True)
        except ModelError as error:
            print(f"{clear}{error}")
            code = 1
        except KeyboardInterrupt:
            print(f"{clear}{name}: cancelled.")
            return 130
        else:
            print(f"{clear}{name}: {path.stat().st_size / 1e6:,.1f} MB, on disk.")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vitviz", description="See inside a Vision Transformer.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    app = commands.add_parser("app", help="open the app in a browser")
    app.add_argument("--port", type=int, default=8501)
    add_options(app)
    app.set_defaults(run=_app)

    train = commands.add_parser("train", help="train a model of our own, or resume its run")
    train.add_argument("--data", type=Path, required=True, help="folder with CIFAR")
    train.add_argument("--recipe", default="cifar10", help="a recipe of vitviz.training.RECIPES")
    train.add_argument("--out", type=Path, required=True, help="folder of the run")
    train.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="accuracy and calibration of a model of ours")
    evaluate.add_argument("model", help="a shipped model's name, or a file that `train` wrote")
    evaluate.add_argument("--data", type=Path, required=True, help="folder with CIFAR")
    evaluate.add_argument("--split", choices=["test", "train"], default="test")
    evaluate.set_defaults(run=_evaluate)

    fetch = commands.add_parser("fetch", help="download trained weights of timm, to work offline")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="architectures of timm")
    fetch.set_defaults(run=_fetch)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
