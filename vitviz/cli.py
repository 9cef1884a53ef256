"""The `vitviz` command."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def _train(arguments: argparse.Namespace) -> None:
    import torch

    from .training import RECIPES, train

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(train(RECIPES[arguments.recipe], data=arguments.data, out=arguments.out))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="vitviz", description="See inside a Vision Transformer.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a model of our own, or resume its run")
    train.add_argument("--data", type=Path, required=True, help="folder with CIFAR")
    train.add_argument("--recipe", default="cifar10", help="a recipe of vitviz.training.RECIPES")
    train.add_argument("--out", type=Path, required=True, help="folder of the run")
    train.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    train.set_defaults(run=_train)

    arguments = parser.parse_args(argv)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
