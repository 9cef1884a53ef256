"""The logit lens: apply the final norm and the head after each layer, and to each patch."""

import math
from typing import Literal

import numpy as np
import torch

from ..activations import Activations, MuteHeads, capture
from ..model import Model
from ..model.families import ModelError, is_tips
from ..model.inputs import Picture


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
    return freeze(
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
    logits = _outputs_of_patches(model, acts, depth)
    return freeze(np.asarray(model.scores(logits).cpu().numpy()))


def _outputs_of_patches(model: Model, acts: Activations, depth: int) -> torch.Tensor:
    """Compute outputs (rows, cols, K): each patch's token in place of those that the head reads."""
    _check_capture(model, acts)
    if len(acts.patches) != math.prod(acts.grid):
        raise ModelError("Patches of this capture were dropped. Capture it without DropPatches.")
    patches = acts.tokens(depth)[acts.num_prefix_tokens :]
    if len(patches) != math.prod(acts.grid):
        raise ModelError(
            "{layer} has {tokens} tokens, expected {expected}. The places of its patches are "
            "unknown.",
            layer=acts.layers[depth - 1].name,
            tokens=len(patches) + acts.num_prefix_tokens,
            expected=math.prod(acts.grid) + acts.num_prefix_tokens,
        )
    # The head reads CLS, a pair of tokens or the mean of the patches: each is this one token here.
    alone = np.repeat(patches[:, None], acts.num_prefix_tokens + 1, axis=1)
    with torch.inference_mode():
        outputs = model.answer(model.to_device(torch.tensor(alone))).float()
    return outputs.reshape(*acts.grid, -1)


def aligns_patches(model: Model) -> bool:
    """Whether the training of a model brought its patches, too, near the texts of what they show.

    Texts were compared with whole pictures, as in CLIP; a loss on every patch did the rest.

    References
    ----------
    Cao et al., "TIPSv2: Advancing Vision-Language Pretraining with Enhanced Patch-Text Alignment"
    (CVPR 2026).
    """
    return model.family == "TIPS" or is_tips(model.part)


def word_map(
    model: Model, image: Picture, *, path: Literal["values", "tokens"] = "values"
) -> np.ndarray:
    """Compute the cosine between each patch and each phrase of a model with words.

    Parameters
    ----------
    model : Model
        As `Model.with_words` returns it.
    image : path, PIL image or array
    path : "values" or "tokens"
        "values" lets each token attend to itself alone in the last layer, so that its value is not
        mixed with others; the skip connection and the MLP of that layer stay. "tokens" reads the
        patches' own tokens after the last block.

    Returns
    -------
    ndarray of shape (rows, cols, K)
        Each patch's token takes the place of the tokens that the head reads.

    Raises
    ------
    ModelError
        When the model has no words, or as `patch_lens`.

    Notes
    -----
    CLIP was trained to compare whole pictures with texts, never a patch: a high cosine does not
    prove that the patch shows the thing. TIPSv2 brought its patches nearer to texts
    (`aligns_patches`), and its authors find things by "values", too. "tokens" often answers for
    patches of the background, which hold what the model knows of the whole picture. SigLIP pools by
    attention, which is trained on all patches together; here it pools a single one.

    References
    ----------
    Zhou, Loy and Dai, "Extract Free Dense Labels from CLIP" (ECCV 2022), section 3.2, of the values
    of the last layer.
    """
    if model.words is None:
        raise ModelError(
            "{model} has no words to compare patches with. Give it some by with_words.",
            model=model.name,
        )
    if path not in ("values", "tokens"):
        raise ModelError('Expected the path "values" or "tokens", got {path!r}.', path=path)
    acts = capture(model, image)
    if path == "values":
        last = acts.depth - 1
        own = {(last, head): values for head, values in enumerate(acts.values(last))}
        acts = capture(model, image, edits=[MuteHeads(own, own)])
    logits = _outputs_of_patches(model, acts, acts.depth).cpu().numpy()
    return freeze((logits - (model.words.logit_bias or 0)) / model.words.logit_scale)


def _probabilities(model: Model, tokens: np.ndarray) -> np.ndarray:
    """Compute probabilities (B, K) from tokens before the final norm (B, T, D)."""
    with torch.inference_mode():
        z = model.to_device(torch.tensor(tokens))
        scores = model.scores(model.answer(z).float())
    return np.asarray(scores.cpu().numpy())


def _check_capture(model: Model, acts: Activations) -> None:
    check_head(model)
    _ = acts.grid  # a ModelError where layers differ in their tokens
    if any(site.layout != "tokens" for site in model.sites):  # as in a CoAtNet of one such stage
        raise ModelError(
            "{model} keeps its patches as a map, which its layers may pool, so its head cannot be "
            "applied after each of them.",
            model=model.name,
        )
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


def freeze(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
