"""Passes in which one head is muted, each of which begins at the layer of its head."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..families import ModelError
from ..model import Model
from .edits import MuteHeads
from .forward import Picture, check_edits, check_memory, opened, output_of
from .forward_pass import read_only
from .watch import Watch


def muted_answers(
    model: Model,
    pictures: Sequence[Picture],
    heads: Iterable[tuple[int, int]],
    values: Mapping[tuple[int, int], np.ndarray],
) -> Iterator[np.ndarray]:
    """What the model gives for some pictures, in one batch, with each of these heads muted alone.

    The same bits as in captures with the edit `MuteHeads`, and sooner: what the blocks before a
    head's layer return is computed once for all heads.

    Parameters
    ----------
    model : Model
    pictures : sequence of PIL.Image, bytes or path
    heads : iterable of (layer, head)
        Asked for one by one, each before its pass.
    values : mapping of (layer, head) to ndarray of shape (tokens, head_dim)
        What a muted head gives instead, see `MuteHeads`; zeros where it is left out.

    Yields
    ------
    ndarray of shape (pictures, outputs)

    Raises
    ------
    ModelError, ImageError
        As `capture`; and when the attention of a head's layer cannot be read, as what is not read
        is not muted either.
    """
    images = opened(pictures)
    check_memory(model, len(images))
    x = model.placed(torch.stack([model.preprocess(image) for image in images]))
    returned: list[Any] = []  # by each block
    for layer, head in heads:
        edit = MuteHeads([(layer, head)], values)
        check_edits([edit], model)
        if not returned:
            output_of(model, x, _Keeping(model, len(images), returned))
        watch = Watch(model, len(images), None, [edit], None)
        output = output_of(model, x, watch, model.beginning_at(layer, returned), layer)
        with torch.inference_mode():
            if refusal := watch.proved()[0][layer].refusal:
                raise ModelError(refusal)
        yield read_only(output)


class _Keeping(Watch):
    """Keeps what each block returns."""

    def __init__(self, model: Model, pictures: int, returned: list[Any]) -> None:
        super().__init__(model, pictures, None, (), None)
        self.returned = returned

    def returning(self, layer: int, output: Any) -> None:
        self.returned.append(output)
