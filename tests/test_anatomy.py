"""Every box equals what hooks see on a second instance of the module, in its own pass."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    narrow_mixer,
    narrow_stages,
    own_module,
    picture,
    randomise,
    seeded,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz.activations import Activations, DropPatches, capture
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.web import anatomy
from vitviz.web.anatomy_map.message import build_boxes, build_cards
from vitviz.web.anatomy_map.numbers import compute_anatomy

_WIDTHS: dict[str, Any] = dict(embed_dim=48, depth=2, num_heads=3)


def _timm(name: str, size: tuple[int, int], **options: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        with seeded():
            module = timm.create_model(name, **options).eval()
        randomise(module)
        return module, size

    return make


def _small(name: str, size: tuple[int, int] = (64, 96), **options: Any) -> Callable[[], Any]:
    return _timm(name, size, img_size=size, **_WIDTHS, **options)


def _own(**options: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        module = own_module(**options)
        return module, module.patch_embed.image_size

    return make


def _mixer() -> tuple[Any, Any]:
    module = narrow_mixer(img_size=(64, 96), num_classes=5)
    randomise(module)
    return module, (64, 96)


MAKES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "own, distilled": _own(distillation_token=True),
    "own, hybrid": _own(stem_width=8),
    "own, no class token": _own(class_token=False, registers=2),
    "own, pre-training head": _own(pretraining_head=True),
    "own, no head": _own(num_classes=0),
    "timm, DINOv2": _small("vit_small_patch14_reg4_dinov2", (56, 84), num_classes=7),
    "timm, CLIP": _small("vit_base_patch32_clip_224", num_classes=7),
    "timm, SigLIP": _small("vit_base_patch16_siglip_224"),
    "timm, DeiT": _small("deit_tiny_distilled_patch16_224"),
    "EVA": _small("eva02_tiny_patch14_336", (56, 84)),
    "BEiT": _small("beit_base_patch16_224"),
    "relative positions": _small("vit_relpos_small_patch16_224"),
    "CaiT": _small("cait_xxs24_224"),
    "Swin": _timm(
        "swin_tiny_patch4_window7_224",
        (64, 96),
        img_size=(64, 96),
        window_size=2,
        depths=(2, 1),
        embed_dim=24,
    ),
    "PVT": _timm("pvt_v2_b0", (64, 96), num_classes=5, depths=(1, 1, 1, 1)),
    "CoAtNet": _timm(
        "coatnet_0_rw_224",
        (64, 96),
        **{**narrow_stages(), "img_size": (64, 96), "depths": (1, 1, 2, 1)},
    ),
    "Mixer": _mixer,
}
PLAIN = [name for name in MAKES if name.split(",")[0] in ("own", "timm", "EVA", "BEiT")]
PLAIN.append("relative positions")


class Seen:
    """One plain pass of a second instance: inputs and outputs of its parts, by their path."""

    def __init__(self, module: nn.Module, x: Tensor) -> None:
        self.x = x
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.attention: list[dict[str, Any]] = []
        self.module: Any = module
        for path, part in module.named_modules():
            part.register_forward_hook(self._hook(path))
        own = F.scaled_dot_product_attention

        def watch(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, **rest: Any) -> Tensor:
            heads = own(q, k, v, attn_mask=attn_mask, **rest)
            self.attention.append(dict(q=q, k=k, v=v, mask=attn_mask, heads=heads))
            return heads

        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            patch.setattr(F, "scaled_dot_product_attention", watch)
            self.answer: Tensor = module(x)[0]

    def _hook(self, path: str) -> Callable[..., None]:
        def hear(part: nn.Module, inputs: Any, output: Any) -> None:
            if inputs and isinstance(inputs[0], Tensor):
                self.inputs[path] = inputs[0].clone()
            if isinstance(output, Tensor):
                self.outputs[path] = output.clone()

        return hear


@cache
def seen(name: str) -> tuple[Model, Activations, tuple[anatomy.Box, ...], Seen]:
    module, size = MAKES[name]()
    model = watched(module, size)
    acts = capture(model, picture())
    other, _ = MAKES[name]()
    return (
        model,
        acts,
        anatomy.steps(model, picture(), acts),
        Seen(other, model.preprocess(picture())[None]),
    )


def close(box: anatomy.Box, expected: Tensor) -> None:
    wanted = expected.detach().numpy()
    assert box.values is not None
    assert box.shape == box.values.shape == wanted.shape, box.name
    bound = 1e-5 * np.abs(wanted).max()
    assert_allclose(box.values, wanted, rtol=1e-5, atol=bound, err_msg=box.name)


def step(name: str, called: str) -> anatomy.Box:
    (found,) = [box for box in seen(name)[2] if box.name == called]
    return found


def expected_steps(name: str) -> dict[str, Tensor]:
    """What hooks saw, by the names of the boxes; of boxes that stand for layers, see below."""
    model, _, _, told = seen(name)
    module, out, into = told.module, told.outputs, told.inputs
    first = model.layers[0].name
    embed = "stem" if "stem" in out and name != "CoAtNet" else "patch_embed"
    conv = out.get(f"{embed}.proj")
    found = {"picture": told.x[0].permute(1, 2, 0), "embedding": _flat(into[first])}
    if f"{embed}.backbone" in out:
        found["stem"] = out[f"{embed}.backbone"][0].permute(1, 2, 0)
    if conv is not None and name != "PVT":
        weight = module.get_submodule(embed).proj.weight
        side = weight.shape[2]
        flat = F.unfold(into[f"{embed}.proj"], side, stride=side)[0].T
        found |= {
            "flatten": flat,
            "patches": flat.reshape(-1, weight.shape[1], side, side).permute(0, 2, 3, 1),
            "project": conv[0].flatten(1).T,
            "embedding_norm": _flat(out[embed]),
            "pre_norm": _flat(into[first]),
        }
        tokens, z = (
            found["project"],
            _flat(into[first] if "norm_pre" not in out else into["norm_pre"]),
        )
        prefix = [getattr(module, f"{kind}_token", None) for kind in ("cls", "dist", "reg")]
        before = [token[0] for token in prefix if token is not None]
        if name == "timm, DINOv2":  # adds positions to the patches alone
            found |= {"positions": tokens + module.pos_embed[0], "prefix": z}
        else:
            found |= {"prefix": torch.cat([*before, tokens]), "positions": z}
    heads = [path for path in ("head.fc", "head.pre_logits", "head", "head_dist") if path in into]
    if name == "own, pre-training head":
        found["head_hidden"] = torch.tanh(out["head.pre_logits"])[0]
    y = into[heads[0]][0]
    found |= {"output": y, "output_mean": y, "output_mean_norm": y, "output_features": y}
    if "head_dist" in heads:
        found["output_distilled"] = torch.stack([y, into["head_dist"][0]])
    found["head"] = told.answer
    return found


def _flat(tokens: Tensor) -> Tensor:
    """One picture's tokens, (tokens, D), whatever the layout."""
    first = tokens[0]
    return first.flatten(0, -2) if first.ndim < 3 or first.shape[2] > first.shape[0] else first


STEPS = {
    "own, distilled": "picture patches flatten project prefix positions encoder output_distilled "
    "head",
    "own, hybrid": "picture stem patches flatten project prefix positions encoder output head",
    "own, no class token": "picture patches flatten project prefix positions encoder output_mean "
    "head",
    "own, pre-training head": "picture patches flatten project prefix positions encoder output "
    "head_hidden head",
    "own, no head": "picture patches flatten project prefix positions encoder output no_head",
    "timm, DINOv2": "picture patches flatten project positions prefix encoder output head",
    "timm, CLIP": "picture patches flatten project prefix positions pre_norm encoder output head",
    "timm, SigLIP": "picture patches flatten project positions encoder output_features "
    "embedding_head",
    "timm, DeiT": "picture patches flatten project prefix positions encoder output_distilled head",
    "EVA": "picture patches flatten project prefix positions encoder output_mean_norm head",
    "BEiT": "picture patches flatten project prefix encoder output_mean_norm head",
    "relative positions": "picture patches flatten project encoder output_mean_norm head",
    "CaiT": "picture patches flatten project positions stage class_attention output head",
    "Swin": "picture patches flatten project embedding_norm stage stage output_features head",
    "PVT": "picture embedding stage stage stage stage output_features head",
    "CoAtNet": "picture embedding stage stage output_features head",
    "Mixer": "picture patches flatten project encoder output_features head",
}


@pytest.mark.parametrize("name", MAKES)
def test_a_model_has_its_own_steps_and_each_equals_what_hooks_see(name: str) -> None:
    assert " ".join(box.name for box in seen(name)[2]) == STEPS[name]
    expected = expected_steps(name)
    for box in seen(name)[2]:
        if box.name in ("no_head", "embedding_head"):
            continue
        if box.layers:
            wanted = seen(name)[3].outputs[seen(name)[0].layers[box.layers[-1]].name][0]
            if wanted.ndim == 3:  # Swin has channels last, CoAtNet first
                wanted = wanted.flatten(0, 1) if name == "Swin" else wanted.flatten(1).T
            close(box, wanted)
        elif box.name == "embedding" and name == "CoAtNet":
            close(box, seen(name)[3].inputs[seen(name)[0].layers[0].name][0].flatten(1).T)
        else:
            close(box, expected[box.name])


@pytest.mark.parametrize("name", [name for name in MAKES if "project" in STEPS[name]])
def test_flattened_patches_times_the_matrix_are_the_patch_embedding(name: str) -> None:
    flat, made = step(name, "flatten").values, step(name, "project")
    assert flat is not None
    assert made.values is not None
    product = flat @ made.parts["kernel"].T + made.parts.get("bias", 0)
    assert_allclose(product, made.values, rtol=1e-5, atol=1e-5 * np.abs(made.values).max())


@pytest.mark.parametrize("name", MAKES)
def test_the_head_is_a_matrix_and_its_answer_a_softmax(name: str) -> None:
    if STEPS[name].endswith(("no_head", "embedding_head")):
        assert seen(name)[1].probabilities is None
        return
    boxes = seen(name)[2]
    head, read = boxes[-1], boxes[-2].values
    assert head.values is not None
    assert read is not None
    each = np.einsum("khd,hd->kh", head.parts["weight"], read.reshape(-1, read.shape[-1]))
    logits = (each + head.parts["bias"]).mean(axis=1)
    assert_allclose(logits, head.values, rtol=1e-4, atol=1e-5 * np.abs(head.values).max())
    assert_allclose(
        head.parts["probabilities"], torch.from_numpy(head.values.copy()).softmax(0), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("architecture", "size"),
    [("eva02_tiny_patch14_336", (56, 84)), ("vit_small_patch16_dinov3", (48, 80))],
)
def test_queries_and_keys_are_shown_before_and_after_their_rotation(
    architecture: str, size: tuple[int, int]
) -> None:
    module: Any = timm.create_model(architecture, img_size=size, **_WIDTHS).eval()
    randomise(module)
    model = watched(module, size)
    acts = capture(model, picture())
    table = module.rope.get_embed(acts.grid)
    for layer in (0, 1):
        boxes = {
            box.name: np.asarray(box.values) for box in anatomy.layer_boxes(model, acts, layer)
        }
        half, prefix = module.blocks[layer].attn.rotate_half, acts.num_prefix_tokens
        for name in ("queries", "keys"):
            before = torch.tensor(boxes[f"unrotated_{name}"])
            turned = apply_rot_embed_cat(before[None, :, prefix:], table, half=half)[0]
            wanted = torch.cat([before[:, :prefix], turned], dim=1)
            assert_allclose(boxes[name], wanted.detach(), atol=1e-4 * float(wanted.abs().max()))
            assert not np.allclose(boxes[name], before, atol=1e-3)
    shown = build_boxes(compute_anatomy(model, picture(), acts, 1, None))
    ids = [box["id"] for box in shown]
    assert ids[ids.index("qkv") + 1 : ids.index("scores")] == ["rotated"]
    assert "RoPE" not in shown[ids.index("qkv")]["say"]  # it has a step of its own


@pytest.mark.parametrize(("num_heads", "said"), [(1, "1 head of"), (2, "2 heads of")])
def test_the_heads_of_a_layer_are_counted_in_words(num_heads: int, said: str) -> None:
    module, size = _own(num_heads=num_heads)()
    model = watched(module, size)
    of = compute_anatomy(model, picture(), capture(model, picture()), 0, None)
    (qkv,) = (box["say"] for box in build_boxes(of) if box["id"] == "qkv")
    assert f"They are split into {said} " in qkv


@pytest.mark.parametrize("name", ["EVA", "timm, DINOv2"])
def test_a_rotation_that_cannot_be_shown_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, acts, *_ = seen(name)
    monkeypatch.setattr(anatomy.layers, "_unrotated_boxes", lambda *_: ())
    shown = {
        box["id"]: box for box in build_boxes(compute_anatomy(model, picture(), acts, 0, None))
    }
    assert "rotated" not in shown
    assert ("RoPE" in shown["qkv"]["say"]) == (name == "EVA")


@pytest.mark.parametrize(
    ("architecture", "added", "rms", "normalised"),
    [
        ("eva02_tiny_patch14_336", True, False, False),  # adds positions, and rotates as well
        ("vit_small_patch16_dinov3", False, False, False),
        ("vit_base_patch16_sapiens2", False, True, True),
        ("aimv2_large_patch14_224", True, True, False),
    ],
)
def test_positions_and_norms_of_a_layer_are_those_of_the_module(
    architecture: str, added: bool, rms: bool, normalised: bool
) -> None:
    side = 28 if "14" in architecture else 32
    # Else some layers have fewer.
    shared: dict[str, Any] = {"num_kv_heads": 3} if normalised else {}
    module: Any = timm.create_model(architecture, img_size=side, **_WIDTHS, **shared).eval()
    assert (module.pos_embed is not None) == added
    randomise(module)
    model = watched(module, (side, side))
    acts = capture(model, picture())
    boxes = build_boxes(compute_anatomy(model, picture(), acts, 1, None))
    shown = {box["id"]: box for box in boxes}
    said = {"norm1": "mean is not subtracted", "norm2": "RMSNorm again"}
    for name, words in said.items():
        assert (words in shown[name]["say"]) == rms
        assert ("LayerNorm" in shown[name]["say"]) != rms
        assert shown[name]["title"] == ("RMSNorm" if rms else "LN")
    assert ("normalises each q" in shown["qkv"]["say"]) == normalised
    assert ("rotated" in shown) == hasattr(module, "rope")
    assert not any("is added to the tokens" in box["say"] for box in boxes)


@pytest.mark.parametrize(
    ("norm", "y", "embedded", "goes_to"),
    [
        (nn.LayerNorm, "y = LN(z_{L}^{0})", "LayerNorm", "the final normalisation"),
        (timm.layers.RmsNorm, "y = RMSNorm(z_{L}^{0})", "RMSNorm", "the final normalisation"),
        (nn.Identity, "y = z_{L}^{0}", None, "the next step"),
    ],
)
def test_the_norms_of_the_steps_are_those_of_the_module(
    norm: Any, y: str, embedded: str | None, goes_to: str
) -> None:
    module: Any = timm.create_model("vit_tiny_patch16_224", img_size=32, **_WIDTHS).eval()
    module.norm, module.patch_embed.norm = norm(48).eval(), norm(48).eval()
    randomise(module)
    model = watched(module, (32, 32))
    of = compute_anatomy(model, picture(), capture(model, picture()), 1, None)
    cards = {card["name"]: card for card in build_cards(of)}
    assert next(card["title"] for name, card in cards.items() if name.startswith("output")) == y
    assert cards.get("embedding_norm", {"title": None})["title"] == embedded
    assert embedded is None or ("shift" in cards["embedding_norm"]["say"]) == (norm is nn.LayerNorm)
    (after,) = [box for box in build_boxes(of) if box["id"] == "after"]
    assert f"goes to {goes_to}." in after["say"]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", PLAIN)
def test_every_box_of_a_layer_equals_what_hooks_see(name: str, layer: int) -> None:
    model, acts, _, told = seen(name)
    block, path = told.module.blocks[layer], f"blocks.{layer}"
    out, into, call = told.outputs, told.inputs, told.attention[layer]
    q, k, v = call["q"][0], call["k"][0], call["v"][0]
    products = q @ k.transpose(1, 2)
    scaled = products / np.sqrt(q.shape[-1])
    if call["mask"] is not None:
        scaled = scaled + call["mask"].expand(1, *scaled.shape)[0]
    found = [
        getattr(getattr(block, f"ls{n}", None), "gamma", getattr(block, f"gamma_{n}", None))
        for n in (1, 2)
    ]
    gammas = [None if gamma is None else gamma.detach() for gamma in found]
    first, none = f"{path}.mlp.fc1", torch.zeros(0)
    expected: dict[str, Tensor] = {
        "before": into[path][0],
        "norm1": out[f"{path}.norm1"][0],
        "queries": q,
        "keys": k,
        "values": v,
        "heads": call["heads"][0],
        "concatenated": call["heads"][0].transpose(0, 1).flatten(1),
        "heads_norm": into[f"{path}.attn.proj"][0],
        "projected": out[f"{path}.attn.proj"][0],
        "layer_scale1": none if gammas[0] is None else out[f"{path}.attn"][0] * gammas[0],
        "after_attention": into[f"{path}.norm2"][0],
        "norm2": out[f"{path}.norm2"][0],
        "hidden": out[first][0]
        if first in out
        else torch.cat([out[f"{first}_g"], out[f"{first}_x"]], dim=-1)[0],
        "activated": into[f"{path}.mlp.fc2"][0],
        "mlp": out[f"{path}.mlp.fc2"][0],
        "layer_scale2": none if gammas[1] is None else out[f"{path}.mlp"][0] * gammas[1],
        "after": out[path][0],
    }
    boxes = anatomy.layer_boxes(model, acts, layer)
    rotated = ["unrotated_queries", "unrotated_keys"]
    assert [box.name for box in boxes if box.name in rotated] == rotated * hasattr(
        told.module, "rope"
    )
    boxes = tuple(box for box in boxes if box.name not in rotated)
    named = [box.name for box in boxes]
    assert [*dict.fromkeys(named)] == named
    left_out = {
        name
        for number, gamma in enumerate(gammas, 1)
        if gamma is None
        for name in [f"layer_scale{number}"]
    }
    if not hasattr(block.attn, "norm") or isinstance(block.attn.norm, nn.Identity):
        left_out.add("heads_norm")
    assert set(named) == {*expected, "scores", "attention"} - left_out
    for box in boxes:
        if box.name in ("scores", "attention"):
            assert box.shape == products.shape
        else:
            close(box, expected[box.name])
    for head in range(len(q)):
        own = anatomy.head_scores(acts, layer, head)
        for values, wanted in zip(own, (products[head], scaled[head]), strict=True):
            assert_allclose(values, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max())
        assert_allclose(acts.attention(layer)[head], scaled[head].softmax(-1), atol=1e-5)


@pytest.mark.parametrize("name", ["Swin", "PVT", "CaiT", "Mixer", "CoAtNet"])
def test_other_layers_have_what_the_stream_is_before_between_and_after(name: str) -> None:
    model, acts, _, _ = seen(name)
    for layer in range(acts.depth):
        boxes = {box.name: box.values for box in anatomy.layer_boxes(model, acts, layer)}
        assert set(boxes) <= {"before", "after_attention", "after"}
        assert_array_equal(boxes["after"], acts.tokens(layer + 1))
        if "before" in boxes:
            assert_array_equal(boxes["before"], acts.tokens(layer))
        if name == "Swin":  # whose third layer halves the grid first
            assert ("before" in boxes) == (layer < 2)


@pytest.mark.parametrize("name", ["own, distilled", "timm, DINOv2", "Swin"])
def test_the_residual_stream_by_depth(name: str) -> None:
    _, acts, _, _ = seen(name)
    found = anatomy.residual_stream(acts)
    for depth in range(acts.depth + 1):
        norms = np.linalg.norm(acts.tokens(depth), axis=1)
        prefix = len(acts.layers[0].prefix)
        assert found.cls[depth] == pytest.approx(norms[0]) if prefix else np.isnan(found.cls[depth])
        assert found.patches[depth] == pytest.approx(norms[prefix:].mean())
    before, middle, after = acts.tokens(0), acts.tokens_after_attention(0), acts.tokens(1)

    def length(z: np.ndarray) -> float:
        return float(np.linalg.norm(z, axis=1).mean())

    assert found.attention[0] == pytest.approx(length(middle - before) / length(before), rel=1e-5)
    assert found.mlp[0] == pytest.approx(length(after - middle) / length(middle), rel=1e-5)
    assert np.isnan(found.attention[2]) == (name == "Swin") if acts.depth > 2 else True


def test_a_block_that_does_more_than_its_parts_say_is_not_opened() -> None:
    module, size = MAKES["own, distilled"]()
    block = module.blocks[0]
    forward = block.forward
    block.forward = lambda z: forward(z) + 1
    model = watched(module, size)
    acts = capture(model, picture())
    named = [[box.name for box in anatomy.layer_boxes(model, acts, layer)] for layer in (0, 1)]
    assert named[0] == ["before", "after_attention", "after"]
    assert "queries" in named[1]


def test_nothing_of_the_model_is_changed() -> None:
    module, size = MAKES["timm, DINOv2"]()
    model = watched(module, size)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    acts = capture(model, picture())
    stream = [acts.tokens(depth).copy() for depth in range(acts.depth + 1)]
    for box in (*anatomy.steps(model, picture(), acts), *anatomy.layer_boxes(model, acts, 0)):
        assert box.values is None or not box.values.flags.writeable
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    for depth, kept in enumerate(stream):
        assert_array_equal(acts.tokens(depth), kept)
    assert not any(part._forward_hooks for part in module.modules())


def test_patches_that_were_dropped_have_no_steps() -> None:
    module, size = MAKES["own, distilled"]()
    model = watched(module, size)
    mask = np.zeros(model.layers[0].query_grid, bool)
    mask[0, 0] = True
    acts = capture(model, picture(), edits=[DropPatches(mask)])
    with pytest.raises(ModelError, match="were dropped"):
        anatomy.steps(model, picture(), acts)
