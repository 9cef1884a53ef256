"""On the page Classify: which patches answer to a phrase, and which to one rather than another."""

from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import results
from vitviz.app.shared.view import MEAN, View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Table, patch_columns
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Markdown, Message, mark, tr, tr_md
from vitviz.text.class_names import full_names, table_names

if TYPE_CHECKING:
    from vitviz.attribution import LogitParts

NOTHING = "nothing"
PATHS = {
    "values": mark("values of the last layer"),
    "tokens": mark("tokens of the patches"),
    "heads": mark("what heads write"),
}


def draw_words(view: View, index: int) -> list[Table]:
    """Draw the map of the phrase in question, or of it minus another; return its table."""
    from vitviz import ModelError

    acts, names = view.acts, class_menu.names(view.acts)
    phrases = full_names(acts.output_names)  # many begin alike
    if settings.stored_text("less") == str(index):
        settings.change(less=NOTHING)
    others: list[str | int] = [NOTHING, *(at for at in range(len(names)) if at != index)]
    chosen = setting("less", others, NOTHING)
    less = None if isinstance(chosen, str) else chosen
    st.subheader(tr("Where the phrase is found"), anchor=False)
    chart, text = st.columns([12, 19])
    with text:
        path = choose("word_map", tr("What is compared"), PATHS, "values")
        phrase, minus = st.columns(2)
        st.session_state["phrase"] = index
        phrase.selectbox(
            tr("Phrase"),
            range(len(names)),
            key="phrase",
            format_func=phrases.__getitem__,
            on_change=lambda: settings.change(**{"class": st.session_state["phrase"]}),
        )
        control(
            "less",
            tr("Minus the map of"),
            others,
            minus,
            "selectbox",
            words=lambda one: phrases[one] if isinstance(one, int) else tr("nothing"),
        )
        name = names[index]
        if less is not None:
            name = tr("{one} minus {other}", one=name, other=names[less])
        try:
            if path == "heads":
                values, words = _draw_written_map(view, index, less, name)
                title = tr("part of the logit of {name}", name=name)
            else:
                maps = _cosines(view, path)
                values = maps[..., index]
                if less is not None:
                    values = values - maps[..., less]
                words = _explain_cosines(view, path)
                title = tr("cosine with {name}", name=name)
        except ModelError as error:
            st.warning(tr_md(error))
            return []
        if less is not None:
            words += tr_md(
                "\n\nRed patches speak for **{one}**, blue ones for **{other}**.",
                one=names[index],
                other=names[less],
            )
        if not view.model.trained:
            words = tr_md("These are **random weights**: the map means nothing. ") + words
        st.markdown(words)
    with chart:
        signed = path == "heads" or less is not None
        figure = plots.word_map(
            values, results.reduced_photo(view), crop=acts.crop, title=title, signed=signed
        )
        show_figure(figure)
    columns = table_names(acts.output_names)
    heading = Message("cosine with {name}", name=columns[index])
    if path == "heads":
        heading = Message("logit of {name}", name=columns[index])
    if less is not None:
        heading += Message(" minus {name}", name=columns[less])
    about = tr("Map of {name}: {path}.", name=name, path=tr(PATHS[path]))
    return [Table(about, {**patch_columns(view, grid=values.shape), heading: values.ravel()})]


def _cosines(view: View, path: Any) -> np.ndarray:
    """Return the cosine of each patch with each phrase (rows, columns, K), cached."""
    from vitviz.intervention import word_map

    return results.compute(
        (*view.key, "word map", path),
        lambda: word_map(view.model, view.picture.image, path=path),
    )


def _explain_cosines(view: View, path: str) -> Markdown:
    from vitviz.intervention import aligns_patches

    if aligns_patches(view.model):
        words = tr_md(
            "The cosine, from -1 to 1, between each patch and the phrase. In the training of "
            "TIPSv2, texts were compared with whole pictures, and a second task, for every patch, "
            "brought patches nearer to the texts of what they show. Its authors find things by the "
            "values of the last layer (Cao et al., CVPR 2026). A high cosine still does not prove "
            "that the patch shows the thing. "
        )
    else:
        words = tr_md(
            "The cosine, from -1 to 1, between each patch and the phrase. The model was trained to "
            "compare whole pictures with texts, and never a patch: a high cosine does not prove "
            "that the patch shows the thing. "
        )
    if path == "values":
        words += tr_md(
            "Here each patch attends to itself alone in the last layer, so that its value is not "
            "mixed with others (MaskCLIP: Zhou et al., ECCV 2022). The skip connection and the MLP "
            "of that layer stay."
        )
    else:
        words += tr_md(
            "Here the tokens after the last layer are compared as they are. They have read other "
            "patches: a token of the background may hold what the model knows of the whole picture."
        )
    if "cls" not in view.acts.read_tokens:
        words += tr_md(
            "\n\nThis model pools its patches, and was trained on all of them together. Here it "
            "pools one patch alone. If it pools by attention, as SigLIP does, a learned query "
            "weighs the patches: a few places can get most of that weight in nearly every picture, "
            "whatever they show. The weights play no part in this map."
        )
    return words


def _parts(view: View, index: int, less: int | None) -> "LogitParts":
    """Return what each part of the model adds to the logit, or to the difference, cached."""
    from vitviz.attribution import direct_logit_attribution

    target = np.eye(len(view.acts.output_names), dtype=np.float32)[index]
    if less is not None:
        target[less] = -1
    return results.compute(
        (*view.key, "logit parts", index, less),
        lambda: direct_logit_attribution(view.model, view.picture.image, target),
    )


def _draw_written_map(
    view: View, index: int, less: int | None, name: str
) -> tuple[np.ndarray, Markdown]:
    """Draw the menus of layer and head; return the map of what they write, and its words."""
    parts = _parts(view, index, less)
    heads = view.model.layers[view.layer].num_heads
    layer, head = st.columns(2)
    if view.acts.depth > 1:
        control("layer", tr("Layer"), range(1, view.acts.depth + 1), layer, "select_slider")
    control(
        "head",
        tr("Head"),
        [MEAN, *range(1, heads + 1)],
        head,
        "selectbox",
        words=lambda one: tr("all heads, added up") if one == MEAN else str(one),
    )
    by_token = parts.by_token[view.layer, :heads]
    values = by_token.sum(axis=0) if view.head is None else by_token[view.head]
    show_figure(plots.parts_by_head(parts.heads, name=name))
    prefix = len(view.prefix)
    words = tr_md(
        "What {heads} of layer {layer} wrote for the logit of **{name}** from each patch: "
        "{patches:+.2g} from all patches together, {rest:+.2g} from the other tokens. With what "
        "all other heads, the MLPs, the embedding and the biases write, it adds up to "
        "{answer:.2f}. The scales of the norms and the length of the embedding are those of this "
        "picture (Gandelsman et al., ICLR 2024).",
        heads=tr("all heads") if view.head is None else tr("head {head}", head=view.head + 1),
        layer=view.layer + 1,
        name=name,
        patches=values[prefix:].sum(),
        rest=values[:prefix].sum(),
        answer=parts.answer,
    )
    return values[prefix:].reshape(view.grid), words
