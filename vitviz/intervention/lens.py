"""The logit lens: apply the final norm and the head after each layer, and to each patch."""

import math

import numpy as np
import torch

from ..activations import Activations
from ..model import Model
from ..model.families import ModelError


def logit_lens(model: Model, acts: Activations) -> np.ndarray:
    """Compute the model's probabilities if it stopped after each layer.

    Parameters
    ----------
    model : Model
        The model that `acts` was captured from.
    acts : Activations
        May have been captured with edits.

    Returns
    -------
    ndarray of shape (depth + 1, K)
        Probabilities: row 0 after the embedding, row l after block l. The last row is
        `acts.probabilities`.

    Raises
    ------
    ModelError
        When the model has no classification head, its layers differ in their tokens, or the capture
        is of a model of another size.

    Notes
    -----
    The model's own final norm, pooling and head (two heads for a distilled model) are applied at
    every depth, but they were trained for the last one only: an early row near chance does not
    prove that its layer lacks information on the class, which may lie in directions that the head
    ignores.

    References
    ----------
    nostalgebraist, "Interpreting GPT: the logit lens", 2020. For ViT: Vilas, Schaumlöffel and
    Roig, "Analyzing Vision Transformers for Image Classification in Class Embedding Space",
    NeurIPS 2023.
    """
    _check_capture(model, acts)
    return read_only(
        np.stack([_probabilities(model, acts.tokens(d)[None])[0] for d in range(acts.depth + 1)])
    )


def patch_lens(model: Model, acts: Activations, depth: int) -> np.ndarray:
    """Compute, for each patch, the probabilities if the head read it alone after a layer.

    Parameters
    ----------
    model, acts : as in `logit_lens`; no patch may have been dropped
    depth : int
        0 after the embedding, l after block l.

    Returns
    -------
    ndarray of shape (rows, cols, K)
        Probabilities: the final norm and the head applied to the patch's token, in place of the
        tokens that the head reads.

    Raises
    ------
    ModelError
        As `logit_lens`, and when a patch was dropped.

    Notes
    -----
    As in `logit_lens`; besides, a head that reads CLS never saw a patch's token in training.

    References
    ----------
    As in `logit_lens`.
    """
    _check_capture(model, acts)
    if len(acts.patches) != math.prod(acts.grid):
        raise ModelError("Patches of this capture were dropped. Capture it without DropPatches.")
    patches = acts.tokens(depth)[acts.num_prefix_tokens :]
    # The head reads CLS, a pair of tokens or the mean of the patches: each is this one token here.
    alone = np.repeat(patches[:, None], acts.num_prefix_tokens + 1, axis=1)
    return read_only(_probabilities(model, alone).reshape(*acts.grid, -1))


def _probabilities(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Compute probabilities (B, K) from tokens before the final norm (B, T, D)."""
    with torch.inference_mode():
        z = model.to_device(torch.tensor(tokens))
        scores = model.scores(model.answer(z).float())
    return np.asarray(scores.cpu().numpy())


def _check_capture(model: Model, acts: Activations) -> None:
    check_head(model)
    _ = acts.num_prefix_tokens  # a ModelError where layers differ in their tokens
    expected, got = (len(model.layers), model.parts.width), (acts.depth, acts.tokens(0).shape[-1])
    if got != expected:
        raise ModelError(
            "Expected a capture of {model} with {depth} layers of width {width}, got "
            "{got_depth} layers of width {got_width}.",
            model=model.name,
            depth=expected[0],
            width=expected[1],
            got_depth=got[0],
            got_width=got[1],
        )


def check_head(model: Model) -> int:
    """Return the number of classes; refuse a model without a classification head."""
    if not model.num_classes:
        raise ModelError(
            "{model} has no classification head, so no answer can change.", model=model.name
        )
    return model.num_classes


def read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
