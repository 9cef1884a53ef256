"""What a map or an experiment asks about: classes by name, vectors, functions, tokens."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from examples import assert_clear_error, example, own_module, picture, watched
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor

from vitviz.activations import DropPatches, capture
from vitviz.attribution import Similarity, Token, gradient_rollout, relevance
from vitviz.intervention import deletion_curve, insertion_curve, occlusion, random_map
from vitviz.model import Model
from vitviz.model.families import ModelError

NAMES = ("tench, Tinca tinca", "cock", "crane, bird", "crane, machine", "hen")
METHODS = (relevance, gradient_rollout)
every_method = pytest.mark.parametrize("method", METHODS)


@cache
def named() -> Model:
    """With names of its classes; no test changes it."""
    module = own_module()
    return watched(module, module.patch_embed.image_size, labels=NAMES)


@every_method
@pytest.mark.parametrize(
    ("target", "index"),
    [("cock", 1), ("Cock", 1), ("tinca tinca", 0), (np.int64(4), 4), (torch.tensor(3), 3)],
)
def test_a_class_is_asked_for_by_its_name(
    method: Callable[..., np.ndarray], target: Any, index: int
) -> None:
    assert_array_equal(method(named(), picture(), target), method(named(), picture(), index))


@every_method
def test_a_vector_and_a_function_are_asked_about_as_the_class_that_they_are(
    method: Callable[..., np.ndarray],
) -> None:
    model = example("plain")
    expected = method(model, picture(), 2)
    assert_allclose(method(model, picture(), np.eye(5)[2]), expected, rtol=1e-5)
    assert_allclose(method(model, picture(), lambda output: output[2]), expected, rtol=1e-5)


def test_the_difference_of_two_classes_is_a_target_of_its_own() -> None:
    model = example("plain")
    against = np.array([0, 1, 0, -1, 0])
    found = relevance(model, picture(), against)
    assert_allclose(
        found, relevance(model, picture(), lambda output: output[1] - output[3]), rtol=1e-5
    )
    assert not np.allclose(found, relevance(model, picture(), 1), rtol=0.05)


def test_an_embedding_is_compared_by_its_cosine() -> None:
    module = own_module()
    model = watched(module, module.patch_embed.image_size, answers="embedding")
    vector = np.arange(1.0, 6.0)
    asked = torch.tensor(vector, dtype=torch.float32)

    def cosine(output: Tensor) -> Tensor:
        return output @ asked / (output.norm() * asked.norm())

    expected = relevance(model, picture(), cosine)
    assert_allclose(relevance(model, picture(), vector), expected, rtol=1e-4)
    assert_allclose(relevance(model, picture(), 7 * vector), expected, rtol=1e-4)
    hidden = occlusion(model, picture(), target=vector, block=4)
    assert_allclose(hidden, occlusion(model, picture(), target=cosine, block=4), atol=1e-6)
    acts = capture(model, picture())
    assert acts.output is not None
    mask = np.zeros((4, 6), bool)
    mask[:4, :4] = True
    painted = occlusion(model, picture(), target=vector, block=4, removal="drop")[0, 0]
    after = capture(model, picture(), edits=[DropPatches(mask)]).output
    outputs = (torch.tensor(each) for each in (acts.output, after))
    plain, without = (float(cosine(each)) for each in outputs)
    assert painted == pytest.approx(plain - without, abs=1e-6)


def test_a_direction_of_regression_is_followed_through_features_without_a_head() -> None:
    """The features of a model without a head, projected, are a head of one output."""
    module = own_module(num_classes=1)
    headless = own_module(num_classes=0)
    headless.load_state_dict(
        {name: value for name, value in module.state_dict().items() if "head" not in name}
    )
    weight: Any = module.get_submodule("head").weight
    size = module.patch_embed.image_size
    with_head, without = watched(module, size), watched(headless, size)
    direction = weight[0].detach().numpy()
    for method in METHODS:
        expected = method(with_head, picture(), 0)
        assert_allclose(method(without, picture(), direction), expected, rtol=1e-4)
    assert_allclose(
        occlusion(without, picture(), target=direction, block=4),
        occlusion(with_head, picture(), target=[1.0], block=4),
        atol=1e-5,
    )


def test_curves_follow_any_target() -> None:
    model, map_ = example("plain"), random_map((4, 6))
    acts = capture(model, picture())
    assert acts.logits is not None
    removed = deletion_curve(model, picture(), map_, target=np.eye(5)[3])
    added = insertion_curve(model, picture(), map_, target=lambda output: output[3])
    assert removed.probabilities[0] == pytest.approx(acts.logits[3], rel=1e-5)
    assert added.probabilities[-1] == pytest.approx(acts.logits[3], rel=1e-5)
    assert removed.probabilities[-1] == pytest.approx(added.probabilities[0], rel=1e-5)
    named_class = deletion_curve(named(), picture(), map_, target="hen")
    assert_array_equal(
        named_class.probabilities,
        deletion_curve(named(), picture(), map_, 4).probabilities,
    )


# --- models without a head ------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("place", ["cls", (1, 2)])
def test_a_token_has_a_map_without_a_head(method: Callable[..., np.ndarray], place: Any) -> None:
    found = method(example("no head"), picture(), Token(place))
    assert found.shape == (4, 6)
    assert np.isfinite(found).all()
    assert found.max() > 0
    other = method(example("no head"), picture(), Token((3, 5)))
    assert not np.allclose(found, other)


def test_the_map_of_a_token_is_that_of_its_length() -> None:
    """By a head of one output that measures it: the projection on the token's own direction."""
    model = example("no head")
    acts = capture(model, picture())
    token = acts.tokens(acts.depth)[0]
    module = own_module(num_classes=1)
    weights: Any = module
    with torch.no_grad():
        weights.head.weight[0] = torch.tensor(token / np.linalg.norm(token))
    module.load_state_dict(
        {k: v for k, v in module.state_dict().items() if k.startswith("head")}
        | dict(model.module.state_dict())
    )
    weights.norm = torch.nn.Identity()
    with_head = watched(module, module.patch_embed.image_size)
    assert_allclose(
        relevance(model, picture(), Token("cls")), relevance(with_head, picture(), 0), rtol=1e-4
    )


@every_method
@pytest.mark.parametrize("kind", ["no head", "no class token"])
def test_similarity_to_a_patch_has_a_map(method: Callable[..., np.ndarray], kind: str) -> None:
    found = [method(example(kind), picture(), Similarity(at)) for at in ((0, 0), (3, 5))]
    assert all(np.isfinite(each).all() and each.max() > 0 for each in found)
    assert not np.allclose(found[0], found[1])


def test_similarity_is_the_cosine_of_normalised_tokens() -> None:
    model = example("no head")
    acts = capture(model, picture())
    tokens = acts.tokens(acts.depth, normalised=True)
    cls, patch = tokens[0], tokens[1 + 2 * 6 + 3]
    cosine = cls @ patch / np.linalg.norm(cls) / np.linalg.norm(patch)
    curve = deletion_curve(model, picture(), random_map((4, 6)), target=Similarity((2, 3)))
    assert curve.probabilities[0] == pytest.approx(cosine, abs=1e-5)
    assert -1 <= curve.probabilities.min() <= curve.probabilities.max() <= 1
    assert len(set(curve.probabilities)) > 5


def test_a_patch_that_is_asked_about_may_be_dropped_where_it_is_compared_with() -> None:
    model = example("no head")
    found = occlusion(model, picture(), target=Similarity((0, 0)), block=2, removal="drop")
    assert np.isfinite(found).all()
    with pytest.raises(ModelError, match="itself was dropped") as refused:
        occlusion(model, picture(), target=Token((0, 0)), block=2, removal="drop")
    assert_clear_error(refused.value)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("crane", "2 classes"),
        ("cook", "Did you mean cock"),
        ("zebra crossing", "no class called zebra"),
        (7, "class in 0..4, got 7"),
        (-1, "class in 0..4, got -1"),
        (True, "got True"),
        ([1.0, 2.0], "vector of 5 numbers"),
        (np.zeros(5), "not all 0"),
        ([0, 1, np.nan, 0, 0], "finite numbers"),
        (np.ones((2, 5)), "got shape .2, 5."),
        (lambda output: output[:2], "one number"),
        (lambda output: 3.0, "got float"),
        (Token("dist"), "4 x 6, or 'cls', got 'dist'"),
        (Token((4, 0)), r"4 x 6, or 'cls', got .4, 0."),
        (Similarity((0, -1)), "got .0, -1."),
    ],
)
def test_a_target_that_does_not_fit_is_one_sentence(target: Any, words: str) -> None:
    for ask in (
        lambda: relevance(named(), picture(), target),
        lambda: gradient_rollout(named(), picture(), target),
        lambda: occlusion(named(), picture(), target=target, block=4),
        lambda: deletion_curve(named(), picture(), random_map((4, 6)), target=target),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            ask()
        message = str(refused.value).replace("0..", "0 to ")
        assert_clear_error(message)


def test_classes_without_names_and_models_without_classes_say_so() -> None:
    with pytest.raises(ModelError, match="class names of"):
        relevance(example("plain"), picture(), "cat")
    with pytest.raises(ModelError, match="Give a vector, a function of the output, a Token"):
        relevance(example("no head"), picture(), 0)
