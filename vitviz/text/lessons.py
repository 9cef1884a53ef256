"""Seven lessons of ten minutes: a short list of steps, each a view, what to do, and a question.

A view is a page and its settings, as a link holds them. Each was chosen because it shows the thing
on a sample picture, with the model that opens first or, in lesson 1, with the one of 16 patches.
The worksheet and the teacher's guide, which docs/teaching.py writes, follow these steps.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from ..common import SMALL_MODEL
from ..common.language import mark


@dataclass(frozen=True)
class Step:
    """One view of a lesson.

    Attributes
    ----------
    page : str
    minutes : int
        What a class needs, with the answer.
    task : str
        What to do and to look at, with a question; to be translated.
    settings : mapping of str to str
        As the address holds them, beside the lesson's picture.
    shows : tuple of str
        Names of the settings and of the parts of the page that are drawn.
    optional : bool
        Whether it needs more than what ships, so that the lesson ends before it.
    """

    page: str
    minutes: int
    task: str
    settings: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Lesson:
    """Ten minutes of steps on one picture; `title` and `about` are to be translated.

    Attributes
    ----------
    picture : str
        The sample that all of its steps begin with.
    """

    title: str
    about: str
    picture: str
    steps: tuple[Step, ...]

    @property
    def required(self) -> tuple[Step, ...]:
        """The steps that every machine can show."""
        return tuple(step for step in self.steps if not step.optional)


LESSONS = (
    Lesson(
        mark("A path from picture to answer"),
        mark("What happens to a picture on its way to the answer?"),
        "red_panda",
        (
            Step(
                "anatomy",
                5,
                mark(
                    "Press *Play* and follow the picture. **How many tokens enter the encoder, and "
                    "how many numbers does each have?**"
                ),
                {"step": "picture", "model": SMALL_MODEL},
                ("picture", "anatomy"),
            ),
            Step(
                "anatomy",
                4,
                mark(
                    "The encoder is open at its first layer, and a patch of the panda's face is "
                    "chosen. Its row of A is framed. Click other patches. **In which of the boxes "
                    "does a token receive something from others?**"
                ),
                {
                    **{"step": "attention", "model": SMALL_MODEL},
                    **{"layer": "1", "head": "4", "query": "3.3"},
                },
                ("picture", "anatomy"),
            ),
        ),
    ),
    Lesson(
        mark("Patches and positions"),
        mark("What does the first layer see in a patch, and does it know where the patch lies?"),
        "triumphal_arch",
        (
            Step(
                "filters",
                3,
                mark(
                    "Component 4 is orange on the left and blue on the right. The map is red where "
                    "a patch looks like it, and blue where it is the opposite. **Which side of the "
                    "arch is red, and why?** Click a patch to see its products."
                ),
                {"filter": "4"},
                ("picture", "filter"),
            ),
            Step(
                "anatomy",
                3,
                mark(
                    "Here the patches are shuffled. First guess: does the answer change? Then "
                    "compare the two answers with E_pos, and those without it. **What does the "
                    "model lose without E_pos?**"
                ),
                {"experiment": "order"},
                ("picture", "experiments", "shuffle"),
            ),
            Step(
                "positions",
                3,
                mark(
                    "Move the pointer over the picture: the map shows which positions have similar "
                    "embeddings. **Are those near each other alike?** Switch to *random* to "
                    "compare."
                ),
                {"query": "5.5"},
            ),
        ),
    ),
    Lesson(
        mark("Who looks where?"),
        mark("From which patches does a token read?"),
        "duck",
        (
            Step(
                "attention",
                3,
                mark(
                    "In the last layer CLS collects what the answer is read from. **Where does it "
                    "look most?** Guess before you see the map."
                ),
                {"predict": "True"},  # the last layer is where the app begins
                ("picture",),
            ),
            Step(
                "attention",
                3,
                mark(
                    "Head 1 of layer 1, and one patch that looks. Click other patches, then other "
                    "heads. **Which head looks the same wherever the query is, and which follows "
                    "it?**"
                ),
                {"layer": "1", "head": "1", "query": "9.5"},
                ("picture",),
            ),
            Step(
                "explain",
                3,
                mark(
                    "Another picture: a cat with a ball of wool, and the model knows cats. Three "
                    "maps show which patches count most. Read the answer above them. **What is it, "
                    "and does a map that lies on the cat explain it?**"
                ),
                {"picture": "cat", "maps": "relevance rollout last"},
                ("picture",),
            ),
        ),
    ),
    Lesson(
        mark("Local or global?"),
        mark("How far do the heads look, and may a patch look at the whole picture?"),
        "dog",
        (
            Step(
                "distance",
                5,
                mark(
                    "**Which layer is the most local?** Guess, then compare with the dots. Click "
                    "the dot of its most local head, then one on the dashed line of equal sharing. "
                    "**How do their maps and histograms differ?**"
                ),
                {"predict": "True"},
                ("picture",),
            ),
            Step(
                "zoo",
                4,
                mark(
                    "The same patch in nine families of models. **In which of them may it attend "
                    "to the whole picture in the first layer, and in which only to a window?**"
                ),
                {},
                ("picture", "family"),
            ),
        ),
    ),
    Lesson(
        mark("What reaches CLS?"),
        mark("Attention through all layers, and what it does not know: the class."),
        "bison",
        (
            Step(
                "rollout",
                4,
                mark(
                    "The map shows what has reached CLS up to layer 1. Move the slider to the last "
                    "layer. **After which layer does the animal emerge?**"
                ),
                {"layer": "1"},
                ("picture", "layer", "rollout"),
            ),
            Step(
                "explain",
                5,
                mark(
                    "Rollout is the same map for every class; the map of a class is not. Ask for "
                    "another class. **What would count as evidence for it?**"
                ),
                {"maps": "relevance rollout"},
                ("picture", "class"),
            ),
        ),
    ),
    Lesson(
        mark("What would change the answer?"),
        mark("Hide blocks, remove the animal: on what does the answer rest?"),
        "goldfish",
        (
            Step(
                "classify",
                4,
                mark(
                    "**Which block of the picture matters most for the answer?** Guess, then hide "
                    "each block in turn."
                ),
                {"predict": "True"},
                ("picture", "blocks"),
            ),
            Step(
                "classify",
                4,
                mark(
                    "The fish is removed. Press *Opposite* to keep the fish alone. **Does the "
                    "answer rest on the animal or on its background?**"
                ),
                {"painted": "2.1-15.15"},
                ("picture", "patches"),
            ),
            Step(
                "classify",
                4,
                mark(
                    "For a model with a text tower, such as a CLIP; no model that comes with "
                    "vitviz has one. Choose it in *Model*, and write three phrases into *Words*, "
                    "such as “a fish”. **Which patches answer to a phrase, and what does another "
                    "template change?**"
                ),
                {},
                ("picture", "model", "word_map", "less", "layer", "head"),
                optional=True,
            ),
        ),
    ),
    Lesson(
        mark("Why so much data?"),
        mark("What a ViT learns from its data, and how many pictures it takes."),
        "dog",
        (
            Step(
                "training",
                4,
                mark(
                    "The model before its training. Move the slider to the end. **What changes "
                    "early, and what was there before the first step: filters, similar neighbours, "
                    "or heads that look near?**"
                ),
                {"moment": "1"},
                ("moment",),
            ),
            Step(
                "training",
                5,
                mark(
                    "Each network was trained on a share of the pictures. **Which of the two needs "
                    "more of them, and does it catch up?** Compare with what the papers report: "
                    "**how many pictures did a ViT need there to overtake a CNN?**"
                ),
                {},
                ("hunger", "papers"),
            ),
        ),
    ),
)


def parse_step(text: str) -> tuple[int, int] | None:
    """Return the numbers of a lesson and its step, from 1, in a text such as "3.2".

    None where there is no such lesson or step.
    """
    numbers = re.fullmatch(r"([1-9])\.([1-9])", text)
    if not numbers:
        return None
    number, step = int(numbers[1]), int(numbers[2])
    if number > len(LESSONS) or step > len(LESSONS[number - 1].steps):
        return None
    return number, step


def settings_of(number: int, step: int = 1) -> dict[str, str]:
    """Return the settings in the address of a step: lesson and step, picture, and its own."""
    lesson = LESSONS[number - 1]
    return {
        "lesson": f"{number}.{step}",
        "picture": lesson.picture,
        **lesson.steps[step - 1].settings,
    }


def lesson_link(number: int, step: int = 1) -> str:
    """Return the address of a step below the server's: "attention?lesson=3.1&picture=..."."""
    return f"{LESSONS[number - 1].steps[step - 1].page}?{urlencode(settings_of(number, step))}"
