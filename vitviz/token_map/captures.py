"""What the component is sent of a capture: the maps of its layers, and where their tokens lie.

Nothing of a capture's type is imported but for type hints.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..language import mark, told, tr
from .frames import Frame, Shape, encode, encode_windows

if TYPE_CHECKING:
    from ..activations import Activations
    from ..families import Layer

#: What a layer's kind means for its patches.
KINDS = {
    "global": mark("every patch attends to every patch"),
    "class": mark("only CLS attends"),
    "window": mark("patches attend within windows"),
    "grid": mark("patches attend within spread-out windows"),
    "pooled": mark("patches attend to pooled keys"),
}


def titles() -> dict[str, str]:
    """The headings of maps of attention."""
    return {
        "row": tr("What it attends to"),
        "column": tr("Who attends to it"),
        "strip": tr("All heads of"),
    }


def default_query(acts: "Activations", layer: "Layer") -> int | None:
    """The query while none is chosen: CLS, or the mean of the patches where the head pools them."""
    return 0 if "cls" in layer.prefix and "patches" not in acts.read_tokens else None


def shape_of(acts: "Activations", layer: int) -> Shape:
    """Where the tokens of a layer lie."""
    described = acts.layers[layer]
    home = default_query(acts, described)
    return Shape(
        grid=described.query_grid,
        key_grid=described.key_grid,
        crop=acts.crop_of(layer),
        key_crop=acts.crop_of(layer, keys=True),
        prefix=tuple(token.upper() for token in described.prefix),
        home=-1 if home is None else home,
        heads=described.num_heads,
        prefix_only=described.kind == "class",
        equal_share=1 / acts.layout(layer).keys.shape[1],
        within=described.kind in ("window", "grid"),
    )


def layer_names(acts: "Activations") -> list[str]:
    """What each layer is called beside its maps."""
    alike = all(layer.kind == "global" for layer in acts.layers)
    return [
        tr("layer {layer}", layer=number) + ("" if alike else f" ({tr(KINDS[layer.kind])})")
        for number, layer in enumerate(acts.layers, start=1)
    ]


def bytes_of(acts: "Activations") -> int:
    """How many numbers the maps of all layers have, each a byte for the browser."""
    layouts = (acts.layout(layer) for layer in range(acts.depth))
    return sum(
        described.num_heads * windows.queries.size * windows.keys.shape[1]
        for described, windows in zip(acts.layers, layouts, strict=True)
    )


def frames_of(acts: "Activations", layers: Iterable[int], *, mean: bool = False) -> list[Frame]:
    """The attention of some layers, of all heads or of their mean."""

    def frame(number: int) -> Frame:
        layer = acts.layers[number]
        if layer.kind in ("global", "class"):
            attention = acts.attention(number)
            shown = attention.mean(axis=0, keepdims=True) if mean else attention
            return encode(number, shown, len(layer.prefix), "share")
        windows, attention = acts.layout(number), acts.attention_by_window(number)
        shown = attention.mean(axis=1, keepdims=True) if mean else attention
        return encode_windows(number, shown, windows.queries, windows.keys)

    return [frame(number) for number in layers]


def view_message(
    acts: "Activations",
    *,
    stack_id: str,
    layer: int,
    head: int | None,
    query: int | None,
    look: dict[str, Any],
) -> dict[str, Any]:
    """What to show of all layers, for a host that has no settings of its own.

    Parameters
    ----------
    look : the colours `lut`, `queryColour` and `keyColour`
    """
    shapes = [shape_of(acts, number) for number in range(acts.depth)]
    prefix = len(acts.layers[layer].prefix)
    asked = shapes[layer].home if query is None else query
    width, height = acts.picture_size
    return {
        "stackId": stack_id,
        "session": "",
        "version": 0,
        "state": {
            "frame": layer,
            "head": -1 if head is None else head,
            "query": asked,
            "pinned": asked >= prefix,
            "direction": "row",
            "view": "heat",
            "scale": "map",
            "leaveOut": False,
            "smooth": False,
        },
        "kind": "share",
        "strip": "heads",
        "frames": [shape.sent(name) for shape, name in zip(shapes, layer_names(acts), strict=True)],
        "titles": {**titles(), "slider": tr("Layer")},
        "picture": {"width": width, "height": height, "crop": list(acts.crop)},
        "distance": None,
        "guess": None,
        "tools": None,
        "link": "",
        "matches": None,
        "provenance": told(acts.provenance),
        "strings": {},
        **look,
    }
