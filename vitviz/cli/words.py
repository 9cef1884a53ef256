"""`vitviz words`: write the vectors of phrases, by a model's own text tower, into a file."""

import argparse
from pathlib import Path
from typing import Any

from ..app.options import add_device
from ..common.files import printable
from ..common.language import MessageError
from .early import allow_interrupts
from .terminal import print_refusal


def add_words(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = commands.add_parser("words", help="write the text vectors of phrases into a file")
    parser.add_argument(
        "model", metavar="MODEL", help="a folder or hf-hub:owner/name with both towers"
    )
    parser.add_argument("phrases", type=Path, metavar="PHRASES", help="a phrase in each line")
    parser.add_argument(
        "--template",
        action="append",
        metavar="TEXT",
        help='text with {} for the phrase, such as "a photo of a {}."; of several, the mean',
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="NPZ to write")
    add_device(parser)
    parser.set_defaults(run=words)


def words(arguments: argparse.Namespace) -> int:
    from .. import load_model
    from ..common.tables import read_text
    from ..model.text import phrases_in

    try:
        phrases = phrases_in(read_text(arguments.phrases))
        model = load_model(arguments.model, device=arguments.device)
        allow_interrupts()
        made = model.with_words(phrases, arguments.template or "{}").words
        assert made is not None
        if arguments.out.exists() and arguments.out.samefile(arguments.phrases):
            return print_refusal(
                f"{printable(arguments.out)} holds the phrases. Name another file."
            )
        made.write(arguments.out)
    except (MessageError, OSError) as error:
        return print_refusal(error)
    print(f"{printable(arguments.out)}: {made.provenance}")
    return 0
