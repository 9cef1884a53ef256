"""The page Tokens: similarity, principal components and norms of the tokens after each layer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.screens import token_components
from vitviz.app.screens.token_components import Components
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets import profiles
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.app.widgets.token_map import frames_to_send, token_map
from vitviz.common.language import Message, as_percent, tr, tr_md
from vitviz.inspection.tokens import LONG, OUTLIER
from vitviz.plots.profiles import layer_similarity, norm_histogram
from vitviz.text import findings
from vitviz.web.token_map import Frame, encode_frame

if TYPE_CHECKING:
    from vitviz import Profile


def page(view: View) -> Data | None:
    view = _open_on_a_patch(view)
    depth = view.acts.depth
    draw_finding(findings.tokens(_cosines(view), view.layer + 1))
    with places().stage:
        token_map(
            view,
            _frames(view),
            name="tokens",
            kind="cosine",
            strip="frames",
            titles={
                "row": tr("Similarity to the query"),
                "strip": tr("After each layer"),
            },
            frame_setting=("layer", range(1, depth + 1)),
            frame_names=[tr("layer {layer}", layer=number) for number in range(1, depth + 1)],
        )
    grid = view.acts.grid
    most = min(
        token_components.MOST_COMPONENTS,
        grid[0] * grid[1],
        results.final_tokens(view, view.layer).shape[1],
    )
    if most < token_components.CHANNELS:
        st.info(
            tr(
                "A picture of {rows} x {columns} patches has fewer than {count} components.",
                rows=grid[0],
                columns=grid[1],
                count=token_components.CHANNELS,
            )
        )
        _draw_norms(view)
        return None
    st.subheader(
        tr("Principal components of the patches after layer {layer}", layer=view.layer + 1),
        anchor=False,
    )
    found = token_components.choose_components(view, most)
    token_components.draw_components(view, found)
    token_components.draw_scatter(view, found)
    more = tr("Norms of the tokens")
    if profiles.fitting_profiles(view.model):
        more = tr("Norms of the tokens, and all layers over many pictures")
    folded = st.expander(more, key="norms", on_change="rerun")  # what nobody sees takes no time
    if folded.open:
        with folded:
            _draw_norms(view)
            profile = _draw_layers(view)
    else:
        profile = profiles.chosen_profile(view)
    return Data(
        lambda: [
            _table(view, found),
            *(_layer_tables(view, profile) if profile else ()),
        ]
    )


def _open_on_a_patch(view: View) -> View:
    """Begin with a patch of what the head's token attends to, until somebody asks for a token.

    The cosine of the head's token with most patches is near 0, so its map would be nearly white,
    and the patch that gets most attention may be unlike all others. So it is, of the tenth of the
    patches that get most, the one most like the rest of them. The setting stays as it is, so that
    other pages keep their query.
    """
    if view.query_patch is not None or view.acts.refusal:
        return view
    if st.session_state.get("query_asked"):
        settings.keep_in_address("query")
        return view
    looks = np.nan_to_num(results.measure(view).mean_query_attention[-1].ravel())
    most = len(view.prefix) + np.argsort(-looks, kind="stable")[: math.ceil(len(looks) / 10)]
    alike = inspection.token_similarity(view.acts)[np.ix_(most, most)].sum(axis=1)
    return replace(view, query=int(most[alike.argmax()]))


def _table(view: View, found: Components) -> Table:
    prefix, tokens = len(view.prefix), view.acts.tokens(view.layer + 1)
    cosines = inspection.token_similarity(results.final_tokens(view, view.layer))[:, prefix:]
    asked = cosines[prefix:].mean(axis=0) if view.query is None else cosines[view.query]
    columns: Columns = {**patch_columns(view)}
    columns |= {Message("cosine with the query"): asked, Message("kept"): found.kept.ravel()}
    for number, values in enumerate(found.points[prefix:].T):
        columns[Message("component {number}", number=number + 1)] = values
    columns[Message("norm")] = np.linalg.norm(tokens[prefix:], axis=1)
    fitted = token_components.all_samples() if found.basis else tr("the patches that are kept")
    return Table(
        tr(
            "Each patch after layer {layer}: its cosine with {query}, its place on the "
            "principal components of {fitted}, and its norm before the final normalisation.",
            layer=view.layer + 1,
            query=view.query_name,
            fitted=fitted,
        ),
        columns,
    )


def _frames(view: View) -> list[Frame]:
    """Return the frames of all layers where these are small enough, else of the one on screen."""
    acts = view.acts
    layers = frames_to_send(acts.depth, view.layer, len(acts.tokens(0)) ** 2)

    def make() -> list[Frame]:
        return [
            encode_frame(
                layer,
                inspection.token_similarity(results.final_tokens(view, layer))[None],
                len(view.prefix),
                "cosine",
            )
            for layer in layers
        ]

    return results.compute(
        (*view.key, "similarity", tuple(layers)),
        make,
    )


def _cosines(view: View) -> list[float]:
    """Return the mean cosine of two different patches after each layer, NaN of a single patch."""

    def make() -> list[float]:
        means = []
        for layer in range(view.acts.depth):
            patches = results.final_tokens(view, layer)[len(view.prefix) :]
            lengths = np.linalg.norm(patches, axis=1, keepdims=True)
            count, total = len(patches), (patches / np.maximum(lengths, 1e-12)).sum(axis=0)
            pairs = count**2 - count
            means.append(float((total @ total - count) / pairs) if pairs else math.nan)
        return means

    return results.compute((*view.key, "mean cosines"), make)


def _draw_norms(view: View) -> None:
    acts, depth = view.acts, view.layer + 1
    tokens = acts.tokens(depth)
    norms, long, limit = inspection.token_norms(acts, depth=depth)
    outliers = inspection.norm_outliers(norms)
    st.subheader(
        tr("Norm of the tokens after layer {depth}, before the final normalisation", depth=depth),
        anchor=False,
    )
    show_figure(
        plots.token_norms(
            norms,
            outliers,
            results.reduced_photo(view),
            crop=acts.crop,
            query=view.query_patch,
            long=long,
        )
    )
    median, largest = float(np.median(norms)), float(norms.max())
    words = tr(
        "○ large norm: {long} of {size} patches, above the median by more than {deviations:.0f} "
        "median absolute deviations (above {limit:.2f}). ✕ outliers: {outliers} of {size} "
        "patches with at least {times:.0f} times the median norm; in the paper on registers, those "
        "of the largest DINOv2 were about 2 % of the tokens and had about ten times the norm. The "
        "largest norm is {largest:.2f}, {ratio:.1f} times the median of {median:.2f}.",
        long=long.sum(),
        size=norms.size,
        deviations=LONG,
        limit=limit,
        outliers=outliers.sum(),
        times=OUTLIER,
        largest=largest,
        ratio=largest / median,
        median=median,
    )
    lengths = np.linalg.norm(tokens[: len(view.prefix)], axis=1)
    for name, length in zip(view.prefix, lengths, strict=True):
        words += f" {name.upper()}: {length:.2f}."
    st.markdown(words)


def _draw_layers(view: View) -> "Profile | None":
    """Draw both figures; the profile that they show, None where there is none."""
    if not profiles.fitting_profiles(view.model):
        return None
    words, menu = st.columns([4, 2], vertical_alignment="bottom")
    words.subheader(tr("All layers over many pictures"), anchor=False)
    profile = profiles.choose_profile(view, menu, tr("Measured on"))
    if profile is None:
        return None
    over = profiles.describe(profile)
    alike, long = st.columns(2)
    with alike:
        if "hsic" in profile.state.sums:
            show_figure(layer_similarity(profile.cka()))
            st.markdown(_similarity_words(profile.cka(), over))
    with long:
        counts, edges = profile.norms
        show_figure(norm_histogram(counts[1], edges))
        st.markdown(_norm_words(profile, over))
    return profile


def _similarity_words(cka: np.ndarray, over: str) -> str:
    return tr_md(
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
    return tr_md(
        "**How long the tokens of the patches are** before the final normalisation, over "
        "{over}; each column adds up to 100 %. {words} Darcet et al. (ICLR 2024, Fig. 3 "
        "and 4) found about 2 % at ten times the usual norm in the largest DINOv2, from about "
        "layer 15 of 40 on, and of six sizes of DINOv2 in the three largest alone. Size is not "
        "all: a small DeiT III has them too, and DINO has none (their Fig. 2). They would be a "
        "second band above the first.",
        over=over,
        words=words,
    )


def _layer_tables(view: View, profile: "Profile") -> Sequence[Table]:
    """Return the numbers of both figures."""
    record = f"{tr(view.model.provenance)} · {profiles.describe(profile)}"
    source = profiles.profile_provenance(profile)
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
            tr(
                "Norms of the patch tokens before the final normalisation: {source}.", source=source
            ),
            columns,
            record,
        )
    )
    return found
