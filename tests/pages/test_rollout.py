"""Rollout: beside its map stands the attention of the layer, and it says how it was made."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import assert_works, forget, of_sample, opened, prose, token_map
from vitviz import Model
from vitviz.app.screens import rollout
from vitviz.inspection import rollout_steps


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    forget()


def beside(at: AppTest) -> list[dict[str, Any]]:
    """The map in a row with the rollout: the attention of the layer."""
    sent: list[dict[str, Any]] = token_map(at)["beside"]
    return sent


@pytest.mark.parametrize(
    ("kind", "link", "read"),
    [
        ("plain", {}, lambda mean: mean[0, 1:]),
        ("plain", dict(layer="2", query="2.3"), lambda mean: mean[1 + 6 + 2, 1:]),
        ("plain", dict(layer="1", query="2.3", read="column"), lambda mean: mean[1:, 1 + 6 + 2]),
        ("no class token", {}, lambda mean: mean.mean(axis=0)),
    ],
)
def test_attention_and_rollout_stand_in_a_row_with_their_correlation(
    kind: str,
    link: dict[str, str],
    read: Callable[[np.ndarray], np.ndarray],
    serve: Callable[..., Model],
) -> None:
    model = serve(kind)
    acts = of_sample(model)
    layer = int(link.get("layer", 3))
    attention = read(acts.attention(layer - 1).mean(axis=0))
    rollout_ = read([*rollout_steps(acts)][layer - 1])
    at = opened("rollout", **link)
    assert_works(at)
    (first,) = beside(at)
    assert first["title"] == f"Attention in layer {layer}"
    np.testing.assert_allclose(first["values"], attention, rtol=1e-5)
    like = np.corrcoef(rollout_, attention)[0, 1]
    assert first["note"] == f"Correlation with rollout: {like:.2f}"
    assert [slider.key for slider in at.slider] == ["layer"]
    assert "slider" not in token_map(at)["titles"]


@pytest.mark.parametrize(
    "link", [dict(fusion="max"), dict(residual="0.9"), dict(discard="0.3", start_layer="2")]
)
def test_a_changed_map_is_compared_with_that_of_the_usual_settings(
    link: dict[str, str], serve: Callable[..., Model]
) -> None:
    acts = of_sample(serve("plain"))
    settings: Any = dict(
        fusion=link.get("fusion", "mean"),
        residual=float(link.get("residual", 0.5)),
        discard=float(link.get("discard", 0)),
        start_layer=int(link.get("start_layer", 1)) - 1,
    )
    *_, usual = rollout_steps(acts)
    *_, changed = rollout_steps(acts, **settings)
    like = np.corrcoef(usual[0, 1:], changed[0, 1:])[0, 1]
    words = "Correlation with *mean*, r = 0.5"
    assert f"{words}: **{like:.2f}**" in prose(opened("rollout", **link))
    assert words not in prose(opened("rollout"))


@pytest.mark.parametrize(("fusion", "query"), [("mean", "cls"), ("max", "2.3")])
def test_the_maps_of_the_three_fusions_are_compared(
    fusion: Any, query: str, serve: Callable[..., Model]
) -> None:
    """By the numbers of the picture at hand."""
    acts = of_sample(serve("plain"))
    maps = []
    for one in ("mean", "max", "min"):
        _, second, _ = rollout_steps(acts, fusion=one, residual=0.3, discard=0.2)
        maps.append(second[0 if query == "cls" else 1 + 6 + 2, 1:])
    like: Any = np.corrcoef(maps)
    link = dict(fusion=fusion, residual="0.3", discard="0.2", layer="2", query=query)
    text = prose(opened("rollout", **link))
    assert (
        f"*mean* with *max* **{like[0, 1]:.2f}**, *mean* with *min* **{like[0, 2]:.2f}**, "
        f"*max* with *min* **{like[1, 2]:.2f}**." in text
    )
    odd = ("mean", "max", "min")[int(like.sum(axis=0).argmin())]
    assert f"differs most from the other two here is *{odd}*." in text
    shown = np.sort(maps[("mean", "max", "min").index(fusion)])[::-1]
    half = next(n for n in range(1, 25) if shown[:n].sum() >= shown.sum() / 2)
    named = "the CLS token" if query == "cls" else "the patch at row 2, column 3"
    reaches = f"Half of what reaches {named} from patches up to layer 2"
    assert f"{reaches} comes from **{half} of 24**" in text


def test_one_head_has_nothing_to_fuse(serve: Callable[..., Model]) -> None:
    serve("plain", num_heads=1)
    text = prose(opened("rollout"))
    assert "Half of what reaches the CLS token" in text
    assert "differs most" not in text
    assert "by fusion" not in text


@pytest.mark.parametrize(("peak", "collapsed"), [(200.0, True), (5.0, False)])
def test_a_map_on_few_patches_is_said_to_have_collapsed(peak: float, collapsed: bool) -> None:
    values = np.ones(100)
    values[[3, 50, 51]] = peak
    words = rollout._concentration(values, "Half of what reaches CLS comes from")
    assert f"**{'2' if collapsed else '44'} of 100** patches" in words
    assert ("collapsed" in words) == collapsed


def test_a_large_model_compares_the_chosen_fusion_with_the_usual_one(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr("vitviz.app.widgets.token_map.MAX_MAP_BYTES", 10)
    text = prose(opened("rollout", fusion="max"))
    assert "by fusion: *mean* with *max*" in text
    assert "*min*" not in text.partition("Correlation of the maps")[2].partition(".")[0]


def test_the_first_layer_of_the_steps_is_told(serve: Callable[..., Model]) -> None:
    serve("plain")
    assert token_map(opened("rollout", start_layer="2"))["titles"]["strip"] == "From layer 2 up to"


def test_a_patch_that_keeps_itself_is_no_collapse(serve: Callable[..., Model]) -> None:
    """Half of its row is its own at r = 0.5, whatever its attention is."""
    acts = of_sample(serve("plain", image_size=64))
    (first, *_) = rollout_steps(acts)
    row = first[1 + 2 * 16 + 5, 1:]
    assert row[2 * 16 + 5] > row.sum() / 2
    text = prose(opened("rollout", layer="1", query="3.6"))
    assert "up to layer 1 comes from **1 of 256** patches." in text
    assert "collapsed" not in text


def test_a_map_without_anything_does_not_come_from_a_patch(serve: Callable[..., Model]) -> None:
    serve("plain")
    text = prose(opened("rollout", residual="1.0"))
    assert "While no token is chosen, the map is read at CLS." in text
    assert "patches." not in text.partition("read at CLS.")[2].partition("\n")[0]
    assert "collapsed" not in text
