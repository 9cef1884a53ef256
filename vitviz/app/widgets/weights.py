"""The choice of a model's weights: trained, or random."""

from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared.models import MIMETIC, RANDOM, TRAINED
from vitviz.language import mark, tr

#: What a page says of the second kind of random weights.
BEGAN = mark(
    "They are drawn as they were when its training began, by mimetic initialisation: the positions "
    "are sines and cosines, and some heads are local and others global by design, so nothing that "
    "looks like structure here was learned."
)


def control(place: DeltaGenerator | None, key: str, name: str) -> str:
    """Draw the choice for a model in the menu, where it has a place; returns it.

    Where the training did not begin with the usual initialisation, both kinds are offered.
    """
    from vitviz.checkpoints import initialisations

    began = MIMETIC in initialisations(name)
    if settings.kept(key) == MIMETIC and not began:
        settings.change(**{key: RANDOM})
    labels = {TRAINED: tr("trained"), RANDOM: tr("random")}
    label = tr("Weights") if key == "weights" else tr("Its weights")
    if began:
        labels |= {RANDOM: tr("plain"), MIMETIC: tr("mimetic")}
        label = tr("{weights}: trained or random", weights=label)
    options = [TRAINED, RANDOM, MIMETIC] if began else [TRAINED, RANDOM]
    value = setting(key, options, TRAINED)
    if place is not None:
        place.segmented_control(
            label,
            options,
            key=key,
            format_func=labels.__getitem__,
            width="stretch",
            required=True,
        )
    return value
