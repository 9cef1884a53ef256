"""A capture is measured as its arrays are, and is asked for nothing that it knows."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import timm
import torch
from examples import OWN, example, own_model, picture, randomise, watched
from numpy.testing import assert_allclose, assert_array_equal

from vitviz import inspection
from vitviz.activations import Activations, DropPatches, capture
from vitviz.model import Model
from vitviz.model.families import ModelError


def pooling(name: str, **options: Any) -> Model:
    """A small one of timm, with CLS and a head that pools the patches."""
    module = timm.create_model(name, embed_dim=48, depth=3, num_heads=3, **options).eval()
    randomise(module)
    return watched(module, options["img_size"])


MODELS: dict[str, Callable[[], Model]] = {
    **{kind: lambda kind=kind: example(kind) for kind in OWN if "sincos" not in kind},  # type: ignore[misc]
    "BEiT": lambda: pooling("beit_base_patch16_224", img_size=(64, 96)),
    "DINOv3": lambda: pooling("vit_small_patch16_dinov3", img_size=(64, 96)),
}
every_model = pytest.mark.parametrize("name", MODELS)


def of(name: str) -> Activations:
    return capture(MODELS[name](), picture())


def told(acts: Activations) -> dict[str, Any]:
    """What arrays must be told, by the names of the tokens."""
    return dict(grid=acts.grid, num_prefix_tokens=len(acts.layers[0].prefix))


def reads_cls(name: str, acts: Activations) -> bool:
    return "cls" in acts.layers[0].prefix and name not in ("BEiT", "DINOv3")


def arrays(acts: Activations) -> list[np.ndarray]:
    return [acts.attention(layer) for layer in range(acts.depth)]


# --- one capture, many measurements -------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "BEiT"])
def test_layers_can_be_gone_through_again(name: str) -> None:
    acts = of(name)
    layers = acts.attention_layers()
    assert len(layers) == acts.depth
    for _ in range(2):
        for seen, own in zip(layers, arrays(acts), strict=True):
            assert_array_equal(seen, own)
    once, again = iter(layers), iter(layers)
    assert_array_equal(next(once), next(again))
    assert_array_equal(inspection.attention_entropy(layers), inspection.attention_entropy(layers))
    assert_array_equal(
        inspection.measurements(layers).rollout, inspection.measurements(acts).rollout
    )


@every_model
def test_layers_of_a_capture_are_measured_as_arrays_are(name: str) -> None:
    acts = of(name)
    place: dict[str, Any] = {**told(acts), "patch_size": acts.patch_size}
    prefix: dict[str, Any] = dict(num_prefix_tokens=place["num_prefix_tokens"])
    cls: dict[str, Any] = dict(cls=reads_cls(name, acts))
    chosen: dict[str, Any] = dict(query=2, fusion="max", discard=0.3)
    for source in (acts, acts.attention_layers()):
        found = {
            "distance": inspection.attention_distance(source),
            "entropy": inspection.attention_entropy(source),
            "prefix mass": inspection.prefix_mass(source),
            "rollout": inspection.attention_rollout(source),
            "rollout of a query": inspection.attention_rollout(source, **chosen),
            "steps": np.stack(list(inspection.rollout_steps(source))),
        }
        expected = {
            "distance": inspection.attention_distance(arrays(acts), **place),
            "entropy": inspection.attention_entropy(arrays(acts)),
            "prefix mass": inspection.prefix_mass(arrays(acts), **prefix),
            "rollout": inspection.attention_rollout(arrays(acts), **prefix, **cls),
            "rollout of a query": inspection.attention_rollout(arrays(acts), **prefix, **chosen),
            "steps": np.stack(list(inspection.rollout_steps(arrays(acts), **prefix))),
        }
        for called, values in expected.items():
            assert_array_equal(found[called], values, err_msg=called)
        whole = inspection.measurements(arrays(acts), **place, **cls)
        for field in ("distance", "entropy", "prefix_mass", "query_attention", "rollout"):
            blocks = getattr(inspection.measurements(source), field)
            assert_allclose(blocks, getattr(whole, field), rtol=2e-5, atol=1e-5, err_msg=field)


@every_model
def test_one_layer_of_a_capture_is_measured_as_an_array_is(name: str) -> None:
    acts = of(name)
    where, layer = told(acts), acts.attention(1)
    directions: list[Literal["row", "column"]] = ["row", "column"]
    for direction in directions:
        where["direction"] = direction
        expected = inspection.query_attention(layer, **where, cls=reads_cls(name, acts))
        found = inspection.query_attention(acts, layer=1, direction=direction)
        assert_array_equal(found, expected)
    del where["direction"]
    patch = inspection.query_attention(acts, layer=1, query=(2, 3))
    assert_array_equal(patch, inspection.query_attention(layer, **where, query=(2, 3)))
    assert_array_equal(
        inspection.offset_attention(acts, layer=1), inspection.offset_attention(layer, **where)
    )
    sizes: dict[str, Any] = dict(patch_size=acts.patch_size, bin_width=4.0)
    assert_array_equal(
        inspection.distance_histogram(acts, layer=1, bin_width=4.0),
        inspection.distance_histogram(layer, **where, **sizes),
    )


@every_model
@pytest.mark.parametrize("depth", [None, 1])
def test_tokens_of_a_capture_are_measured_as_an_array_is(name: str, depth: int | None) -> None:
    acts = of(name)
    where = told(acts)
    plain = acts.tokens(3 if depth is None else 1)
    normalised = acts.tokens(3 if depth is None else 1, normalised=True)
    assert_array_equal(
        inspection.token_similarity(acts, depth=depth), inspection.token_similarity(normalised)
    )
    for function in (inspection.token_components, inspection.token_scatter):
        for found, expected in zip(
            function(acts, depth=depth), function(normalised, **where), strict=True
        ):
            assert_array_equal(found, expected)
    norms, long, limit = inspection.token_norms(acts, depth=depth)
    expected_norms, expected_long, expected_limit = inspection.token_norms(plain, **where)
    assert_array_equal(norms, expected_norms)
    assert_array_equal(long, expected_long)
    assert limit == expected_limit


# --- where it is read ---------------------------------------------------------------------------


def test_registers_alone_are_not_read() -> None:
    """Register 1 stands where CLS would."""
    model = own_model(**OWN["registers alone"])
    with torch.no_grad():  # random queries and keys share attention almost equally
        for number in range(3):
            model.module.get_parameter(f"blocks.{number}.attn.qkv.weight")[:64] *= 3
    acts = capture(model, picture())
    layer, prefix = acts.attention(2), 2
    wanted = layer[:, prefix:, prefix:].mean(axis=1).reshape(-1, 4, 6)
    assert_allclose(acts.attention_map(2), wanted, atol=1e-7)
    first = layer[:, 0, prefix:].reshape(-1, 4, 6)
    assert np.abs(wanted - first).max() > 0.1 * wanted.max()
    where = told(acts)
    for found in (
        inspection.query_attention(acts, layer=2),
        inspection.query_attention(layer, **where, cls=False),
        inspection.measurements(acts).query_attention[2],
        inspection.measurements(
            arrays(acts), **where, patch_size=acts.patch_size, cls=False
        ).query_attention[2],
    ):
        assert_allclose(found, wanted, atol=1e-6)
    assert_array_equal(inspection.query_attention(layer, **where), first)
    *_, every = inspection.rollout_steps(acts)
    rollout = every[prefix:].mean(axis=0)
    assert np.abs(rollout - every[0]).max() > 0.1 * rollout.max()
    for found in (
        inspection.attention_rollout(acts),
        inspection.attention_rollout(arrays(acts), num_prefix_tokens=prefix, cls=False),
        inspection.measurements(acts).rollout,
    ):
        assert_allclose(found, rollout, atol=1e-6)
        assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", ["BEiT", "DINOv3"])
def test_a_rollout_is_read_where_the_head_reads(name: str) -> None:
    acts = of(name)
    prefix = acts.num_prefix_tokens
    assert acts.layers[0].prefix[0] == "cls"
    *_, every = inspection.rollout_steps(acts)
    pooled = every[prefix:].mean(axis=0)
    assert np.abs(pooled - every[0]).max() > 0.01
    assert_allclose(inspection.attention_rollout(acts), pooled, atol=1e-6)
    assert_allclose(inspection.attention_rollout(acts, cls=True), every[0], atol=1e-6)
    assert_allclose(inspection.measurements(acts).rollout, pooled, atol=1e-6)
    assert_allclose(inspection.measurements(acts, cls=True).rollout, every[0], atol=1e-6)


def test_a_capture_without_some_patches_has_no_grid() -> None:
    mask = np.zeros((4, 6), bool)
    mask[1, 2:5] = True
    acts = capture(own_model(registers=4), picture(), edits=[DropPatches(mask)])
    rows = arrays(acts)
    assert_array_equal(
        inspection.attention_rollout(acts),
        inspection.attention_rollout(rows, num_prefix_tokens=5),
    )
    assert_array_equal(
        inspection.prefix_mass(acts), inspection.prefix_mass(rows, num_prefix_tokens=5)
    )
    assert_array_equal(inspection.attention_entropy(acts), inspection.attention_entropy(rows))
    assert_array_equal(
        inspection.attention_rollout(acts, query="reg2"),
        inspection.attention_rollout(rows, num_prefix_tokens=5, query=2),
    )
    for call in (
        lambda: inspection.attention_rollout(acts, query=(2, 0)),  # where (2, 3) lies now
        lambda: inspection.attention_rollout(acts, query=28),
        lambda: inspection.attention_rollout(rows, num_prefix_tokens=5, query=(2, 0), grid=(4, 6)),
        lambda: inspection.attention_distance(acts),
        lambda: inspection.measurements(acts),
        lambda: inspection.query_attention(acts, layer=0),
        lambda: inspection.token_components(acts),
    ):
        with pytest.raises(ValueError, match=r"5 \+ 4 x 6 = 29 tokens, got 26"):
            call()


# --- what is refused ----------------------------------------------------------------------------

REFUSED: list[tuple[str, Callable[[Any], object], str]] = [
    ("registers", lambda a: inspection.prefix_mass(a, num_prefix_tokens=1), "capture, 5, got 1"),
    ("plain", lambda a: inspection.attention_rollout(a, num_prefix_tokens=0), "1, got 0"),
    ("plain", lambda a: inspection.measurements(a, num_prefix_tokens=2), "1, got 2"),
    ("plain", lambda a: inspection.measurements(a, grid=(6, 4)), r"\(4, 6\), got \(6, 4\)"),
    ("plain", lambda a: inspection.attention_distance(a, grid=(2, 3)), "7 tokens, got 25"),
    ("plain", lambda a: inspection.attention_distance(a, patch_size=16), "4, got 16"),
    (
        "plain",
        lambda a: inspection.query_attention(a, layer=0, grid=(6, 4)),
        r"\(4, 6\), got \(6, 4\)",
    ),
    ("plain", lambda a: inspection.token_components(a, grid=(6, 4)), r"got \(6, 4\)"),
    ("plain", lambda a: inspection.token_norms(a, num_prefix_tokens=0), "1, got 0"),
    ("plain", lambda a: inspection.query_attention(a), "layer of the capture"),
    ("registers alone", lambda a: inspection.attention_rollout(a, cls=True), "without a CLS token"),
    ("no class token", lambda a: inspection.measurements(a, cls=True), "without a CLS token"),
    (
        "plain",
        lambda a: inspection.query_attention(a.attention(0), layer=0, grid=(4, 6)),
        "a capture to take layer 0 from, got arrays",
    ),
    (
        "plain",
        lambda a: inspection.token_components(a.tokens(1), depth=1, grid=(4, 6)),
        "a capture to take depth 1 from, got arrays",
    ),
    (
        "plain",
        lambda a: inspection.attention_distance(arrays(a), patch_size=4),
        "grid of the patches, which arrays do not say",
    ),
    (
        "plain",
        lambda a: inspection.attention_distance(arrays(a), grid=(4, 6)),
        "size of a patch, which arrays do not say",
    ),
    ("plain", lambda a: inspection.token_norms(a.tokens(1)), "grid of the patches, which arrays"),
]


@pytest.mark.parametrize(("name", "call", "sentence"), REFUSED)
def test_what_contradicts_a_capture_is_refused(
    name: str, call: Callable[[Activations], object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=rf"^Expected .*{sentence}[^.]*\.$"):
        call(of(name))


def test_what_agrees_with_a_capture_is_taken() -> None:
    acts = of("plain")
    found = inspection.measurements(acts, grid=(4, 6), patch_size=(4, 4), num_prefix_tokens=1)
    assert_array_equal(found.distance, inspection.measurements(acts).distance)


def test_layers_that_are_no_chain_are_measured_one_by_one() -> None:
    narrow: Any = dict(img_size=56, window_size=7, embed_dim=24, depths=(2, 1, 1, 1))
    module: Any = timm.create_model("swin_tiny_patch4_window7_224", **narrow)
    acts = capture(watched(module.eval(), (56, 56)), picture())
    for layer in (0, acts.depth - 1):
        expected = inspection.windowed_distance(acts.windows(layer))
        assert_array_equal(inspection.windowed_distance(acts, layer=layer), expected)
    with pytest.raises(ValueError, match="layer of the capture"):
        inspection.windowed_distance(acts)
    for function in (inspection.attention_rollout, inspection.measurements, inspection.prefix_mass):
        with pytest.raises(ModelError, match="no chain of matrices"):
            function(acts)
    with pytest.raises(ModelError, match=r"See acts\.layers"):
        inspection.token_components(acts)
