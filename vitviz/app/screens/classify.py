"""The page Classify: the answer, and experiments that change it."""

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.screens import classify_answer, classify_guess, classify_heads
from vitviz.app.screens.classify_tables import Changes, Found, tables
from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import lessons, models, results
from vitviz.app.shared.view import View, read_at
from vitviz.app.widgets import cell_sets, class_menu
from vitviz.app.widgets.data_table import Data, Table
from vitviz.app.widgets.experiment import Pending, found_of, on_demand
from vitviz.app.widgets.figure import show
from vitviz.language import Message, mark, tr

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from vitviz import Activations
    from vitviz.activations import Edit
    from vitviz.intervention import Curve, Progress, Removal

REMOVALS: "dict[Removal, str]" = {
    "drop": mark("tokens dropped"),
    "mean": mark("mean colour"),
    "blur": mark("blur"),
}
BRUSHES = {"drag": mark("drag over patches"), "click": mark("click on patches")}
BLOCKS = (2, 4)
BLOCKS_ALONG = 7  # a side, where blocks have no setting
STEPS = 10  # of a curve


def page(view: View) -> Data | None:
    acts = view.acts
    if acts.probabilities is None:
        st.info(models.why_no_classes(view.model))
        return None
    labels = class_menu.names(acts)
    if not acts.all_to_all:
        return _of_other_families(view, labels)
    painted = _cells_setting("painted", acts.grid)
    muted = _cells_setting("muted", (acts.depth, acts.layers[0].num_heads))
    # Paint is itself something to see; but where attention knows positions no token can go.
    usual: Removal = "mean" if view.model.positional_attention else "drop"
    removal = setting("fill", list(REMOVALS), usual)
    block = setting("block", BLOCKS, 4)
    index = class_menu.chosen(acts)

    places, pending = _places(), []
    instead = classify_heads.chosen()
    values = classify_heads.values_of(view, instead) if muted.any() else {}
    edits = _edits(painted, muted, removal, values)
    with places["answer"]:
        st.subheader(tr("The answer"), anchor=False)
        lens, done = classify_answer.draw(view, edits, labels, acts.probabilities)
    if "patches" in places:
        with places["patches"]:
            _patches(view, edits, painted, removal)
    if "heads" in places:
        with places["heads"]:
            st.subheader(tr("Heads: click to mute"), anchor=False)
            pending.append(classify_heads.draw(view, muted, instead, index, labels))
    if lessons.step() is None:
        _experiment_controls(acts, removal)
        places["lens"], places["blocks"] = st.columns(2)
    if "lens" in places:
        with places["lens"]:
            _lens(lens, labels, changed=bool(done))
    if "blocks" in places:
        with places["blocks"]:
            st.subheader(tr("Hide each block in turn"), anchor=False)
            pending.append(_occlusion(view, index, labels[index], block, removal))
    if lessons.shows("curves"):
        st.subheader(tr("Deletion and insertion curves"), anchor=False)
        pending.append(_curves(view, index, labels[index], removal))
    for wanted in pending:
        if wanted is not None:
            place, make = wanted
            with place:
                make()
            st.rerun()  # the results are cached now, and are drawn in the next run
    changes = Changes(painted, muted, tr(REMOVALS[removal]), done=bool(done))
    hidden = classify_guess.hides(view, index, block, removal)
    found = Found(
        lens,
        found_of(view, "head effects", instead),
        None if hidden else found_of(view, "occlusion", index, block, removal),
        found_of(view, "curves", index, removal),
    )
    return Data(lambda: tables(view, changes, found, index))


def _places() -> "dict[str, DeltaGenerator]":
    """The columns at the top of the page; in a lesson of what its step shows, and the answer."""
    if lessons.step() is None:
        return dict(zip(("patches", "heads", "answer"), st.columns([10, 9, 11]), strict=True))
    names = [*filter(lessons.shows, ("patches", "heads", "lens", "blocks")), "answer"]
    return dict(zip(names, st.columns(len(names)), strict=True))


def _experiment_controls(acts: "Activations", removal: "Removal") -> None:
    st.subheader(tr("Experiments that change one thing at a time"), anchor=False)
    of_class, of_block, said = st.columns([3, 2, 6], vertical_alignment="bottom")
    with of_class:
        class_menu.menu(acts)
    of_block.segmented_control(
        tr("Side of a block, patches"), BLOCKS, key="block", width="stretch", required=True
    )
    said.markdown(
        tr(
            "Each experiment below starts from the unedited picture and all heads. Patches "
            "are removed as chosen above: {removal}.",
            removal=tr(REMOVALS[removal]),
        )
    )


def _lens(lens: np.ndarray, labels: tuple[str, ...], *, changed: bool) -> None:
    after = tr(" after your changes") if changed else ""
    st.subheader(tr("Logit lens{changed}", changed=after), anchor=False)
    show(plots.logit_lens(lens, labels))
    st.markdown(
        tr(
            "The head was trained on the last layer only. A low probability after an "
            "early layer does not mean that the layer lacks the information: the head may "
            "not be able to read it there."
        )
    )


def _of_other_families(view: View, labels: tuple[str, ...]) -> Data:
    """The page for models whose layers have different tokens: the answer and occlusion."""
    probabilities, index = view.acts.probabilities, class_menu.chosen(view.acts)
    assert probabilities is not None
    answer, blocks = st.columns(2)
    with answer:
        st.subheader(tr("The answer"), anchor=False)
        show(plots.class_probabilities(probabilities, labels))
        classify_answer.tell_worth(view, probabilities, labels)
    with blocks:
        st.subheader(tr("Hide each block in turn"), anchor=False)
        class_menu.menu(view.acts)
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
    if pending is not None:
        place, make = pending
        with place:
            make()
        st.rerun()
    table = Table(
        tr("What the model answers."),
        {Message("class"): labels, Message("probability, %"): 100 * probabilities},
    )
    return Data(lambda: [table])


def _cells_setting(name: str, shape: tuple[int, int]) -> np.ndarray:
    mask = cell_sets.read(
        text_setting(name, lambda text: cell_sets.read(text, shape) is not None), shape
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


def _patches(view: View, edits: "list[Edit]", painted: np.ndarray, removal: "Removal") -> None:
    from vitviz.activations import edited_input

    st.subheader(tr("Patches: remove some"), anchor=False)
    brush = setting("brush", list(BRUSHES), "drag")
    pixels = edited_input(view.model, view.picture.image, edits)
    figure = plots.removed_patches(
        pixels,
        crop=view.acts.crop,
        mask=painted,
        removal=tr(REMOVALS[removal]),
        drag=brush == "drag",
    )
    cell_sets.choose(figure, "painted", painted)
    if lessons.shows("brush"):
        st.segmented_control(
            tr("Choose patches by"),
            list(BRUSHES),
            key="brush",
            format_func=lambda name: tr(BRUSHES[name]),
            width="stretch",
            required=True,
            label_visibility="collapsed",
        )
    if lessons.shows("fill"):
        st.segmented_control(
            tr("Removed patches become"),
            list(REMOVALS),
            key="fill",
            format_func=lambda name: tr(REMOVALS[name]),
            width="stretch",
            required=True,
            label_visibility="collapsed",
        )
    cell_sets.buttons(
        "painted", painted, tr("Patches as row.column, blocks as 1.1-2.4, spaces between")
    )


def _occlusion(view: View, index: int, name: str, block: int, removal: "Removal") -> Pending | None:
    from vitviz import intervention

    called = ("occlusion", index, block, removal)
    found = found_of(view, *called)
    if classify_guess.hides(view, index, block, removal):
        classify_guess.ask(view, index, name, block, removal)
        return None
    guess = classify_guess.tell(view, index, name, block, removal, found)
    if found is not None:
        figure = plots.occlusion(found, results.photo(view), crop=view.acts.crop, name=name)
        show(figure if guess is None else plots.with_guess(figure, guess))
        return None
    rows, cols = view.model.layers[0].query_grid
    passes = 1 + -(-rows // block) * -(-cols // block)
    st.markdown(
        tr("How much less probable is **{name}** without each block of the picture?", name=name)
    )

    def make(progress: "Progress") -> np.ndarray:
        return intervention.occlusion(
            view.model,
            view.picture.image,
            class_index=index,
            block=block,
            removal=removal,
            progress=progress,
        )

    return on_demand(view, tr("Hide blocks ({passes} passes)", passes=passes), called, make)


def _curves(view: View, index: int, name: str, removal: "Removal") -> Pending | None:
    if view.acts.refusal:
        st.warning(tr("No map of attention to rank the patches by: a layer cannot be read."))
        return None
    called = ("curves", index, removal)
    found: dict[str, tuple[Curve, Curve]] | None = found_of(view, *called)
    if found is not None:
        for column, putting_back in zip(st.columns(2), (False, True), strict=True):
            curves = {called: pair[putting_back] for called, pair in found.items()}
            with column:
                show(
                    plots.removal_curves(
                        {
                            tr(called): (one.shares, one.probabilities)
                            for called, one in curves.items()
                        },
                        name=name,
                        putting_back=putting_back,
                    )
                )
                areas = ", ".join(
                    f"{tr(called)} **{one.area:.2f}**" for called, one in curves.items()
                )
                wanted = tr("insertion: larger") if putting_back else tr("deletion: smaller")
                st.markdown(
                    tr(
                        "Area ({wanted} is better; removed patches: {removal}): {areas}. The "
                        "random map is one draw.",
                        wanted=wanted,
                        removal=tr(REMOVALS[removal]),
                        areas=areas,
                    )
                )
        return None
    st.markdown(
        tr(
            "Do the maps of attention, read {where}, find what **{name}** rests on, better "
            "than a random map?",
            where=read_at(view.acts),
            name=name,
        )
    )
    passes = 1 + min(STEPS, view.acts.grid[0] * view.acts.grid[1])
    return on_demand(
        view,
        tr("Deletion and insertion ({passes} passes)", passes=2 * 4 * passes),
        called,
        lambda progress: _both_curves(view, index, removal, progress),
    )


def _both_curves(
    view: View, index: int, removal: "Removal", progress: "Progress"
) -> "dict[str, tuple[Curve, Curve]]":
    """Deletion and insertion by each map."""
    from vitviz import ModelError, attribution, intervention

    measured, grid = results.measurements(view), view.acts.grid
    maps = {
        mark("rollout"): measured.rollout[view.acts.num_prefix_tokens :].reshape(grid),
        mark("last layer, mean of heads"): measured.query_attention[-1].mean(axis=0),
    }
    with suppress(ModelError):  # the page Rollout says why a model has none
        maps[mark("relevance")] = attribution.relevance(view.model, view.picture.image, index)
    maps[mark("random")] = intervention.random_map(grid)
    kinds = (intervention.deletion_curve, intervention.insertion_curve)
    curves: list[Curve] = []

    def onward(done: int, of: int) -> None:
        progress(len(curves) * of + done, len(kinds) * len(maps) * of)

    for importance in maps.values():
        for kind in kinds:
            curves.append(
                kind(
                    view.model,
                    view.picture.image,
                    importance,
                    class_index=index,
                    steps=STEPS,
                    removal=removal,
                    progress=onward,
                )
            )
    return dict(zip(maps, zip(curves[::2], curves[1::2], strict=True), strict=True))
