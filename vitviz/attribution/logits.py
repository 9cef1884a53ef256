"""Direct logit attribution: what each head, each MLP and the embedding add to an answer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..activations import Activations, capture
from ..activations.targets import Question, Target
from ..model import Model
from ..model.devices import TOLERANCE
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from .outputs import hold_scale


@dataclass(frozen=True, eq=False)
class LogitParts:
    """Contributions of the parts of a model to one answer; all parts sum to `answer`.

    Attributes
    ----------
    answer : float
        The logit, or the target's value, of the plain pass.
    embedding : float
        Contribution of the tokens before the first layer: patches, prefix tokens and positions.
    by_token : ndarray of shape (layers, heads, tokens)
        Contribution of each head from each token that it reads, prefix tokens first. NaN for heads
        that a layer lacks because another layer has more.
    mlps : ndarray of shape (layers,)
    biases : float
        The same for every picture: biases of the output projections, of the final norm and of
        the head; and what single precision rounds off the heads.
    """

    answer: float
    embedding: float
    by_token: np.ndarray
    mlps: np.ndarray
    biases: float

    @property
    def heads(self) -> np.ndarray:
        """Contribution of each head from all tokens: (layers, heads)."""
        heads: np.ndarray = self.by_token.sum(axis=2)
        return heads

    @property
    def total(self) -> float:
        """The sum of all parts."""
        heads = float(np.nansum(self.heads))
        return self.embedding + heads + float(self.mlps.sum()) + self.biases


def direct_logit_attribution(model: Model, image: Picture, target: Target) -> LogitParts:
    """Split an answer into what each head, each MLP and the embedding add to it directly.

    Every layer adds to the residual stream, and the head reads a linear function of the stream's
    end, once the scale of the final norm is held at its value in this pass. So the answer is a sum
    with one term for each part. A term is what the part writes for the answer itself; what later
    layers make of it counts as theirs. For words, the length of the embedding is held as well.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    target : int, str or array
        A class by index or name, or a vector as long as the output: for the difference of two
        classes, 1 at the one and -1 at the other.

    Raises
    ------
    ModelError
        When the model has no such output, its layers differ in their tokens, run attention and MLP
        side by side or do more to their heads than to project and scale them, or the head is not
        linear once the final norm's scale is held.
    ValueError
        When there is no such class, or the target is a token or a function.

    Notes
    -----
    A part may write much for a class and not be needed for it, and the other way round: compare
    with `vitviz.intervention.head_effects`, which also sees what later layers make of a head.

    References
    ----------
    Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021; for ViT: Gandelsman,
    Efros and Steinhardt, "Interpreting CLIP's Image Representation via Text-Based Decomposition",
    ICLR 2024, section 3, also for what a head writes from each token.
    """
    question = Question(model, target)
    if question.class_index is None and not hasattr(question, "vector"):
        raise ValueError(
            "Expected a class or a vector as the target: only their answers are sums of parts."
        )
    prepared_input = prepare(model, image)
    acts = capture(model, prepared_input)
    _ = acts.num_prefix_tokens  # a ModelError where layers differ in their tokens
    if acts.refusal:
        raise ModelError(acts.refusal)
    if model.sites[-1].layout != "tokens":
        raise ModelError(
            "The answer of {model} is no sum of its layers' parts: convolutions lie between them.",
            model=model.name,
        )
    answer, weights, biases = _read_linearly(model, acts, question)

    def contribution(tokens: np.ndarray) -> float:
        return float((weights * tokens).sum())

    is_read = weights.any(axis=1)  # of CLS alone, or of all patches
    most = max(layer.num_heads for layer in acts.layers)
    by_token = np.full((acts.depth, most, len(weights)), np.nan)
    mlps = np.empty(acts.depth)
    for layer in range(acts.depth):
        before, between, after = (
            np.asarray(tokens, np.float64)
            for tokens in (
                acts.tokens(layer),
                acts.tokens_after_attention(layer),
                acts.tokens(layer + 1),
            )
        )
        carried = acts.carried(model, layer)
        along = weights[is_read] @ carried.vectors.swapaxes(1, 2)  # (h, read, T)
        by_head = (carried.attention[:, is_read] * along).sum(axis=1)
        by_token[layer, : len(by_head)] = by_head
        biases += contribution(between - before) - float(by_head.sum())
        mlps[layer] = contribution(after - between)
    parts = LogitParts(
        answer=answer,
        embedding=contribution(np.asarray(acts.tokens(0), np.float64)),
        by_token=by_token,
        mlps=mlps,
        biases=biases,
    )
    size = max(abs(answer), float(np.nanmax(np.abs(parts.heads))), float(np.abs(mlps).max()))
    if not abs(parts.total - answer) <= TOLERANCE * size:
        raise ModelError(
            "The parts of {model} sum to {total:.4f}, but its answer is {answer:.4f}: its head "
            "does more than a linear layer to the normalised tokens.",
            model=model.name,
            total=parts.total,
            answer=answer,
        )
    return parts


class _HoldNorms(TorchFunctionMode):
    """Run each LayerNorm, RMSNorm and scaling to length 1 with its factor as a constant."""

    def __init__(self, scales: list[Tensor], replay: bool) -> None:
        super().__init__()
        self.scales, self.replay = scales, iter(scales) if replay else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.normalize:
            x = args[0]
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return x * self._hold_factor(func(*args, **kwargs).norm(dim=-1, keepdim=True) / length)
        if func not in (F.layer_norm, F.rms_norm):
            return func(*args, **kwargs)
        return hold_scale(self._hold_factor, func, *args, **kwargs)

    def _hold_factor(self, factor: Tensor) -> Tensor:
        """Return the factor of the first pass, also in the second one."""
        if self.replay is not None:
            return next(self.replay)
        self.scales.append(factor.detach())
        return self.scales[-1]


def _read_linearly(
    model: Model, acts: Activations, question: Question
) -> tuple[float, np.ndarray, float]:
    """Return the answer, its weights on the last tokens (T, D), and what it is without them."""
    z = model.to_device(torch.tensor(acts.tokens(acts.depth)))[None]
    scales: list[Tensor] = []

    def read(tokens: Tensor, replay: bool) -> Tensor:
        with _HoldNorms(scales, replay):
            output = model.answer(tokens)[0].float()
        if question.class_index is not None:
            return output[question.class_index]
        return (output * question.vector.to(output)).sum()

    with torch.enable_grad():
        leaf = z.clone().requires_grad_()
        answer = read(leaf, replay=False)
        gradient = None
        if answer.requires_grad:
            (gradient,) = torch.autograd.grad(answer, leaf, allow_unused=True)
    if gradient is None:
        raise ModelError(
            "No gradient of the answer of {model} reaches its last tokens. Check whether its head "
            "computes without gradients.",
            model=model.name,
        )
    with torch.no_grad():
        rest = read(torch.zeros_like(z), replay=True)
    weights = gradient[0].cpu().double().numpy()
    return float(answer.detach()), weights, float(rest)
