"""vitviz shows what happens inside a Vision Transformer on your picture.

    model = vitviz.load_model("vitviz_things200")  # or vitviz.watch(a module of your own)
    image = vitviz.open_image(open("photo.jpg", "rb").read())
    acts = vitviz.capture(model, image)
    acts.attention_map(5, 0)  # where CLS looks: (heads, rows, columns)

Beside the names below there are the modules `vitviz.attribution` (maps of one class),
`vitviz.inspection` (measurements), `vitviz.intervention` (experiments), `vitviz.plots` (figures)
and `vitviz.vit` (the model in one file). Everything is imported when it is first used, so that
`import vitviz` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activations import (
        Activations,
        DropPatches,
        FillPatches,
        MuteHeads,
        SwapTokens,
        capture,
        captures,
        load_activations,
        show,
        widget,
    )
    from .families import Layer, ModelError
    from .images import ImageError, open_image
    from .model import Model
    from .profiling import Comparison, Profile, compare, load_profile, profile
    from .words import Words
    from .zoo import load_model, watch

__version__ = "0.1.0"

__all__ = [
    "Activations",
    "Comparison",
    "DropPatches",
    "FillPatches",
    "ImageError",
    "Layer",
    "Model",
    "ModelError",
    "MuteHeads",
    "Profile",
    "SwapTokens",
    "Words",
    "capture",
    "captures",
    "compare",
    "load_activations",
    "load_model",
    "load_profile",
    "open_image",
    "profile",
    "show",
    "watch",
    "widget",
]

_HOMES = {
    "Activations": "activations",
    "Comparison": "profiling",
    "DropPatches": "activations",
    "FillPatches": "activations",
    "ImageError": "images",
    "Layer": "families",
    "Model": "model",
    "ModelError": "families",
    "MuteHeads": "activations",
    "Profile": "profiling",
    "SwapTokens": "activations",
    "Words": "words",
    "capture": "activations",
    "captures": "activations",
    "compare": "profiling",
    "load_activations": "activations",
    "load_model": "zoo",
    "load_profile": "profiling",
    "open_image": "images",
    "show": "activations",
    "profile": "profiling",
    "watch": "zoo",
    "widget": "activations",
}
_MODULES = ("attribution", "inspection", "intervention", "plots", "vit")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
