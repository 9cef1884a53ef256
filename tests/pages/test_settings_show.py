"""Every setting of a page changes the numbers of its figures, also where others were drawn before.

A cache whose key lacks a setting would show what it made for another value.
"""

import json
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import (
    assert_works,
    charts,
    components,
    forget,
    opened_with_data,
    provenance,
    stacks,
    token_maps,
)
from vitviz import Model
from vitviz.app.screens import explain_curves
from vitviz.app.shared import results

DRAWN = ("x", "y", "z", "source", "error_y", "marker")  # of a trace; the rest is words

#: By page, the settings that it begins with, and others that are chosen one after another.
FIGURES: dict[str, tuple[dict[str, str], list[dict[str, str]]]] = {
    "attention": (
        {},
        [dict(seen="True"), dict(picture="cat"), dict(counts="values"), dict(counts="output")],
    ),
    "anatomy": (
        dict(experiment="answers"),
        [
            *(dict(depth=depth) for depth in ("0", "1", "2")),
            {"class": "1"},
            dict(experiment="order"),
            dict(experiment="order", shuffle="2"),
        ],
    ),
    "filters": ({}, [dict(filters="raw filters"), dict(filter="3"), dict(gain="2.0")]),
    "positions": (
        {},
        [
            dict(interpolation="bilinear"),
            dict(interpolation="nearest"),
            dict(grid="12"),
            dict(kind="sincos2d"),
            dict(query="1.2"),
            dict(cosines="whole"),
        ],
    ),
    "distance": (
        {},
        [
            dict(over="samples"),
            dict(variant="paper"),
            dict(layer="1"),
            dict(head="2"),
            dict(beside="recorded"),
            dict(beside="cnn"),
            dict(counts="values"),
            dict(counts="output"),
            dict(picture="cat"),
        ],
    ),
    "rollout": (
        {},
        [
            dict(fusion="max"),
            dict(fusion="min"),
            dict(residual="0.3"),
            dict(discard="0.2"),
            dict(discard="0.4"),
            dict(start_layer="2"),
            dict(layer_counts="measured"),
            dict(layer_counts="measured", start_layer="2"),
        ],
    ),
    "tokens": (
        {},
        [
            dict(layer="1"),
            dict(basis="samples"),
            dict(basis="samples", layer="2"),
            dict(basis="samples", layer="1"),
            dict(components="2-4"),
            dict(threshold="0.5"),
            dict(threshold="0.5", flip="True"),
            dict(picture="cat"),
        ],
    ),
    "classify": (
        {"class": "3"},
        [
            dict(fill="mean"),
            dict(fill="blur"),
            dict(block="2"),
            {"class": "1"},
            dict(painted="1.1-2.2"),
            dict(painted="1.1-2.2", fill="mean"),
            dict(muted="2.1"),
            dict(muted="2.1", mute_to="mean"),
            dict(muted="2.1", mute_to="cat"),
        ],
    ),
    "explain": (
        {"class": "3"},
        [
            {"class": "1"},
            dict(maps="relevance"),
            dict(maps="grad_cam"),
            dict(maps="grad_cam rollout"),
            dict(maps="last"),
            dict(fill="mean"),
            dict(fill="blur"),
            dict(picture="cat"),
        ],
    ),
    "compare": (
        dict(compare="pictures", picture="dog"),
        [
            dict(other_picture="cat"),
            dict(layer="1"),
            dict(layer="1", other_picture="cat"),
            dict(picture="cat"),
        ],
    ),
}


@pytest.fixture(autouse=True)
def nothing_kept_before() -> None:
    nothing_kept()


def nothing_kept() -> None:
    forget()
    results.capture_cache.clear()


def drawn(at: AppTest) -> list[str]:
    """The numbers of all figures, and the photos below them."""
    traces = [trace for chart in charts(at) for trace in json.loads(chart.spec)["data"]]
    figures = [json.dumps({key: trace.get(key) for key in DRAWN}) for trace in traces]
    photos = [
        data["stack"].get("picture")
        for data in components(at, "vitviz_token_map")
        if "stack" in data
    ]
    numbers = [values.tobytes().hex() for sent in stacks(at) for values in sent.values()]
    lows = [str(shown.get("low")) for shown in token_maps(at)]
    lows += [str(one["values"]) for shown in token_maps(at) for one in shown.get("beside", ())]
    way = [
        json.dumps(data["stack"]) for data in components(at, "vitviz_anatomy") if "stack" in data
    ]
    return [*figures, *map(str, photos), *numbers, *lows, *way]


def table_numbers(at: AppTest) -> list[str]:
    return [frame.value.to_csv() for frame in at.dataframe]


def stack_ids(at: AppTest) -> list[str]:
    return [data["stackId"] for data in token_maps(at)]


def assert_all_differ(found: dict[str, list[str]]) -> None:
    names = list(found)
    for place, name in enumerate(names):
        for other in names[:place]:
            assert found[name] != found[other], f"{other} and {name} are drawn alike"


@pytest.mark.parametrize("page", FIGURES)
@pytest.mark.usefixtures("few_samples")
def test_each_setting_changes_the_numbers_of_the_figures(
    page: str, serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(explain_curves, "CURVE_STEPS", 1)
    begins, changes = FIGURES[page]
    figures: dict[str, list[str]] = {}
    tables: dict[str, list[str]] = {}
    sent: dict[tuple[str, ...], tuple[str, ...]] = {}
    for change in ({}, *changes):
        link = begins | change
        at = opened_with_data(page, **link)
        run_experiments(at, page, change)
        name = json.dumps(change)
        assert_works(at)
        figures[name], tables[name] = drawn(at), table_numbers(at)
        for ids, numbers in zip(stack_ids(at), stacks(at), strict=False):
            # The browser keeps numbers by their name, so other numbers have another one.
            whole = tuple(values.tobytes().hex() for values in numbers.values())
            assert sent.setdefault((ids,), whole) == whole, f"{ids} names two stacks: {change}"
    assert_all_differ(figures)
    if page == "rollout":
        assert_all_differ(tables)
    for change in changes:
        if not {"painted", "muted"} & change.keys():
            nothing_kept()
            at = opened_with_data(page, **begins | change)
            run_experiments(at, page, {})
            assert drawn(at) == figures[json.dumps(change)], f"{change} was drawn from elsewhere"


def run_experiments(at: AppTest, page: str, change: dict[str, str]) -> None:
    """Run what is not cached. What was run for other settings is no answer for these."""
    if {"painted", "muted"} & change.keys():
        return
    experiments = {"explain": ["run curves"], "classify": ["run occlusion"]}.get(page, [])
    for key in ("run occlusion", "run curves", "run head effects"):
        buttons = [button for button in at.button if button.key == key]
        asked = {"fill", "class"} | ({"block"} if key == "run occlusion" else set())
        if key in experiments and asked & change.keys():
            assert buttons, (key, change)
        if buttons:
            buttons[0].click().run()


PIXELS = "48x84"  # the size of "whole", with the usual crop


@pytest.mark.usefixtures("read_anew", "few_samples")
@pytest.mark.parametrize(
    ("page", "settings"),
    [
        ("attention", {}),
        ("distance", {}),
        ("distance", dict(over="samples")),
        ("rollout", {}),
        ("tokens", {}),
    ],
)
def test_the_input_and_its_crop_change_the_numbers_of_the_figures(
    page: str, settings: dict[str, str]
) -> None:
    """One session after another: what one has cached is not another's."""
    found = {}
    for size in ("own", PIXELS, "whole"):
        at = opened_with_data(page, **settings, **({} if size == "own" else dict(size=size)))
        assert_works(at)
        found[size] = drawn(at)
        if size == "whole":
            assert "input 48 × 84 px, the whole picture" in provenance(at)
    assert_all_differ(found)
    nothing_kept()
    assert drawn(opened_with_data(page, **settings, size="whole")) == found["whole"]
