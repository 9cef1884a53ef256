"""The loss, stochastic depth, optimisers, learning rates, and the moving average of weights."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..vit import Block, VisionTransformer
from .cnn import BIAS_RATE, Cnn, WhitenedCnn
from .data import MEAN, STD, Triple, normalise
from .recipes import Recipe


class PlainAttention(TorchFunctionMode):
    """Compute attention as two matrix products around a softmax, without the fused kernel.

    With 65 tokens on a CPU the fused kernel's backward pass takes a third of the training step.

    Attributes
    ----------
    kept : list of Tensor (B, heads, tokens, tokens)
        A of every layer in its order, if `keep` is set.
    """

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__()
        self.keep = keep
        self.kept: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        attention = torch.softmax(scores, dim=-1, dtype=q.dtype)
        if self.keep:
            self.kept.append(attention)
        return attention @ v


def reduced_precision(device: torch.device) -> torch.autocast:
    """Compute in bfloat16 where the device does so by itself.

    A CPU without such instructions emulates them, and a step takes 50 times as long as in float32.
    """
    native = device.type != "cpu" or "AVX512" in torch.backends.cpu.get_cpu_capability()
    return torch.autocast(device.type, torch.bfloat16, enabled=native)


Network = VisionTransformer | Cnn | WhitenedCnn


class Objective(nn.Module):
    """The loss of a network on a batch.

    Cross-entropy with the labels. With a teacher, the mean of that and of the divergence from the
    teacher's logits (Hinton et al., https://arxiv.org/abs/1503.02531, section 2). The distillation
    token learns the latter (Touvron et al., https://arxiv.org/abs/2012.12877, section 4), or the
    only head in a network without one.
    """

    def __init__(
        self, network: Network, recipe: Recipe, mean: Triple = MEAN, std: Triple = STD
    ) -> None:
        super().__init__()
        self.network = network
        self.recipe = recipe
        self.mean, self.std = mean, std
        if recipe.drop_path and isinstance(network, VisionTransformer):
            add_stochastic_depth(
                network, recipe.drop_path, torch.Generator().manual_seed(recipe.seed)
            )

    def forward(
        self, pictures: Tensor, labels: Tensor, taught: Tensor | None, image_size: int
    ) -> Tensor:
        """Compute the loss, a scalar, of pictures (B, side, side, 3).

        Labels are numbers (B,), or shares of the classes (B, K); `taught` the teacher's logits
        (B, K).
        """
        attention = PlainAttention() if pictures.device.type == "cpu" else nullcontext()
        with reduced_precision(pictures.device), attention:
            x = normalise(pictures, image_size, self.mean, self.std)
            return self._loss(x, labels, taught)

    def _loss(self, x: Tensor, labels: Tensor, taught: Tensor | None) -> Tensor:
        model, smoothing = self.network, self.recipe.label_smoothing
        if taught is None or not isinstance(model, VisionTransformer):
            return F.cross_entropy(model(x).float(), labels, label_smoothing=smoothing)
        temperature = self.recipe.temperature
        z = model.forward_features(x)
        if model.head_dist is None:
            answer = pupil = model.forward_head(z).float()
        else:
            answer, pupil = model.head(z[:, 0]).float(), model.head_dist(z[:, 1]).float()
        loss = F.cross_entropy(answer, labels, label_smoothing=smoothing)
        prediction = F.log_softmax(pupil / temperature, dim=1)
        goal = F.softmax(taught / temperature, dim=1)
        distance = F.kl_div(prediction, goal, reduction="batchmean") * temperature**2
        return (loss + distance) / 2


def add_stochastic_depth(model: VisionTransformer, share: float, noise: torch.Generator) -> None:
    """Let pictures skip the attention or the MLP of a block at random in training.

    Outputs that are not skipped are scaled up to keep the mean. The share rises from 0 in the first
    block to `share` in the last (Huang et al., "Deep Networks with Stochastic Depth",
    https://arxiv.org/abs/1603.09382, section 3).
    """
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        rate = 1 - share * number / max(1, len(model.blocks) - 1)

        def skip(module: nn.Module, inputs: Any, output: Tensor, rate: float = rate) -> Tensor:
            if not module.training:
                return output
            stays = torch.rand(len(output), 1, 1, generator=noise) < rate
            return output * (stays / rate).to(output)

        block.attn.register_forward_hook(skip)
        block.mlp.register_forward_hook(skip)


def build_optimisers(model: Network, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Build Muon for the matrices of the blocks and AdamW for the rest; SGD for a CNN."""
    if not isinstance(model, VisionTransformer):
        return [_sgd(model, recipe)]
    parts: dict[str, list[nn.Parameter]] = {"muon": [], "qkv": [], "embedding": [], "others": []}
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and parameter.ndim == 2:
            parts["qkv" if recipe.qkv == "adamw" and "qkv" in name else "muon"].append(parameter)
        else:
            embeds = name.startswith("patch_embed")
            parts["embedding" if embeds else "others"].append(parameter)
    rate = recipe.adamw_rate
    groups: list[dict[str, Any]] = [
        {"params": parts["others"]},
        {"params": parts["embedding"], "lr": rate * recipe.embedding_rate},
        {"params": parts["qkv"], "lr": rate * recipe.qkv_rate},
    ]
    return [
        torch.optim.Muon(parts["muon"], lr=recipe.muon_rate, weight_decay=recipe.muon_decay),
        torch.optim.AdamW(groups, lr=rate, weight_decay=recipe.adamw_decay),
    ]


def _sgd(model: Cnn | WhitenedCnn, recipe: Recipe) -> torch.optim.SGD:
    """Build SGD; the biases of a WhitenedCnn's normalisation learn faster, but decay as all do."""
    rate, decay = recipe.sgd_rate, recipe.sgd_decay
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    quick = {m.bias for m in norms} if isinstance(model, WhitenedCnn) else set()
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p not in quick]},
        {
            "params": [p for p in parameters if p in quick],
            "lr": rate * BIAS_RATE,
            "weight_decay": decay / BIAS_RATE,
        },
    ]
    return torch.optim.SGD(groups, lr=rate, weight_decay=decay, momentum=0.9, nesterov=True)


def set_rate(optimisers: list[torch.optim.Optimizer], factor: float) -> None:
    """Set every rate to `factor` times its own peak."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def rate_factor(step: int, steps: int, peak: float, last: float = 0.0) -> float:
    """Return the rate's factor: warm-up over 5 % of the steps, at most 200, then linear decay."""
    warmup = min(200, max(1, steps // 20))
    remaining = (steps - step) / max(1, steps - warmup)
    return min(peak * (step + 1) / warmup, last + (peak - last) * remaining)


@torch.no_grad()
def update_average(average: Network, model: Network, decay: float) -> None:
    """Update the exponential moving average: decay * average + (1 - decay) * model."""
    for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if mean.is_floating_point():
            mean.lerp_(value, 1 - decay)
        else:
            mean.copy_(value)
