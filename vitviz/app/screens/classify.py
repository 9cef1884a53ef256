"""The page Classify: the answer, and experiments that change it."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.screens import classify_answer, classify_heads, classify_words
from vitviz.app.screens.classify_answer import Changes, Found, tables
from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import models, results
from vitviz.app.shared.classroom import Question
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu, experiment, lesson, prediction
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Columns, Data, Table
from vitviz.app.widgets.experiment import REMOVALS, Pending, find_result, run_button, run_pending
from vitviz.app.widgets.figure import show
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

# Predict first on the page Classify: which block of the picture matters most for a class.


def occlusion_key(index: int, block: int, removal: "Removal") -> tuple[str, int, int, "Removal"]:
    """Return what the effect of hiding each block depends on, beside the model and the picture."""
    return "occlusion", index, block, removal


def hides_answer(view: View, index: int, block: int, removal: "Removal") -> bool:
    """Return whether the effect of hiding the blocks is not to be seen yet."""
    question = _question(view, index, block, removal)
    return prediction.is_on() and prediction.current_guess(question) is None


def ask_for_answer(view: View, index: int, name: str, block: int, removal: "Removal") -> None:
    """Ask for the block; `name` is that of the class."""
    grid, crop = _blocks(view, block)
    prediction.ask_patch(
        view,
        _question(view, index, block, removal),
        text.ask_which_block(name),
        grid=grid,
        crop=crop,
        draw=partial(prediction.counts_figure, view, grid, crop),
    )


def show_guess(
    view: View, index: int, name: str, block: int, removal: "Removal", found: np.ndarray | None
) -> "Crop | None":
    """Say how near the guess was, once the effect is `found`; returns the box of its block."""
    if not prediction.is_on():
        return None
    guess = prediction.current_guess(_question(view, index, block, removal))
    if guess is None:
        return None
    grid, crop = _blocks(view, block)
    words = partial(text.describe_pending_block, cols=grid[1])
    if found is not None:
        words = partial(text.describe_block, found[::block, ::block], name=name)
    prediction.draw_verdict(guess, words)
    prediction.draw_class_guesses(
        guess.question, partial(prediction.counts_figure, view, grid, crop)
    )
    return None if guess.answer is None else _box(view, grid, crop, guess.answer)


def _question(view: View, index: int, block: int, removal: "Removal") -> Question:
    return Question("classify", view.key, (index, block, removal))


def _blocks(view: View, block: int) -> "tuple[tuple[int, int], Crop]":
    """Return the grid of the blocks, and its box in pixels of the picture.

    The last ones reach beyond the patches where the grid is no multiple of the side.
    """
    (rows, cols), (left, top, right, bottom) = view.model.layers[0].query_grid, view.acts.crop
    down, across = -(-rows // block), -(-cols // block)
    right = left + (right - left) * across * block / cols
    bottom = top + (bottom - top) * down * block / rows
    return (down, across), (left, top, right, bottom)


def _box(view: View, grid: tuple[int, int], crop: "Crop", number: int) -> "Crop":
    """Return the box of a block, as far as there are patches."""
    (row, col), (left, top, right, bottom) = divmod(number, grid[1]), crop
    width, height = (right - left) / grid[1], (bottom - top) / grid[0]
    x, y = left + col * width, top + row * height
    return x, y, min(x + width, view.acts.crop[2]), min(y + height, view.acts.crop[3])


BRUSHES = {"drag": mark("drag over patches"), "click": mark("click on patches")}
BLOCKS = (2, 4)
BLOCKS_ALONG = 7  # a side, where blocks have no setting


def page(view: View) -> Data | None:
    acts = view.acts
    if acts.probabilities is None:
        st.info(models.explain_no_classes(view.model))
        return None if acts.scores is None else _values(acts)
    labels = class_menu.names(acts)
    if not acts.all_to_all:
        return _of_other_families(view, labels)
    painted = _cells_setting("painted", acts.grid)
    muted = _cells_setting("muted", (acts.depth, acts.layers[0].num_heads))
    removal = experiment.choose_removal(view)
    block = setting("block", BLOCKS, 4)
    index = class_menu.chosen_index(acts)
    class_menu.draw_menu(acts, "bar")
    drag = choose("brush", tr("Choose patches by"), BRUSHES, "drag", "settings") == "drag"
    experiment.removal_control(view)
    control("block", tr("Side of a block, patches"), BLOCKS, "settings")

    columns, pending = _columns(), []
    instead = classify_heads.replacement()
    values = classify_heads.values_of(view, instead) if muted.any() else {}
    edits = _edits(painted, muted, removal, values)
    with columns["answer"]:
        st.subheader(tr("The answer"), anchor=False)
        lens, done = classify_answer.draw_answer(view, edits, labels, acts.probabilities)
    if "patches" in columns:
        with columns["patches"]:
            pending.append(
                _patches(view, edits, painted, removal, drag, (index, labels[index], block))
            )
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
            _lens(lens, acts, changed=bool(done))
    if "parts" in columns:
        with columns["parts"]:
            pending.append(classify_heads.draw_parts(view, instead, index, labels[index]))
    run_pending(*pending)
    changes = Changes(painted, muted, tr(REMOVALS[removal]), done=bool(done))
    hidden = hides_answer(view, index, block, removal)
    found = Found(
        lens,
        find_result(view, "head effects", instead),
        None if hidden else find_result(view, *occlusion_key(index, block, removal)),
        find_result(view, "logit parts", index),
    )
    return Data(lambda: tables(view, changes, found, index) + more)


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
            "Each experiment below starts from the unedited picture and all heads. Patches "
            "are removed as chosen above: {removal}.",
            removal=tr(REMOVALS[removal]),
        )
    )


def _lens(lens: np.ndarray, acts: "Activations", *, changed: bool) -> None:
    after = tr(" after your changes") if changed else ""
    st.subheader(tr("Logit lens{changed}", changed=after), anchor=False)
    full = full_names(acts.output_names)
    show(plots.logit_lens(lens, class_menu.names(acts), full_names=full))
    st.markdown(
        tr(
            "The head was trained on the last layer only. A low probability after an "
            "early layer does not mean that the layer lacks the information: the head may "
            "not be able to read it there."
        )
    )


def _of_other_families(view: View, labels: tuple[str, ...]) -> Data:
    """Draw the page for models whose layers have different tokens: the answer and occlusion."""
    probabilities, index = view.acts.probabilities, class_menu.chosen_index(view.acts)
    assert probabilities is not None
    answer, blocks = places().stage.columns(2)
    with answer:
        st.subheader(tr("The answer"), anchor=False)
        full = full_names(view.acts.output_names)
        show(plots.class_probabilities(probabilities, labels, full_names=full))
        classify_answer.tell_worth(view, probabilities, labels)
    with blocks:
        st.subheader(tr("Hide each block in turn"), anchor=False)
        class_menu.draw_menu(view.acts)
        block = max(1, view.model.layers[0].query_grid[0] // BLOCKS_ALONG)
        pending = _occlusion(view, index, labels[index], block, "mean")
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
    mask = experiment.read_cells(
        text_setting(name, lambda text: experiment.read_cells(text, shape) is not None), shape
    )
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
    view: View,
    edits: "list[Edit]",
    painted: np.ndarray,
    removal: "Removal",
    drag: bool,
    of_block: tuple[int, str, int],
) -> Pending | None:
    """Draw the picture as the model gets it; over the unchanged one, what hiding each block costs.

    `of_block` has the number and the name of the class, and the side of a block.
    """
    from vitviz.activations import edited_input

    index, name, block = of_block
    title = tr("Patches: remove some") if lesson.shows("patches") else tr("Hide each block in turn")
    st.subheader(title, anchor=False)
    if hides_answer(view, index, block, removal):
        ask_for_answer(view, index, name, block, removal)
        return None
    effect = None if edits else find_result(view, *occlusion_key(index, block, removal))
    guess = show_guess(view, index, name, block, removal, effect)
    figure = plots.removed_patches(
        edited_input(view.model, view.picture.image, edits),
        crop=view.acts.crop,
        mask=painted,
        removal=tr(REMOVALS[removal]),
        drag=drag,
        effect=effect,
        block=block,
    )
    experiment.choose_cells(
        figure if guess is None else plots.with_guess(figure, guess), "painted", painted
    )
    pending = None
    if effect is not None:
        st.markdown(
            tr_md(
                "Percentage points that the probability of **{name}** loses without the block.",
                name=name,
            )
        )
    elif not edits:
        pending = _run_occlusion(view, index, block, removal)
    if lesson.shows("patches"):
        experiment.edit_buttons(
            "painted", painted, tr("Patches as row.column, blocks as 1.1-2.4, spaces between")
        )
    return pending


def _occlusion(view: View, index: int, name: str, block: int, removal: "Removal") -> Pending | None:
    """Draw what hiding each block costs, as a figure of its own."""
    found = find_result(view, *occlusion_key(index, block, removal))
    if hides_answer(view, index, block, removal):
        ask_for_answer(view, index, name, block, removal)
        return None
    guess = show_guess(view, index, name, block, removal, found)
    if found is not None:
        rows, cols = view.model.layers[0].query_grid
        few = -(-rows // block) * -(-cols // block) <= MOST_NUMBERS
        figure = plots.occlusion(
            found,
            results.photo(view),
            crop=view.acts.crop,
            name=name,
            block=block if few else None,
        )
        show(figure if guess is None else plots.with_guess(figure, guess))
        return None
    st.markdown(
        tr_md("How much less probable is **{name}** without each block of the picture?", name=name)
    )
    return _run_occlusion(view, index, block, removal)


def _run_occlusion(view: View, index: int, block: int, removal: "Removal") -> Pending | None:
    """Draw the button that hides each block in turn."""
    from vitviz import intervention

    rows, cols = view.model.layers[0].query_grid
    passes = 1 + -(-rows // block) * -(-cols // block)

    def make(progress: "Progress") -> np.ndarray:
        return intervention.occlusion(
            view.model,
            view.picture.image,
            target=index,
            block=block,
            removal=removal,
            progress=progress,
        )

    called = occlusion_key(index, block, removal)
    return run_button(view, tr("Hide blocks ({passes} passes)", passes=passes), called, make)
