"""What benchmarks/published.py prints of a profile is what the profile holds."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from examples import example, own_model
from numpy.testing import assert_allclose
from test_profiling import noisy

from vitviz.inspection import uniform_distance
from vitviz.profiling import Profile, profile

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "published.py"


@pytest.fixture(scope="module")
def published() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found() -> Profile:
    return profile(example("registers"), noisy(8))


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"(?<![\w.])[+-]?\d+(?:\.\d+)?", text)]


def test_uniform_attention_reaches_as_far_as_equal_sharing(published: ModuleType) -> None:
    model = own_model()
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "qkv" in name:
                parameter[:32] = 0  # no query asks for anything
    even = profile(model, noisy(4))
    width, patches = 24, 24
    far = uniform_distance((4, 6), 4)
    assert numbers(published.local_heads(even)) == [0, 8, 0, 8, 1, 1, 1, 1]
    assert numbers(published.most_local(even)) == [1]
    _, low, high, *_ = numbers(published.distances(even))  # prefix columns cut off
    assert_allclose([low, high], far * patches / (patches + 1), atol=0.06)
    assert numbers(published.least_distance(even))[0] == pytest.approx(far / width, abs=6e-4)


def test_figures_are_those_of_the_profile(published: ModuleType, found: Profile) -> None:
    cka = found.cka()
    pairs = cka[np.triu_indices(4, 1)]
    expected = [pairs.mean(), pairs.min(), cka[0, 3], cka[0, 3]]
    assert_allclose(numbers(published.similarity(found)), expected, atol=6e-3)
    ratios = [found.skip_ratio(branch).means for branch in ("attention", "mlp")]
    halves = [part.mean(axis=0) for each in ratios for part in (each[:1], each[1:])]
    assert_allclose(numbers(published.skip_ratios(found)), np.ravel(halves), atol=0.06)
    share = found.outlier_share.means[-1]
    assert numbers(published.outlier_share(found))[0] == pytest.approx(100 * share, abs=6e-3)
    assert numbers(published.registers(found))[0] == 4


def test_what_was_printed_has_every_figure_as_it_is_now(published: ModuleType) -> None:
    text = SCRIPT.with_suffix(".md").read_text(encoding="utf-8")
    for title, says, _ in published.FIGURES:
        assert f"## {title}\n\n{says}\n" in text


def test_every_figure_has_a_line_for_each_profile(published: ModuleType, found: Profile) -> None:
    few = profile(example("plain"), noisy(3))  # too few for CKA
    text = published.report([found, few])
    assert text.count("\n## ") == len(published.FIGURES)
    assert len(re.findall(r"^\| [AB] \|", text, re.MULTILINE)) == 2 * (1 + len(published.FIGURES))
    assert text.count("not known: CKA needs at least 4 pictures.") == 1
    assert text.count("no register tokens") == 1
    assert "nan" not in text
