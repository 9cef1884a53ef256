"""What holds for every small ViT, whatever its sizes and weights, from picture to numbers."""

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from examples import own_module, picture, watched
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from PIL import Image

from vitviz import Activations, attribution, capture, inspection
from vitviz.intervention import logit_lens
from vitviz.vit import VisionTransformer

PATCH = 4  # pixels
PREFIXES: dict[int, dict[str, Any]] = {
    0: dict(class_token=False),
    1: {},
    2: dict(distillation_token=True),
    5: dict(registers=4),
}
few = settings(max_examples=25, derandomize=True, database=None)


@dataclass(frozen=True)
class Case:
    """A ViT in double precision, and a picture that fills its input as it is."""

    module: VisionTransformer = field(repr=False)
    grid: tuple[int, int]
    prefix: int
    seed: int

    @property
    def image(self) -> Image.Image:
        return picture(PATCH * self.grid[1], PATCH * self.grid[0], seed=self.seed)

    @property
    def positions(self) -> torch.Tensor:
        """(1, N or prefix + N, D)."""
        assert self.module.pos_embed is not None
        return self.module.pos_embed.detach()

    @property
    def diagonal(self) -> float:
        """Between the middles of the patches in two corners, in pixels."""
        return PATCH * float(np.hypot(self.grid[0] - 1, self.grid[1] - 1))

    def watch(self, module: VisionTransformer, image: Image.Image) -> Activations:
        model = watched(module, module.patch_embed.image_size, labels=tuple("abcde"))
        return capture(model, image)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    grid = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    prefix, seed = draw(st.sampled_from(list(PREFIXES))), draw(st.integers(0, 1000))
    module = own_module(
        image_size=(PATCH * grid[0], PATCH * grid[1]),
        patch_size=PATCH,
        embed_dim=24,
        depth=draw(st.integers(1, 4)),
        num_heads=draw(st.integers(1, 4)),
        **PREFIXES[prefix],
    ).double()
    scale = draw(st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0]))
    with torch.no_grad():
        for name, weights in module.named_parameters():
            if weights.ndim > 1:  # and not the norms and biases
                random = torch.Generator().manual_seed(seed + len(name))
                weights.copy_(torch.randn(weights.shape, generator=random).double())
                weights.mul_(scale * weights[0].numel() ** -0.5)
    return Case(module, grid, prefix, seed)


def changed(case: Case, **weights: torch.Tensor) -> VisionTransformer:
    """The same model with other weights in these places."""
    module = copy.deepcopy(case.module)
    module.load_state_dict({**module.state_dict(), **weights})
    return module


def assert_moved(case: Case, moved: Activations, order: np.ndarray) -> None:
    """The same attention, its patches in another order; and the same answer."""
    acts = case.watch(case.module, case.image)
    tokens = np.concatenate([np.arange(case.prefix), case.prefix + order])
    for before, after in zip(acts.attention_layers(), moved.attention_layers(), strict=True):
        assert_allclose(after, before[:, tokens][:, :, tokens], atol=1e-4)
    rollouts = [
        inspection.attention_rollout(one.attention_layers(), num_prefix_tokens=case.prefix)
        for one in (acts, moved)
    ]
    assert_allclose(rollouts[1], rollouts[0][tokens], atol=1e-4)
    assert_same_answer(moved, acts)


def assert_same_answer(acts: Activations, other: Activations) -> None:
    assert acts.logits is not None
    assert other.logits is not None
    assert_allclose(acts.logits, other.logits, rtol=1e-4, atol=1e-4 * abs(other.logits).max())


@few
@given(cases())
def test_shares_sum_to_1_and_distances_lie_within_the_grid(case: Case) -> None:
    acts = case.watch(case.module, case.image)
    for attention in acts.attention_layers():
        assert attention.min() >= 0
        assert_allclose(attention.sum(axis=-1), 1, atol=1e-5)
    for fusion in ("mean", "max", "min"):
        rollout = inspection.attention_rollout(
            acts.attention_layers(), num_prefix_tokens=case.prefix, fusion=fusion
        )
        assert_allclose(rollout.sum(), 1, atol=1e-5)
        assert rollout.min() >= 0
    measured = inspection.measurements(
        acts.attention_layers(),
        grid=case.grid,
        patch_size=PATCH,
        num_prefix_tokens=case.prefix,
    )
    assert measured.distance.shape == (acts.depth, acts.num_heads)
    there = ~np.isnan(measured.distance)  # where any weight is on patches
    assert (measured.prefix_mass[~there] > 0.999).all()
    assert (measured.distance[there] >= 0).all()
    assert (measured.distance[there] <= case.diagonal + 1e-4).all()


@few
@given(cases())
def test_patches_in_another_order_with_their_positions_change_the_order_alone(case: Case) -> None:
    rows, cols = case.grid
    order = np.random.default_rng(case.seed).permutation(rows * cols)
    pixels = np.asarray(case.image)
    patches = (
        pixels.reshape(rows, PATCH, cols, PATCH, 3).swapaxes(1, 2).reshape(-1, PATCH, PATCH, 3)
    )
    shuffled = patches[order].reshape(rows, cols, PATCH, PATCH, 3).swapaxes(1, 2)
    image = Image.fromarray(np.ascontiguousarray(shuffled.reshape(pixels.shape)))
    module = changed(case, pos_embed=_patches_moved(case, order))
    assert_moved(case, case.watch(module, image), order)


def _patches_moved(case: Case, order: np.ndarray) -> torch.Tensor:
    """The positions of the patches in another order."""
    table = case.positions
    first = table.shape[1] - len(order)
    return torch.cat([table[:, :first], table[:, first + torch.from_numpy(order.copy())]], dim=1)


@few
@given(cases())
def test_heads_in_another_order_change_the_order_alone(case: Case) -> None:
    acts = case.watch(case.module, case.image)
    heads = np.random.default_rng(case.seed).permutation(acts.num_heads)
    size = 24 // acts.num_heads
    columns = torch.from_numpy((heads[:, None] * size + np.arange(size)).ravel())
    rows = torch.cat([columns, 24 + columns, 48 + columns])
    weights = dict(case.module.state_dict())
    for name in [name for name in weights if ".attn." in name]:
        if ".qkv." in name:
            weights[name] = weights[name][rows]
        elif name.endswith("proj.weight"):
            weights[name] = weights[name][:, columns]
    moved = case.watch(changed(case, **weights), case.image)
    for before, after in zip(acts.attention_layers(), moved.attention_layers(), strict=True):
        assert_allclose(after, before[heads], atol=1e-4)
    assert_same_answer(moved, acts)


@few
@given(cases(), st.sampled_from([0, 128, 255]), st.booleans())
def test_a_picture_of_one_colour_divides_nothing_by_zero(
    case: Case, grey: int, alike: bool
) -> None:
    """Also where all patches have the same position; a warning would be an error here."""
    positions = torch.zeros_like(case.positions) if alike else case.positions
    module = changed(case, pos_embed=positions).float()
    image = Image.new("RGB", case.image.size, (grey, grey, grey))
    model = watched(module, module.patch_embed.image_size, labels=tuple("abcde"))
    acts = capture(model, image)
    where: dict[str, Any] = dict(grid=case.grid, num_prefix_tokens=case.prefix)
    measured = inspection.measurements(acts.attention_layers(), patch_size=PATCH, **where)
    found = [
        measured.entropy,
        measured.prefix_mass,
        measured.query_attention,
        measured.rollout,
        attribution.relevance(model, image, 0),
        attribution.gradient_rollout(model, image, 0),
        logit_lens(model, acts),
        inspection.position_similarity(positions[0].numpy(), grid=case.grid),
    ]
    if case.grid[0] * case.grid[1] > 3:
        found += inspection.token_components(acts.tokens(acts.depth), **where)
    for values in found:
        assert np.isfinite(values).all()
