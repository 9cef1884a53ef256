"""What the component is told to show of a capture."""

import math
from typing import TYPE_CHECKING, Any

from ..language import tr
from ..text import anatomy as text
from ..token_map import default_query
from .numbers import Anatomy, answers, sent_residual
from .words import boxes_of, cards_of

if TYPE_CHECKING:
    from ..anatomy import Box

SIDES = (14, 16, 32)  # patches that others are compared with


def view_message(of: Anatomy, *, look: dict[str, str], **host: Any) -> dict[str, Any]:
    """What to show.

    Parameters
    ----------
    look : the colours `lut`, `queryColour` and `keyColour`
    host : what else the host says, some of it in place of what is said here: `stepsId` and
        `layerId`, the ids of both stacks; `session`, `version` and `provenance`; and
        - `state`: what is chosen: `frame`, `head` and `query`, counted from 0, -1 for none; `key`,
          and `step`, the id of a card or a box
        - `layers`: the layers that can be asked for
        - `alone`: whether keys that are pressed anywhere on the page are for this component
        - `partial`: what is said where the numbers of another token are not here
    """
    acts, described = of.acts, of.described
    home = default_query(acts, described)
    cards, asked = cards_of(of), -1 if of.query is None else of.query
    return {
        "session": "",
        "version": 0,
        "state": {"frame": of.layer, "head": 0, "query": asked, "step": cards[0]["id"], "key": -1},
        "frame": of.layer,
        "depth": acts.depth,
        "cards": cards,
        "boxes": boxes_of(of),
        "equations": text.EQUATIONS,
        "shape": {
            "rows": described.query_grid[0],
            "cols": described.query_grid[1],
            "crop": list(acts.crop_of(of.layer)),
            "prefix": [name.upper() for name in described.prefix],
            "heads": described.num_heads,
            "home": -1 if home is None else home,
        },
        "facts": _facts(of),
        "costs": _costs(of),
        "residual": sent_residual(of),
        "picture": {
            "width": acts.picture_size[0],
            "height": acts.picture_size[1],
            "crop": list(acts.crop),
        },
        **answers(acts),
        **look,
        **host,
    }


def _facts(of: Anatomy) -> dict[str, Any]:
    preprocess = of.model.preprocess
    dim = _head_dim(of.boxes)
    try:
        scale, _ = of.acts.score_terms(of.layer)
    except ValueError:
        scale = 1.0
    plain = dim and math.isclose(scale, dim**-0.5, rel_tol=1e-6)
    return {
        "grid": list(of.acts.layers[0].query_grid),
        "channels": of.steps[0].shape[2],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "stem": any(box.name == "stem" for box in of.steps),
        "scale": scale,
        "divide": f"÷ √{dim}" if plain else f"× {scale:.3g}",
        "opened": dim > 0,
    }


def _head_dim(boxes: "tuple[Box, ...]") -> int:
    return next((box.shape[-1] for box in boxes if box.name == "queries"), 0)


def _costs(of: Anatomy) -> dict[str, Any]:
    """Tokens and pairs of tokens with patches of other sides."""
    height, width = of.model.preprocess.input_size
    own = of.acts.layers[0].patch_size
    side = own if isinstance(own, int) else own[0]
    here = math.prod(of.acts.layers[0].query_grid)
    sides = sorted({side, *(other for other in SIDES if other <= min(height, width))})
    counts = [here if s == side else (height // s) * (width // s) for s in sides]
    return {
        "here": sides.index(side),
        "rows": [
            [str(s), f"{n:,}", f"{n * n:,}", _times(n * n, here * here)]
            for s, n in zip(sides, counts, strict=True)
        ],
        "shares": [(n / max(counts)) ** 2 for n in counts],
    }


def _times(count: int, here: int) -> str:
    """How many times as many as here."""
    times = max(count / here, here / count)
    text = f"{times:,.0f}" if times >= 10 else f"{times:.3g}"
    return f"1/{text}" if count < here else tr("{count} times", count=text)
