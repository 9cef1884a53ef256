"""The lengths of the tokens on the page Tokens, and which are much longer than the others."""

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets.figure import show
from vitviz.inspection.tokens import LONG, OUTLIER
from vitviz.language import tr


def draw(view: View) -> None:
    acts, depth = view.acts, view.layer + 1
    tokens = acts.tokens(depth)
    norms, long, limit = inspection.token_norms(acts, depth=depth)
    outliers = inspection.norm_outliers(norms)
    st.subheader(
        tr("Norm of the tokens after layer {depth}, before the LayerNorm", depth=depth),
        anchor=False,
    )
    show(
        plots.token_norms(
            norms,
            outliers,
            results.photo(view),
            crop=acts.crop,
            query=view.query_patch,
            long=long,
        )
    )
    median, largest = float(np.median(norms)), float(norms.max())
    words = tr(
        "○ large norm: {long} of {size} patches, above the median by more than {deviations:.0f} "
        "median absolute deviations (above {limit:.2f}). ✕ outliers: {outliers} patches with "
        "at least {times:.0f} times the median norm; in the paper on registers they "
        "were about 2 % of the tokens and had about ten times the norm. The largest norm "
        "is {largest:.2f}, {ratio:.1f} times the median of {median:.2f}.",
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
