"""Every measure of a profile against a closed form, or a reference that is written out here."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    example,
    own_model,
    own_module,
    picture,
    randomise,
    skip_random_weights,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from planting import plant_sink
from test_families_staged import staged_model

from vitviz.activations import Activations, capture
from vitviz.inspection import (
    attention_distance,
    attention_entropy,
    norm_outliers,
    offset_attention,
    prefix_mass,
    token_norms,
    windowed_distance,
)
from vitviz.intervention import head_effects, mean_head_outputs
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.profiling import (
    PIECE,
    Moments,
    Profile,
    ProfileError,
    load_profile,
    measuring,
    profile,
    running,
)
from vitviz.profiling.heads import measure_heads
from vitviz.profiling.state import cka, gram, hsic
from vitviz.training.evaluation import calibration_error

MINIBATCH = 32
COUNT = 2 * MINIBATCH + 18
LABELS = [number % 5 for number in range(COUNT)]


def noisy(count: int) -> list[Image.Image]:
    """Pictures of the size of the own model's input, no two of them alike."""
    rng = np.random.default_rng(5)
    blobs = rng.integers(0, 256, (count, 4, 6, 3)).repeat(4, 1).repeat(4, 2)
    noise = rng.integers(-40, 41, (count, 16, 24, 3))
    return [Image.fromarray(each) for each in np.clip(blobs + noise, 0, 255).astype(np.uint8)]


PICTURES = noisy(COUNT)


@pytest.fixture(autouse=True, scope="module")
def small_minibatches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PIECE", MINIBATCH)
        yield


@pytest.fixture(scope="module")
def whole() -> Profile:
    return profile(example("distilled"), PICTURES, labels=LABELS)


@pytest.fixture(scope="module")
def captured() -> list[Activations]:
    """Each picture captured on its own."""
    return [capture(example("distilled"), image) for image in PICTURES]


# --- measures of heads -------------------------------------------------------------------------


def test_rows_are_those_of_single_captures(whole: Profile, captured: list[Activations]) -> None:
    references: dict[str, Any] = {
        "distance": attention_distance,
        "entropy": attention_entropy,
        "prefix_mass": prefix_mass,
    }
    # The heads of all pictures side by side: one call instead of hundreds.
    heads = [np.concatenate([acts.attention(layer) for acts in captured]) for layer in range(3)]
    where: dict[str, Any] = dict(num_prefix_tokens=2)
    lying: dict[str, Any] = dict(grid=captured[0].grid, patch_size=captured[0].patch_size)

    def of_each(values: np.ndarray) -> np.ndarray:
        return values.reshape(3, COUNT, 4).swapaxes(0, 1)

    for name, reference in references.items():
        options = {"distance": where | lying, "entropy": {}, "prefix_mass": where}[name]
        expected = of_each(reference(heads, **options))
        assert_array_equal(expected[0], reference(captured[0]))
        assert_allclose(whole.values(name), expected, rtol=1e-5, atol=1e-6, err_msg=name)
    paper = of_each(attention_distance(heads, **where, **lying, variant="paper"))
    assert_allclose(whole.mean("distance_paper"), paper.mean(axis=0), rtol=1e-5)
    assert (whole.mean("distance_paper") < whole.mean("distance")).all()


def test_self_and_outlier_mass_are_shares_of_the_patches_attention(
    whole: Profile, captured: list[Activations]
) -> None:
    for number in range(0, COUNT, 50):
        acts = captured[number]
        for layer in range(acts.depth):
            of_patches = acts.attention(layer)[:, 2:, 2:]
            own = np.trace(of_patches, axis1=1, axis2=2) / of_patches.shape[1]
            assert_allclose(whole.values("self_mass")[number, layer], own, rtol=1e-5)
            outliers = norm_outliers(token_norms(acts, depth=layer)[0]).ravel()
            mass = of_patches[:, :, outliers].sum(axis=2).mean(axis=1)
            assert_allclose(whole.values("outlier_mass")[number, layer], mass, atol=1e-6)


def test_mutual_information_is_that_of_its_definition(
    whole: Profile, captured: list[Activations]
) -> None:
    expected = np.zeros((COUNT, 3, 4))
    for number, acts in enumerate(captured):
        for layer in range(3):
            for head, attention in enumerate(acts.attention(layer).astype(np.float64)):
                joint = attention / len(attention)  # p(query) = 1 / tokens
                key = joint.sum(axis=0)
                both = np.sum(joint * np.log(joint / (key / len(attention))))
                entropies = np.log(len(attention)) * -np.sum(key * np.log(key))
                expected[number, layer, head] = both / np.sqrt(entropies)
    assert_allclose(whole.mean("mutual_information"), expected.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert whole.mean("mutual_information").max() > 0.05


def test_spread_and_interval_are_those_of_numpy_and_scipy(whole: Profile) -> None:
    from scipy import stats  # here: it takes long to import

    values = whole.values("entropy").astype(np.float64)
    assert_allclose(whole.mean("entropy"), values.mean(axis=0), rtol=1e-6)
    assert_allclose(whole.std("entropy"), values.std(axis=0, ddof=1), rtol=1e-4)
    assert_allclose(whole.sem("entropy"), stats.sem(values, axis=0), rtol=1e-4)
    low, high = stats.t.interval(0.95, COUNT - 1, values.mean(axis=0), stats.sem(values, axis=0))
    assert_allclose(whole.interval("entropy"), (low, high), rtol=1e-5)


class Fixed:
    """A capture of one layer with one head on a grid of 2 x 2, whose attention (5, 5) is given."""

    def __init__(self, attention: np.ndarray) -> None:
        self.layers = own_model(image_size=8, depth=1, num_heads=1).layers
        self.batch = None
        self._attention = attention[None].astype(np.float32)

    def attention(self, layer: int) -> np.ndarray:
        return self._attention


def test_attention_to_one_token_each_has_its_closed_forms() -> None:
    to_itself, to_the_next = np.eye(5), np.roll(np.eye(5), 1, axis=1)  # the last looks at CLS
    acts: list[Any] = [Fixed(to_itself), Fixed(to_the_next)]
    outliers = np.zeros((2, 5), bool)
    outliers[:, 2] = True
    found = {
        name: values[:, 0, 0] for name, values in measure_heads(acts, [outliers]).values.items()
    }
    assert_allclose(found["distance"], [0, (4 + np.sqrt(32) + 4) / 3], rtol=1e-6)
    assert_allclose(found["distance_paper"], [0, (4 + np.sqrt(32) + 4) / 4], rtol=1e-6)
    assert_allclose(found["entropy"], 0, atol=1e-6)
    assert_allclose(found["prefix_mass"], [0, 1 / 4])
    assert_allclose(found["self_mass"], [1, 0])
    assert_allclose(found["outlier_mass"], 1 / 4)
    assert_allclose(found["mutual_information"], 1, rtol=1e-6)


def test_maps_are_the_means_of_those_of_pictures(
    whole: Profile, captured: list[Activations]
) -> None:
    for layer in range(3):
        each = [offset_attention(acts, layer=layer) for acts in captured]
        assert_allclose(whole.offset_attention(layer), np.mean(each, axis=0), rtol=1e-4)
        each = [acts.attention(layer)[:, 0, 2:].reshape(4, 4, 6) for acts in captured]
        assert_allclose(whole.cls_attention(layer), np.mean(each, axis=0), rtol=1e-4)
    without = profile(example("no class token"), PICTURES[:3])
    with pytest.raises(ProfileError, match="no map of CLS"):
        without.cls_attention(0)


def test_rows_wholly_on_the_prefix_are_left_out_of_the_map() -> None:
    on_prefix = np.zeros((5, 5))
    on_prefix[..., 0] = 1
    half = np.full((5, 5), 0.2)
    half[1:3] = on_prefix[1:3]
    acts: list[Any] = [Fixed(on_prefix), Fixed(half)]
    found = measure_heads(acts, [np.zeros((2, 5), bool)])
    attention, pairs = found.offsets[0]
    assert pairs.sum() == 2 * 4  # the lower two patches of the second picture
    assert_allclose(attention[pairs > 0] / pairs[pairs > 0], 0.25)
    assert np.isnan(found.values["distance"][0]).all()
    assert_allclose(found.values["prefix_mass"][:, 0, 0], [1, 0.6])


# --- measures of tokens ------------------------------------------------------------------------


def hsic_of(X: np.ndarray, Y: np.ndarray) -> float:
    """The unbiased estimate, written out (Nguyen et al. 2021, eq. 3)."""
    n = len(X)
    K, L = X @ X.T, Y @ Y.T
    np.fill_diagonal(K, 0)
    np.fill_diagonal(L, 0)
    one = np.ones(n)
    total = np.trace(K @ L) + (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
    return float((total - 2 / (n - 2) * (one @ K @ L @ one)) / (n * (n - 3)))


def direct_cka(features: list[np.ndarray], parts: Sequence[slice]) -> np.ndarray:
    """CKA of all pairs of layers from the features (n, tokens * D) of each."""
    found = np.zeros((len(features), len(features)))
    for i, X in enumerate(features):
        for j, Y in enumerate(features):
            for part in parts:
                weight = len(X[part])
                found[i, j] += weight * hsic_of(X[part], Y[part])
    return found / np.sqrt(np.outer(np.diag(found), np.diag(found)))


def features_of(captured: list[Activations]) -> list[np.ndarray]:
    return [
        np.stack([acts.tokens(depth).ravel() for acts in captured]).astype(np.float64)
        for depth in range(captured[0].depth + 1)
    ]


def test_cka_is_that_of_the_minibatches_in_the_order_of_the_list(
    whole: Profile, captured: list[Activations]
) -> None:
    features = features_of(captured)
    minibatches = [slice(0, 32), slice(32, 64), slice(64, 82)]
    assert PIECE == 256  # as documented; smaller for these tests
    assert_allclose(whole.cka(), direct_cka(features, minibatches), rtol=1e-4, atol=1e-5)
    assert 0.1 < whole.cka()[0, 3] < 0.99
    full = direct_cka(features, [slice(None)])
    assert np.abs(whole.cka() - full).max() < 0.01


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_cka_of_equal_pictures_is_nan_though_they_differ_by_rounding(kind: Any) -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(12, 500)).astype(kind)
    same = np.repeat(rng.normal(size=(1, 500)), 12, axis=0).astype(kind)
    nearly = same * (1 + np.finfo(kind).eps * rng.integers(-1, 2, same.shape)).astype(kind)
    assert not (nearly == same).all()
    small = (same + 1e-3 * rng.normal(size=same.shape)).astype(kind)  # and these do differ
    found = cka(hsic(np.stack([gram(each) for each in (features, same, nearly, small)])))
    assert np.isnan(found[1:3]).all()
    assert np.isnan(found[:, 1:3]).all()
    assert np.isfinite(found[::3, ::3]).all()


def test_components_are_those_of_scikit_learn_on_all_tokens(
    whole: Profile, captured: list[Activations]
) -> None:
    from sklearn.decomposition import PCA  # here: it takes long to import

    stacked = np.concatenate([acts.tokens(3, normalised=True)[2:] for acts in captured])
    reference = PCA(n_components=3).fit(stacked.astype(np.float64))
    axes, mean, explained = whole.token_components(3)
    assert_allclose(mean, reference.mean_, atol=1e-5)
    assert_allclose(explained, reference.explained_variance_ratio_, rtol=1e-4)
    signs = np.sign(np.sum(axes * reference.components_, axis=1, keepdims=True))
    assert_allclose(axes, signs * reference.components_, atol=1e-3)
    assert (axes[np.arange(3), np.abs(axes).argmax(axis=1)] > 0).all()


def test_lengths_are_counted_in_bins(whole: Profile, captured: list[Activations]) -> None:
    counts, edges = whole.norms
    for depth in range(4):
        lengths = np.stack([np.linalg.norm(acts.tokens(depth), axis=1) for acts in captured])
        for part, some in enumerate((lengths[:, :2], lengths[:, 2:])):
            # a length on the edge of a bin may round to either side
            expected = np.histogram(some, edges)[0]
            assert np.abs(counts[part, depth] - expected).sum() <= 4
            assert counts[part, depth].sum() == some.size
        share = np.mean([norm_outliers(each[2:]).mean() for each in lengths])
        assert whole.outlier_share.mean[depth] == pytest.approx(share)


def test_skip_ratio_is_that_of_lengths(whole: Profile, captured: list[Activations]) -> None:
    for layer in range(3):
        ratios = []
        for acts in captured:
            before, middle, after = (
                acts.tokens(layer),
                acts.tokens_after_attention(layer),
                acts.tokens(layer + 1),
            )
            attention = np.linalg.norm(before, axis=1) / np.linalg.norm(middle - before, axis=1)
            mlp = np.linalg.norm(middle, axis=1) / np.linalg.norm(after - middle, axis=1)
            ratios.append(
                [part.mean() for each in (attention, mlp) for part in (each[:2], each[2:])]
            )
        found = [*whole.skip_ratio("attention").means[layer], *whole.skip_ratio("mlp").means[layer]]
        assert_allclose(found, np.mean(ratios, axis=0), rtol=1e-4)


# --- answers -----------------------------------------------------------------------------------


def test_accuracy_and_calibration_are_those_of_the_logits(
    whole: Profile, captured: list[Activations]
) -> None:
    shares = np.stack([acts.probabilities for acts in captured])  # type: ignore[misc]
    labels = np.array(LABELS)
    answers = shares.argmax(axis=1)
    assert whole.accuracy == pytest.approx((np.mean(answers == labels), 1.0))
    expected = calibration_error(torch.from_numpy(shares), torch.from_numpy(labels))
    assert whole.calibration_error == pytest.approx(expected, abs=1e-5)
    loss = -np.log(shares[np.arange(COUNT), labels]).sum()
    assert whole.state.sums["answers/loss"] == pytest.approx(loss, rel=1e-4)
    assert whole.pictures["answer"] == answers.tolist()
    assert whole.pictures["label"] == LABELS


def test_confusions_count_every_pair_of_label_and_answer(
    whole: Profile, captured: list[Activations], tmp_path: Path
) -> None:
    answers = [int(np.argmax(acts.logits)) for acts in captured if acts.logits is not None]
    pairs = [*zip(LABELS, answers, strict=True)]
    found = whole.confusion()
    rows = [*zip(found["label"], found["answer"], found["pictures"], found["share"], strict=True)]
    for label, answer, count, share in rows:
        assert count == pairs.count((label, answer)) > 0
        assert share == count / LABELS.count(label)
    assert sum(found["pictures"]) == COUNT
    wrong = [count for label, answer, count, _ in rows if label != answer]
    assert [label != answer for label, answer, *_ in rows[: len(wrong)]] == [True] * len(wrong)
    assert wrong == sorted(wrong, reverse=True)
    assert [row[2] for row in whole.top_confusions(1)] == wrong[:1]
    whole.save(tmp_path)
    lines = (tmp_path / "confusion.csv").read_text().splitlines()
    assert len(lines) == 1 + len(found["label"])
    assert lines[1].startswith(f"{found['label'][0]},{found['answer'][0]},")
    assert "Confusion" in (tmp_path / "profile.html").read_text()


@pytest.mark.parametrize(("place", "among_five"), [(0, 1), (4, 1), (5, 0)])
def test_the_sixth_class_is_not_among_five(place: int, among_five: int) -> None:
    shares = np.array([7, 6, 5, 4, 3, 2, 1]) / 28
    table: dict[str, Any] = {"label": [place], "answer": [None], "confidence": [None]}
    acts: Any = SimpleNamespace(probabilities=shares)
    sums = measuring._sum_answers([acts], [0], table).sums
    assert sums["answers/top"].tolist() == [place == 0, among_five]
    acts.probabilities = np.full(7, 1 / 7)  # of equal classes the first counts as the best
    sums = measuring._sum_answers([acts], [0], table).sums
    assert sums["answers/top"].tolist() == [place == 0, among_five]


def test_a_picture_without_numbers_does_not_count_in_the_mean_of_a_head() -> None:
    model, some = own_model(), PICTURES[:4]
    expected = profile(model, some, importance=["mean"]).importance("mean")[1]

    def spoil(_: object, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        z = inputs[0].clone()
        z[z.std(dim=(2, 3)).amax(1) < 1e-6] = torch.nan  # of one colour
        return (z,)

    model.module.register_forward_pre_hook(spoil)
    found = profile(model, [*some, Image.new("RGB", (32, 32))], importance=["mean"])
    assert "NaN or infinite" in found.pictures["skipped"][4]
    assert_allclose(found.importance("mean")[1].means, expected.means, atol=1e-6)


def test_pictures_without_labels_have_no_accuracy() -> None:
    found = profile(example("plain"), PICTURES[:3])
    assert (found.accuracy, found.calibration_error, found.labelled) == (None, None, 0)
    headless = profile(example("no head"), PICTURES[:3])
    assert headless.accuracy is None
    assert headless.pictures["answer"] == [None] * 3
    with pytest.raises(ModelError, match="has no head for classes"):
        profile(example("no head"), PICTURES[:3], importance=["zero"])


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_importance_is_what_happens_to_the_answer_without_a_head(kind: Any) -> None:
    model, some = own_model(), PICTURES[:5]
    with torch.no_grad():  # all answers are nearly as probable, so that a head may decide
        module: Any = model.module
        module.head.bias -= 0.97 * torch.tensor(capture(model, some[0]).logits)
    found = profile(model, some, importance=[kind], batch_size=4)
    values = mean_head_outputs(capture(model, image) for image in some) if kind == "mean" else None
    changed, lost = np.empty((2, 5, 3, 4))
    for number, image in enumerate(some):
        before = torch.tensor(capture(model, image).logits).log_softmax(0)
        after = torch.tensor(head_effects(model, image, values=values)).log_softmax(2)
        answer = before.argmax()
        changed[number] = (after.argmax(2) != answer).numpy()
        lost[number] = (before[answer] - after[:, :, answer]).numpy()
    assert_allclose(found.importance(kind)[0].means, changed.mean(axis=0))
    assert_allclose(found.importance(kind)[1].means, lost.mean(axis=0), atol=1e-5)
    assert np.abs(lost).max() > 0.01
    assert 0 < changed.mean() < 1
    with pytest.raises(ProfileError, match="was not measured"):
        found.importance("zero" if kind == "mean" else "mean")


def test_distances_between_patches_that_are_not_square_are_in_pixels() -> None:
    sizes: dict[str, Any] = dict(img_size=(32, 24), patch_size=(8, 4), embed_dim=24, num_heads=3)
    module = timm.create_model("vit_tiny_patch16_224", depth=2, **sizes).eval()
    randomise(module)
    model = watched(module, (32, 24))
    found = profile(model, PICTURES[:1])
    expected = attention_distance(capture(model, PICTURES[0]))
    assert_allclose(found.values("distance")[0], expected, rtol=1e-5)


@pytest.mark.parametrize("answers", ["labels", "values"])
def test_a_model_that_chooses_no_class_is_neither_right_nor_wrong(
    answers: Any, tmp_path: Path
) -> None:
    model = watched(own_module(), (16, 24), answers=answers)
    found = profile(model, PICTURES[:5], out=tmp_path / "out")
    assert found.about["answers"] == answers
    assert (found.accuracy, found.calibration) == (None, None)
    assert found.pictures["answer"] == found.pictures["confidence"] == [None] * 5
    assert f"5 {answers}" in (tmp_path / "out" / "profile.html").read_text()
    with pytest.raises(ModelError, match=f"answers with {answers} and does not choose one class"):
        profile(model, PICTURES[:3], importance=["zero"])
    with pytest.raises(ProfileError, match=f"answers with {answers}, so one label"):
        profile(model, PICTURES[:3], labels=[0, 1, 2])


# --- sinks --------------------------------------------------------------------------------------


def with_sink(carries: bool) -> Model:
    module = own_module()
    plant_sink(module, carries=carries)
    return watched(module, module.patch_embed.image_size)


@pytest.mark.parametrize("carries", [False, True])
def test_pictures_with_a_sink_are_counted_by_layer(carries: bool, tmp_path: Path) -> None:
    model = with_sink(carries)
    found = profile(model, PICTURES[:5], sinks=True, batch_size=2, out=tmp_path / "out")
    kind, other = ("broadcasts", "no_ops") if carries else ("no_ops", "broadcasts")
    again = load_profile(tmp_path / "out")
    for each in (found, again):
        assert each.sinks is not None
        assert each.sinks[kind].tolist() == [5, 0, 0]
        assert each.sinks[other].tolist() == [0, 0, 0]
        assert each.sinks["pictures"].tolist() == [5, 5, 5]
    assert "No-op sinks and broadcasts" in (tmp_path / "out" / "profile.html").read_text()
    merged = found.merge(profile(model, PICTURES[5:7], sinks=True))
    assert merged.sinks is not None
    assert merged.sinks[kind].tolist() == [7, 0, 0]
    with pytest.raises(ProfileError, match="another sinks"):
        profile(model, PICTURES[:5], batch_size=2, out=tmp_path / "out", resume=True)
    without = profile(model, PICTURES[7:9])
    assert without.sinks is None
    with pytest.raises(ProfileError, match="differ in sinks"):
        found.merge(without)


def test_a_run_from_before_sinks_were_counted_is_loaded_and_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = profile(example("plain"), PICTURES[:5], out=out)
    with np.load(out / "profile.npz") as file:
        arrays = dict(file)
    about = json.loads(str(arrays.pop("about")))
    assert about.pop("sinks") is False
    np.savez(out / "profile.npz", about=json.dumps(about), **arrays)
    old = profile(example("plain"), PICTURES[:5], out=out, resume=True)
    assert "sinks" not in old.about
    assert old.sinks is None
    assert_array_equal(old.mean("distance"), found.mean("distance"))


def test_layers_whose_sinks_cannot_be_told_are_named() -> None:
    with skip_random_weights():
        module = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)).eval()
    found = profile(watched(module, (224, 224)), PICTURES[:1], sinks=True)
    assert found.sinks is not None
    assert not found.sinks["pictures"].any()
    assert len(found.about["refused_layers"]) == 4
    (first, *_) = found.about["refused_layers"].items()
    assert first[0].endswith(", sinks")
    assert "not every token attends" in first[1]


# --- merging -----------------------------------------------------------------------------------


def arrays_of(found: Profile) -> dict[str, np.ndarray]:
    return found.state.to_arrays()


def test_two_parts_merge_into_the_whole(whole: Profile) -> None:
    model = example("distilled")
    first = profile(model, PICTURES[:MINIBATCH], labels=LABELS[:MINIBATCH])
    second = profile(model, PICTURES[MINIBATCH:], labels=LABELS[MINIBATCH:])
    merged, expected = arrays_of(first.merge(second)), arrays_of(whole)
    assert merged.keys() == expected.keys()
    for name, values in merged.items():
        scale = np.abs(expected[name]).max()
        assert_allclose(values, expected[name], rtol=0, atol=1e-12 * scale, err_msg=name)
    assert_array_equal(first.merge(second).values("distance"), whole.values("distance"))
    assert first.merge(second).pictures["label"] == LABELS
    assert first.merge(second).about["source"] == "pictures in memory"


def test_parts_whose_files_have_the_same_names_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two jobs, each of which measures the folder `part` of its own working directory."""
    model, parts = own_model(), []
    for job in range(2):
        folder = tmp_path / str(job) / "part"
        folder.mkdir(parents=True)
        PICTURES[job].save(folder / "0.png")
        (folder / "more.zip").touch()
        monkeypatch.chdir(folder.parent)
        parts.append(profile(model, "part"))
    assert parts[0].about["list_sha256"] == parts[1].about["list_sha256"]
    merged = parts[0].merge(parts[1])
    assert merged.about["pictures"] == len({*merged.pictures["sha256"]}) == 2
    assert len(merged.about["notes"]) == 2  # an archive of each part is not read
    for part in (*parts, merged):
        with pytest.raises(ProfileError, match="of the same list of pictures"):
            merged.merge(part)


def test_profiles_of_other_models_or_answers_do_not_merge() -> None:
    model = own_model()
    first = profile(model, PICTURES[:2])
    with pytest.raises(ProfileError, match="differ in weights_sha256"):
        first.merge(profile(own_model(registers=1), PICTURES[2:4]))
    model.answers = "labels"
    second = profile(model, PICTURES[2:4])
    with pytest.raises(ProfileError, match="differ in answers"):
        first.merge(second)
    del first.about["answers"]  # as older profiles
    for layer in first.about["layers"]:
        del layer["follows"]
    first.merge(second)
    assert running.fits(first, model)


@pytest.mark.parametrize("cut", [1, 30, 99])
def test_moments_of_parts_are_those_of_all(cut: int) -> None:
    rows = np.random.default_rng(1).normal(1e4, 1e-2, (100, 3))
    rows[7, 1] = np.nan
    whole, parts = Moments.of(rows), Moments.of(rows[:cut]).merge(Moments.of(rows[cut:]))
    assert_array_equal(parts.count, [100, 99, 100])
    assert_allclose(parts.mean, np.nanmean(rows, axis=0), rtol=1e-14)
    assert_allclose(parts.std, np.nanstd(rows, axis=0, ddof=1), rtol=1e-9)
    assert_allclose(parts.m2, whole.m2, rtol=1e-9)
    vectors = np.nan_to_num(rows)
    merged = Moments.of_vectors(vectors[:cut]).merge(Moments.of_vectors(vectors[cut:]))
    assert_allclose(merged.m2 / 99, np.cov(vectors.T), rtol=1e-9, atol=1e-9)


def test_moments_of_nothing_are_no_numbers() -> None:
    nothing = Moments.of(np.full((3, 2), np.nan))
    assert np.isnan(nothing.means).all()
    assert np.isnan(nothing.std).all()
    one = nothing.merge(Moments.of([[1.0, np.nan]]))
    assert_array_equal(one.means, [1.0, np.nan])
    assert np.isnan(one.std).all()


# --- families ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "side"),
    [("swin_tiny_patch4_window7_224", 224), ("pvt_v2_b0", 96), ("coatnet_0_rw_224", 224)],
)
def test_windows_and_pooled_keys_have_distance_and_entropy(name: str, side: int) -> None:
    model = staged_model(name, (side, side))
    images = [picture(seed=seed) for seed in range(4)]
    found = profile(model, images)
    acts = capture(model, images[2])
    for layer, described in enumerate(acts.layers):
        if described.num_heads:
            distance = windowed_distance(acts, layer=layer)
            seen = found.values("distance")[2, layer, : described.num_heads]
            assert_allclose(seen, distance, rtol=1e-4)
            assert np.isnan(found.values("distance")[2, layer, described.num_heads :]).all()
    assert found.cka().shape == (acts.depth + 1, acts.depth + 1)
    assert found.about["refused_layers"] == {}


def test_a_layer_that_is_refused_is_said_and_left_out() -> None:
    model = own_model()
    module: Any = model.module
    attn = module.blocks[1].attn
    plain = attn.forward
    attn.forward = lambda z: plain(z) + plain(z)  # attends twice
    found = profile(model, PICTURES[:3])
    assert list(found.about["refused_layers"]) == ["blocks.1"]
    assert np.isnan(found.mean("distance")[1]).all()
    assert np.isfinite(found.mean("distance")[[0, 2]]).all()
