"""The page Classify: the answer, and experiments that change it."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app import settings
from vitviz.app.cells import block_sides, read_cells
from vitviz.app.screens import classify_answer, classify_heads, classify_words
from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import models, results
from vitviz.app.shared.classroom import PredictionQuestion
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu, experiment, lesson, prediction
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Columns, Data, Table
from vitviz.app.widgets.experiment import REMOVALS, Pending, find_result, run_button, run_pending
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import places
from vitviz.common.language import Message, literal, mark, tr, tr_md
from vitviz.plots.clicked import MOST_NUMBERS
from vitviz.text import guesses as text
from vitviz.text.class_names import full_names

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from vitviz import Activations
    from vitviz.activations import Edit
    from vitviz.common.images import Crop
    from vitviz.intervention import Progress, Removal


@dataclass(frozen=True, eq=False)
class Blocks:
    """The experiment that hides each block of patches in turn; the block can be guessed first.

    Attributes
    ----------
    index : of the class whose probability is watched
    side : of a block, in patches
    removal : what the patches of a hidden block become
    """

    view: View
    index: int
    side: int
    removal: "Removal"

    @property
    def name(self) -> str:
        """The name of the class."""
        return class_menu.names(self.view.acts)[self.index]

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What the result depends on, beside the model and the picture."""
        return "occlusion", self.index, self.side, self.removal

    @property
    def question(self) -> PredictionQuestion:
        return PredictionQuestion("classify", self.view.key, self.key)

    @property
    def grid(self) -> tuple[int, int]:
        """How many blocks lie down and across."""
        rows, cols = self.view.model.layers[0].query_grid
        return -(-rows // self.side), -(-cols // self.side)

    @property
    def crop(self) -> "Crop":
        """Where they lie in the picture; the last ones may reach beyond the patches."""
        left, top, right, bottom = self.view.acts.crop
        (rows, cols), (down, across) = self.view.model.layers[0].query_grid, self.grid
        right = left + (right - left) * across * self.side / cols
        return left, top, right, top + (bottom - top) * down * self.side / rows

    @property
    def effect(self) -> np.ndarray | None:
        """By how much the probability falls without the block of each patch, where it was tried."""
        effect: np.ndarray | None = find_result(self.view, *self.key)
        return effect

    @property
    def is_hidden(self) -> bool:
        """Whether the effect is not to be seen yet, as the block is guessed first."""
        return prediction.is_on() and prediction.current_guess(self.question) is None

    @property
    def draw_guesses(self) -> prediction.Draw:
        return partial(prediction.counts_figure, self.view, self.grid, self.crop)

    def ask(self) -> None:
        """Ask for the block."""
        prediction.ask_patch(
            self.view,
            self.question,
            text.ask_which_block(self.name),
            grid=self.grid,
            crop=self.crop,
            draw=self.draw_guesses,
        )

    def show_guess(self, effect: np.ndarray | None) -> "Crop | None":
        """Say how near the guess was, once there is an effect; return the box of its block."""
        if not prediction.is_on():
            return None
        guess = prediction.current_guess(self.question)
        assert guess is not None  # else it is asked for
        words = partial(text.describe_pending_block, cols=self.grid[1])
        if effect is not None:
            by_block = effect[:: self.side, :: self.side]
            words = partial(text.describe_block, by_block, name=self.name)
        prediction.draw_verdict(guess, words)
        prediction.draw_class_guesses(guess.question, self.draw_guesses)
        return None if guess.answer is None else self._box(guess.answer)

    def _box(self, number: int) -> "Crop":
        """Return the box of a block, as far as there are patches."""
        (row, col), (left, top, right, bottom) = divmod(number, self.grid[1]), self.crop
        width, height = (right - left) / self.grid[1], (bottom - top) / self.grid[0]
        x, y = left + col * width, top + row * height
        _, _, right, bottom = self.view.acts.crop
        return x, y, min(x + width, right), min(y + height, bottom)

    def run_button(self) -> Pending | None:
        """Draw the button that hides each block in turn."""
        from vitviz import intervention

        def make(progress: "Progress") -> np.ndarray:
            return intervention.occlusion(
                self.view.model,
                self.view.picture.image,
                target=self.index,
                block=self.side,
                removal=self.removal,
                progress=progress,
            )

        label = tr("Hide blocks ({passes} passes)", passes=1 + math.prod(self.grid))
        return run_button(self.view, label, self.key, make)


BRUSHES = {"drag": mark("drag over patches"), "click": mark("click on patches")}
BLOCKS_ALONG = 7  # a side, where blocks have no setting


def page(view: View) -> Data | None:
    from vitviz import ModelError

    acts = view.acts
    if acts.probabilities is None:
        st.info(models.explain_no_classes(view.model))
        return None if acts.scores is None else _values(acts)
    labels = class_menu.names(acts)
    if not acts.all_to_all:
        return _of_other_families(view)
    painted = _cells_setting("painted", acts.grid)
    muted = _cells_setting("muted", (acts.depth, acts.layers[0].num_heads))
    removal = experiment.choose_removal(view)
    index = class_menu.chosen_index(acts)
    sides = block_sides(acts.grid)
    settings.follow_default("block", str(sides[-1]))
    blocks = Blocks(view, index, setting("block", sides, sides[-1]), removal)
    class_menu.draw_class_menu(acts, "bar")
    drag = choose("brush", tr("Choose patches by"), BRUSHES, "drag", "settings") == "drag"
    experiment.removal_control(view)
    control("block", tr("Side of a block, patches"), sides, "settings")

    columns, pending = _columns(), []
    instead = classify_heads.replacement()
    values: classify_heads.Values = {}
    if muted.any():
        try:
            values = classify_heads.values_of(view, instead)
        except ModelError as error:
            st.error(tr_md(error))
            muted = np.zeros_like(muted)
    edits = _edits(painted, muted, removal, values)
    with columns["answer"]:
        st.subheader(tr("The answer"), anchor=False)
        lens, is_changed = classify_answer.draw_answer(view, edits)
    if "patches" in columns:
        with columns["patches"]:
            pending.append(_patches(blocks, edits, painted, drag))
    if "heads" in columns:
        with columns["heads"]:
            st.subheader(tr("Heads: click to mute"), anchor=False)
            pending.append(classify_heads.draw_heads(view, muted, instead, index, labels))
    more = []
    if view.model.words is not None and lesson.shows("word_map"):
        more = classify_words.draw_words(view, index)
    elif lesson.current_step() is not None and lesson.shows("word_map"):
        st.markdown(
            tr_md(
                "{model} has no text tower, so it takes no words. Choose a model that has one: "
                "the field *Words* then stands beneath it. If the menu has none, this step is left "
                "out.",
                model=view.model.name,
            )
        )
    if lesson.current_step() is None:
        _experiment_heading(removal)
        columns["lens"], columns["parts"] = st.columns(2)
    if "lens" in columns:
        with columns["lens"]:
            _lens(lens, acts, changed=is_changed)
    if "parts" in columns:
        with columns["parts"]:
            pending.append(classify_heads.draw_parts(view, instead, index, labels[index]))
    run_pending(*pending)
    changes = tr("nothing is changed")
    if is_changed:
        changes = classify_answer.describe_changes(painted, muted, removal)
    outcomes = {
        "effects": find_result(view, "head effects", instead),
        "occlusion": None if blocks.is_hidden else blocks.effect,
        "parts": find_result(view, "logit parts", index),
    }
    return Data(
        lambda: [
            *classify_answer.tables(view, index, changes, removal, lens, **outcomes),
            *more,
        ]
    )


def _values(acts: "Activations") -> Data:
    """Draw the values of a model that names no classes."""
    assert acts.scores is not None
    columns: Columns = {Message("output"): acts.output_names, Message("value"): acts.scores}
    st.subheader(tr("The answer"), anchor=False)
    st.markdown(f"**{literal(class_menu.value_words(acts))}**")
    return Data(lambda: [Table(tr("The values that the model gives; unit unknown."), columns)])


def _columns() -> "dict[str, DeltaGenerator]":
    """Make the columns at the top; in a lesson those that its step shows, and the answer."""
    if lesson.current_step() is None:
        columns = places().stage.columns([12, 10, 9])
        return dict(zip(("patches", "answer", "heads"), columns, strict=True))
    names = [*filter(lesson.shows, ("patches", "heads", "lens")), "answer"]
    if lesson.shows("blocks"):
        names.insert(0, "patches")
    return dict(zip(names, places().stage.columns(len(names)), strict=True))


def _experiment_heading(removal: "Removal") -> None:
    st.subheader(tr("Experiments that change one thing at a time"), anchor=False)
    st.markdown(
        tr(
            "*Hide blocks*, *Mute each alone* and *Split the logit* start from the unedited "
            "picture and all heads. Blocks are hidden as chosen above: {removal}.",
            removal=tr(REMOVALS[removal]),
        )
    )


def _lens(lens: np.ndarray, acts: "Activations", *, changed: bool) -> None:
    after = tr(" after your changes") if changed else ""
    st.subheader(tr("Logit lens{changed}", changed=after), anchor=False)
    full = full_names(acts.output_names)
    show_figure(plots.logit_lens(lens, class_menu.names(acts), full_names=full))
    st.markdown(
        tr(
            "The head was trained on the last layer only. A low probability after an "
            "early layer does not mean that the layer lacks the information: the head may "
            "not be able to read it there."
        )
    )


def _of_other_families(view: View) -> Data:
    """Draw the page for models whose layers have different tokens: the answer and occlusion."""
    probabilities, index = view.acts.probabilities, class_menu.chosen_index(view.acts)
    assert probabilities is not None
    side = max(1, view.model.layers[0].query_grid[0] // BLOCKS_ALONG)
    answer, hiding = places().stage.columns(2)
    with answer:
        st.subheader(tr("The answer"), anchor=False)
        show_figure(class_menu.answer_figure(view.acts))
        classify_answer.tell_worth(view, probabilities)
    with hiding:
        st.subheader(tr("Hide each block in turn"), anchor=False)
        class_menu.draw_class_menu(view.acts)
        pending = _occlusion(Blocks(view, index, side, "mean"))
        st.markdown(
            tr(
                "To mute heads, remove patches or read the answer layer by layer, choose a "
                "model in which every patch attends to every patch in each layer, such as "
                "{model}.",
                model=models.shipped_name(),
            )
        )
    more = [] if view.model.words is None else classify_words.draw_words(view, index)
    run_pending(pending)
    table = Table(
        tr("What the model answers."),
        {**class_menu.columns(view.acts), Message("probability, %"): 100 * probabilities},
    )
    return Data(lambda: [table, *more])


def _cells_setting(name: str, shape: tuple[int, int]) -> np.ndarray:
    text = text_setting(name, lambda text: read_cells(text, shape) is not None)
    mask = read_cells(text, shape)
    assert mask is not None  # `text_setting` has replaced a text that does not fit
    return mask


def _edits(
    painted: np.ndarray, muted: np.ndarray, removal: "Removal", values: classify_heads.Values
) -> "list[Edit]":
    from vitviz.activations import DropPatches, FillPatches, MuteHeads

    edits: list[Edit] = []
    if painted.any():
        edits.append(DropPatches(painted) if removal == "drop" else FillPatches(painted, removal))
    if muted.any():
        heads = [(int(layer), int(head)) for layer, head in np.argwhere(muted)]
        edits.append(MuteHeads(heads, {head: values[head] for head in heads if head in values}))
    return edits


def _patches(
    blocks: Blocks, edits: "list[Edit]", painted: np.ndarray, drag: bool
) -> Pending | None:
    """Draw the picture as the model gets it; unchanged, with what hiding each block costs."""
    from vitviz.activations import edited_input

    title = tr("Patches: remove some") if lesson.shows("patches") else tr("Hide each block in turn")
    st.subheader(title, anchor=False)
    if blocks.is_hidden:
        blocks.ask()
        return None
    effect = None if edits else blocks.effect
    guess = blocks.show_guess(effect)
    figure = plots.removed_patches(
        edited_input(blocks.view.model, blocks.view.picture.image, edits),
        crop=blocks.view.acts.crop,
        mask=painted,
        removal=tr(REMOVALS[blocks.removal]),
        drag=drag,
        effect=effect,
        block=blocks.side,
    )
    experiment.choose_cells(
        figure if guess is None else plots.with_guess(figure, guess), "painted", painted
    )
    pending = None
    if effect is not None:
        st.markdown(
            tr_md(
                "Percentage points that the probability of **{name}** loses without the block.",
                name=blocks.name,
            )
        )
    elif not edits:
        pending = blocks.run_button()
    if lesson.shows("patches"):
        experiment.edit_buttons(
            "painted", painted, tr("Patches as row.column, blocks as 1.1-2.4, spaces between")
        )
    return pending


def _occlusion(blocks: Blocks) -> Pending | None:
    """Draw what hiding each block costs, as a figure of its own."""
    if blocks.is_hidden:
        blocks.ask()
        return None
    effect = blocks.effect
    guess = blocks.show_guess(effect)
    if effect is None:
        st.markdown(
            tr_md(
                "How much less probable is **{name}** without each block of the picture?",
                name=blocks.name,
            )
        )
        return blocks.run_button()
    figure = plots.occlusion(
        effect,
        results.reduced_photo(blocks.view),
        crop=blocks.view.acts.crop,
        name=blocks.name,
        block=blocks.side if math.prod(blocks.grid) <= MOST_NUMBERS else None,
    )
    show_figure(figure if guess is None else plots.with_guess(figure, guess))
    return None
