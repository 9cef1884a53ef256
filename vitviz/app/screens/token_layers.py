"""The layers of a model over many pictures: how alike they are, and how long their tokens are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz.app.shared import profiles
from vitviz.app.shared.view import View
from vitviz.app.widgets.data_table import Columns, Table
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.profile_menu import profile_menu
from vitviz.inspection.tokens import OUTLIER
from vitviz.language import Message, as_percent, tr
from vitviz.plots.profiles import layer_similarity, norm_histogram

if TYPE_CHECKING:
    from vitviz import Profile


def draw(view: View) -> "Profile | None":
    """Draw both figures; the profile that they show, None where there is none."""
    if not profiles.of_model(view.model):
        return None
    words, menu = st.columns([4, 2], vertical_alignment="bottom")
    words.subheader(tr("All layers over many pictures"), anchor=False)
    profile = profile_menu(view, menu, tr("Measured on"))
    if profile is None:
        return None
    over = profiles.described(profile)
    alike, long = st.columns(2)
    with alike:
        if "hsic" in profile.state.sums:
            show(layer_similarity(profile.cka()))
            st.markdown(_similarity_words(profile.cka(), over))
    with long:
        counts, edges = profile.norms
        show(norm_histogram(counts[1], edges))
        st.markdown(_norm_words(profile, over))
    return profile


def _similarity_words(cka: np.ndarray, over: str) -> str:
    return tr(
        "**How alike two layers are**, as linear CKA over {over}: 1 where the pictures "
        "that are alike after one layer are those that are alike after the other, 0 where "
        "nothing of that is left. Layer 0 is the embedding. From one layer to the next it "
        "is at least {least:.2f}; between the embedding and the last layer it is {ends:.2f}. "
        "Raghu et al. (NeurIPS 2021, Fig. 1) found ViT-L/16 and ViT-H/14 alike over their "
        "whole depth, and the lower layers of ResNets unlike the upper ones.",
        over=over,
        least=np.diagonal(cka, 1).min(),
        ends=cka[0, -1],
    )


def _norm_words(profile: "Profile", over: str) -> str:
    shares = profile.outlier_share.means
    most = int(np.nanargmax(shares)) if np.isfinite(shares).any() else 0
    words = tr(
        "Outliers, patches with {times:.0f} times the median norm of their picture or more: ",
        times=OUTLIER,
    )
    if shares[most] > 0:
        words += tr(
            "{shares} of them after layer {most}, where there are most.",
            shares=as_percent(shares[most]),
            most=most,
        )
    else:
        words += tr("none after any layer.")
    return tr(
        "**How long the tokens of the patches are** before the final LayerNorm, over "
        "{over}; each column adds up to 100 %. {words} Darcet et al. (ICLR 2024, Fig. 3 "
        "and 4) found about 2 % at ten times the usual norm in the three largest of six "
        "sizes of DINOv2, in the largest from about layer 15 of 40 on: they would be a "
        "second band above the first.",
        over=over,
        words=words,
    )


def tables(view: View, profile: "Profile") -> Sequence[Table]:
    """The numbers of both figures."""
    record = f"{tr(view.model.provenance)} · {profiles.described(profile)}"
    source = profiles.provenance(profile)
    counts, edges = profile.norms
    depths = np.arange(counts.shape[1])
    found = []
    if "hsic" in profile.state.sums:
        columns: Columns = {Message("after layer"): depths}
        columns |= {
            Message("CKA with layer {layer}", layer=depth): row
            for depth, row in enumerate(profile.cka())
        }
        found.append(
            Table(
                tr("Linear CKA of all tokens after two layers: {source}.", source=source),
                columns,
                record,
            )
        )
    there = np.flatnonzero(counts[1].any(axis=0))
    columns = {
        Message("after layer"): depths,
        Message("outliers, %"): 100 * profile.outlier_share.means,
    }
    for number in there:
        name = Message(
            "norm {low:.3g} to {high:.3g}, patches", low=edges[number], high=edges[number + 1]
        )
        columns[name] = counts[1][:, number].astype(int)
    found.append(
        Table(
            tr("Norms of the patch tokens before the final LayerNorm: {source}.", source=source),
            columns,
            record,
        )
    )
    return found
