"""Watching changes nothing and sees what is there: plain PyTorch and timm are the oracles."""

import copy
import gc
import math
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    TIMM,
    assert_clear_error,
    equal_captures,
    example,
    hook_count,
    narrow_stages,
    own_model,
    picture,
    plain_logits,
    randomise,
    timm_module,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from torch import Tensor, nn

from vitviz.activations import Activations, Edit, MuteHeads, SwapTokens, capture, check_finite
from vitviz.activations.forward import muted_answers
from vitviz.attribution import METHODS, direct_logit_attribution
from vitviz.common.images import ImageError
from vitviz.inspection import windowed_distance
from vitviz.intervention import logit_lens
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.model.model import RECORDER
from vitviz.profiling import profile
from vitviz.vit import VisionTransformer

# --- watching changes nothing -------------------------------------------------------------------


@pytest.mark.parametrize("name", [*(name for name in OWN if name != "no head"), *TIMM])
def test_logits_are_bit_equal_to_those_of_the_plain_forward(name: str) -> None:
    model = example(name)
    acts = capture(model, picture())
    assert acts.logits is not None
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    assert acts.logits.std() > 0.01


def test_a_model_without_head_has_no_logits() -> None:
    acts = capture(example("no head"), picture())
    assert acts.logits is None
    assert acts.probabilities is None
    assert acts.attention(2).shape == (4, 25, 25)


def test_a_capture_reads_the_live_weights() -> None:
    model = own_model()
    before = capture(model, picture())
    module: Any = model.module
    with torch.no_grad():
        module.blocks[1].attn.qkv.weight.mul_(2)
    after = capture(model, picture())
    assert_array_equal(before.attention(0), after.attention(0))
    assert np.abs(before.attention(1) - after.attention(1)).max() > 0.01
    assert after.logits is not None
    assert_array_equal(after.logits, plain_logits(model, picture()).numpy())


# --- attention ----------------------------------------------------------------------------------


def unfused_attention(name: str, image: Image.Image) -> list[np.ndarray]:
    """Each layer's softmax, read by a hook where timm computes it step by step."""
    model = example(name)
    module: Any = copy.deepcopy(model.module)
    seen: list[np.ndarray] = []

    def read(_: nn.Module, inputs: tuple[Tensor]) -> None:
        seen.append(inputs[0][0].numpy())

    for block in module.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_pre_hook(read)
    with torch.inference_mode():
        module(model.preprocess(image)[None])
    return seen


@pytest.mark.parametrize("name", TIMM)
def test_attention_is_the_softmax_of_timms_unfused_model(name: str) -> None:
    acts = capture(example(name), picture())
    expected = unfused_attention(name, picture())
    assert len(expected) == acts.depth
    for layer, (seen, softmax) in enumerate(zip(acts.attention_layers(), expected, strict=True)):
        assert_allclose(seen, softmax, rtol=0, atol=1e-5, err_msg=f"layer {layer}")
        assert softmax.std() > 0.05 * softmax.mean()  # uneven, so that order matters


def test_a_place_that_is_not_there_is_an_error() -> None:
    acts = capture(example("plain"), picture())
    names = ("attention", "attention_map", "queries", "keys", "values", "tokens_after_attention")
    cases = [(name, layer, "layer in 0..2") for name in names for layer in (-1, 3)]
    for name, place, words in (*cases, *(("tokens", depth, "depth in 0..3") for depth in (-1, 4))):
        with pytest.raises(ValueError, match=words) as caught:
            getattr(acts, name)(place)
        assert_clear_error(caught.value)
    with pytest.raises(ValueError, match="diagonal") as caught:
        acts.attention_map(0, 0, direction="diagonal")  # type: ignore[arg-type]
    assert_clear_error(caught.value)


# --- maps ---------------------------------------------------------------------------------------

OBLONG: dict[str, Any] = dict(image_size=(40, 56), depth=1)  # a grid of 10 x 14


@pytest.mark.parametrize(
    "options",
    [
        OBLONG,
        dict(OBLONG, class_token=False),
        dict(OBLONG, distillation_token=True, registers=3),
        dict(image_size=24, depth=1),
    ],
    ids=["cls", "no prefix", "five prefix tokens", "square"],
)
def test_a_map_is_one_row_or_column_of_attention(options: dict[str, Any]) -> None:
    acts = capture(own_model(**options), picture())
    (rows, cols), prefix = acts.grid, acts.num_prefix_tokens
    attention = acts.attention(0)
    queries: list[tuple[int | tuple[int, int], int]] = [
        *((token, token) for token in range(prefix)),
        (prefix + 7, prefix + 7),
        ((0, 0), prefix),
        ((0, cols - 1), prefix + cols - 1),
        ((2, 5), prefix + 2 * cols + 5),
        ((rows - 1, cols - 1), prefix + rows * cols - 1),
    ]
    for query, token in queries:
        row = acts.attention_map(0, query)
        column = acts.attention_map(0, query, direction="column")
        assert row.shape == column.shape == (4, rows, cols)
        assert np.abs(row - column).max() > 1e-3
        for i in range(rows):
            for j in range(cols):
                patch = prefix + i * cols + j
                assert_array_equal(row[:, i, j], attention[:, token, patch])
                assert_array_equal(column[:, i, j], attention[:, patch, token])


@pytest.mark.parametrize("name", ["distilled", "no class token", "registers alone"])
def test_no_query_is_the_class_token_or_the_mean_of_the_patches(name: str) -> None:
    acts = capture(example(name), picture())
    prefix = acts.num_prefix_tokens
    patches = acts.attention(1)[:, prefix:, prefix:]
    directions: list[tuple[Any, int]] = [("row", 1), ("column", 2)]
    for direction, axis in directions:
        expected = patches.mean(axis=axis).reshape(4, 4, 6)
        if name == "distilled":
            expected = acts.attention_map(1, 0, direction=direction)
        assert_allclose(acts.attention_map(1, direction=direction), expected, atol=1e-6)


# --- what else is kept --------------------------------------------------------------------------


def unrolled(model: Model, image: Image.Image) -> Iterator[tuple[Tensor, ...]]:
    """(z before, q, k, v, z after attention, z after) of each block, by the equations."""
    module: Any = model.module
    x = model.preprocess(image)[None]
    if isinstance(module, VisionTransformer):
        z = module.embed(x)
    else:
        z = module.norm_pre(module._pos_embed(module.patch_embed(x)))
    for block in module.blocks:
        before, attn = z, block.attn
        qkv = attn.qkv(block.norm1(z))
        q, k, v = qkv.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = getattr(attn, "q_norm", nn.Identity())(q), getattr(attn, "k_norm", nn.Identity())(k)
        A = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        attended = attn.proj((A @ v).transpose(1, 2).flatten(2))
        middle = z + getattr(block, "ls1", nn.Identity())(attended)
        change = block.mlp(block.norm2(middle))
        z = middle + getattr(block, "ls2", nn.Identity())(change)
        yield before[0], q[0], k[0], v[0], middle[0], z[0]


@pytest.mark.parametrize("name", [*OWN, *TIMM])
def test_everything_kept_is_that_of_a_forward_by_hand(name: str) -> None:
    model = example(name)
    acts = capture(model, picture())
    assert acts.layers == model.layers
    with torch.inference_mode():
        steps = list(unrolled(model, picture()))
    for layer, expected in enumerate(steps):
        kept = (
            acts.tokens(layer),
            acts.queries(layer),
            acts.keys(layer),
            acts.values(layer),
            acts.tokens_after_attention(layer),
            acts.tokens(layer + 1),
        )
        names = ("tokens before", "q", "k", "v", "tokens after attention", "tokens after")
        for what, array, tensor in zip(names, kept, expected, strict=True):
            scale = float(tensor.abs().max())
            assert_allclose(
                array, tensor, rtol=0, atol=1e-5 * scale, err_msg=f"{what} of layer {layer}"
            )
    assert layer == acts.depth - 1
    assert model.final_norm is not None
    for depth in range(acts.depth + 1):
        normalised = torch.from_numpy(acts.tokens(depth, normalised=True).copy())
        with torch.inference_mode():
            expected_norm = model.final_norm(torch.from_numpy(acts.tokens(depth).copy()))
        assert_array_equal(normalised, expected_norm)
    module: Any = model.module
    if acts.logits is not None and model.final_norm is module.norm:  # before the pooling
        with torch.inference_mode():
            logits = module.forward_head(torch.tensor(acts.tokens(depth, normalised=True))[None])[0]
        assert_allclose(logits, acts.logits, rtol=0, atol=1e-5)


def arrays_of(acts: Activations) -> dict[str, np.ndarray | None]:
    return {
        "logits": acts.logits,
        "probabilities": acts.probabilities,
        "attention": acts.attention(1),
        "row map": acts.attention_map(1, 0),
        "column map": acts.attention_map(1, (1, 2), direction="column"),
        "queries": acts.queries(1),
        "keys": acts.keys(1),
        "values": acts.values(1),
        "tokens": acts.tokens(1),
        "normalised tokens": acts.tokens(1, normalised=True),
        "tokens after attention": acts.tokens_after_attention(1),
    }


def test_arrays_are_float32_and_cannot_be_written() -> None:
    acts = capture(example("plain"), picture())
    for name, array in arrays_of(acts).items():
        assert array is not None
        assert array.dtype == np.float32, name
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        acts.patches[...] = 0


@pytest.mark.parametrize(
    "change",
    [dict(kind="window"), dict(query_grid=(2, 3)), dict(key_grid=(2, 3)), dict(prefix=())],
)
def test_layers_of_other_tokens_are_not_all_to_all(change: dict[str, Any]) -> None:
    model = own_model()
    model.reading.layers = (*model.layers[:2], replace(model.layers[2], **change))
    acts = capture(model, picture())
    assert not acts.all_to_all
    with pytest.raises(ModelError, match="no chain of matrices"):
        acts.attention_layers()
    if "kind" in change or "query_grid" in change:
        with pytest.raises(ModelError) as caught:
            _ = acts.grid
        assert_clear_error(caught.value)


def test_nbytes_counts_each_number_once() -> None:
    acts = capture(example("plain"), picture())
    layer = 25 * 32 * 4  # tokens x width x bytes of a float32
    # q, k and v are views of one tensor; a block's output is the next one's input.
    photo = 60 * 50 * 4  # four bytes a pixel
    kept = 3 * (3 * layer + layer) + 4 * layer + 3 * layer + photo
    assert kept <= acts.nbytes <= kept + 1024


def test_a_capture_holds_nothing_of_the_model() -> None:
    model = own_model()
    acts = capture(model, picture())
    before = acts.attention(1)
    held: list[Any] = [*model.module.modules(), *model.module.parameters()]
    references = [weakref.ref(part) for part in held]
    del model, held
    gc.collect()
    assert [ref() for ref in references if ref() is not None] == []
    assert_array_equal(acts.attention(1), before)


# --- nothing is left behind ---------------------------------------------------------------------


class Stopped(KeyboardInterrupt):
    """A stop that no `except Exception` sees, as Streamlit's is."""


def function_modes() -> int:
    return torch._C._len_torch_function_stack()


def test_progress_is_told_of_every_block_before_it_runs() -> None:
    model = example("plain")
    told: list[tuple[int, int]] = []
    capture(model, picture(), progress=lambda block, of: told.append((block, of)))
    assert told == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *(("progress", kind) for kind in (ValueError, RuntimeError, KeyError, Stopped)),
        *((place, Stopped) for place in ("embedding", "block", "mlp", "attention", "head")),
        ("mlp", ValueError),
    ],
)
def test_whatever_is_raised_leaves_nothing_behind(place: str, kind: type[BaseException]) -> None:
    model = own_model()
    expected = capture(model, picture())
    hooks, modes = hook_count(model.module), function_modes()

    def stop(*_: Any) -> None:
        raise kind("enough")

    def progress(block: int, of: int) -> None:
        if place == "progress" and block == 1:
            stop()

    paths = {
        "embedding": "patch_embed.proj",
        "block": "blocks.1",
        "mlp": "blocks.1.mlp",
        "attention": "blocks.1.attn.proj",
        "head": "head",
    }
    handle = None
    if place in paths:
        handle = model.module.get_submodule(paths[place]).register_forward_pre_hook(stop)
    with pytest.raises(kind, match="enough"):
        capture(model, picture(seed=1), progress=progress, edits=[MuteHeads([(0, 1)])])
    if handle is not None:
        handle.remove()

    assert RECORDER.get() is None
    assert function_modes() == modes
    assert hook_count(model.module) == hooks
    assert not torch.is_inference_mode_enabled()
    assert equal_captures(capture(model, picture()), expected)
    assert_array_equal(plain_logits(model, picture()).numpy(), expected.logits)


def test_what_the_module_fails_on_is_said_in_one_sentence() -> None:
    model = watched(timm_module("vit_tiny_patch16_224", depth=1), (64, 64))
    words = "could not compute an input of 64 x 64 pixels: Input height"
    with pytest.raises(ModelError, match=words) as caught:
        capture(model, picture())
    assert_clear_error(caught.value)
    assert isinstance(caught.value.__cause__, AssertionError)
    assert hook_count(model.module) == 0


# The quantisation that torch itself has is on its way out, and still in use.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["test_vit", "test_vit_relpos", "coatnet_nano_rw_224"])
def test_a_quantised_model_is_watched_like_any_other(name: str) -> None:
    narrow = narrow_stages() if name.startswith("coatnet") else {}
    module: Any = timm.create_model(name, img_size=64, **narrow).eval()
    quantised = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    model = watched(quantised, (64, 64))
    acts = capture(model, picture())
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth
    digest = acts.record["weights_sha256"]
    with torch.no_grad():
        next(iter(quantised.parameters())).add_(1)
    assert capture(model, picture()).record["weights_sha256"] != digest
    methods: list[Any] = [*METHODS.values(), direct_logit_attribution]
    for method in methods:
        with pytest.raises(ModelError, match=r"without gradients|Grad-CAM|cannot be mult|no sum"):
            method(model, picture(), 0)
    with pytest.raises(ModelError):
        acts.carried(model, 0)


def test_pictures_and_edits_of_one_thread_are_not_felt_in_another() -> None:
    model = own_model()
    edits: list[list[Edit]] = [[], [MuteHeads([(0, 0), (1, 1)])], [SwapTokens([(0, 5)])]]
    asked = [(picture(seed=seed), edit) for seed in range(2) for edit in edits]
    expected = [capture(model, image, edits=edit) for image, edit in asked]
    assert not any(equal_captures(expected[0], other) for other in expected[1:])
    start = threading.Barrier(6)

    def work(worker: int) -> bool:
        start.wait()
        order = [(worker + step) % 6 for step in range(6)]
        found = [capture(model, asked[number][0], edits=asked[number][1]) for number in order]
        return all(map(equal_captures, found, (expected[number] for number in order)))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_a_hook_that_steers_a_block_is_seen_in_the_residual_stream() -> None:
    """Whoever steers a model returns another output from a hook on a block."""
    model = own_model()
    given: list[Tensor] = []
    for path in ("blocks.0", "blocks.2"):
        model.module.get_submodule(path).register_forward_hook(
            lambda block, inputs, output: output + torch.linspace(0, 2, output.shape[-1])
        )
    for path in ("blocks.1", "norm"):
        part = model.module.get_submodule(path)
        part.register_forward_pre_hook(lambda part, inputs: given.append(inputs[0][0]))
    capture(model, picture())  # the first one makes other passes, too
    given.clear()
    acts = capture(model, picture())
    assert len(given) == 2
    assert_array_equal(acts.tokens(1), given[0])
    assert_array_equal(acts.tokens(3), given[1])
    assert acts.probabilities is not None
    assert_allclose(logit_lens(model, acts)[-1], acts.probabilities, atol=1e-6)
    muted = capture(model, picture(), edits=[MuteHeads([(1, 2)])])
    (answers,) = muted_answers(model, [picture()], [(1, 2)], {})
    assert_array_equal(answers[0], muted.logits)


def test_a_capture_inside_the_progress_of_another_disturbs_neither() -> None:
    model = own_model()
    inner_edits: list[Edit] = [MuteHeads([(0, 0)]), SwapTokens([(0, 1)])]
    outer_edits = [MuteHeads([(2, 3)])]
    expected_inner = capture(model, picture(seed=1), edits=inner_edits)
    expected_outer = capture(model, picture(seed=2), edits=outer_edits)
    inner: list[Activations] = []

    def progress(block: int, of: int) -> None:
        inner.append(capture(model, picture(seed=1), edits=inner_edits))

    outer = capture(model, picture(seed=2), edits=outer_edits, progress=progress)
    assert len(inner) == 3
    assert all(equal_captures(acts, expected_inner) for acts in inner)
    assert equal_captures(outer, expected_outer)


def test_a_capture_inside_a_block_of_another_disturbs_neither() -> None:
    model = own_model()
    expected_inner = capture(model, picture(seed=1))
    expected_outer = capture(model, picture(seed=2))
    inner: list[Activations] = []

    def once(*_: Any) -> None:
        handle.remove()
        inner.append(capture(model, picture(seed=1)))

    handle = model.module.get_submodule("blocks.1.mlp").register_forward_pre_hook(once)
    outer = capture(model, picture(seed=2))
    assert equal_captures(inner[0], expected_inner)
    assert equal_captures(outer, expected_outer)


def test_a_capture_is_made_of_a_picture_its_file_or_its_bytes(tmp_path: Path) -> None:
    model, path = example("plain"), tmp_path / "picture.png"
    picture().save(path)
    expected = capture(model, picture()).logits
    data = path.read_bytes()
    for given in (path, str(path), data, bytearray(data), memoryview(data)):
        assert_array_equal(capture(model, given).logits, expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"no picture", "Text is not supported"),
        ("nowhere.png", "The file nowhere.png cannot be read: No such file"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_sentence(given: Any, words: str) -> None:
    with pytest.raises(ImageError, match=words) as caught:
        capture(example("plain"), given)
    assert_clear_error(caught.value)


def test_models_and_captures_say_what_they_are() -> None:
    model = example("plain")
    assert repr(model).startswith("Model('example', ViT, 3 layers, 0.0 M parameters, 16 x 24 px, ")
    acts = capture(model, picture())
    assert acts.probabilities is not None
    best = int(acts.probabilities.argmax())
    share = f"{100 * acts.probabilities[best]:.0f} %"
    assert (
        repr(acts) == f"Activations(3 layers (global), 25 tokens at the end, output {best} {share})"
    )
    headless = capture(example("no head"), picture())
    assert repr(headless) == "Activations(3 layers (global), 25 tokens at the end)"


# --- a table ------------------------------------------------------------------------------------


def test_a_capture_is_a_table_with_a_row_for_each_head_and_measure() -> None:
    acts = capture(example("plain"), picture())
    frame = acts.to_frame(picture="dog.jpg")
    assert list(frame.columns) == ["picture", "layer", "head", "measure", "unit", "value"]
    measured = acts.measure()
    for name, unit in (("distance", "px"), ("entropy", "bit"), ("prefix_mass", "share")):
        some = frame[frame["measure"] == name]
        assert set(some["unit"]) == {unit}
        wide = some.pivot(index="layer", columns="head", values="value")
        np.testing.assert_allclose(wide.to_numpy(), getattr(measured, name))
        assert [*map(int, wide.index)] == [1, 2, 3]  # as on screen
        assert [*map(int, wide.columns)] == [1, 2, 3, 4]
    assert set(frame["picture"]) == {"dog.jpg"}


def test_a_capture_of_windows_is_a_table_of_distances_and_entropies() -> None:
    model = swin()
    acts = capture(model, picture())
    frame = acts.to_frame()
    assert set(frame["measure"]) == {"distance", "entropy"}
    assert len(frame) == 2 * sum(layer.num_heads for layer in acts.layers)
    last = frame[(frame["layer"] == acts.depth) & (frame["measure"] == "distance")]
    np.testing.assert_allclose(
        last["value"].to_numpy(), windowed_distance(acts, layer=acts.depth - 1)
    )


def swin(size: tuple[int, int] = (64, 64)) -> Model:
    options: dict[str, Any] = dict(img_size=size, window_size=4, embed_dim=16, num_classes=5)
    options |= dict(depths=(2, 2), num_heads=(1, 2))
    module = timm.create_model("swin_tiny_patch4_window7_224", **options).eval()
    randomise(module)
    return watched(module, size)


@pytest.mark.parametrize("name", ["swin", "padded swin", "pvt_v2_b0", "cait_xxs24_224"])
def test_where_rollout_is_not_defined_the_rest_is_measured_and_the_reason_said(name: str) -> None:
    if name == "cait_xxs24_224":
        model = example(name)
    elif "swin" in name:
        model = swin((64, 64) if name == "swin" else (56, 72))
    else:
        model = watched(timm.create_model(name).eval(), (64, 64))
    acts = capture(model, picture())
    found, profiled = acts.measure(), profile(model, [picture()])
    assert "Rollout is not defined" in found.missing
    for number, layer in enumerate(acts.layers):
        heads = layer.num_heads
        by_hand = [
            -(a * np.log2(np.maximum(a, 1e-30))).sum(axis=2)[
                :, np.isfinite(queries).all(axis=1) | (layer.kind in ("global", "class"))
            ]
            for a, queries, _ in acts.windows(number)
        ]
        expected = np.concatenate(by_hand, axis=1).mean(axis=1)
        np.testing.assert_allclose(found.entropy[number, :heads], expected, atol=1e-4)
        far = windowed_distance(acts, layer=number)
        np.testing.assert_allclose(found.distance[number, :heads], far)
        assert np.isnan(found.entropy[number, heads:]).all()
    for measure in ("distance", "entropy"):
        np.testing.assert_allclose(
            getattr(found, measure), profiled.values(measure)[0], rtol=1e-4, atol=1e-3
        )
    assert found.rollout.shape == (len(acts.tokens(acts.depth)),)
    for nothing in (found.rollout, found.prefix_mass, found.query_attention):
        assert np.isnan(nothing).all()
    assert capture(example("plain"), picture()).measure().missing == ""


def test_what_is_not_finite_after_the_last_layer_or_in_the_answer_is_refused() -> None:
    check_finite(own_model(num_classes=0), capture(own_model(num_classes=0), picture()))
    for options, part in ((dict(num_classes=0), "blocks.2.mlp.fc2"), ({}, "head")):
        model = own_model(**options)
        with torch.no_grad():
            model.module.get_parameter(f"{part}.bias")[0] = torch.nan
        with pytest.raises(ModelError, match="NaN or infinite"):
            check_finite(model, capture(model, picture()))
