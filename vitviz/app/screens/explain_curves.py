"""Draw deletion and insertion curves of the maps on Explain, with those of random orders."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.data_table import Columns, Table
from vitviz.app.widgets.experiment import REMOVALS, Pending, find_result, run_button
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Message, literal, mark, tr, tr_md

if TYPE_CHECKING:
    from vitviz.intervention import Curve, Progress, Removal

    Pair = tuple[Curve, Curve]  # deletion and insertion

CURVE_STEPS = 10  # of a curve
RANDOM_TITLE = mark("random")


def draw_curves(
    view: View, maps: Mapping[str, np.ndarray], index: int, removal: "Removal"
) -> "tuple[dict[str, Pair], Pending | None]":
    """Draw the curves that were computed, and a button that computes the missing ones.

    Parameters
    ----------
    maps : values of each map by its marked name

    Returns
    -------
    dict of the names to the curves, and what was asked for
    """
    from vitviz import intervention

    st.subheader(tr("Deletion and insertion: better than chance?"), anchor=False)
    pairs: dict[str, Pair | None] = {
        name: find_result(view, *_cache_key(name, index, removal)) for name in (*maps, RANDOM_TITLE)
    }
    missing = [name for name, pair in pairs.items() if pair is None]
    asked = ("curves", index, removal, *missing)
    if computed := find_result(view, *asked):  # the cache has dropped the single pairs alone
        pairs, missing = {**pairs, **computed}, []
    curves = {name: pair for name, pair in pairs.items() if pair is not None}
    if pairs[RANDOM_TITLE] is not None and len(curves) > 1:
        _draw_pairs(view, curves, index, removal)
    if not missing:
        return curves, None
    if len(curves) <= 1:
        st.markdown(
            tr_md(
                "Which of the maps find what **{name}** rests on, better than {orders} random "
                "orders do? The patches are removed (deletion), or put back (insertion), the "
                "highest first.",
                orders=intervention.RANDOM_ORDERS,
                name=class_menu.names(view.acts)[index],
            )
        )
    orders = [intervention.RANDOM_ORDERS if name == RANDOM_TITLE else 1 for name in missing]
    passes = 2 * sum(orders) * _passes(view)
    pending = run_button(
        view,
        tr("Deletion and insertion ({passes} passes)", passes=passes),
        asked,
        lambda progress: _compute(view, maps, missing, index, removal, passes, progress),
    )
    return curves, pending


def _cache_key(name: str, index: int, removal: "Removal") -> tuple[str, str, int, str]:
    return "curve", name, index, removal


def _passes(view: View) -> int:
    rows, cols = view.model.layers[0].query_grid
    return 1 + min(CURVE_STEPS, rows * cols)


def _compute(
    view: View,
    maps: Mapping[str, np.ndarray],
    missing: list[str],
    index: int,
    removal: "Removal",
    passes: int,
    progress: "Progress",
) -> "dict[str, Pair]":
    """Compute and cache deletion and insertion by each map."""
    from vitviz import intervention

    done = 0

    def onward(*_: int) -> None:
        nonlocal done
        progress(done, passes)
        done += 1

    model, image = view.model, view.picture.image
    options: dict[str, Any] = dict(
        target=index, steps=CURVE_STEPS, removal=removal, progress=onward
    )
    kinds = (intervention.deletion_curve, intervention.insertion_curve)
    pairs: dict[str, Pair] = {}
    for name in missing:
        deleted: Curve
        inserted: Curve
        if name == RANDOM_TITLE:
            deleted, inserted = (
                intervention.random_curve(kind, model, image, **options) for kind in kinds
            )
        else:
            deleted, inserted = (kind(model, image, maps[name], **options) for kind in kinds)
        pairs[name] = (deleted, inserted)
        # Each pair is kept, also if the rest is cancelled.
        key = (*view.key, *_cache_key(name, index, removal))
        results.capture_cache().get(key, partial(tuple, pairs[name]))
    return pairs


def _draw_pairs(view: View, curves: "dict[str, Pair]", index: int, removal: "Removal") -> None:
    from vitviz import intervention

    name = class_menu.names(view.acts)[index]
    deleted, inserted = curves[RANDOM_TITLE]
    better = []
    for column, putting_back in zip(st.columns(2), (False, True), strict=True):
        of_kind = {label: pair[putting_back] for label, pair in curves.items()}
        chance = inserted if putting_back else deleted
        assert isinstance(chance, intervention.RandomCurve)
        low, high = chance.interval
        better.append(
            {
                label
                for label, one in of_kind.items()
                if one is not chance and (one.area > high if putting_back else one.area < low)
            }
        )
        with column:
            show_figure(
                plots.removal_curves(
                    {tr(label): (one.shares, one.probabilities) for label, one in of_kind.items()},
                    name=name,
                    putting_back=putting_back,
                    ranges={tr(RANDOM_TITLE): (chance.low, chance.high)},
                )
            )
            st.markdown(
                tr(
                    "Area ({wanted} is better; removed patches: {removal}): {areas}. *random* "
                    "is the mean of {orders} random orders, and the grey band holds the middle "
                    "90 % of them: areas from {low:.2f} to {high:.2f}. A map within that range "
                    "finds no more than chance does.",
                    orders=len(chance.areas),
                    low=low,
                    high=high,
                    wanted=tr("insertion: larger") if putting_back else tr("deletion: smaller"),
                    removal=tr(REMOVALS[removal]),
                    areas=", ".join(
                        f"{literal(tr(label))} **{one.area:.2f}**" for label, one in of_kind.items()
                    ),
                )
            )
    both = [label for label in curves if label in better[0] & better[1]]
    if both:
        names = ", ".join(f"**{literal(tr(label))}**" for label in both)
        st.markdown(tr("Better than chance in both: {listed}.", listed=names))
    else:
        st.markdown(tr("None of these maps is better than chance in both."))


def curves_table(curves: "dict[str, Pair]", removal: "Removal", name: str) -> Table:
    from vitviz import intervention

    deletion, _ = next(iter(curves.values()))
    columns: Columns = {Message("patches removed or put back, %"): 100 * deletion.shares}
    for name_of_map, pair in curves.items():
        label = Message(name_of_map)
        removed, back = (100 * curve.probabilities for curve in pair)
        columns[Message("{map}, removed, %", map=label)] = removed
        columns[Message("{map}, put back, %", map=label)] = back
        deleted, inserted = pair
        if isinstance(deleted, intervention.RandomCurve):
            columns[Message("{map}, removed, 5th percentile, %", map=label)] = 100 * deleted.low
            columns[Message("{map}, removed, 95th percentile, %", map=label)] = 100 * deleted.high
        if isinstance(inserted, intervention.RandomCurve):
            columns[Message("{map}, put back, 5th percentile, %", map=label)] = 100 * inserted.low
            columns[Message("{map}, put back, 95th percentile, %", map=label)] = 100 * inserted.high
    about = tr(
        "Probability of {name} as patches go ({removal}) or come back, by each map's order.",
        name=name,
        removal=tr(REMOVALS[removal]),
    )
    return Table(about, columns)
