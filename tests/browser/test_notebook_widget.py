"""A notebook's widget in a page that stands for the notebook, without a kernel."""

from typing import TYPE_CHECKING, Any

import pytest
from examples import example, picture

from vitviz import capture
from vitviz.web import anatomy_map
from vitviz.web.report import components

from .sources import serve_sources

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: What a front end does: it has the numbers of the model of the widget, and draws it in an element.
RENDER = """async ([url, traits]) => {
  const { default: widget } = await import(`${url}/notebook/widgets.js`);
  const el = document.createElement("div");
  document.body.replaceChildren(el);
  const handlers = [];
  window.traits = traits;
  window.model = {
    get: (name) => traits[name],
    on: (name, handler) => handlers.push([name, handler]),
    set: (name, value) => {
      if (traits[name] === value) return;
      traits[name] = value;
      for (const [change, handler] of handlers) if (change === `change:${name}`) handler();
    },
    save_changes: () => {},
  };
  await widget.render({ model, el });
  window.component = el.querySelector(".vitviz-live").shadowRoot.view;
}"""


@pytest.fixture
def rendered(page: "Page") -> "Page":
    """Anatomy at the scores of layer 2."""
    model, acts = example("plain"), capture(example("plain"), picture())
    sent = components.anatomy(model, picture(), acts, "x", layer=1, head=0, query=7)
    traits: dict[str, Any] = {
        "_source": anatomy_map.script(),
        "_style": anatomy_map.style(),
        "_stacks": sent["stacks"][:1],
        "_layer": sent["stacks"][1:],
        "_view": sent["view"],
        **{"layer": 1, "head": 0, "query": 7, "step": "scores"},
    }
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(RENDER, [serve_sources(page), traits])
    page.locator(".anatomy .item strong").first.wait_for()
    return page


@pytest.mark.parametrize("theme", ["data-jp-theme-light=false", "class=vscode-dark"])
def test_its_colours_are_those_for_dark_ground_where_the_notebook_is_dark(
    theme: str, rendered: "Page"
) -> None:
    colours = """() => [["strong", "background-color"], [".key", "color"],
      ["[data-part=play]", "background-color"]].map(([part, name]) =>
        getComputedStyle(component.box.querySelector(part)).getPropertyValue(name))"""
    light = ["rgb(255, 240, 194)", "rgb(180, 0, 95)", "rgb(11, 87, 208)"]
    assert rendered.evaluate(colours) == light
    rendered.evaluate("theme => document.body.setAttribute(...theme)", theme.split("="))
    dark = ["rgb(87, 69, 11)", "rgb(255, 124, 196)", "rgb(138, 180, 248)"]
    assert rendered.evaluate(colours) == dark


def test_an_answer_to_an_earlier_choice_does_not_undo_a_later_one(rendered: "Page") -> None:
    def chosen() -> list[int]:
        rendered.wait_for_timeout(400)  # longer than the pause after which a choice is told
        found: list[int] = rendered.evaluate("[component.state.query, traits.query]")
        return found

    rendered.evaluate("component.change({ query: 9 })")
    rendered.evaluate("model.set('_layer', [...traits._layer])")  # the answer arrives
    assert chosen() == [9, 9]
    rendered.evaluate("model.set('query', 11)")  # and what Python sets later is shown
    assert chosen() == [11, 11]
