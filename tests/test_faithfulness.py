"""Faithfulness of maps over many pictures: its measures, its intervals, its runs and its files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
import timm
import torch
from examples import picture
from numpy.testing import assert_array_equal
from PIL import Image
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import vitviz
from vitviz import ModelError, cli
from vitviz.common.files import assets
from vitviz.intervention import Removal, deletion_curve, insertion_curve, removal_areas
from vitviz.model.origin import weights_digest
from vitviz.profiling import ProfileError, faithful
from vitviz.profiling.entries import Entry
from vitviz.profiling.faithful import Faithfulness, summarise
from vitviz.profiling.judging import (
    MAPS,
    area_under_roc,
    draw_map,
    mask_of,
    patches_inside,
    random_orders,
    rank_correlation,
    shuffle_weights,
)

NAMES = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_medium_patch16_reg4_gap_256",
)
NO_QUANTUS = "Quantus, or libGL for its OpenCV, is not installed"
FEW: Any = dict(methods=["grad_cam", "attention"], baseline=["mean"], steps=2, orders=3)


def model_of(name: str = NAMES[0]) -> vitviz.Model:
    torch.manual_seed(0)
    module = timm.create_model(name, depth=2, num_classes=7, img_size=(48, 64))
    return vitviz.watch(module.eval())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six pictures of noise, of which one cannot be read, and the masks of the others."""
    place = tmp_path / "pictures"
    place.mkdir()
    (tmp_path / "masks").mkdir()
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 80, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
        mask = Image.new("L", (80, 64))
        mask.paste(255, (0, 0, 40, 64))
        mask.save(tmp_path / "masks" / f"{number}_mask.png")
    (place / "5.png").write_bytes(b"no picture")
    return place


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("removal", ["mean", "blur", "drop"])
def test_areas_in_batches_are_those_of_the_curves(name: str, removal: Removal) -> None:
    model, rng = model_of(name), np.random.default_rng(0)
    maps = [rng.random((3, 4)) for _ in range(2)]
    maps.append(-maps[1])
    if removal == "drop" and "gap" in name:
        with pytest.raises(ModelError, match="Keep at least one"):
            removal_areas(model, picture(), maps, 3, removal=removal)
        return
    options: Any = dict(steps=3, removal=removal)
    found = removal_areas(model, picture(), maps, 3, batch_size=5, **options)
    for curve, areas in zip((deletion_curve, insertion_curve), found, strict=True):
        expected = [curve(model, picture(), map_, 3, **options).area for map_ in maps]
        np.testing.assert_allclose(areas, expected, rtol=1e-5)


def test_patches_are_not_dropped_where_attention_depends_on_their_places() -> None:
    module = timm.create_model("eva02_tiny_patch14_224", depth=1, num_classes=3, img_size=56)
    with pytest.raises(ModelError, match="depends on the place"):
        removal_areas(vitviz.watch(module.eval()), picture(), [np.eye(4)], 0, removal="drop")


def test_measures_are_those_of_scipy_and_sklearn() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 5, (2, 6, 7)).astype(float)  # with equal values
    inside = rng.random((6, 7)) > 0.6
    assert rank_correlation(one, other) == pytest.approx(spearmanr(one.ravel(), other.ravel())[0])
    assert area_under_roc(one, inside) == pytest.approx(roc_auc_score(inside.ravel(), one.ravel()))
    assert np.isnan(rank_correlation(one, np.ones((6, 7))))


def in_pixels(map_: np.ndarray) -> np.ndarray:
    """A map of patches of 16 pixels as Quantus takes it: (1, 1, height, width)."""
    whole: np.ndarray = np.kron(map_, np.ones((16, 16)))[None, None]
    return whole


@pytest.mark.parametrize("name", NAMES)
def test_curves_are_those_of_quantus(name: str) -> None:
    """Its PixelFlipping, with a patch a step; what patches become is painted here."""
    quantus = pytest.importorskip("quantus", reason=NO_QUANTUS, exc_type=ImportError)
    model, target = model_of(name), 3
    map_ = draw_map(model, vitviz.capture(model, picture()), picture(), "relevance", target)
    x = model.preprocess(picture()).numpy()
    grey = np.broadcast_to(x.mean(axis=(1, 2), keepdims=True), x.shape)

    def curve(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        def paint(arr: np.ndarray, indices: np.ndarray, **_: Any) -> np.ndarray:
            painted = arr.copy()
            painted[0, indices[0]] = end.ravel()[indices[0]]
            return painted

        metric = quantus.PixelFlipping(
            features_in_step=3 * 16 * 16,
            perturb_func=paint,
            normalise=False,
            abs=False,
            disable_warnings=True,
        )
        given = dict(x_batch=begin[None], y_batch=np.array([target]), a_batch=in_pixels(map_))
        (values,) = metric(model=model.module, **given, softmax=True, device="cpu")
        return np.ravel(values)

    options: Any = dict(steps=12, removal="mean")
    areas = removal_areas(model, picture(), [map_], target, **options)
    sides = ((deletion_curve, x, grey), (insertion_curve, grey, x))
    for (ours, begin, end), (area,) in zip(sides, areas, strict=True):
        found = ours(model, picture(), map_, target, **options)
        wanted = curve(begin, end)
        np.testing.assert_allclose(found.probabilities[1:], wanted, rtol=1e-4)
        first = found.probabilities[0]  # which Quantus leaves out
        assert area == pytest.approx(np.trapezoid([first, *wanted], dx=1 / 12), rel=1e-4)


def test_pointing_and_overlap_are_those_of_quantus(folder: Path) -> None:
    quantus = pytest.importorskip("quantus", reason=NO_QUANTUS, exc_type=ImportError)
    model, masks = model_of(), folder.parent / "masks"
    names = ["grad_cam", "attention", "relevance"]
    result = vitviz.faithfulness(model, folder, **{**FEW, "methods": names}, masks=masks)
    options = dict(normalise=False, abs=False, disable_warnings=True)
    metrics = {
        "pointing": quantus.PointingGame(**options),
        "overlap": quantus.AUC(**options),
    }
    seen = set()
    for number in range(5):
        with Image.open(folder / f"{number}.png") as file:
            image = file.convert("RGB")
        acts = vitviz.capture(model, image)
        entry = Entry(source=str(folder / f"{number}.png"), name="", label=None)
        inside = patches_inside(entry, str(masks), acts, image)
        assert inside is not None
        answer = result.pictures["answer"][number]
        maps = [in_pixels(draw_map(model, acts, image, name, answer)) for name in names]
        x = np.repeat(model.preprocess(image).numpy()[None], len(names), axis=0)
        for measure, metric in metrics.items():
            wanted = metric(
                model=model.module,
                x_batch=x,
                y_batch=np.repeat(answer, len(names)),
                a_batch=np.concatenate(maps),
                s_batch=np.repeat(in_pixels(inside), len(names), axis=0),
                device="cpu",
            )
            values = result.values[measure][number, : len(names)]
            np.testing.assert_allclose(values, np.array(wanted, float), atol=1e-9)
            seen |= {measure, *(values if measure == "pointing" else ())}
    assert seen == {"pointing", "overlap", 0.0, 1.0}  # some maps hit, and some do not


def test_shuffled_weights_have_the_same_entries_and_leave_the_model_as_it_is() -> None:
    model = model_of()
    before = [weight.clone() for weight in model.module.parameters()]
    other = shuffle_weights(model, 0)
    for old, now, new in zip(
        before, model.module.parameters(), other.module.parameters(), strict=True
    ):
        assert torch.equal(old, now)
        assert torch.equal(old.flatten().sort().values, new.flatten().sort().values)
    weights = (each.module.state_dict()["blocks.0.attn.qkv.weight"] for each in (model, other))
    assert not torch.equal(*weights)


def test_every_second_random_order_is_the_reverse_of_the_one_before() -> None:
    orders = random_orders((3, 4), 5, seed=1)
    assert len(orders) == 5
    assert np.array_equal(orders[3], -orders[2])
    assert not np.array_equal(orders[2], orders[0])


def test_all_measures_are_computed_for_every_map(folder: Path) -> None:
    maps = [name for name in MAPS if name != "integrated_gradients"]
    result = vitviz.faithfulness(
        model_of(), folder / "1.png", methods=maps, masks=folder.parent / "masks", steps=2, orders=2
    )
    assert set(result.values) == {
        *(f"{kind}_{fill}" for kind in ("deletion", "insertion") for fill in ("mean", "blur")),
        *("deletion_drop", "insertion_drop", "pointing", "overlap", "other_class"),
        *("random_weights", "seconds", "agreement"),
    }
    assert not result.about["refused"]
    for name, values in result.values.items():
        known = np.isfinite(values)
        of_random = name not in ("other_class", "random_weights", "seconds", "agreement")
        assert known[:, :-1, ...].reshape(1, len(maps), -1)[..., 0].all(), name
        assert known[:, -1].all() == of_random, name
    unchanged = [result.values["other_class"][0, maps.index(n)] for n in ("attention", "rollout")]
    assert unchanged == pytest.approx([1, 1])
    assert result.values["pointing"][0, -1] == result.values["overlap"][0, -1] == 0.5
    assert not result.means  # one picture has no interval


def test_random_orders_are_the_mean_of_their_curves(folder: Path) -> None:
    model = model_of()
    result = vitviz.faithfulness(model, folder / "2.png", **FEW)
    answer = result.about["table"]["answer"][0]
    areas = [
        deletion_curve(model, folder / "2.png", order, answer, steps=2).area
        for order in random_orders((3, 4), 3, seed=0)
    ]
    assert result.values["deletion_mean"][0, -1] == pytest.approx(np.mean(areas), rel=1e-5)


def test_a_method_that_refuses_the_model_is_named_and_left_out(folder: Path) -> None:
    module = timm.create_model(
        "vit_relpos_small_patch16_rpn_224", depth=1, num_classes=7, img_size=48
    )
    result = vitviz.faithfulness(vitviz.watch(module.eval()), folder, **FEW)
    assert "no norm before its attention" in result.about["refused"]["grad_cam"]
    assert set(result.means["deletion_mean"]) == {"attention", "random"}


def about(*maps: str) -> dict[str, Any]:
    return {"model": "m", "pictures": 40, "maps": list(maps)}


def planted(values: np.ndarray) -> Faithfulness:
    agreement = np.full((len(values), 4, 4), np.nan)
    return summarise(about("a", "b", "c"), {"insertion_mean": values, "agreement": agreement})


def test_no_map_wins_where_an_interval_holds_no_difference() -> None:
    rng = np.random.default_rng(0)
    base = rng.random((40, 1))  # pictures differ more than maps
    noise = rng.normal(0, 0.01, (40, 4))
    clear = planted(base + noise + [0.5, 0.1, 0.0, -0.1])
    assert clear.winner("insertion_mean") == "a"
    near = planted(base + noise + [0.2, 0.1, 0.0, -0.1])  # better picture by picture, yet
    assert all(near.is_better("insertion_mean", "a", other) for other in ("b", "c", "random"))
    assert near.means["insertion_mean"]["a"][1] < near.means["insertion_mean"]["b"][2]
    assert near.winner("insertion_mean") is None
    assert clear.is_better("insertion_mean", "c", "random")
    (mean, low, high, count) = clear.differences["insertion_mean"]["a"]["b"]
    assert low < mean < high
    assert (round(mean, 1), count) == (0.4, 40)
    equal = planted(base + noise + [0.2, 0.2, 0.0, 0.0])
    assert equal.winner("insertion_mean") is None
    assert "No map wins." in equal.table()
    assert not equal.is_better("insertion_mean", "c", "random")
    assert "like random" in equal.table()


def test_no_map_wins_by_changing_against_the_class() -> None:
    values = np.random.default_rng(0).random((40, 4)) * 0.01 + [-0.5, 0.0, 0.5, np.nan]
    agreement = np.full((40, 4, 4), np.nan)
    judged = summarise(about("a", "b", "c"), {"other_class": values, "agreement": agreement})
    assert judged.winner("other_class") is None
    assert "wins" not in judged.table()


@pytest.mark.parametrize("path", sorted((assets() / "faithfulness").glob("*.json")), ids=str)
def test_shipped_figures_are_of_the_shipped_weights(path: Path) -> None:
    judged = vitviz.load_faithfulness(path.stem)
    assert judged.about["model"] == path.stem
    assert judged.about["weights_sha256"] == weights_digest(vitviz.load_model(path.stem).module)
    assert {"deletion_drop", "insertion_mean", "random_weights"} <= judged.means.keys()
    assert judged.maps == (*MAPS, "random")


def test_the_interval_is_that_of_student() -> None:
    values = np.random.default_rng(1).random((40, 4))
    mean, low, high, count = planted(values).means["insertion_mean"]["b"]
    sem = values[:, 1].std(ddof=1) / 40**0.5
    assert mean == pytest.approx(values[:, 1].mean(), abs=1e-6)
    assert count == 40
    assert high - low == pytest.approx(2 * 2.0227 * sem, rel=1e-3)  # t(39) at 97.5 %


def test_a_stopped_run_is_resumed_and_workers_measure_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = model_of(), tmp_path / "run"
    whole = vitviz.faithfulness(model, folder, **FEW, masks=folder.parent / "masks")
    assert whole.about["skipped"] == 1

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    options = dict(FEW, masks=folder.parent / "masks", out=out)
    with pytest.raises(KeyboardInterrupt):
        vitviz.faithfulness(model, folder, **options, progress=stop)
    assert len([*(out / "pieces").glob("*.npz")]) == 1
    with pytest.raises(ProfileError, match="steps"):
        vitviz.faithfulness(model, folder, **{**options, "steps": 3}, resume=True)
    resumed = vitviz.faithfulness(model, folder, **options, resume=True)
    by_worker = vitviz.faithfulness(model, folder, **FEW, masks=folder.parent / "masks", workers=1)
    for other in (resumed, by_worker):
        for name in whole.values.keys() - {"seconds"}:
            np.testing.assert_allclose(other.values[name], whole.values[name], rtol=1e-4)
    loaded = vitviz.load_faithfulness(out)
    assert loaded.means == resumed.means
    alone = vitviz.load_faithfulness(out / "faithfulness.json")
    assert alone.table() == resumed.table()
    assert str(tmp_path) not in (out / "faithfulness.json").read_text()  # it may be published
    assert vitviz.faithfulness(model, folder, **options, resume=True).means == resumed.means
    (out / "faithfulness.json").write_text(json.dumps({"about": {}}))
    with pytest.raises(ProfileError, match="holds no figures on maps"):
        vitviz.load_faithfulness(out / "faithfulness.json")


def test_a_damaged_piece_is_named(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "000000.npz"
    place.write_bytes(b"damaged")
    with pytest.raises(ProfileError, match=r"000000\.npz cannot be read"):
        faithful._read_piece(place, [], about("a"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"methods": ["no such"]}, "got 'no such'"),
        ({"baseline": ["black"]}, "got 'black'"),
        ({"steps": 0}, "at least one step"),
        ({"seed": -1}, "a seed of at least 0, got -1"),
        ({"orders": 0}, "at least one random order"),
        ({"labels": ["cat"] * 6}, "so the label cat cannot be matched"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    folder: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ProfileError, match=reason):
        vitviz.faithfulness(model_of(), folder, **options)


def test_one_picture_has_values_and_no_means(folder: Path) -> None:
    result = vitviz.faithfulness(model_of(), folder / "0.png", **FEW)
    assert np.isfinite(result.values["deletion_mean"]).all()
    assert result.means == {}
    assert result.table() == "Means and their intervals need at least two measured pictures."


def test_a_model_without_classes_is_refused(folder: Path) -> None:
    module = timm.create_model(NAMES[0], depth=1, num_classes=0, img_size=(48, 64))
    with pytest.raises(ProfileError, match="does not answer with one of several classes"):
        vitviz.faithfulness(vitviz.watch(module.eval()), folder)


def test_boxes_and_masks_say_which_patches_lie_inside(folder: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    model, masks = model_of(), str(folder.parent / "masks")
    image = vitviz.open_image((folder / "0.png").read_bytes())
    acts = vitviz.capture(model, image)
    path = tmp_path / "boxes.parquet"
    boxes = [[0, 0, 1, 1], [0, 0, 40, 64], None, [40, 0, 0, 64]]
    rows = {"image": [(folder / "0.png").read_bytes()] * 4, "box": boxes}
    parquet.write_table(pa.table(rows), path)
    by_box = patches_inside(Entry("x", str(path), (1,)), "box", acts, image)
    by_mask = patches_inside(Entry("0", str(folder / "0.png")), masks, acts, image)
    expected = np.tile([True, True, False, False], (3, 1))
    assert np.array_equal(by_box, expected)  # type: ignore[arg-type]
    assert np.array_equal(by_mask, expected)  # type: ignore[arg-type]
    assert patches_inside(Entry("x", str(path), (2,)), "box", acts, image) is None  # an empty cell
    with pytest.raises(ProfileError, match=r"got \[40, 0, 0, 64\]"):
        patches_inside(Entry("x", str(path), (3,)), "box", acts, image)
    with pytest.raises(ProfileError, match="neither a folder of masks nor a column"):
        patches_inside(Entry("x", str(path), (1,)), "no such", acts, image)
    Image.new("L", (7, 7)).save(folder.parent / "masks" / "0_mask.png")
    with pytest.raises(ProfileError, match="7 x 7 pixels"):
        patches_inside(Entry("0", str(folder / "0.png")), masks, acts, image)


@pytest.mark.parametrize("orientation", [1, 6])
def test_boxes_and_masks_are_in_pixels_of_the_file(tmp_path: Path, orientation: int) -> None:
    """A picture with a side above 2048 pixels is reduced as it is read."""
    import pyarrow as pa
    from pyarrow import parquet

    high, wide = 2400, 3200  # upright: 3 x 4 patches of 800 pixels
    size = (wide, high) if orientation == 1 else (high, wide)
    stored, exif = Image.new("RGB", size), Image.Exif()
    exif[274] = orientation
    stored.save(tmp_path / "a.jpg", exif=exif)
    rows = {"image": [(tmp_path / "a.jpg").read_bytes()], "box": [[2400, 1600, 3200, 2400]]}
    parquet.write_table(pa.table(rows), tmp_path / "boxes.parquet")
    mask = Image.new("L", (wide, high))
    mask.paste(255, (2400, 1600, 3200, 2400))
    mask.save(tmp_path / "a_mask.png")
    model = model_of()
    image = vitviz.open_image(tmp_path / "a.jpg")
    acts = vitviz.capture(model, image)
    assert (image.size, acts.grid) == ((2048, 1536), (3, 4))
    expected = np.zeros((3, 4), bool)
    expected[2, 3] = True
    for entry, masks in (
        (Entry("x", str(tmp_path / "boxes.parquet"), (0,)), "box"),
        (Entry("a", str(tmp_path / "a.jpg")), str(tmp_path)),
    ):
        assert_array_equal(patches_inside(entry, masks, acts, image), expected)


@pytest.mark.parametrize("kind", ["L", "P", "RGB"])
def test_a_mask_of_class_numbers_is_refused_and_one_of_any_mode_is_read(
    folder: Path, tmp_path: Path, kind: Any
) -> None:
    image, entry = vitviz.open_image(folder / "0.png"), Entry("0", str(folder / "0.png"))
    acts = vitviz.capture(model_of(), image)
    white = Image.new("L", image.size)
    white.paste(255, (0, 0, image.width // 2, image.height))
    numbers = white.point(lambda value: value and 1)
    if kind != "L":  # maroon, as class 1 of Pascal VOC, with borders that are nearly white
        numbers.putpalette([0, 0, 0, 128, 0, 0, 224, 224, 192])
        numbers.putpixel((0, 0), 2)
    white.convert(kind).save(tmp_path / "0.png")
    expected = np.tile([True, True, False, False], (3, 1))
    assert_array_equal(patches_inside(entry, str(tmp_path), acts, image), expected)
    numbers.convert(kind).save(tmp_path / "0.png")
    with pytest.raises(ProfileError, match=r"0\.png is not black and white\. Make it white"):
        patches_inside(entry, str(tmp_path), acts, image)


@pytest.mark.parametrize(("of_picture", "of_mask"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_letters_of_a_mask_may_be_composed_or_not(
    tmp_path: Path, of_picture: Any, of_mask: Any
) -> None:
    mask = tmp_path / normalize(of_mask, "경주_mask.png")
    mask.touch()
    entry = Entry("x", normalize(of_picture, "photos/경주.jpg"))
    assert mask_of(entry, str(tmp_path)) == mask
    assert mask_of(replace(entry, place=(0,)), str(tmp_path)) is None  # within a shard


def test_a_mask_of_two_pictures_is_refused_and_a_folder_without_any(
    folder: Path, tmp_path: Path
) -> None:
    masks = folder.parent / "masks"
    (tmp_path / "dogs").mkdir()
    (tmp_path / "none").mkdir()
    picture(64, 48, seed=9).save(tmp_path / "dogs" / "1.png")
    both = [folder / "1.png", tmp_path / "dogs"]
    with pytest.raises(ProfileError, match=r"1_mask\.png may be for .*1\.png or .*dogs/1\.png"):
        vitviz.faithfulness(model_of(), both, **FEW, masks=masks)
    with pytest.raises(ProfileError, match="No picture has a mask in"):
        vitviz.faithfulness(model_of(), folder, **FEW, masks=tmp_path / "none")


def test_the_command_prints_the_table_and_names_skipped_pictures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["faithfulness", "vitviz_tiny_cifar10", str(folder), "--out", str(tmp_path / "out")]
    words += ["--method", "attention", "--baseline", "drop", "--steps", "2", "--orders", "2"]
    assert cli.main(words) == 1  # a picture was skipped
    output = capsys.readouterr()
    assert "deletion_drop (less is better)" in output.out
    assert "5 pictures measured, 1 skipped" in output.out
    assert "5.png" in output.err
    assert cli.main(words) == 2
    assert "Resume it, or name another folder" in capsys.readouterr().err
