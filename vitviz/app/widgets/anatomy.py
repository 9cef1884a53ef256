"""The component of the page Anatomy on a page: what it is told to show, and what is committed."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import streamlit as st

from vitviz.anatomy_map import packed, script, style
from vitviz.app import settings
from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import places, results
from vitviz.app.shared.queue import turn
from vitviz.app.shared.view import default_query, token_text
from vitviz.plots.template import as_percent, colour_table
from vitviz.text import anatomy as text
from vitviz.token_map import photo as encoded

if TYPE_CHECKING:
    from vitviz.anatomy import Box, Residual
    from vitviz.app.shared.view import View

MAX_BYTES = 24_000_000  # of the numbers of one layer; where it takes more, those of one token
CLASSES = 5  # shown of the answer
SIDES = (14, 16, 32)  # patches that others are compared with
KEY = "anatomy"
_component = st.components.v2.component("vitviz_anatomy", css=style(), js=script())
_EXACT = {"flatten", "project.kernel", "project.bias", "queries", "keys", "bias"}
_STREAM = ("before", "after_attention", "after")


def anatomy(view: "View") -> None:
    """Draw the component and take what is committed in it."""
    steps, layer = steps_of(view), layer_of(view)
    cards, boxes = _cards(view, steps), _boxes(view, layer)
    inside = [box["id"] for box in boxes]
    setting("step", [*(card["id"] for card in cards), *inside], cards[0]["id"])
    steps_id = "-".join((*map(str, view.key[:2]), view.picture.digest[:16]))
    layer_id = f"{steps_id}-{view.layer}"
    sent = _sent_layer(view, layer, layer_id)
    photo = results.captures().get(
        (view.picture.digest, "photo"), lambda: encoded(view.picture.image), len
    )
    for place, numbers in (("steps", _sent_steps(steps, steps_id, photo)), ("layer", sent)):
        _component(
            key=f"token_map_{KEY}_{place}_stack",  # takes no room, as the style says of this name
            height=1,
            data={
                name: value if name == "stack" else pa.table({"values": value})
                for name, value in numbers.items()
            },
        )
    _component(
        key=KEY,
        on_commit_change=lambda: _take(view),
        data={
            "stepsId": steps_id,
            "layerId": sent["stack"]["id"],
            "session": st.session_state.setdefault("map_session", uuid4().hex),
            "version": st.session_state.setdefault("map_version", 0),
            "state": _state(view),
            "frame": view.layer,
            "depth": view.acts.depth,
            "cards": cards,
            "boxes": boxes,
            "equations": text.EQUATIONS,
            "shape": _shape(view),
            "facts": _facts(view, steps),
            "costs": _costs(view),
            "residual": _residual(view),
            "picture": {
                "width": view.picture.size[0],
                "height": view.picture.size[1],
                "crop": list(view.acts.crop),
            },
            "lut": colour_table(True),
            **_answers(view),
        },
    )


def steps_of(view: "View") -> "tuple[Box, ...]":
    """The picture at each step, cached."""
    from vitviz import anatomy

    def make() -> "tuple[Box, ...]":
        with turn():  # some families make a pass of their own
            return anatomy.steps(view.model, view.picture.image, view.acts)

    return results.captures().get((*view.key, "steps"), make, _bytes_of)


def layer_of(view: "View") -> "tuple[Box, ...]":
    """The layer on screen, box by box, cached."""
    from vitviz import anatomy

    return results.captures().get(
        (*view.key, "boxes", view.layer),
        lambda: anatomy.layer_boxes(view.model, view.acts, view.layer),
        _bytes_of,
    )


def scores_of(view: "View", head: int) -> np.ndarray:
    """What softmax is applied to: ndarray of shape (queries, keys)."""
    from vitviz import anatomy

    return anatomy.scores(view.acts, view.layer, head)[1]


def pair(view: "View") -> tuple[int, int]:
    """The query and the key that are worked out, as the component chooses them where none is."""
    prefix, (rows, cols) = len(view.prefix), view.grid
    middle = prefix + rows // 2 * cols + cols // 2
    query = middle if view.query is None else view.query
    if (key := _state(view)["key"]) < 0:
        key = prefix + int(view.acts.attention(view.layer)[view.head or 0, query, prefix:].argmax())
    return query, key


def token_name(view: "View", token: int) -> str:
    patch = token - len(view.prefix)
    if patch < 0:
        return view.prefix[token].upper()
    row, col = divmod(patch, view.grid[1])
    return f"row {row + 1} column {col + 1}"


def _bytes_of(boxes: "tuple[Box, ...]") -> int:
    arrays = [box.values for box in boxes if box.values is not None]
    return sum(a.nbytes for a in [*arrays, *(p for box in boxes for p in box.parts.values())])


def _take(view: "View") -> None:
    """Write what was committed into the shared settings; what does not fit falls back there."""
    committed = st.session_state[KEY]["commit"]
    st.session_state.map_version = committed["version"]
    layer, key = view.acts.layers[view.layer], int(committed["key"])
    settings.change(
        layer=int(committed["frame"]) + 1,
        head="mean" if committed["head"] < 0 else committed["head"] + 1,
        query=token_text(layer, int(committed["query"])),
        step=committed["step"],
        key=token_text(layer, key) if key >= 0 else "",
    )


def _state(view: "View") -> dict[str, Any]:
    described = view.acts.layers[view.layer]
    count = len(described.prefix) + math.prod(described.query_grid)
    names = [token_text(described, token) for token in range(count)]
    chosen = text_setting("key", lambda said: said in ("", *names))
    return {
        "frame": view.layer,
        "head": -1 if view.head is None else view.head,
        "query": -1 if view.query is None else view.query,
        "step": st.session_state["step"],
        "key": names.index(chosen) if chosen else -1,
    }


def _shape(view: "View") -> dict[str, Any]:
    described = view.acts.layers[view.layer]
    home = default_query(view.acts, described)
    return {
        "rows": described.query_grid[0],
        "cols": described.query_grid[1],
        "crop": list(view.acts.crop_of(view.layer)),
        "prefix": [name.upper() for name in described.prefix],
        "heads": described.num_heads,
        "home": -1 if home is None else home,
    }


# --- the numbers ------------------------------------------------------------------------------


def _sent_steps(steps: "tuple[Box, ...]", stack_id: str, photo: str) -> dict[str, Any]:
    arrays: dict[str, np.ndarray] = {}
    for name, box in _named(steps).items():
        if box.values is None or box.name == "patches":  # the same numbers as flattened
            continue
        parts = {f"{box.name}.{part}": values for part, values in box.parts.items()}
        if box.name == "head":
            best = _best(box.parts["probabilities"])
            parts = {part: values[best] for part, values in parts.items() if "probab" not in part}
            read = steps[-2].values
            assert read is not None
            parts["head.read"] = np.atleast_2d(read)
        if box.name.startswith("output") and "mean" in box.parts:
            parts["output.read"] = _read(steps, box)
        arrays |= {name: box.values, **parts}
    exact, half = _split(arrays)
    sent = packed(stack_id, exact, half)
    sent["stack"]["picture"] = photo
    return sent


def _read(steps: "tuple[Box, ...]", output: "Box") -> np.ndarray:
    """What the last LayerNorm gets: tokens of z_L, or their mean."""
    last = next(box.values for box in reversed(steps) if box.layers)
    assert last is not None
    if output.name != "output_mean_norm":
        return last[: len(output.parts["mean"])]
    prefix = len(last) - next(
        len(b.values) for b in steps if b.name == "flatten" and b.values is not None
    )
    return last[prefix:].mean(axis=0, keepdims=True)


def _sent_layer(view: "View", boxes: "tuple[Box, ...]", stack_id: str) -> dict[str, Any]:
    arrays: dict[str, np.ndarray] = {}
    for box in boxes:
        if box.values is not None:
            arrays[box.name] = box.values
            arrays |= {f"{box.name}.{part}": values for part, values in box.parts.items()}
    arrays.pop("heads", None)  # their sum is made in the browser, and they come side by side
    if "queries" in arrays:
        _, bias = view.acts.score_terms(view.layer)
        if bias is not None:
            arrays["bias"] = bias
    exact, half = _split(arrays)
    values = {"values": half.pop("values")} if "values" in half else {}
    if sum(array.nbytes for array in half.values()) // 2 <= MAX_BYTES:
        return packed(stack_id, exact, {**values, **half})
    described = view.acts.layers[view.layer]
    count = len(described.prefix) + math.prod(described.query_grid)
    only = view.query if view.query is not None else count // 2
    return packed(f"{stack_id}-{only}", {**exact, **values}, half, only=only)


def _split(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What is worked out to the last digit, or is small; and the rest."""
    exact = {name: array for name, array in arrays.items() if name in _EXACT or array.ndim < 2} | {
        name: array for name, array in arrays.items() if name.startswith(("head.", "output"))
    }
    return exact, {name: array for name, array in arrays.items() if name not in exact}


def _best(probabilities: np.ndarray) -> np.ndarray:
    return np.argsort(-probabilities, kind="stable")[:CLASSES]


def _answers(view: "View") -> dict[str, Any]:
    acts = view.acts
    if acts.probabilities is None or acts.logits is None:
        return {"answers": [], "classes": 0}
    return {
        "classes": len(acts.logits),
        "answers": [
            {
                "label": acts.output_names[index],
                "logit": float(acts.logits[index]),
                "share": float(acts.probabilities[index]),
            }
            for index in _best(acts.probabilities)
        ],
    }


def _facts(view: "View", steps: "tuple[Box, ...]") -> dict[str, Any]:
    preprocess = view.model.preprocess
    picture = steps[0].shape
    dim = _head_dim(view)
    try:
        scale, _ = view.acts.score_terms(view.layer)
    except ValueError:
        scale = 1.0
    plain = dim and math.isclose(scale, dim**-0.5, rel_tol=1e-6)
    return {
        "grid": list(view.acts.layers[0].query_grid),
        "channels": picture[2],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "stem": any(box.name == "stem" for box in steps),
        "scale": scale,
        "divide": f"÷ √{dim}" if plain else f"× {scale:.3g}",
        "opened": dim > 0,
    }


def _head_dim(view: "View") -> int:
    return next((box.shape[-1] for box in layer_of(view) if box.name == "queries"), 0)


def _residual(view: "View") -> dict[str, list[float | None]]:
    from vitviz import anatomy

    def make() -> "Residual":
        return anatomy.residual_stream(view.acts)

    found = results.captures().get((*view.key, "residual stream"), make, lambda made: 1000)
    return {
        name: [None if np.isnan(value) else float(value) for value in values]
        for name, values in vars(found).items()
    }


def _costs(view: "View") -> dict[str, Any]:
    """Tokens and pairs of tokens with patches of other sides."""
    height, width = view.model.preprocess.input_size
    own = view.acts.layers[0].patch_size
    side = own if isinstance(own, int) else own[0]
    here = math.prod(view.acts.layers[0].query_grid)
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
    return f"1/{text}" if count < here else f"{text} times"


# --- the words --------------------------------------------------------------------------------


def _named(steps: "tuple[Box, ...]") -> "dict[str, Box]":
    """Boxes by names that are all different: stages are numbered."""
    stages = [box for box in steps if box.name == "stage"]
    return {f"stage{stages.index(box) + 1}" if box in stages else box.name: box for box in steps}


def _cards(view: "View", steps: "tuple[Box, ...]") -> list[dict[str, Any]]:
    facts = _step_facts(view, steps)
    cards = []
    before: Box | None = None
    for number, (name, box) in enumerate(_named(steps).items()):
        words = text.STEPS[_word(view, box)]
        own = {**facts, **_layer_facts(view, box), "shape": _written(box.shape)}
        own["number"] = name.removeprefix("stage")
        last = not any(b.name in ("positions",) for b in steps) and (
            number + 1 < len(steps) and bool(steps[number + 1].layers) and not box.layers
        )
        where = f" {places.known_by(view.model).capitalize()}." if last else ""
        cards.append(
            {
                "id": name,
                "name": box.name,
                "title": _filled(words.title, own),
                "equation": words.equation,
                "say": _filled(words.say, own) + where,
                "shape": _card_shape(box, before),
                "shapes": _shapes(box),
                "answer": _answer(view, box),
                "layers": [box.layers[0], box.layers[-1]] if box.layers else None,
                **_places(view, box, steps),
            }
        )
        before = box
    return cards


def _word(view: "View", box: "Box") -> str:
    mixes = box.layers and view.acts.layers[box.layers[0]].kind == "mixing"
    return "mixer" if mixes else box.name


def _answer(view: "View", box: "Box") -> str:
    if box.name == "head":
        (best,) = _answers(view)["answers"][:1]
        return f"{best['label']}: {as_percent(best['share'])}"
    return "no head in these weights" if box.name == "no_head" else ""


def _places(view: "View", box: "Box", steps: "tuple[Box, ...]") -> dict[str, Any]:
    """Where the tokens of a card's array lie: their grid, and how many come before the patches."""
    layer = view.acts.layers[box.layers[-1] if box.layers else 0]
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
        (text.SHAPES[name], _written(shape))
        for name, shape in [*made, (box.name, box.shape)]
        if name in text.SHAPES and shape
    ]


def _step_facts(view: "View", steps: "tuple[Box, ...]") -> dict[str, Any]:
    """What the sentences of the steps name."""
    shapes = {box.name: box.shape for box in steps}
    cut = shapes.get("patches", (0, 0, 0, 0))
    prefix = next((box for box in steps if box.name == "prefix"), None)
    layer = view.acts.layers[0]
    kinds = ("reg" if name.startswith("reg") else name for name in layer.prefix)
    told = [
        text.PREFIX["cls unread" if kind == "cls" and "cls" not in view.acts.read_tokens else kind]
        for kind in dict.fromkeys(kinds)
    ]
    tokens = next(box.shape for box in steps if box.layers)
    names = [f"[{name.upper()}]" for name in layer.prefix if not name.startswith("reg")]
    registers = len(layer.prefix) - len(names)
    names += [f"{registers} registers"] if registers else []
    learned = dict(view.model.module.named_parameters()).get("pos_embed") is not None
    return {
        "H": shapes["picture"][0],
        "W": shapes["picture"][1],
        "C": shapes["picture"][2],
        "N": f"{cut[0]:,}",
        "P": cut[1],
        "source": "feature map" if "stem" in shapes else "picture",
        "cells": "cells" if "stem" in shapes else "pixels",
        "flat": shapes.get("flatten", (0, 0))[1],
        "D": tokens[1],
        "T": f"{tokens[0]:,}",
        "L": view.acts.depth,
        "K": f"{shapes.get('head', (0,))[0]:,}" if shapes.get("head") else 0,
        "names": " + ".join(names),
        "prefix": " ".join(told) if prefix else "",
        "learned": "learned" if learned else "fixed (sine and cosine)",
    }


def _layer_facts(view: "View", box: "Box") -> dict[str, Any]:
    if not box.layers:
        return {}
    layers = view.acts.layers[box.layers[0] : box.layers[-1] + 1]
    kinds = dict.fromkeys(text.KINDS_CLOSED[layer.kind] for layer in layers)
    rows, cols = layers[-1].query_grid
    return {
        "first": box.layers[0] + 1,
        "last": box.layers[-1] + 1,
        "grid": f"{rows} × {cols}",
        "D": box.shape[1],
        "kinds": "; ".join(kinds).replace("att", "Att", 1),
    }


def _boxes(view: "View", layer: "tuple[Box, ...]") -> list[dict[str, Any]]:
    """The boxes of the layer on screen; q, k and v are one."""
    residual, number = _residual(view), view.layer
    shapes = {box.name: box.shape for box in layer}
    described = view.acts.layers[number]
    opened = "queries" in shapes
    tokens, width = shapes["after"]
    gated = opened and shapes["hidden"] != shapes["activated"]
    act = _activation(view)

    def share(name: str) -> str:
        value = residual[name][number]
        return "a part" if value is None else as_percent(value)

    facts = {
        "l": number + 1,
        "T": f"{tokens:,}",
        "D": width,
        "h": described.num_heads,
        "d": shapes.get("queries", (0,))[-1],
        "M": shapes.get("hidden", (0,))[-1],
        "root": f"{math.sqrt(shapes['queries'][-1]):.3g}" if opened else "",
        "equal": as_percent(1 / tokens),
        "bias": text.BIAS if opened and view.acts.score_terms(number)[1] is not None else "",
        "attention": share("attention"),
        "mlp": share("mlp"),
        "activation": act,
        "activating": _filled(text.ACTIVATING["gated" if gated else "plain"], {"activation": act}),
        "next": "the last LayerNorm" if number + 1 == view.acts.depth else f"layer {number + 2}",
        "closed": text.KINDS_CLOSED[described.kind],
    }
    named = dict.fromkeys(
        "qkv" if b.name in ("queries", "keys", "values") else b.name for b in layer
    )
    return [
        {
            "id": name,
            "title": _filled(text.BOXES[name].title, facts),
            "equation": text.BOXES[name].equation if opened else 0,
            "say": _filled(text.BOXES[name].say if opened else text.CLOSED[name], facts),
            "shape": _written(shapes["queries" if name == "qkv" else name]),
            "stream": name in _STREAM,
        }
        for name in named
    ]


def _activation(view: "View") -> str:
    mlp = getattr(view.model.sites[view.layer].block, "mlp", None)
    act = getattr(mlp, "act", None)
    return "GELU" if act is None else type(act).__name__.upper().replace("SILU", "SiLU")


def _filled(words: str, facts: Mapping[str, Any]) -> str:
    """The words with numbers in place of names in braces; `_{…}` and `^{…}` stay."""
    return re.sub(r"(?<![_^])\{(\w+)\}", lambda match: str(facts[match[1]]), words)


def _written(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
