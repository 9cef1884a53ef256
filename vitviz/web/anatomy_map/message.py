"""Write what Anatomy shows of a capture: texts of its cards and boxes, and the view message."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...common.language import as_percent, strings, tr, tr_n, translate
from ...model.families import mixing_kinds, position_encodings
from ...text import anatomy as text
from ...text.encoder_layer import (
    ACTIVATING,
    BIAS,
    BOXES,
    CLOSED,
    KINDS_CLOSED,
    NORMALISED,
    ROTATION,
)
from ...text.families import explain_positions
from ..token_map import default_query, map_colours
from .numbers import Anatomy, answer_message, name_steps, residual_message

if TYPE_CHECKING:
    from ...model import Preprocessing
    from ..anatomy import Box

_WHOLE = ("global", "class")  # kinds of layers, of which not one has windows or pooled keys
_STREAM = ("before", "after_attention", "after")


def build_cards(of: Anatomy) -> list[dict[str, Any]]:
    """Return a card for each step of the picture's way through the model."""
    facts, steps = _step_facts(of), of.steps
    reasons = explain_positions(of.model.name, position_encodings(of.model.part, of.model.layers))
    cards = []
    before: Box | None = None
    for number, (name, box) in enumerate(name_steps(steps).items()):
        words = text.STEP_TEXTS[_text_key(of, box)]
        own = {**facts, **_layer_facts(of, box), "shape": _shape_text(box.shape)}
        own["number"] = name.removeprefix("stage")
        own["norm"] = _norm_name(box)
        if box.name.startswith("output"):  # its width is not that of the first tokens everywhere
            own["D"] = box.shape[-1]
        last = not any(b.name in ("positions",) for b in steps) and (
            number + 1 < len(steps) and bool(steps[number + 1].layers) and not box.layers
        )
        where = f" {reasons[0].upper()}{reasons[1:]}." if last else ""
        cards.append(
            {
                "id": name,
                "name": box.name,
                "title": _fill(tr(words.title), own),
                "equation": words.equation,
                "say": _fill(tr(words.say), own) + where,
                "shape": _card_shape(box, before),
                "shapes": _shapes(box),
                "answer": _answer(of, box),
                "layers": [box.layers[0], box.layers[-1]] if box.layers else None,
                **_places(of, box),
            }
        )
        before = box
    return cards


def _text_key(of: Anatomy, box: "Box") -> str:
    preprocess = of.model.preprocess
    if box.name == "picture" and {*preprocess.mean} == {0} and {*preprocess.std} == {1}:
        return "plain_picture"
    if box.name == "head" and of.acts.answers == "labels":
        return "one_label_head" if box.shape == (1,) else "label_head"
    if box.name == "value_head" and box.shape == (1,):
        return "one_value_head"
    if box.name == "embedding_norm" and _norm_name(box) == "RMSNorm":
        return "embedding_norm_rms"
    if box.name == "output" and of.acts.layers[-1].kind == "class":
        return "output_class"
    if not box.layers or of.acts.layers[box.layers[0]].kind != "mixing":
        return box.name
    kinds = mixing_kinds(of.model.part)
    return next((f"mixer_{kind}" for kind in ("linear", "gated") if kind in kinds), "mixer")


def _norm_name(box: "Box") -> str:
    """Return what the norm of a box is called: only the box of a LayerNorm has a mean."""
    return "LN" if "mean" in box.parts else "RMSNorm"


def _answer(of: Anatomy, box: "Box") -> str:
    if box.name == "value_head" and of.acts.logits is not None:
        return f"{translate(of.acts.output_names[0])}: {of.acts.logits[0]:.4g}"
    if box.name == "head":
        (best,) = answer_message(of.acts)["answers"][:1]
        return f"{best['label']}: {as_percent(best['share'])}"
    return tr("no head in these weights") if box.name == "no_head" else ""


def _places(of: Anatomy, box: "Box") -> dict[str, Any]:
    """Return the token grid of a card's array, and the number of its prefix tokens."""
    layer = of.acts.layers[box.layers[-1] if box.layers else 0]
    grid = layer.query_grid
    prefix = box.shape[0] - math.prod(grid) if len(box.shape) == 2 else 0
    fits = prefix >= 0 and len(box.shape) > 1
    return {"grid": list(grid) if fits else None, "prefix": max(0, prefix)}


def _card_shape(box: "Box", before: "Box | None") -> str:
    if box.name in ("head", "value_head") and before is not None:
        return f"{before.shape[-1]} → {box.shape[0]}"
    return _shape_text(box.shape) if box.shape else "–"


def _shapes(box: "Box") -> list[tuple[str, str]]:
    """Return the tensors of a step, each by its shape in letters and in numbers."""
    parts = [(f"{box.name}.{part}", values.squeeze().shape) for part, values in box.parts.items()]
    return [
        (tr(text.SHAPES[name]), _shape_text(shape))
        for name, shape in [*parts, (box.name, box.shape)]
        if name in text.SHAPES and shape
    ]


def _step_facts(of: Anatomy) -> dict[str, Any]:
    """Return the values of the placeholders in the sentences of the steps."""
    steps = of.steps
    shapes = {box.name: box.shape for box in steps}
    cut = shapes.get("patches", (0, 0, 0, 0))
    prefix = next((box for box in steps if box.name == "prefix"), None)
    layer = of.acts.layers[0]
    kinds = ("reg" if name.startswith("reg") else name for name in layer.prefix)
    prefix_words = [
        tr(
            text.PREFIX_STEPS[
                "cls unread" if kind == "cls" and "cls" not in of.acts.read_tokens else kind
            ]
        )
        for kind in dict.fromkeys(kinds)
    ]
    tokens = next(box.shape for box in steps if box.layers)
    names = [f"[{name.upper()}]" for name in layer.prefix if not name.startswith("reg")]
    registers = len(layer.prefix) - len(names)
    names += [tr_n("{count} register", "{count} registers", registers)] if registers else []
    learned = of.model.positions_learned
    linear = any("weight" in box.parts for box in steps if box.name == "head")
    return {
        "H": shapes["picture"][0],
        "W": shapes["picture"][1],
        "channels": _name_channels(of.model.preprocess),
        "N": f"{cut[0]:,}",
        "patch": f"{cut[1]} × {cut[2]}",
        "pairs": tr(text.PAIRS) if all(one.kind in _WHOLE for one in of.acts.layers) else "",
        "source": tr("feature map") if "stem" in shapes else tr("picture"),
        "cells": tr("cells") if "stem" in shapes else tr("pixels"),
        "flat": shapes.get("flatten", (0, 0))[1],
        "D": tokens[1],
        "T": f"{tokens[0]:,}",
        "L": of.acts.depth,
        "K": f"{(shapes.get('head') or shapes.get('value_head') or (0,))[0]:,}",
        "maker": tr("One linear layer") if linear else tr("The head"),
        "read": tr("the hidden layer") if "head_hidden" in shapes else "y",
        "paper": "" if "head_hidden" in shapes else tr(text.FINE_TUNING),
        "names": " + ".join(names),
        "prefix": " ".join(prefix_words) if prefix else "",
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


def build_boxes(of: Anatomy) -> list[dict[str, Any]]:
    """Return the boxes of the opened layer; q, k and v share one."""
    residual, layer, number = residual_message(of), of.boxes, of.layer
    shapes = {box.name: box.shape for box in layer}
    info = of.layer_info
    opened = "queries" in shapes
    rotary = "rotary" in position_encodings(of.model.part, of.model.layers)
    has_unrotated = "unrotated_keys" in shapes  # then q and k have a box before their rotation
    groups = {"unrotated_queries": "qkv", "unrotated_keys": "qkv", "values": "qkv"}
    groups |= dict.fromkeys(("queries", "keys"), "rotated" if has_unrotated else "qkv")
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
        "h": info.num_heads,
        "heads": tr_n("{count} head", "{count} heads", info.num_heads),
        "d": shapes.get("queries", (0,))[-1],
        "M": shapes.get("hidden", (0,))[-1],
        "root": f"{math.sqrt(shapes['queries'][-1]):.3g}" if opened else "",
        "equal": as_percent(1 / tokens),
        "rotation": (tr(NORMALISED) if opened and _normalises_queries(of) else "")
        + (tr(ROTATION) if opened and rotary and not has_unrotated else ""),
        "bias": tr(BIAS) if opened and of.acts.score_terms(number)[1] is not None else "",
        "attention": share("attention"),
        "mlp": share("mlp"),
        "activation": act,
        "activating": _fill(tr(ACTIVATING["gated" if gated else "plain"]), {"activation": act}),
        "next": _next_words(of),
        "closed": tr(KINDS_CLOSED[info.kind]),
    }
    names = dict.fromkeys(groups.get(b.name, b.name) for b in layer)
    norms = {b.name: _norm_name(b) for b in layer if b.name in ("norm1", "norm2")}
    rms = {name for name, norm in norms.items() if norm == "RMSNorm"}
    facts["norm"] = norms.get("norm1", "")
    words = {name: BOXES[f"{name}_rms" if name in rms else name] for name in names}
    return [
        {
            "id": name,
            "title": _fill(tr(words[name].title), facts),
            "equation": words[name].equation if opened else 0,
            "say": _fill(tr(words[name].say if opened else CLOSED[name]), facts),
            "shape": _shape_text(shapes["queries" if name in ("qkv", "rotated") else name]),
            "stream": name in _STREAM,
        }
        for name in names
    ]


def _next_words(of: Anatomy) -> str:
    from ..anatomy.layers import is_norm

    if of.layer + 1 < of.acts.depth:
        return tr("layer {layer}", layer=of.layer + 2)
    has_norm = is_norm(of.model.final_norm)
    return tr("the final normalisation") if has_norm else tr("the next step")


def _normalises_queries(of: Anatomy) -> bool:
    from ..anatomy.layers import is_norm

    return is_norm(getattr(of.model.sites[of.layer].attn, "q_norm", None))


def _activation(of: Anatomy) -> str:
    from ..anatomy.layers import activation_of

    act = activation_of(of.model.sites[of.layer].block)
    name = "GELU" if act is None else type(act).__name__
    return name.removeprefix("Pytorch").removesuffix("Activation")


def _fill(words: str, facts: Mapping[str, Any]) -> str:
    """Fill in the names in braces, but not LaTeX's `_{…}` and `^{…}`."""
    return re.sub(r"(?<![_^])\{(\w+)\}", lambda match: str(facts[match[1]]), words)


def _shape_text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


PATCH_SIDES = (14, 16, 32)  # patch sides whose costs are compared


def anatomy_message(of: Anatomy, **host: Any) -> dict[str, Any]:
    """Return what the component shows of an Anatomy.

    Parameters
    ----------
    host
        Parts that the host adds or replaces: `stepsId` and `layerId`, the ids of both stacks;
        `session`, `version` and `provenance`; and
        - `state`: the choice: `frame`, `head` and `query`, counted from 0, -1 for none; `key`, and
          `step`, the id of a card or a box; and `tokensOf`, the layer whose tokens `query` and
          `key` are
        - `layers`: the layers that can be chosen
        - `alone`: whether the component takes keys pressed anywhere on the page
        - `guided`: whether a lesson leads through the page; then the steps have no numbers here
        - `partial`: the sentence shown if the numbers of another token are not here
    """
    acts, info = of.acts, of.layer_info
    home = default_query(acts, info)
    cards, query = build_cards(of), -1 if of.query is None else of.query
    return {
        "session": "",
        "version": 0,
        "state": {
            "frame": of.layer,
            "head": 0,
            "query": query,
            "step": cards[0]["id"],
            "key": -1,
            "tokensOf": of.layer,
        },
        "frame": of.layer,
        "depth": acts.depth,
        "cards": cards,
        "boxes": build_boxes(of),
        "equations": text.EQUATIONS,
        "shape": {
            "rows": info.query_grid[0],
            "cols": info.query_grid[1],
            "crop": list(acts.crop_of(of.layer)),
            "prefix": [name.upper() for name in info.prefix],
            "heads": info.num_heads,
            "home": -1 if home is None else home,
        },
        "facts": _facts(of),
        "costs": _costs(of),
        "residual": residual_message(of),
        "picture": {
            "width": acts.picture_size[0],
            "height": acts.picture_size[1],
            "crop": list(acts.crop),
        },
        "strings": strings("browser"),
        **answer_message(acts),
        **map_colours(signed=True),
        **host,
    }


def _name_channels(preprocess: "Preprocessing") -> str:
    count = len(preprocess.mean)
    if count == 1:
        return tr("1 channel, grey")
    if count != 3:
        return tr("{count} channels", count=count)
    if preprocess.channel_order == "BGR":
        return tr("3 channels: blue, green and red")
    return tr("3 channels: red, green and blue")


def _facts(of: Anatomy) -> dict[str, Any]:
    preprocess = of.model.preprocess
    # The channels that are drawn as red, green and blue; of an input without colours the first one.
    planes = [0, 1, 2] if len(preprocess.mean) == 3 else [0]
    dim = next((box.shape[-1] for box in of.boxes if box.name == "queries"), 0)
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
        "planes": planes[::-1] if preprocess.channel_order == "BGR" else planes,
        "stem": any(box.name == "stem" for box in of.steps),
        "scale": scale,
        "divide": f"÷ √{dim}" if plain else f"× {scale:.3g}",
        "opened": dim > 0,
    }


def _costs(of: Anatomy) -> dict[str, Any]:
    """Count tokens and pairs of tokens for other patch sides."""
    height, width = of.model.preprocess.input_size
    own = of.acts.layers[0].patch_size
    side = own if isinstance(own, int) else own[0]
    here = math.prod(of.acts.layers[0].query_grid)
    sides = sorted({side, *(other for other in PATCH_SIDES if other <= min(height, width))})
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
    """Return `count` as a multiple or a fraction of `here`, in words."""
    times = max(count / here, here / count)
    text = f"{times:,.0f}" if times >= 10 else f"{times:.3g}"
    return f"1/{text}" if count < here else tr("{count} times", count=text)
