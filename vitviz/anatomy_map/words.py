"""The cards and boxes of Anatomy in words: titles, sentences and shapes."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..language import as_percent, tr
from ..text import anatomy as text
from ..text.encoder_layer import ACTIVATING, BIAS, BOXES, CLOSED, KINDS_CLOSED
from ..text.families import known_by
from .numbers import Anatomy, answers, named, sent_residual

if TYPE_CHECKING:
    from ..anatomy import Box

_STREAM = ("before", "after_attention", "after")


def cards_of(of: Anatomy) -> list[dict[str, Any]]:
    from ..families import position_encodings

    facts, steps = _step_facts(of), of.steps
    known = known_by(of.model.name, position_encodings(of.model.module, of.model.layers))
    cards = []
    before: Box | None = None
    for number, (name, box) in enumerate(named(steps).items()):
        words = text.STEPS[_word(of, box)]
        own = {**facts, **_layer_facts(of, box), "shape": _written(box.shape)}
        own["number"] = name.removeprefix("stage")
        last = not any(b.name in ("positions",) for b in steps) and (
            number + 1 < len(steps) and bool(steps[number + 1].layers) and not box.layers
        )
        where = f" {known[0].upper()}{known[1:]}." if last else ""
        cards.append(
            {
                "id": name,
                "name": box.name,
                "title": _filled(tr(words.title), own),
                "equation": words.equation,
                "say": _filled(tr(words.say), own) + where,
                "shape": _card_shape(box, before),
                "shapes": _shapes(box),
                "answer": _answer(of, box),
                "layers": [box.layers[0], box.layers[-1]] if box.layers else None,
                **_places(of, box),
            }
        )
        before = box
    return cards


def _word(of: Anatomy, box: "Box") -> str:
    mixes = box.layers and of.acts.layers[box.layers[0]].kind == "mixing"
    return "mixer" if mixes else box.name


def _answer(of: Anatomy, box: "Box") -> str:
    if box.name == "head":
        (best,) = answers(of.acts)["answers"][:1]
        return f"{best['label']}: {as_percent(best['share'])}"
    return tr("no head in these weights") if box.name == "no_head" else ""


def _places(of: Anatomy, box: "Box") -> dict[str, Any]:
    """Where the tokens of a card's array lie: their grid, and how many come before the patches."""
    layer = of.acts.layers[box.layers[-1] if box.layers else 0]
    grid = layer.query_grid
    prefix = box.shape[0] - math.prod(grid) if len(box.shape) == 2 else 0
    fits = prefix >= 0 and len(box.shape) > 1
    return {"grid": list(grid) if fits else None, "prefix": max(0, prefix)}


def _card_shape(box: "Box", before: "Box | None") -> str:
    if box.name == "head" and before is not None:
        return f"{before.shape[-1]} → {box.shape[0]}"
    return _written(box.shape) if box.shape else "–"


def _shapes(box: "Box") -> list[tuple[str, str]]:
    """What a step is made with and what it makes, each with its shape in letters and in numbers."""
    made = [(f"{box.name}.{part}", values.squeeze().shape) for part, values in box.parts.items()]
    return [
        (tr(text.SHAPES[name]), _written(shape))
        for name, shape in [*made, (box.name, box.shape)]
        if name in text.SHAPES and shape
    ]


def _step_facts(of: Anatomy) -> dict[str, Any]:
    """What the sentences of the steps name."""
    steps = of.steps
    shapes = {box.name: box.shape for box in steps}
    cut = shapes.get("patches", (0, 0, 0, 0))
    prefix = next((box for box in steps if box.name == "prefix"), None)
    layer = of.acts.layers[0]
    kinds = ("reg" if name.startswith("reg") else name for name in layer.prefix)
    told = [
        tr(
            text.PREFIX[
                "cls unread" if kind == "cls" and "cls" not in of.acts.read_tokens else kind
            ]
        )
        for kind in dict.fromkeys(kinds)
    ]
    tokens = next(box.shape for box in steps if box.layers)
    names = [f"[{name.upper()}]" for name in layer.prefix if not name.startswith("reg")]
    registers = len(layer.prefix) - len(names)
    names += [tr("{registers} registers", registers=registers)] if registers else []
    learned = of.model.positions_learned
    return {
        "H": shapes["picture"][0],
        "W": shapes["picture"][1],
        "C": shapes["picture"][2],
        "N": f"{cut[0]:,}",
        "P": cut[1],
        "source": tr("feature map") if "stem" in shapes else tr("picture"),
        "cells": tr("cells") if "stem" in shapes else tr("pixels"),
        "flat": shapes.get("flatten", (0, 0))[1],
        "D": tokens[1],
        "T": f"{tokens[0]:,}",
        "L": of.acts.depth,
        "K": f"{shapes.get('head', (0,))[0]:,}" if shapes.get("head") else 0,
        "names": " + ".join(names),
        "prefix": " ".join(told) if prefix else "",
        "learned": tr("learned") if learned else tr("fixed (sine and cosine)"),
    }


def _layer_facts(of: Anatomy, box: "Box") -> dict[str, Any]:
    if not box.layers:
        return {}
    layers = of.acts.layers[box.layers[0] : box.layers[-1] + 1]
    kinds = dict.fromkeys(tr(KINDS_CLOSED[layer.kind]) for layer in layers)
    rows, cols = layers[-1].query_grid
    return {
        "first": box.layers[0] + 1,
        "last": box.layers[-1] + 1,
        "grid": f"{rows} × {cols}",
        "D": box.shape[1],
        "kinds": "; ".join(kinds).replace("att", "Att", 1),
    }


def boxes_of(of: Anatomy) -> list[dict[str, Any]]:
    """The boxes of the layer; q, k and v are one."""
    residual, layer, number = sent_residual(of), of.boxes, of.layer
    shapes = {box.name: box.shape for box in layer}
    described = of.described
    opened = "queries" in shapes
    tokens, width = shapes["after"]
    gated = opened and shapes["hidden"] != shapes["activated"]
    act = _activation(of)

    def share(name: str) -> str:
        value = residual[name][number]
        return tr("a part") if value is None else as_percent(value)

    facts = {
        "l": number + 1,
        "T": f"{tokens:,}",
        "D": width,
        "h": described.num_heads,
        "d": shapes.get("queries", (0,))[-1],
        "M": shapes.get("hidden", (0,))[-1],
        "root": f"{math.sqrt(shapes['queries'][-1]):.3g}" if opened else "",
        "equal": as_percent(1 / tokens),
        "bias": tr(BIAS) if opened and of.acts.score_terms(number)[1] is not None else "",
        "attention": share("attention"),
        "mlp": share("mlp"),
        "activation": act,
        "activating": _filled(tr(ACTIVATING["gated" if gated else "plain"]), {"activation": act}),
        "next": tr("the last LayerNorm")
        if number + 1 == of.acts.depth
        else tr("layer {layer}", layer=number + 2),
        "closed": tr(KINDS_CLOSED[described.kind]),
    }
    named = dict.fromkeys(
        "qkv" if b.name in ("queries", "keys", "values") else b.name for b in layer
    )
    return [
        {
            "id": name,
            "title": _filled(tr(BOXES[name].title), facts),
            "equation": BOXES[name].equation if opened else 0,
            "say": _filled(tr(BOXES[name].say if opened else CLOSED[name]), facts),
            "shape": _written(shapes["queries" if name == "qkv" else name]),
            "stream": name in _STREAM,
        }
        for name in named
    ]


def _activation(of: Anatomy) -> str:
    mlp = getattr(of.model.sites[of.layer].block, "mlp", None)
    act = getattr(mlp, "act", None)
    return "GELU" if act is None else type(act).__name__.upper().replace("SILU", "SiLU")


def _filled(words: str, facts: Mapping[str, Any]) -> str:
    """The words with numbers in place of names in braces; `_{…}` and `^{…}` stay."""
    return re.sub(r"(?<![_^])\{(\w+)\}", lambda match: str(facts[match[1]]), words)


def _written(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
