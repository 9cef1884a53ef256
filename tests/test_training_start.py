"""How a run starts and what it averages: mimetic initialisation, optimisers, the moving average."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from cifar import coloured, metadata, silent, write_cifar10, write_things
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from vitviz import load_model
from vitviz.model.families import ModelError
from vitviz.model.initialisation import BASE
from vitviz.training import (
    RECIPES,
    Stage,
    build,
    evaluate,
    grow,
    loop,
    train,
)
from vitviz.training.data import THINGS_MEAN, THINGS_STD
from vitviz.training.loop import has_converged
from vitviz.training.objective import (
    Network,
    add_stochastic_depth,
    build_optimisers,
    set_rate,
    update_average,
)
from vitviz.training.publishing import record
from vitviz.training.recipes import Mimetic
from vitviz.vit import Attention, Block, VisionTransformer, fixed_positions
from vitviz.zoo import checkpoints

SMOKE = RECIPES["smoke"]
STRENGTHS = (4.0, 0.25)
WIDTH, HEADS = 64, 2
LOCAL = replace(
    SMOKE,
    configuration={
        **SMOKE.configuration,
        **dict(patch_size=4, embed_dim=WIDTH, depth=2, num_heads=HEADS),
    },
    initialisation=Mimetic(strengths=STRENGTHS, first=1.0, last=0.5, embedding=0.02),
    qkv="adamw",
)


def attention_of(model: VisionTransformer, layer: int) -> Attention:
    block = model.blocks[layer]
    assert isinstance(block, Block)
    return block.attn


def products(attention: Attention) -> tuple[Tensor, Tensor]:
    """W_q W_k^T of each head, (heads, D, D), and W_v W_proj, (D, D), for tokens as rows."""
    q, k, v = attention.qkv.weight.detach().split(WIDTH)
    q, k = (weight.reshape(HEADS, -1, WIDTH) for weight in (q, k))
    return q.transpose(1, 2) @ k, v.T @ attention.proj.weight.detach().T


def test_heads_begin_alike_and_values_unlike_the_identity() -> None:
    model = build(LOCAL, LOCAL.stages[0])
    for layer, factor in enumerate((1.0, 0.5)):
        attended, handed_on = products(attention_of(model, layer))
        # Of 0.7 (Z + I), a head keeps the half of rank with the largest singular values.
        for head, strength in enumerate(STRENGTHS):
            assert torch.linalg.matrix_rank(attended[head]) == WIDTH // HEADS
            mean = attended[head].diagonal().mean() / (strength * factor)
            assert 0.3 < float(mean) < 0.7
        noise = handed_on + 0.4 * torch.eye(WIDTH)
        assert float(noise.diagonal().mean()) == pytest.approx(0, abs=0.05)
        assert float(noise.std()) == pytest.approx(0.4 / WIDTH**0.5, rel=0.1)


def test_positions_begin_as_the_sine_cosine_table_and_are_learned() -> None:
    model = build(LOCAL, LOCAL.stages[0])
    assert model.pos_embed is not None
    table = fixed_positions("sincos2d", WIDTH, (8, 8), 1, BASE)
    assert table is not None
    assert_close(model.pos_embed.detach()[:, 1:], table[:, 1:])
    assert model.pos_embed[:, :1].abs().max() < 0.1  # CLS begins as usual
    assert model.pos_embed.requires_grad
    kernel = model.patch_embed.proj.weight.detach()
    assert float(kernel.std()) == pytest.approx(0.02, rel=0.05)


# --- optimisers and rates -----------------------------------------------------------------------


@pytest.mark.parametrize("qkv", ["muon", "adamw"])
def test_every_parameter_has_one_optimiser_and_its_own_rate(
    qkv: Literal["muon", "adamw"],
) -> None:
    recipe = replace(LOCAL, qkv=qkv, qkv_rate=0.5, embedding_rate=3.0)
    model = build(recipe, recipe.stages[0])
    muon, adamw = build_optimisers(model, recipe)
    set_rate([muon, adamw], 0.5)
    set_rate([muon, adamw], 0.1)  # of the peak, whatever was set before
    rates = {
        id(parameter): (type(optimiser), group["lr"])
        for optimiser in (muon, adamw)
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    assert sum(len(g["params"]) for o in (muon, adamw) for g in o.param_groups) == len(rates)
    for name, parameter in model.named_parameters():
        matrix = name.startswith("blocks.") and parameter.ndim == 2
        kind, rate = rates[id(parameter)]
        if matrix and (qkv == "muon" or "qkv" not in name):
            expected = 0.1 * recipe.muon_rate
            assert kind is torch.optim.Muon
        else:
            factor = 0.5 if matrix else 3.0 if name.startswith("patch_embed") else 1.0
            expected = 0.1 * recipe.adamw_rate * factor
            assert kind is torch.optim.AdamW
        assert rate == pytest.approx(expected), name


# --- the moving average -------------------------------------------------------------------------


def test_the_average_follows_by_its_share() -> None:
    average, model = (build(replace(SMOKE, seed=seed), SMOKE.stages[0]) for seed in (0, 1))
    before = {name: value.clone() for name, value in average.state_dict().items()}
    update_average(average, model, 0.9)
    for name, value in model.state_dict().items():
        assert_close(average.state_dict()[name], 0.9 * before[name] + 0.1 * value)
    update_average(average, model, 0.0)
    assert_close(average.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert all(
        one.data_ptr() != other.data_ptr()
        for one, other in zip(average.parameters(), model.parameters(), strict=True)
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder, coloured(120, seed=1), coloured(50, seed=2))
    return folder


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run wrote that has no average and an initialisation as usual."""
    recipe = replace(SMOKE, model="plain", average=0.0)
    return train(recipe, data=data, out=tmp_path_factory.mktemp("plain"), report=silent)


@pytest.fixture(scope="module")
def local(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """What a run with local heads wrote, and the decay of its average at every step."""
    decays: list[float] = []

    def noted(average: Network, model: Network, decay: float) -> None:
        decays.append(decay)
        update_average(average, model, decay)

    recipe, out = replace(LOCAL, average=0.3, early=(0.2, 0.6)), tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "update_average", noted)
        return train(recipe, data=data, out=out, report=silent), decays


def test_without_an_average_the_weights_themselves_are_published(plain: Path) -> None:
    kept = load_file(plain.with_name("checkpoint.safetensors"))
    assert {value.dtype for value in kept.values()} == {torch.float16}
    for name, value in load_file(plain).items():
        assert torch.equal(kept[name], value)
        assert torch.equal(kept[f"average.{name}"], value)


def test_every_stage_begins_an_average_of_its_own(local: tuple[Path, list[float]]) -> None:
    _, decays = local
    steps = [int(stage.epochs * 100 // LOCAL.batch_size) for stage in LOCAL.stages]
    assert decays == [
        min(0.3, (1 + step) / (10 + step)) for count in steps for step in range(count)
    ]
    assert len(steps) == 2
    assert min(steps) > 3


def test_the_average_is_published_measured_and_resumed(data: Path, tmp_path: Path) -> None:
    small = {**LOCAL.configuration, "patch_size": 8, "depth": 1}
    recipe = replace(LOCAL, configuration=small, average=0.9, crop=0.5, colour=0.1, cutmix=0.5)
    whole = train(recipe, data=data, out=tmp_path / "whole", report=silent)
    kept = load_file(tmp_path / "whole" / "checkpoint.safetensors")
    state = load_file(whole)
    for name, value in state.items():
        assert torch.equal(kept[f"average.{name}"], value)
    assert not torch.equal(kept["head.weight"], state["head.weight"])

    def interrupted(line: str) -> None:
        if "epoch" in line:
            raise KeyboardInterrupt

    out = tmp_path / "halved"
    with pytest.raises(KeyboardInterrupt):
        train(recipe, data=data, out=out, save_every=4, report=interrupted)
    halfway = load_file(out / "checkpoint.safetensors")
    assert not torch.equal(halfway["average.head.weight"], halfway["head.weight"])
    lines: list[str] = []
    again = train(recipe, data=data, out=out, save_every=4, report=lines.append)
    assert lines[0] == "resuming at stage 1, step 4"
    assert metadata(again)["configuration"] == metadata(whole)["configuration"]
    difference = max(
        float((value.float() - state[name].float()).abs().max())
        for name, value in load_file(again).items()
    )
    assert difference < 0.1  # momentum is not kept, and the rate warms up again


def test_a_stage_ends_where_the_accuracy_has_stopped_to_rise(data: Path, tmp_path: Path) -> None:
    still = replace(  # nothing is learned, so that no evaluation is better than the first
        SMOKE,
        stages=(Stage(image_size=32, epochs=9),),
        muon_rate=0.0,
        adamw_rate=0.0,
        patience=3,
    )
    lines: list[str] = []
    train(still, data=data, out=tmp_path, report=silent)
    train(still, data=data, out=tmp_path, report=lines.append)  # and it does not go on
    assert "resuming at stage 1, step 20" in lines[0]
    rows = json.loads((tmp_path / "smoke.json").read_text())["epochs"]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("accuracies", "patience", "ended"),
    [
        ([0.1, 0.2, 0.3], 2, False),
        ([0.1, 0.3, 0.2], 1, True),
        ([0.1, 0.3, 0.2], 2, False),
        ([0.1, 0.3, 0.3, 0.2], 2, True),
        ([0.3, 0.2, 0.1], 0, False),
        ([0.3], 1, False),
        ([], 1, False),
    ],
)
def test_converged(accuracies: list[float], patience: int, ended: bool) -> None:
    rows = [{"image_size": 64, "held_out_accuracy": value} for value in accuracies]
    before = {"image_size": 32, "held_out_accuracy": 0.9}  # of a smaller input, which says nothing
    assert has_converged([before, *rows], 64, patience) is ended


# --- stochastic depth ---------------------------------------------------------------------------


def test_pictures_skip_the_last_block_and_no_first_one() -> None:
    model = build(LOCAL, LOCAL.stages[0])
    add_stochastic_depth(model, 0.5, torch.Generator().manual_seed(0))
    z = torch.ones(2000, 1, WIDTH)
    first, last = (block.mlp for block in model.blocks if isinstance(block, Block))
    plain = last.eval()(z[:1])
    changed = last.train()(z)[:, 0]
    skipped = (changed == 0).all(dim=1)
    assert 0.46 < skipped.float().mean() < 0.54
    assert_close(changed[~skipped], 2 * plain[:, 0].expand(int((~skipped).sum()), -1))
    assert_close(first.train()(z[:1]), first.eval()(z[:1]))


# --- moments ------------------------------------------------------------------------------------


def test_the_record_begins_with_the_initialisation_and_looks_early(
    local: tuple[Path, list[float]],
) -> None:
    found = record(local[0].with_name("moments.npz"))
    assert found["epoch"].tolist() == [0, 0.2, 0.6, 1, 2, 0, 1]
    assert found["image_size"].tolist() == [32] * 5 + [64] * 2
    entropy = found["entropy_0"]
    assert entropy.shape == found["distance_0"].shape == (2, HEADS)
    assert (entropy[:, 0] < entropy[:, 1]).all()  # the strong head is the local one
    assert (found["distance_0"][:, 0] < found["distance_0"][:, 1]).all()
    assert entropy.max() <= np.log2(65) + 1e-3


def test_a_model_is_watched_with_the_weights_that_its_training_began_with(
    local: tuple[Path, list[float]], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    for path in (local[0], plain):
        shutil.copy(path, tmp_path / "weights")
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    began = load_model("smoke", pretrained=False, initialisation="mimetic")
    words = "random weights, mimetic initialisation, positions resampled from 8x8 to 16x16"
    assert began.weights == words
    assert not began.trained
    assert began.labels is None
    assert began.temperature is None
    expected = grow(*(build(LOCAL, stage) for stage in LOCAL.stages)).state_dict()
    assert_close(dict(began.module.state_dict()), dict(expected), rtol=0, atol=0)
    usual = load_model("smoke", pretrained=False)
    assert usual.weights == "random weights"
    assert not torch.equal(usual.module.state_dict()["pos_embed"], expected["pos_embed"])
    assert checkpoints.initialisations("smoke") == ("plain", "mimetic")
    assert checkpoints.initialisations("plain") == ("plain",)
    for name, options, said in (
        ("smoke", {"initialisation": "mimetic"}, "Add pretrained=False"),
        ("plain", {"initialisation": "mimetic", "pretrained": False}, "of plain did not begin"),
        ("smoke", {"initialisation": "orthogonal", "pretrained": False}, "got 'orthogonal'"),
    ):
        keywords: Any = options
        with pytest.raises(ModelError, match=said):
            load_model(name, **keywords)


# --- things -------------------------------------------------------------------------------------


def test_the_recipe_of_things_trains_and_tells_its_terms(tmp_path: Path) -> None:
    """On a handful of pictures of 64 pixels, which the last stage takes as they are."""
    recipe = RECIPES["things200"]
    stages = tuple(replace(stage, epochs=1) for stage in recipe.stages)
    recipe = replace(recipe, stages=stages, held_out=2, batch_size=2, early=(0.5,))
    rng = np.random.default_rng(0)
    classes = [f"thing {number}" for number in range(200)]
    for name, count in (("train", 6), ("val", 2)):
        pictures = rng.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8)
        labels = rng.integers(0, 200, count).tolist()
        write_things(tmp_path / f"tiny_imagenet_{name}.parquet", pictures, labels, classes)
    path = train(recipe, data=tmp_path, out=tmp_path / "run", report=silent)
    about = metadata(path)
    assert about["detail"] == 1.0
    assert about["classes"] == classes
    assert (tuple(about["mean"]), tuple(about["std"])) == (THINGS_MEAN, THINGS_STD)
    card = path.with_suffix(".md").read_text()
    assert "research and education" in card
    assert "200 classes of 64-pixel" in card
    assert path.stat().st_size < 16e6
    assert evaluate(path, data=tmp_path).accuracy == pytest.approx(about["test_accuracy"])
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    assert checkpoint.stat().st_size < 17e6  # it is kept under version control
