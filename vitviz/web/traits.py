"""The traits of a model and its capture that captions depend on."""

from typing import TYPE_CHECKING

from .token_map import default_query

if TYPE_CHECKING:
    from ..activations import Activations
    from ..model import Model


def traits(model: "Model", acts: "Activations") -> frozenset[str]:
    """Return those of `vitviz.text.TRAITS` that hold for this model and capture."""
    from ..model.families import mixing_kinds, position_encodings
    from ..zoo.checkpoints import initialisations

    kernel = model.patch_kernel
    first = acts.layers[0]
    shipped = model.weights.startswith("shipped")
    mixing = mixing_kinds(model.part)
    encodings = position_encodings(model.part, model.layers)
    facts = {
        "all-to-all": acts.all_to_all,
        "relative bias": "relative bias" in encodings,
        "rotary": "rotary" in encodings,
        "prefix": any(layer.prefix for layer in acts.layers),
        "cls": default_query(acts, first) == 0,
        "classes": acts.probabilities is not None,
        "words": model.words is not None,
        "sigmoid": acts.answers == "labels",
        "convolutions": "convolutions" in encodings,
        "linear mixing": "linear" in mixing,
        "gated": "gated" in mixing,
        "overlap": kernel is not None and kernel.shape[2:] != first.patch_side,
        "trained": model.trained,
        "shipped": shipped,
        "mimetic": shipped and "mimetic" in initialisations(model.name),
    }
    kinds = {layer.kind for layer in acts.layers}
    return frozenset(kinds | {trait for trait, holds in facts.items() if holds})
