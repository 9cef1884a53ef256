"""A query is a number, a patch or the name of a prefix token, in every public function alike."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from examples import example, picture
from numpy.testing import assert_array_equal

import vitviz
from vitviz.attribution import Similarity, Token

MODULES = ("attribution", "inspection", "intervention", "plots", "zoo")
PATCH, NUMBER = (2, 3), 1 + 2 * 6 + 3  # of the example's CLS and 4 x 6 patches
Ask = Callable[[Any], Any]


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and method, by its name."""
    for holder in (vitviz, *(getattr(vitviz, name) for name in MODULES)):
        for name in holder.__all__:
            thing = getattr(holder, name)
            if inspect.isclass(thing):
                for method, function in inspect.getmembers(thing, inspect.isfunction):
                    if not method.startswith("_"):
                        yield f"{name}.{method}", function
            elif inspect.isfunction(thing):
                yield f"{holder.__name__.removeprefix('vitviz.')}.{name}", thing


def asked() -> dict[str, Ask]:
    """Each public function that takes a query, asked with one."""
    model, image = example("plain"), picture()
    acts = vitviz.capture(model, image)
    seen, plots = vitviz.inspection, vitviz.plots
    crop = (0.0, 0.0, 60.0, 40.0)
    components, grid = np.zeros((4, 6, 3)), (4, 6)
    points = np.arange(50.0).reshape(25, 2)
    return {
        "Activations.attention_map": lambda query: acts.attention_map(1, query),
        "Activations.show": lambda query: acts.show(query=query)._page,
        "Activations.widget": lambda query: acts.widget(query=query).query,
        "vitviz.show": lambda query: vitviz.show(model, image, query=query)._page,
        "vitviz.widget": lambda query: vitviz.widget(model, image, query=query).query,
        "inspection.query_attention": lambda query: seen.query_attention(
            acts, layer=1, query=query
        ),
        "inspection.attention_rollout": lambda query: seen.attention_rollout(acts, query=query),
        "plots.attention_map": lambda query: plots.attention_map(acts, 1, query=query).to_json(),
        "plots.attention_rollout": lambda query: plots.attention_rollout(
            acts, query=query
        ).to_json(),
        "plots.picture": lambda query: plots.picture(acts, query=query).to_json(),
        "plots.token_components": lambda query: plots.token_components(acts, query=query).to_json(),
        "plots.token_norms": lambda query: plots.token_norms(acts, query=query).to_json(),
        "plots.token_scatter": lambda query: plots.token_scatter(
            points,
            np.ones(2),
            acts.photo,
            crop=crop,
            grid=grid,
            prefix=["CLS"],
            numbers=(1, 2),
            query=query,
        ).to_json(),
        "plots.head_grid": lambda query: plots.head_grid(acts, 1, query=query).to_json(),
        # Of a patch alone, as arrays without a prefix have no other tokens.
        "plots.filter_response": lambda query: plots.filter_response(
            components[..., 0], acts.photo, crop=crop, name="it", query=query
        ).to_json(),
        "plots.allowed_keys": lambda query: plots.allowed_keys(
            components[..., 0] == 0,
            acts.photo,
            crop=crop,
            grid=grid,
            query=query,
            query_name="it",
        ),
    }


OF_PATCHES = {"plots.allowed_keys", "plots.filter_response"}


def test_every_function_with_a_query_is_asked() -> None:
    takers = {
        name for name, function in public() if "query" in inspect.signature(function).parameters
    }
    assert takers <= set(asked())
    assert {"Activations.attention_map", "inspection.attention_rollout"} <= takers


@pytest.mark.parametrize("name", sorted(set(asked()) - OF_PATCHES))
def test_a_query_is_a_number_a_patch_or_a_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("widget"):
        pytest.importorskip("anywidget", reason="vitviz[notebook] is not installed")
    for module in ("model.origin", "common.files"):  # two pages are made at one time
        monkeypatch.setattr(f"vitviz.{module}.now", lambda: "2026")
    ask = asked()[name]

    def same(one: Any, other: Any) -> None:
        if isinstance(one, np.ndarray):
            assert_array_equal(one, other)
        else:
            assert one == other

    wanted = ask(NUMBER)
    for query in (PATCH, list(PATCH), np.array(PATCH), np.int64(NUMBER)):
        same(ask(query), wanted)
    same(ask("cls"), ask(0))
    same(ask("CLS"), ask(0))
    for wrong in (25, -1, (4, 0), (0, -1), (1, 2, 3), "reg1", "", 1.5, True, (1.0, 2)):
        with pytest.raises(ValueError, match=r"Expected a query in 0\.\.24") as caught:
            ask(wrong)
        assert str(caught.value).endswith(
            f", a patch (row, column) of 4 x 6, or 'cls', got {wrong!r}."
        ) or "CLS" in str(caught.value)


def test_a_notebook_shows_the_layer_and_head_that_numpy_counts() -> None:
    acts = vitviz.capture(example("plain"), picture())
    layer, head = np.unravel_index(7, (acts.depth, acts.num_heads))  # as of an argmax
    chosen = acts.show(layer=layer, head=head)._page
    assert chosen == acts.show(layer=1, head=3)._page


def test_a_target_names_its_token_likewise() -> None:
    model, image = example("plain"), picture()
    for kind in (Token, Similarity):
        wanted = vitviz.attribution.relevance(model, image, kind(PATCH))
        assert_array_equal(vitviz.attribution.relevance(model, image, kind(NUMBER)), wanted)
        named, numbered = (
            vitviz.attribution.relevance(model, image, kind(place)) for place in ("cls", 0)
        )
        assert_array_equal(named, numbered)
        for wrong in (25, (4, 0), "reg1", None):
            with pytest.raises(ValueError, match=r"query in 0\.\.24, a patch .* 'cls', got"):
                vitviz.attribution.relevance(model, image, kind(wrong))  # type: ignore[arg-type]


def test_arrays_know_cls_and_a_grid_that_they_are_told() -> None:
    attention = np.random.default_rng(0).dirichlet(np.ones(7), size=(2, 3, 7))
    rollout = vitviz.inspection.attention_rollout
    assert_array_equal(rollout(attention, query="cls"), rollout(attention))
    assert_array_equal(
        rollout(attention, query=(1, 0), grid=(2, 3)), rollout(attention, query=1 + 3)
    )
    with pytest.raises(ValueError, match=r"Expected a query in 0\.\.6, or 'cls', got \(1, 0\)"):
        rollout(attention, query=(1, 0))
    with pytest.raises(ValueError, match=r"in 0\.\.6, got 'cls'"):
        rollout(attention, query="cls", cls=False)


def test_every_target_is_positional() -> None:
    takers = {
        name: function
        for name, function in public()
        if "target" in inspect.signature(function).parameters
    }
    assert len(takers) >= 6
    for name, function in takers.items():
        asked_for = inspect.signature(function).parameters
        assert asked_for["target"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, name
        assert asked_for["target"].default is inspect.Parameter.empty, name
