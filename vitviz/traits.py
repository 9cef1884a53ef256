"""What is true of a model and its capture, by the names that the captions ask for."""

from typing import TYPE_CHECKING

from .token_map import default_query

if TYPE_CHECKING:
    from .activations import Activations
    from .model import Model


def traits(model: "Model", acts: "Activations") -> frozenset[str]:
    """Those of `vitviz.text.TRAITS` that hold."""
    from .checkpoints import initialisations
    from .families import position_encodings

    kernel = model.patch_kernel
    first = acts.layers[0]
    shipped = model.weights.startswith("shipped")
    encodings = position_encodings(model.module, model.layers)
    holds = {
        "all-to-all": acts.all_to_all,
        "relative bias": "relative bias" in encodings,
        "rotary": "rotary" in encodings,
        "prefix": any(layer.prefix for layer in acts.layers),
        "cls": default_query(acts, first) == 0,
        "classes": acts.probabilities is not None,
        "words": model.words is not None,
        "sigmoid": acts.activation == "sigmoid",
        "overlap": kernel is not None and kernel.shape[2:] != first.patch_side,
        "trained": model.trained,
        "shipped": shipped,
        "mimetic": shipped and "mimetic" in initialisations(model.name),
    }
    kinds = {layer.kind for layer in acts.layers}
    return frozenset(kinds | {trait for trait, it_holds in holds.items() if it_holds})
