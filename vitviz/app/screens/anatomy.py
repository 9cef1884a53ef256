"""The page Anatomy: one picture's way through the model, step by step."""

import numpy as np

from vitviz.anatomy_map import token_name
from vitviz.app.screens import anatomy_experiments
from vitviz.app.shared import lessons
from vitviz.app.shared.view import View
from vitviz.app.widgets import anatomy
from vitviz.app.widgets.data_table import Data, Table
from vitviz.language import Message, tr


def page(view: View) -> Data:
    if lessons.shows("anatomy"):
        anatomy.anatomy(view)
    tables = anatomy_experiments.draw(view) if lessons.shows("experiments") else []
    return Data(lambda: [_shapes(view), *_worked(view), *tables])


def _shapes(view: View) -> Table:
    """Shapes of all steps, and of the boxes of the layer on screen."""
    boxes = [(Message("the picture's way"), box) for box in anatomy.steps_of(view)]
    boxes += [
        (Message("layer {layer}", layer=view.layer + 1), box) for box in anatomy.layer_of(view)
    ]
    return Table(
        tr("Shapes of all steps, and of the boxes of layer {layer}.", layer=view.layer + 1),
        {
            Message("where"): [where for where, _ in boxes],
            Message("what"): [box.name.replace("_", " ") for _, box in boxes],
            Message("shape"): [" × ".join(map(str, box.shape)) for _, box in boxes],
        },
    )


def _worked(view: View) -> list[Table]:
    """The one number that is worked out: query, key and their product."""
    boxes = {box.name: box.values for box in anatomy.layer_of(view)}
    q, k = boxes.get("queries"), boxes.get("keys")
    if q is None or k is None:
        return []
    described = view.acts.layers[view.layer]
    head, (query, key) = view.head or 0, anatomy.pair(view)
    scores = anatomy.scores_of(view, head)[query]
    shares = view.acts.attention(view.layer)[head, query]
    numbers = np.arange(q.shape[2]) + 1
    where = tr("layer {layer}, head {head}", layer=view.layer + 1, head=head + 1)
    asked, seen = (token_name(described, token) for token in (query, key))
    return [
        Table(
            tr(
                "{where}: q of {asked}, k of {seen} and their product, whose sum is the score "
                "before it is scaled.",
                where=where,
                asked=asked,
                seen=seen,
            ),
            {
                Message("number"): numbers.tolist(),
                "q": q[head, query],
                "k": k[head, key],
                Message("product"): q[head, query] * k[head, key],
            },
        ),
        Table(
            tr(
                "{where}: scores of {asked} with all keys, and their softmax.",
                where=where,
                asked=asked,
            ),
            {
                Message("key"): [token_name(described, token) for token in range(len(shares))],
                Message("score"): scores,
                Message("share, %"): 100 * shares,
            },
        ),
    ]
