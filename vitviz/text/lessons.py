"""Seven lessons of ten minutes: a short list of steps, each a view, what to do, and a question.

A view is a page and its settings, as a link holds them. Each was chosen because it shows the thing
with the model that opens first, on a sample picture.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from ..language import mark


@dataclass(frozen=True)
class Step:
    """One view of a lesson.

    Attributes
    ----------
    page : str
    task : str
        What to do and to look at, with a question; to be translated.
    settings : mapping of str to str
        As the address holds them, beside the lesson's picture.
    shows : tuple of str
        The settings whose controls are drawn, and the parts of the page that are.
    """

    page: str
    task: str
    settings: Mapping[str, str] = field(default_factory=dict)
    shows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lesson:
    """What is done in ten minutes; `title` and `about` are to be translated.

    Attributes
    ----------
    picture : str
        The sample that all of its steps begin with.
    """

    title: str
    about: str
    picture: str
    steps: tuple[Step, ...]


LESSONS = (
    Lesson(
        mark("A path from picture to answer"),
        mark("What happens to a picture on its way to the answer, and where is it decided?"),
        "red_panda",
        (
            Step(
                "anatomy",
                mark(
                    "Press *Play* and follow the picture. **How many tokens enter the encoder, and "
                    "how many numbers does each have?**"
                ),
                {"step": "picture"},
                ("picture", "anatomy"),
            ),
            Step(
                "anatomy",
                mark(
                    "The encoder is open at its first layer, and the panda's eye is chosen. Click "
                    "other patches. **In which of the boxes does a token receive something from "
                    "others?**"
                ),
                {"step": "attention", "layer": "1", "head": "1", "query": "9.9"},
                ("picture", "anatomy"),
            ),
            Step(
                "classify",
                mark(
                    "The classification head reads the CLS token after every layer, though it was "
                    "trained on the last one alone. **After which layer would it first give the "
                    "final answer?**"
                ),
                {},
                ("picture", "lens"),
            ),
        ),
    ),
    Lesson(
        mark("Patches and positions"),
        mark("Does the model know where its patches lie, and how?"),
        "triumphal_arch",
        (
            Step(
                "anatomy",
                mark(
                    "The picture is cut into patches, and each becomes one token. **If the patches "
                    "came in another order, would the answer be another one?** Guess, then go on."
                ),
                {"step": "patches"},
                ("picture", "anatomy"),
            ),
            Step(
                "anatomy",
                mark(
                    "Here the patches are shuffled. Compare the two answers with E_pos, then those "
                    "without it. **What does the model lose without E_pos?**"
                ),
                {"experiment": "order"},
                ("picture", "experiments", "shuffle"),
            ),
            Step(
                "positions",
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
        mark("From which patches does a token read, and which tokens read from a patch?"),
        "duck",
        (
            Step(
                "attention",
                mark(
                    "In the last layer CLS collects what the answer is read from. **Where does it "
                    "look most?** Guess before you see the map."
                ),
                {"predict": "True"},  # the last layer is where the app begins
                ("picture",),
            ),
            Step(
                "attention",
                mark(
                    "Head 1 of layer 1, and one patch that looks. Click other patches, then other "
                    "heads. **Which head looks the same wherever the query is, and which follows "
                    "it?**"
                ),
                {"layer": "1", "head": "1", "query": "9.5"},
                ("picture",),
            ),
            Step(
                "attention",
                mark(
                    "Now a column of A: the map shows who looks **at** the beak of the duck. **Is "
                    "it the map that you get when the beak itself looks?** Switch between row and "
                    "column."
                ),
                {"layer": "5", "query": "6.12", "read": "column", "leave_out": "on"},
                ("picture", "read"),
            ),
        ),
    ),
    Lesson(
        mark("Local or global?"),
        mark("How far do the heads look, and does it change from layer to layer?"),
        "dog",
        (
            Step(
                "distance",
                mark("**Which layer is the most local?** Guess, then compare with the dots."),
                {"predict": "True"},
                ("picture",),
            ),
            Step(
                "distance",
                mark(
                    "The chosen head is among the most local. Click a dot on the dashed line of "
                    "equal sharing. **How do the histograms and the maps of the two differ?**"
                ),
                {"layer": "1", "head": "1"},
                ("picture",),
            ),
            Step(
                "distance",
                mark(
                    "The same over all sample pictures, with their spread. **Is being local a "
                    "matter of the head or of the picture?**"
                ),
                {"layer": "1", "head": "1", "over": "samples"},
                ("over",),
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
                mark(
                    "The map shows what has reached CLS up to layer 1. Move the slider to the last "
                    "layer. **After which layer does the animal emerge?**"
                ),
                {"layer": "1"},
                ("picture", "rollout"),
            ),
            Step(
                "rollout",
                mark(
                    "The heads of a layer are fused into one map. Change *mean* to *max* and "
                    "*min*, then the weight of the residual. **Which choice changes the map "
                    "most?**"
                ),
                {},
                ("picture", "rollout", "fusion", "residual"),
            ),
            Step(
                "rollout",
                mark(
                    "Rollout is the same map for every class; this one is not. Ask for another "
                    "class. **What would count as evidence for it?**"
                ),
                {},
                ("picture", "of_class", "class"),
            ),
        ),
    ),
    Lesson(
        mark("What would change the answer?"),
        mark("Hide blocks, remove the animal, mute heads: on what does the answer rest?"),
        "goldfish",
        (
            Step(
                "classify",
                mark(
                    "**Which block of the picture matters most for the answer?** Guess, then hide "
                    "each block in turn."
                ),
                {"predict": "True"},
                ("picture", "blocks"),
            ),
            Step(
                "classify",
                mark(
                    "The fish is removed. Press *Opposite* to keep the fish alone. **Does the "
                    "answer rest on the animal or on its background?**"
                ),
                {"painted": "2.1-15.15"},
                ("picture", "patches"),
            ),
            Step(
                "classify",
                mark(
                    "Mute each head alone. **Is there one head on which the answer depends?** Then "
                    "click the darkest blue squares, which mutes those heads, and see what the "
                    "answer becomes."
                ),
                {},
                ("picture", "heads"),
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
                mark(
                    "The model before its training. Move the slider to the end. **What changes "
                    "early, and what was there before the first step: filters, similar "
                    "neighbours, or heads that look near?**"
                ),
                {"moment": "1"},
                ("moment",),
            ),
            Step(
                "training",
                mark(
                    "Each network was trained on a share of the pictures. **Which of the two needs "
                    "more of them, and does it catch up?**"
                ),
                {},
                ("hunger",),
            ),
            Step(
                "training",
                mark(
                    "Compare with what the papers report. **How many pictures did a ViT need there "
                    "to overtake a CNN, and how can it do with fewer?**"
                ),
                {},
                ("hunger", "papers"),
            ),
        ),
    ),
)


def named(text: str) -> tuple[int, int] | None:
    """The numbers of a lesson and its step, from 1, in a text such as "3.2", or "3" for its first.

    None where there is no such lesson or step.
    """
    found = re.fullmatch(r"([1-9])(?:\.([1-9]))?", text)
    if not found:
        return None
    number, step = int(found[1]), int(found[2] or 1)
    if number > len(LESSONS) or step > len(LESSONS[number - 1].steps):
        return None
    return number, step


def settings_of(number: int, step: int = 1) -> dict[str, str]:
    """All that the address of a step holds: its lesson and step, picture and settings."""
    lesson = LESSONS[number - 1]
    return {
        "lesson": f"{number}.{step}",
        "picture": lesson.picture,
        **lesson.steps[step - 1].settings,
    }


def link(number: int, step: int = 1) -> str:
    """The address of a step behind that of the server: "attention?lesson=3.1&picture=..."."""
    return f"{LESSONS[number - 1].steps[step - 1].page}?{urlencode(settings_of(number, step))}"
