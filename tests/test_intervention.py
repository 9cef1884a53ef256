"""Each experiment is what the same passes made by hand are, and finds what was planted."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from examples import (
    OWN,
    TIMM,
    assert_clear_error,
    equal_captures,
    example,
    hook_count,
    own_model,
    picture,
    plain_logits,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from timm.models import maxxvit

from vitviz.activations import DropPatches, Edit, FillPatches, MuteHeads, capture
from vitviz.intervention import (
    Curve,
    Removal,
    deletion_curve,
    head_effects,
    head_outputs,
    insertion_curve,
    logit_lens,
    mean_head_outputs,
    occlusion,
    patch_lens,
    random_curve,
    random_map,
)
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.model.model import RECORDER

GRID = (4, 6)
REMOVALS: tuple[Removal, ...] = ("mean", "blur", "drop")
CURVES = [deletion_curve, insertion_curve]
WITH_HEAD = [*(name for name in OWN if name != "no head"), *TIMM]


def probability(model: Model, class_index: int, *edits: Edit) -> np.float32:
    """The class's probability in one capture of the picture."""
    probabilities = capture(model, picture(), edits=edits).probabilities
    assert probabilities is not None
    value: np.float32 = probabilities[class_index]
    return value


def edit_of(mask: np.ndarray, removal: Removal) -> Edit:
    return DropPatches(mask) if removal == "drop" else FillPatches(mask, removal)


def passes_of(model: Model) -> tuple[list[int], Callable[[], None]]:
    """A list that grows with each forward pass of the module, and what ends that."""
    made: list[int] = []
    _ = model.read_tokens, model.outputs  # each is found once, by passes of its own
    handle = model.module.register_forward_pre_hook(lambda *_: made.append(1))
    return made, handle.remove


# --- head effects -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plain", "no class token", "distilled", "registers", "registers alone", "test_vit"]
)
def test_each_head_is_muted_alone(name: str) -> None:
    model = example(name)
    effects = head_effects(model, picture())
    plain = plain_logits(model, picture())
    changed = watched(copy.deepcopy(model.module), model.preprocess.input_size)
    module: Any = changed.module
    heads = model.layers[0].num_heads
    assert effects.shape == (len(model.layers), heads, len(plain))
    assert effects.dtype == np.float32
    assert not effects.flags.writeable
    for layer, head in np.ndindex(effects.shape[:2]):
        proj = module.blocks[layer].attn.proj
        width, whole = proj.in_features // heads, proj.weight.detach().clone()
        with torch.no_grad():
            proj.weight[:, head * width : (head + 1) * width] = 0
            expected = plain_logits(changed, picture())
            proj.weight.copy_(whole)
        limit = 1e-6 * float(expected.abs().max())
        assert_allclose(effects[layer, head], expected, rtol=0, atol=limit)
        assert np.abs(effects[layer, head] - plain.numpy()).max() > 1e-3


def test_effects_of_heads_that_give_the_mean_over_pictures() -> None:
    model, images = example("plain"), [picture(seed=seed) for seed in (1, 2, 3)]
    mean = mean_head_outputs(capture(model, image) for image in images)
    every = [head_outputs(capture(model, image)) for image in images]
    for head, values in mean.items():
        assert_allclose(values, np.mean([one[head] for one in every], axis=0), rtol=0, atol=1e-5)
    found = head_effects(model, picture(), values=mean)
    expected = capture(model, picture(), edits=[MuteHeads([(1, 2)], mean)]).logits
    assert_array_equal(found[1, 2], expected)
    assert np.abs(found - head_effects(model, picture())).max() > 1e-3
    with pytest.raises(ValueError, match=r"at least one capture, got none"):
        mean_head_outputs(iter(()))  # as of a generator that was used up


# --- logit lens ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["plain", "no class token", "distilled", "registers", "registers alone", TIMM[1], *TIMM[3:]],
)
def test_a_row_of_the_lens_is_the_answer_of_a_model_cut_there(name: str) -> None:
    model = example(name)
    lens = logit_lens(model, capture(model, picture()))
    assert not lens.flags.writeable
    module: Any = copy.deepcopy(model.module)
    blocks, x = module.blocks, model.preprocess(picture())[None]
    for depth, row in enumerate(lens):
        module.blocks = type(blocks)(blocks[:depth])  # never more than there are
        with torch.inference_mode():
            expected = module(x)[0].softmax(dim=-1)
        assert_allclose(row, expected, rtol=0, atol=1e-6)
    assert np.abs(np.diff(lens, axis=0)).max(axis=-1).min() > 1e-3  # rows that can be told apart


@pytest.mark.parametrize("name", ["plain", "no class token", "registers alone", "test_vit"])
def test_the_lens_follows_the_edits_of_its_capture(name: str) -> None:
    model = example(name)
    mask = random_map(model.layers[0].query_grid) < 9
    acts = capture(model, picture(), edits=[DropPatches(mask)])
    assert acts.probabilities is not None
    assert_allclose(logit_lens(model, acts)[-1], acts.probabilities, rtol=0, atol=1e-5)


def answer_of_token(module: Any, token: torch.Tensor) -> torch.Tensor:
    """Final norm and head applied to one token, written out."""
    z = module.norm(token)
    if getattr(module, "attn_pool", None) is not None:
        z = module.attn_pool(z[:, None])
    if getattr(module, "head_dist", None) is not None:
        return ((module.head(z) + module.head_dist(z)) / 2).softmax(dim=-1)
    return module.head(getattr(module, "fc_norm", torch.nn.Identity())(z)).softmax(dim=-1)


@pytest.mark.parametrize("name", WITH_HEAD)
def test_the_lens_of_a_patch_is_the_heads_answer_to_its_token(name: str) -> None:
    model = example(name)
    acts = capture(model, picture())
    for depth in range(acts.depth + 1):
        found = patch_lens(model, acts, depth)
        tokens = torch.from_numpy(acts.tokens(depth)[acts.num_prefix_tokens :].copy())
        with torch.inference_mode():
            expected = answer_of_token(model.module, tokens).numpy()
        assert found.shape == (*acts.grid, expected.shape[-1])
        assert_allclose(found, expected.reshape(found.shape), rtol=0, atol=1e-6)
        assert not found.flags.writeable


def test_the_lens_of_patches_needs_every_patch() -> None:
    model = example("plain")
    acts = capture(model, picture(), edits=[DropPatches(random_map((4, 6)) < 2)])
    with pytest.raises(ModelError, match="were dropped") as caught:
        patch_lens(model, acts, 1)
    assert_clear_error(caught.value)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (dict(depth=2), "3 layers of width 32, got 2 layers of width 32"),
        (dict(embed_dim=16), "3 layers of width 32, got 3 layers of width 16"),
    ],
)
def test_a_capture_of_another_model_is_refused(other: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        logit_lens(example("plain"), capture(own_model(**other), picture()))
    assert_clear_error(caught.value)


def test_a_coatnet_with_all_attention_in_one_stage_is_refused_by_its_maps() -> None:
    """Its layers have one grid, and the first of them pools."""
    stages: Any = dict(embed_dim=(16, 16, 16, 16), depths=(1, 1, 1, 2), stem_width=16)
    heads = maxxvit.MaxxVitTransformerCfg(dim_head=8)
    kinds = ("C", "C", "C", "T")
    config = maxxvit.MaxxVitCfg(block_type=kinds, transformer_cfg=heads, **stages)
    model = watched(maxxvit.MaxxVit(config, img_size=(64, 96), num_classes=5).eval(), (64, 96))
    acts = capture(model, picture())
    for lens in (logit_lens, partial(patch_lens, depth=1)):
        with pytest.raises(ModelError, match="keeps its patches as a map"):
            lens(model, acts)


# --- occlusion ----------------------------------------------------------------------------------


@pytest.mark.parametrize("removal", REMOVALS)
def test_occlusion_is_the_fall_of_the_probability(removal: Removal) -> None:
    model = example("plain")
    named: Any = {} if removal == "mean" else dict(removal=removal)  # which is the default
    whole = probability(model, 3)
    for block in (2, 3, 4):  # blocks of 3 are cut off below, and those of 4 at the right
        effect = occlusion(model, picture(), target=3, block=block, **named)
        assert effect.dtype == np.float32
        assert not effect.flags.writeable
        places = np.indices(GRID) // block
        for place in np.ndindex(*(places.max(axis=(1, 2)) + 1)):
            mask = (places == np.reshape(place, (2, 1, 1))).all(axis=0)
            hidden = probability(model, 3, edit_of(mask, removal))
            assert_array_equal(effect[mask], whole - hidden)
        assert len(np.unique(effect)) == len(np.unique(places[0] * 10 + places[1]))


# --- deletion and insertion ---------------------------------------------------------------------


def by_hand(
    model: Model, importance: np.ndarray, counts: list[int], removal: Removal, *, insert: bool
) -> list[np.float32]:
    """The probability of class 3 with that many of the most important patches removed, or left."""
    order = sorted(range(importance.size), key=lambda patch: -importance.flat[patch])
    found = []
    for count in counts:
        mask = np.zeros(importance.size, bool)
        mask[order[count:] if insert else order[:count]] = True
        edit = edit_of(mask.reshape(importance.shape), removal)
        found.append(probability(model, 3, edit))
    return found


@pytest.mark.parametrize(
    ("name", "removal"),
    [
        *(("plain", removal) for removal in REMOVALS),
        *(("distilled", "drop"), ("registers", "drop")),  # what is painted is the picture alone
        *(("no class token", "mean"), ("registers alone", "mean")),
        ("stem", "blur"),  # whose patches lie elsewhere in it
    ],
)
def test_a_curve_is_a_row_of_captures(name: str, removal: Removal) -> None:
    model, importance = example(name), random_map(GRID, seed=5)
    options: dict[str, Any] = dict(target=3, steps=5, removal=removal)
    counts = [0, 4, 9, 14, 19, 24]
    for measure in CURVES:
        curve = measure(model, picture(), importance, **options)
        insert = measure is insertion_curve
        expected = by_hand(model, importance, counts, removal, insert=insert)
        assert_array_equal(curve.probabilities, expected)
        assert_allclose(curve.shares, np.array(counts) / 24)
        assert len(np.unique(curve.probabilities)) == 6
        assert not curve.shares.flags.writeable
        assert not curve.probabilities.flags.writeable


def test_area_is_that_of_the_trapezia() -> None:
    shares = np.array([0, 0.25, 1], np.float32)
    curve = Curve(shares, np.array([1, 0.5, 0], np.float32))
    assert curve.area == pytest.approx(0.25 * 0.75 + 0.75 * 0.25)
    assert Curve(shares, np.full(3, 0.3)).area == pytest.approx(0.3)


def test_equal_patches_go_in_row_major_order() -> None:
    model = example("plain")
    levels = np.random.default_rng(0).integers(0, 3, GRID)
    for importance, steps in ((levels, 24), (np.zeros(GRID), 8)):
        curve = deletion_curve(model, picture(), importance, target=3, steps=steps)
        counts = [*range(0, 25, 24 // steps)]
        expected = by_hand(model, importance, counts, "mean", insert=False)
        assert_array_equal(curve.probabilities, expected)


def test_only_the_order_of_the_map_counts() -> None:
    model, ranks = example("plain"), random_map(GRID, seed=2)
    maps: list[Any] = [
        ranks,
        ranks.astype(np.uint8),  # which a minus sign would turn over
        (np.exp(ranks) / 1e12).tolist(),
        -1 / (1 + ranks),
    ]
    first, *others = (
        deletion_curve(model, picture(), importance, target=3, steps=6).probabilities
        for importance in maps
    )
    for other in others:
        assert_array_equal(other, first)


@pytest.mark.parametrize("measure", CURVES)
def test_there_is_at_most_one_step_a_patch(measure: Any) -> None:
    curve = measure(example("plain"), picture(), random_map(GRID), target=3, steps=1000)
    assert_allclose(curve.shares, np.arange(25) / 24)
    one = measure(example("plain"), picture(), random_map(GRID), target=3, steps=1)
    assert_array_equal(one.probabilities, curve.probabilities[[0, -1]])


@pytest.mark.parametrize("measure", CURVES)
@pytest.mark.parametrize(
    ("importance", "options", "message"),
    [
        (np.zeros((6, 4)), {}, r"shape \(4, 6\), got \(6, 4\)"),
        (np.zeros(24), {}, r"shape \(4, 6\), got \(24,\)"),
        (np.full(GRID, np.inf), {}, "finite"),
        (np.zeros(GRID), dict(steps=0), "at least 1 step, got 0"),
        (np.zeros(GRID), dict(removal="red"), "got 'red'"),
        (np.zeros(GRID), dict(target=5), r"class in 0\.\.4, got 5"),
    ],
)
def test_a_curve_that_cannot_be_is_refused(
    measure: Any, importance: np.ndarray, options: dict[str, Any], message: str
) -> None:
    model = own_model()
    made, stop = passes_of(model)
    with pytest.raises(ValueError, match=message) as caught:
        measure(model, picture(), importance, **{"target": 3, **options})
    stop()
    assert made == []
    assert_clear_error(caught.value)


@pytest.mark.parametrize("measure", CURVES)
def test_dropping_all_is_refused_at_once_where_patches_are_read(measure: Any) -> None:
    model = own_model(**OWN["registers alone"])
    made, stop = passes_of(model)
    with pytest.raises(ModelError) as caught:
        measure(model, picture(), random_map(GRID), target=3, removal="drop")
    stop()
    assert len(made) == 1
    assert_clear_error(caught.value)


# --- a random map -------------------------------------------------------------------------------


def test_a_random_map_ranks_each_patch_once_and_depends_on_its_seed_alone() -> None:
    before = np.random.get_state()[1]  # type: ignore[index]
    maps = [random_map(GRID, seed=seed) for seed in (0, 0, 1)]
    assert_array_equal(before, np.random.get_state()[1])  # type: ignore[index]
    assert_array_equal(maps[0], maps[1])
    assert_array_equal(maps[0], random_map(GRID))
    assert not np.array_equal(maps[0], maps[2])
    assert maps[2].shape == GRID
    assert not maps[2].flags.writeable
    assert_array_equal(np.sort(maps[2], axis=None), np.arange(24))


@pytest.mark.parametrize("kind", [deletion_curve, insertion_curve])
def test_random_orders_have_a_mean_and_a_range(kind: Callable[..., Curve]) -> None:
    model, image, calls = example("plain"), picture(), list[tuple[int, int]]()
    options: dict[str, Any] = dict(target=3, steps=3)
    found = random_curve(
        kind, model, image, progress=lambda done, of: calls.append((done, of)), **options
    )
    single = [kind(model, image, random_map(GRID, seed=seed), **options) for seed in range(20)]
    values = np.sort([one.probabilities for one in single], axis=0)
    assert_allclose(found.probabilities, values.mean(axis=0))
    assert_allclose((found.low, found.high), values[[1, -2]])
    areas = sorted(one.area for one in single)
    assert_allclose(found.areas, areas)
    assert found.interval == pytest.approx((areas[1], areas[-2]))
    assert found.area == pytest.approx(np.mean(areas), rel=1e-5)
    assert found.interval[0] < found.interval[1]
    assert calls == [(done, 80) for done in range(80)]


# --- every experiment ---------------------------------------------------------------------------

#: Each with its number of passes. `head_effects` makes one before them, where nothing is muted.
EXPERIMENTS: dict[str, tuple[Callable[..., object], int]] = {
    "head effects": (head_effects, 12),
    "occlusion": (
        lambda model, image, **options: occlusion(model, image, target=3, block=2, **options),
        7,
    ),
    "deletion": (
        lambda model, image, **options: deletion_curve(
            model, image, random_map(GRID), target=3, **options
        ),
        11,
    ),
    "insertion": (
        lambda model, image, **options: insertion_curve(
            model, image, random_map(GRID), target=3, **options
        ),
        11,
    ),
}


class Stopped(BaseException):
    """As Streamlit's own, no Exception."""


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_progress_is_told_before_each_pass(name: str) -> None:
    experiment, count = EXPERIMENTS[name]
    model, image = own_model(), picture()
    seen = capture(model, image)
    made, stop = passes_of(model)
    told: list[tuple[int, int, int]] = []
    experiment(model, image, progress=lambda done, of: told.append((done, of, len(made))))
    stop()
    before = int(experiment is head_effects)
    assert told == [(done, count, done + before * (done > 0)) for done in range(count)]
    assert len(made) == count + before
    assert image == picture()
    assert equal_captures(capture(model, image), seen)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_progress_that_raises_stops_and_leaves_nothing_behind(name: str) -> None:
    experiment, _ = EXPERIMENTS[name]
    model = own_model()
    before = capture(model, picture())
    passes = 3 + (experiment is head_effects)
    state = {key: value.clone() for key, value in model.module.state_dict().items()}
    hooks = hook_count(model.module)

    def progress(done: int, of: int) -> None:
        if done == 3:
            raise Stopped

    made, stop = passes_of(model)
    with pytest.raises(Stopped):
        experiment(model, picture(), progress=progress)
    stop()
    assert len(made) == passes
    assert RECORDER.get() is None
    assert hook_count(model.module) == hooks
    assert all(torch.equal(value, state[key]) for key, value in model.module.state_dict().items())
    assert equal_captures(capture(model, picture()), before)


@pytest.mark.parametrize("name", [*EXPERIMENTS, "logit lens"])
def test_a_model_without_a_head_is_refused(name: str) -> None:
    model = example("no head")
    acts = capture(model, picture())
    experiment: Callable[..., object] = logit_lens
    if name in EXPERIMENTS:
        experiment = EXPERIMENTS[name][0]
    with pytest.raises(ModelError, match=r"example has no .*head") as caught:
        experiment(model, acts if name == "logit lens" else picture())
    assert_clear_error(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(block=0), "at least 1 patch, got 0"),
        (dict(removal="red"), "'red'"),
    ],
)
def test_an_occlusion_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        occlusion(example("plain"), picture(), **{"target": 0, **options})
    assert_clear_error(caught.value)
