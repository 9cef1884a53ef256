"""See what happens inside a Vision Transformer on your picture.

    model = vitviz.load_model("vitviz_things200")  # or vitviz.watch(a module of your own)
    image = vitviz.open_image(open("photo.jpg", "rb").read())
    acts = vitviz.capture(model, image)
    acts.attention_map(5, 0)  # where CLS looks: (heads, rows, columns)

Besides the names below, the package has the modules `vitviz.attribution` (maps of one class),
`vitviz.inspection` (measurements), `vitviz.intervention` (experiments), `vitviz.plots` (figures),
`vitviz.vit` (the model in one file) and others. Each is imported at its first use, so that
`import vitviz` is fast.
"""

from importlib import import_module
from importlib.util import find_spec
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
    )
    from .common.images import ImageError, open_image
    from .model import Model, ModelError, Preprocessing
    from .model.families import Layer
    from .model.words import Words
    from .profiling import (
        Comparison,
        Faithfulness,
        Profile,
        compare,
        faithfulness,
        load_faithfulness,
        load_profile,
        profile,
    )
    from .web.notebook import show, widget
    from .zoo import load_model, watch

__version__ = "0.1.0"

__all__ = [
    "Activations",
    "Comparison",
    "DropPatches",
    "Faithfulness",
    "FillPatches",
    "ImageError",
    "Layer",
    "Model",
    "ModelError",
    "MuteHeads",
    "Preprocessing",
    "Profile",
    "SwapTokens",
    "Words",
    "capture",
    "captures",
    "compare",
    "faithfulness",
    "load_activations",
    "load_faithfulness",
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
    "Faithfulness": "profiling",
    "FillPatches": "activations",
    "ImageError": "common.images",
    "Layer": "model.families",
    "Model": "model",
    "ModelError": "model",
    "MuteHeads": "activations",
    "Preprocessing": "model",
    "Profile": "profiling",
    "SwapTokens": "activations",
    "Words": "model.words",
    "capture": "activations",
    "captures": "activations",
    "compare": "profiling",
    "equivariance": "intervention",
    "faithfulness": "profiling",
    "load_activations": "activations",
    "load_faithfulness": "profiling",
    "load_model": "zoo",
    "load_profile": "profiling",
    "open_image": "common.images",
    "profile": "profiling",
    "report": "web",
    "show": "web.notebook",
    "targets": "activations",
    "watch": "zoo",
    "widget": "web.notebook",
}
#: Modules that `dir(vitviz)` lists; every other part of the package resolves as well.
_MODULES = (
    *("attribution", "equivariance", "inspection", "intervention", "model", "plots", "report"),
    *("targets", "vit", "zoo"),
)


def __getattr__(name: str) -> Any:
    if name in _HOMES and name in _MODULES:  # a module in a package
        return import_module(f".{_HOMES[name]}.{name}", __name__)
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
