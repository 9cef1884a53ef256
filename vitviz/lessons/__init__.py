"""What a lesson found on a picture: sentences with their numbers, computed as the pages do.

The lessons themselves, and their steps, stand in `vitviz.text.lessons`.
"""

from collections.abc import Iterable

from PIL import Image

from ..activations import Activations
from ..language import tr
from ..model import Model
from ..text.lessons import LESSONS
from . import answering, looking
from .data import data

FEWEST = 3  # patches, of which two are others


def found(
    number: int,
    model: Model,
    image: Image.Image,
    acts: Activations,
    *,
    others: Iterable[Activations] = (),
    own: bool = True,
    progress: answering.Progress | None = None,
) -> tuple[str, ...]:
    """What a lesson found, a sentence or two for each of its steps, in the language in use.

    Parameters
    ----------
    number : of the lesson, from 1
    image : PIL.Image, upright
    acts : Activations
        Its capture.
    others : iterable of Activations
        Of other pictures, for what is asked of them; read once, and only where they are needed.
    own : bool
        Whether the picture is the lesson's own sample: else what its steps mark there is left out.
    progress : callable, optional
        Called as progress(done, of) before each pass of an experiment; it may raise to stop.

    Notes
    -----
    A model in which not every token attends to every token, the same ones in each layer, gets one
    sentence that says so: the lessons but the last are of such models.
    """
    lesson = LESSONS[number - 1]
    if number == 7:
        return tuple(data(model.name))
    if acts.refusal or not acts.all_to_all:
        return (
            tr(
                "{name} is none of the models that this lesson is about: in those every token "
                "attends to every token, the same ones in each layer.",
                name=model.name,
            ),
        )
    if (count := acts.grid[0] * acts.grid[1]) < FEWEST:
        return (
            tr(
                "This input has {count} patches, and the lesson compares a patch with several "
                "others: choose a larger input.",
                count=count,
            ),
        )
    steps = lesson.steps
    if number == 1:
        return tuple(answering.path(model, acts, steps))
    if number == 2:
        return tuple(answering.positions(model, image, acts))
    if number == 3:
        return tuple(looking.who(acts, steps))
    if number == 4:
        return tuple(looking.near(acts, steps, others))
    if number == 5:
        return tuple(looking.reaches(model, image, acts))
    return tuple(answering.changes(model, image, acts, steps if own else (), progress))
