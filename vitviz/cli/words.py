"""`vitviz words`, and the words that other commands give a model."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..app.options import add_device
from ..common.files import printable
from ..common.language import MessageError
from .early import allow_interrupts
from .terminal import print_refusal

if TYPE_CHECKING:
    from ..model import Model


def add_words(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("words", help="write the text vectors of phrases into a file")
    parser.add_argument(
        "model", metavar="MODEL", help="a folder or hf-hub:owner/name with both towers"
    )
    parser.add_argument("phrases", type=Path, metavar="PHRASES", help="a phrase in each line")
    add_template(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="NPZ to write")
    add_device(parser)
    parser.set_defaults(run=run_words)


def add_template(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template",
        action="append",
        metavar="TEXT",
        help='text with {} for the phrase, such as "a photo of a {}."; of several, the mean',
    )


def give_words(model: "Model", file: Path, templates: list[str] | None) -> "Model":
    """Return the model with the phrases or the vectors in a file as its classes.

    Raises
    ------
    MessageError
        When the file cannot be read, the model cannot take its words, or there are templates for
        vectors.
    """
    from ..common.tables import read_text
    from ..model.text import phrases_in
    from ..model.words import Words

    if file.suffix == ".npz":
        if templates:
            raise MessageError(
                f"{printable(file)} holds vectors, and a template needs phrases. Leave out "
                "--template, or give the file of phrases."
            )
        return model.with_words(Words.read(file))
    return model.with_words(phrases_in(read_text(file)), templates or "{}")


def run_words(arguments: argparse.Namespace) -> int:
    from .. import load_model

    try:
        model = load_model(arguments.model, device=arguments.device)
        allow_interrupts()
        vectors = give_words(model, arguments.phrases, arguments.template).words
        assert vectors is not None
        if arguments.out.exists() and arguments.out.samefile(arguments.phrases):
            return print_refusal(
                f"{printable(arguments.out)} holds the phrases. Name another file."
            )
        vectors.write(arguments.out)
    except (MessageError, OSError) as error:
        return print_refusal(error)
    print(f"{printable(arguments.out)}: {vectors.provenance}")
    return 0
