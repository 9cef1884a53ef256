"""The tables of Classify: the answer before and after, and the results of experiments."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.data_table import Columns, Table, patch_columns
from vitviz.language import Message, tr

if TYPE_CHECKING:
    from vitviz.intervention import Curve


@dataclass(frozen=True, eq=False)
class Changes:
    """What is removed: patches (rows, columns), heads (layers, heads), and by what patches.

    `done` is false where there is nothing, or the model refused it.
    """

    painted: np.ndarray
    muted: np.ndarray
    removal: str
    done: bool

    def __str__(self) -> str:
        if not self.done:
            return tr("nothing is changed")
        gone = tr(
            "{count} of {size} patches removed", count=self.painted.sum(), size=self.painted.size
        )
        how = f" ({self.removal})" if self.painted.any() else ""
        heads = ", ".join(f"{layer + 1}.{head + 1}" for layer, head in np.argwhere(self.muted))
        which = tr(" (layer.head: {heads})", heads=heads) if heads else ""
        return tr(
            "{gone}{how}, {count} of {size} heads muted{which}",
            gone=gone,
            how=how,
            count=self.muted.sum(),
            size=self.muted.size,
            which=which,
        )


@dataclass(frozen=True, eq=False)
class Found:
    """The logit lens of the answer, and each experiment's result where it was run."""

    lens: np.ndarray
    effects: np.ndarray | None
    occlusion: np.ndarray | None
    curves: "dict[str, tuple[Curve, Curve]] | None"


def tables(view: View, changes: Changes, found: Found, index: int) -> list[Table]:
    """A table of the answer, and one of each experiment that was run for class `index`."""
    acts, name = view.acts, class_menu.names(view.acts)[index]
    assert acts.probabilities is not None
    assert acts.logits is not None
    depths = [
        Message("lens: embedding, %"),
        *(Message("lens: layer {layer}, %", layer=number + 1) for number in range(acts.depth)),
    ]
    answer: Columns = {
        Message("class"): acts.output_names,
        Message("before, %"): 100 * acts.probabilities,
        Message("after, %"): 100 * found.lens[-1],
    }
    lens = {depth: 100 * row for depth, row in zip(depths, found.lens, strict=True)}
    made = [
        Table(
            tr("Probability of each class before and after: {changes}.", changes=changes),
            answer | lens,
        )
    ]
    if found.effects is not None:
        change = (found.effects - acts.logits)[..., index]
        layers, heads = np.indices(change.shape).reshape(2, -1) + 1
        columns: Columns = {
            Message("layer"): layers,
            Message("head"): heads,
            Message("logit of {name}", name=name): change.ravel(),
        }
        made.append(
            Table(tr("Change of the logit of {name} with one head muted.", name=name), columns)
        )
    if found.occlusion is not None:
        fall: Columns = {Message("fall, percentage points"): 100 * found.occlusion.ravel()}
        made.append(
            Table(
                tr(
                    "Fall of the probability of {name} with a block hidden ({removal}).",
                    name=name,
                    removal=changes.removal,
                ),
                {**patch_columns(view), **fall},
            )
        )
    if found.curves is not None:
        made.append(_curves(found.curves, changes.removal, name))
    return made


def _curves(curves: "dict[str, tuple[Curve, Curve]]", removal: str, name: str) -> Table:
    deletion, _ = next(iter(curves.values()))
    columns: Columns = {Message("patches removed or put back, %"): 100 * deletion.shares}
    for called, pair in curves.items():
        removed, back = (100 * curve.probabilities for curve in pair)
        columns[Message("{map}, removed, %", map=called)] = removed
        columns[Message("{map}, put back, %", map=called)] = back
    about = tr(
        "Probability of {name} as patches go ({removal}) or come back, by each map's order.",
        name=name,
        removal=removal,
    )
    return Table(about, columns)
