"""How a model encodes the positions of patches, in words."""

from typing import TYPE_CHECKING

from vitviz.text.families import POSITION_ENCODINGS

if TYPE_CHECKING:
    from vitviz import Model


def known_by(model: "Model") -> str:
    """How a model encodes the position of a patch: a sentence without its full stop."""
    from vitviz.families import position_encodings

    sources = position_encodings(model.module, model.layers)
    if not sources:
        return f"nothing tells {model.name} where a patch lies"
    if sources == ("embedding",):
        return (
            f"nothing tells {model.name} where a patch lies, except the position embedding added "
            "to it"
        )
    *others, last = (POSITION_ENCODINGS[source] for source in sources)
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"what tells {model.name} where a patch lies is {listed}"
