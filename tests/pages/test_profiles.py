"""Profiles beside one picture: what is over many pictures is what the profile says, and no other
model gets it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
from examples import (
    example,
    own_model,
    own_module,
    picture,
    randomise,
    skip_random_weights,
    watched,
)
from numpy.testing import assert_allclose
from planting import plant_sink
from streamlit.testing.v1 import AppTest

from pages.driver import (
    address,
    assert_works,
    charts,
    complaints,
    numbers,
    of_sample,
    open_data,
    opened,
    opened_with_data,
    opened_with_norms,
    prose,
    provenance,
    specs,
)
from pages.test_distance import DOTS, facts, trace
from pages.test_tokens import COLOURS, FILM, alt, layout
from vitviz import Model, Profile, cli, inspection, load_model, load_profile, profile
from vitviz.app.shared import models, pictures, results, started
from vitviz.app.widgets import profiles
from vitviz.app.widgets.data_table import Table
from vitviz.common.files import assets
from vitviz.profiling import fits
from vitviz.zoo.checkpoints import shipped_names

SHIPPED = sorted((assets() / "profiles").glob("*.npz"))


def forget() -> None:
    for cached in (started.options, profiles.all_profiles, results.capture_cache):
        cached.clear()


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of the model "plain" over eight pictures, of which one cannot be read."""
    folder = tmp_path_factory.mktemp("profile")
    own = folder / "pictures"
    own.mkdir()
    for seed in range(8):
        picture(24, 16, seed=seed).save(own / f"{seed}.png")
    (own / "bad.png").write_bytes(b"no picture")
    profile(example("plain"), own, out=folder / "out")
    return folder / "out"


@pytest.fixture
def measured(
    folder: Path, serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> Profile:
    """The profile, named to an app that shows its model."""
    say(monkeypatch, folder)
    serve("plain")
    return load_profile(folder)


def say(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    words = [f"--profile={path}" for path in paths]
    monkeypatch.setattr(sys, "argv", ["/somewhere/app.py", *words])


def bars(at: AppTest) -> list[dict[str, Any]]:
    """What stands behind the dots."""
    return [one for one in json.loads(charts(at)[DOTS].spec)["data"] if one.get("zorder") == -1]


def has_menu(at: AppTest) -> bool:
    return any(box.key == "profile" for box in at.selectbox)


# --- Distance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "measure"), [("renormalised", "distance"), ("paper", "distance_paper")]
)
def test_mean_and_spread_of_every_head_stand_behind_the_dots(
    variant: str, measure: str, measured: Profile
) -> None:
    at = opened("distance", variant=variant)
    assert_works(at)
    (behind,) = bars(at)
    mean, spread = measured.mean(measure), measured.std(measure)
    assert_allclose(numbers(behind["y"]), mean.ravel(), rtol=1e-6)
    assert_allclose(numbers(behind["error_y"]["array"]), spread.ravel(), rtol=1e-6)
    assert numbers(behind["x"]).tolist() == numbers(trace(at, DOTS)["x"]).tolist()
    said = f"means over 8 pictures, from {mean.min():.1f} to {mean.max():.1f} pixels."
    assert said in charts(at)[DOTS].alt
    assert "SD (n \\u2212 1) over 8 pictures" in specs(at)[DOTS]
    dots = numbers(trace(at, DOTS)["y"])
    away = np.abs(dots - mean.ravel())
    layer, head = divmod(int(away.argmax()), 4)
    assert (
        "Blue bars: mean ± standard deviation (n − 1) of each head over 8 pictures of pictures. "
        f"On this picture the heads are {away.mean():.1f} px from that mean on average, and "
        f"{away.max():.1f} px at most (layer {layer + 1}, head {head + 1})."
    ) in prose(at)


def test_the_facts_of_a_head_name_its_usual_distance(measured: Profile) -> None:
    mean, spread = measured.mean("distance"), measured.std("distance")
    at = opened("distance", layer="1", head="2")
    assert f"(over 8 pictures {mean[0, 1]:.1f} ± {spread[0, 1]:.1f} px);" in facts(at)
    at = opened("distance", layer="1")
    assert f"(over 8 pictures {mean[0].mean():.1f} px);" in facts(at)


def test_a_profile_with_sinks_says_in_which_layers_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own_module()
    plant_sink(module, carries=False)
    model = watched(module, module.patch_embed.image_size)
    pictures_ = [picture(24, 16, seed=seed) for seed in range(4)]
    profile(model, pictures_, sinks=True).save(tmp_path)
    say(monkeypatch, tmp_path)
    monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
    at = opened("distance")
    assert_works(at)
    assert "layer 1 in 100 % of 4 pictures." in prose(at)
    assert "in ten queries: in none of 4 pictures." in prose(at)
    assert "of 4 pictures" not in prose(opened("distance", profile="none"))


def test_nothing_is_behind_the_dots_where_nothing_is_chosen(measured: Profile) -> None:
    at = opened("distance")
    menu = at.selectbox(key="profile")
    assert menu.options == ["8 pictures", "nothing"]
    menu.set_value("none")
    open_data(at, "distance")
    assert_works(at)
    assert address(at) == {"profile": "none"}
    assert not bars(at)
    assert "8 pictures" not in prose(at) + charts(at)[DOTS].alt
    assert not [name for name in at.dataframe[0].value.columns if "over 8 pictures" in name]


def test_the_table_has_the_numbers_of_the_profile(measured: Profile) -> None:
    at = opened_with_data("distance")
    table = at.dataframe[0].value
    mean, spread = measured.mean("distance"), measured.std("distance")
    assert_allclose(table["mean over 8 pictures, px"], mean.ravel(), rtol=1e-5)
    assert_allclose(
        table["standard deviation (n - 1) over 8 pictures, px"], spread.ravel(), rtol=1e-5
    )
    assert f"sha256 {measured.about['weights_sha256']}" in prose(at)


@pytest.mark.parametrize("page", ["distance", "tokens"])
def test_another_model_has_no_profile(
    page: str, measured: Profile, serve: Callable[..., Model]
) -> None:
    for model in (serve("registers"), serve("plain", image_size=(16, 28))):
        assert not fits(measured, model)
        at = opened(page) if page == "distance" else opened_with_norms()
        assert_works(at)
        assert not has_menu(at)
        assert "8 pictures" not in prose(at)


def test_a_model_of_windows_has_its_profile_behind_the_dots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = dict(
        img_size=32, window_size=4, embed_dim=8, depths=(1, 1), num_heads=(1, 2)
    )
    with skip_random_weights():
        module = timm.create_model("swin_tiny_patch4_window7_224", **sizes).eval()
    randomise(module)
    model = watched(module, (32, 32))
    found = profile(model, [picture(32, 32, seed=seed) for seed in range(4)])
    found.save(tmp_path)
    say(monkeypatch, tmp_path)
    monkeypatch.setattr(models, "load_by_name", lambda name, pretrained: model)
    at = opened_with_data("distance")
    assert_works(at)
    mean = found.mean("distance")
    assert np.isnan(mean[0, 1])
    assert_allclose(numbers(bars(at)[0]["y"]), mean.ravel(), rtol=1e-6)
    assert "over 4 pictures of pictures in memory" in prose(at)
    table = at.dataframe[0].value
    assert_allclose(table["mean over 4 pictures, px"], mean[np.isfinite(mean)], rtol=1e-5)


def test_it_is_said_why_a_profile_of_that_name_is_not_shown(
    measured: Profile, folder: Path, serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(model: Model) -> list[str]:
        forget()
        monkeypatch.setattr(model, "name", "example")
        at = opened("distance")
        assert_works(at)
        assert not has_menu(at)
        return [text.value for text in at.text if text.value.startswith("The profile of")]

    start = "The profile of example over 8 pictures of pictures is not shown: it was made with "
    other = serve("registers")
    assert told(other) == [f"{start}other weights or another preprocessing."]
    wider = serve("plain", image_size=(16, 28))
    assert told(wider) == [f"{start}an input of 16 × 24 pixels."]
    monkeypatch.setattr(other, "name", "another")
    assert profiles.explain_none(other) == ""


def test_other_weights_or_another_preprocessing_are_another_model(measured: Profile) -> None:
    same, other = own_model(), own_model()
    assert fits(measured, same)
    next(other.module.parameters()).data.flatten()[0] += 1e-3
    assert not fits(measured, other)
    measured.about["preprocessing"]["crop_pct"] = 0.5
    assert not fits(measured, same)


def test_of_two_profiles_one_is_chosen(
    measured: Profile, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = profile(example("plain"), [picture(24, 16, seed=seed) for seed in (1, 2)])
    other.save(tmp_path)
    say(monkeypatch, folder, tmp_path / "profile.npz")
    forget()
    at = opened("distance", profile="2")
    assert_works(at)
    names = ["8 pictures of pictures", "2 pictures of pictures in memory", "nothing"]
    assert at.selectbox(key="profile").options == names
    assert_allclose(numbers(bars(at)[0]["y"]), other.mean("distance").ravel(), rtol=1e-6)


# --- Tokens: the layers -------------------------------------------------------------------------


def test_layers_are_compared_as_the_profile_has_them(measured: Profile) -> None:
    at = opened_with_norms()
    assert_works(at)
    alike, long = (json.loads(spec)["data"][0] for spec in specs(at)[-2:])
    cka = measured.cka()
    assert_allclose(numbers(alike["z"]), cka, atol=1e-6)
    counts = measured.norms[0][1]
    there = np.flatnonzero(counts.any(axis=0))
    shares = 100 * counts / counts.sum(axis=1, keepdims=True)
    assert_allclose(numbers(long["z"]), shares[:, there[0] : there[-1] + 1].T, atol=1e-6)
    said = prose(at)
    assert "over 8 pictures of pictures" in said
    assert f"it is at least {min(cka[k, k + 1] for k in range(3)):.2f};" in said
    assert f"the last layer it is {cka[0, 3]:.2f}." in said
    assert "or more: none after any layer." in said


def test_the_layer_of_most_outliers_is_named(
    measured: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = measured.outlier_share
    moments.mean[2] = 0.031
    monkeypatch.setattr(Profile, "outlier_share", moments)
    assert "or more: 3.1 % of them after layer 2, where there are most." in prose(
        opened_with_norms()
    )


def test_the_tables_have_similarity_and_norms(
    measured: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, lines = Table.csv, []

    def kept(table: Table, line: str) -> str:
        lines.append(line)
        return write(table, line)

    monkeypatch.setattr(Table, "csv", kept)
    opened_with_data("tokens")
    folded = lines.copy()
    lines.clear()
    at = opened_with_norms("data_tokens")
    assert lines == folded  # the tables are there before their figures are
    assert [line.rpartition(" · ")[2] for line in lines[:3]] == [
        provenance(at).rpartition(" · ")[2],
        *2 * ["8 pictures of pictures"],
    ]
    _, alike, long = (frame.value for frame in at.dataframe)
    assert_allclose(alike.iloc[:, 1:], measured.cka(), atol=1e-5)
    assert list(alike["after layer"]) == [0, 1, 2, 3]
    assert list(long["outliers, %"]) == [0, 0, 0, 0]
    patches = long.iloc[:, 2:].to_numpy().sum(axis=1)
    assert patches.tolist() == [8 * 24] * 4
    at.selectbox(key="profile").set_value("none").run()
    assert_works(at)
    assert len(at.dataframe) == 1
    assert "How alike" not in prose(at)


# --- Tokens: components of all samples ----------------------------------------------------------


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("kind", ["registers", "no class token"])
def test_components_of_all_samples_are_those_of_their_stacked_tokens(
    kind: str, serve: Callable[[str], Model]
) -> None:
    from sklearn.decomposition import PCA  # here: it takes longer to import than all else

    model = serve(kind)
    at = opened_with_data("tokens", layer="2", basis="samples")
    assert_works(at)
    stacked = []
    for name in pictures.samples():
        acts = of_sample(model, name)
        stacked.append(acts.tokens(2, normalised=True)[acts.num_prefix_tokens :])
    pca = PCA(5, svd_solver="full").fit(np.concatenate(stacked).astype(np.float64))
    signs = np.sign(pca.components_[np.arange(5), np.abs(pca.components_).argmax(axis=1)])
    points = signs * pca.transform(stacked[list(pictures.samples()).index(pictures.DEFAULT)])
    table = at.dataframe[0].value
    for number in range(5):
        found = table[f"component {number + 1}"].to_numpy()
        assert_allclose(found, points[:, number], atol=1e-3 * np.abs(points).max())
    said = prose(at)
    assert f"Red is component 1 ({100 * pca.explained_variance_ratio_[0]:.0f} % of the" in said
    assert (
        f"all {len(stacked)} sample pictures together: equal colours mean equal components" in said
    )
    assert f"of the patches of all {len(stacked)} sample pictures together, and its norm" in said
    spread = pca.transform(np.concatenate(stacked)).std(axis=0)
    for first in (0, 1):
        chosen = slice(first, first + 3)
        at = opened("tokens", layer="2", basis="samples", components=f"{first + 1}-{first + 3}")
        reach = 2 * spread[chosen]
        expected = 255 * np.clip((points[:, chosen] + reach) / (2 * reach), 0, 1)
        (image,) = [one for one in json.loads(specs(at)[COLOURS])["data"] if one["type"] == "image"]
        colours = numbers(image["z"]).reshape(24, 4)[:, :3]
        assert_allclose(colours, expected, atol=1)


@pytest.mark.usefixtures("few_samples")
def test_a_token_has_one_colour_in_every_picture(serve: Callable[[str], Model]) -> None:
    serve("plain")
    at = opened("tokens", basis="samples")
    cat = opened("tokens", picture="cat", basis="samples")
    explained = [prose(one).split("Red is ")[1].split("Fitted")[0] for one in (at, cat)]
    assert explained[0] == explained[1]  # one basis
    count = len(pictures.samples())
    assert f"fitted on the patches of all {count} sample pictures together, so" in prose(at)
    assert "Fitted on this picture alone" in prose(opened("tokens"))
    assert address(at) == {"basis": "samples"}
    assert [text["text"].split(" · ")[0] for text in layout(at, FILM)["annotations"]] == [
        "layer 1",
        "layer 2",
        "<b>layer 3",
    ]


@pytest.mark.usefixtures("few_samples")
def test_the_threshold_keeps_the_basis_of_all_samples(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    at = opened_with_data("tokens", basis="samples", threshold="0.9")
    assert_works(at)
    table = at.dataframe[0].value
    component = table["component 1"].to_numpy().reshape(acts.grid)
    kept = inspection.foreground(component, threshold=0.9)
    assert not at.info
    assert table["kept"].to_numpy().sum() == kept.sum() < 24
    assert f"{kept.sum()} of 24 patches, component 1" in alt(at, COLOURS)
    assert "Fitted again" not in prose(at)


# --- what the operator says ---------------------------------------------------------------------


def test_a_bad_profile_is_told_at_the_start(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"no profile")
    say(monkeypatch, folder, bad)
    at = opened("distance")
    (said,) = complaints(at)
    assert "bad.npz holds no profile that can be read" in said
    assert not at.exception
    assert cli.main(["app", f"--profile={bad}"]) == 2
    assert cli.main(["prepare", f"--profile={bad}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("bad.npz holds no profile that can be read" in line for line in lines)


# --- what ships ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_profile_is_of_the_shipped_weights(path: Path) -> None:
    assert path.stem in shipped_names()
    assert path.stat().st_size < 1_000_000
    found = load_profile(path)
    assert fits(found, load_model(path.stem))
    assert found.about["skipped"] == 0
    assert found.about["refused_layers"] == {}
    assert found.accuracy is not None
    assert f"{found.accuracy[0]:.1%}".replace("%", " %") in found.about["provenance"]
