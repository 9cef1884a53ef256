"""What can be seen and read on a page: its figures, and each piece of its text."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitviz.app.pages import PAGES

from .conftest import WIDTH, Scheme
from .walk import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

MODEL = "vitviz_things200"
FIGURES = "main :is([role=figure], [role=img])"
EXCEPTION = "[data-testid=stException]"
SMALLEST = 14  # pixels, of any text

# Every piece of text in the page's container: its size, and its contrast by WCAG 2 to the colours
# that lie under it; and every large bright background of the document.
LOOK = r"""() => {
  const paint = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const painted = new Map();  // as to paint a colour and look takes long
  const rgba = colour => {
    if (!painted.has(colour)) {
      paint.clearRect(0, 0, 1, 1);
      paint.fillStyle = colour;
      paint.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
      painted.set(colour, [r, g, b, a / 255]);
    }
    return painted.get(colour);
  };
  const over = ([r, g, b, a], under) =>
    [...[r, g, b].map((value, i) => a * value + (1 - a) * under[i]), 1];
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const above = element => element.parentElement ?? element.getRootNode().host;
  function* all(root) {
    for (const element of root.querySelectorAll("*")) {
      yield element;
      if (element.shadowRoot) yield* all(element.shadowRoot);
    }
  }
  const behind = (element, width, height) => {
    if (!element) return [255, 255, 255, 1];
    const box = element.getBoundingClientRect();
    const colour = rgba(getComputedStyle(element).backgroundColor);
    const holds = box.width >= width && box.height >= height;  // else it juts out of a small box
    if (holds && colour[3] === 1) return colour;
    const under = behind(above(element), width, height);
    return holds ? over(colour, under) : under;
  };
  const scaled = element => {  // of svg, whose units need not be pixels
    const turned = element.getScreenCTM?.();
    return turned ? Math.hypot(turned.a, turned.b) : 1;
  };
  const off = element => element.closest(":disabled, [aria-disabled=true]")
    || element.closest("label")?.control?.disabled;
  const texts = [];
  for (const element of all(document.querySelector("main"))) {
    const style = getComputedStyle(element);
    if (element.matches("style, script") || style.visibility !== "visible") continue;
    for (const node of element.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
      const range = document.createRange();
      range.selectNode(node);
      const text = range.getBoundingClientRect();
      if (text.width < 2 || text.height < 2) continue;  // for screen readers
      const cut = style.overflowX === "hidden";  // what is cut off is not seen
      const width = cut ? Math.min(text.width, element.clientWidth) : text.width;
      const halo = style.textShadow.match(/rgba?\([^)]*\)/)?.[0];  // of a number on a picture
      const under = halo ? rgba(halo) : behind(element, width, text.height);
      const ink = element.closest("svg text") ? style.fill : style.color;
      const lights = [luminance(over(rgba(ink), under)), luminance(under)];
      texts.push({
        words: node.data.trim(),
        size: parseFloat(style.fontSize) * scaled(element),
        contrast: (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05),
        in: element.closest("svg") ? "figure"
          : element.closest("math, .katex") ? "equation"
          : off(element) ? "control that is off" : "",
      });
    }
  }
  const bright = [];
  for (const element of all(document)) {
    const box = element.getBoundingClientRect();
    const colour = rgba(getComputedStyle(element).backgroundColor);
    if (box.width * box.height > 1e4 && colour[3] > 0.5 && luminance(colour) > 0.2)
      bright.push(`${element.tagName}.${element.className}`);
  }
  const main = document.querySelector("main");
  const around = main.closest("[data-testid=stAppViewContainer]");  // hides what it cuts off
  const widths = [document.documentElement, main, around].map(one => one.scrollWidth);
  const subplots = [...document.querySelectorAll(".js-plotly-plot")].map(
    plot => plot.querySelectorAll(".cartesianlayer > .subplot").length);
  return { texts, bright, widths, subplots };
}"""


@dataclass(frozen=True)
class Seen:
    """What one page shows."""

    figures: list[str | None]  # the alt text of each
    exceptions: int
    complaints: int
    provenance: str
    texts: list[dict[str, Any]]
    bright: list[str]
    widths: list[int]
    subplots: list[int]  # of each figure


def expect_to_be_seen_and_read(page: "Page", name: str, scheme: Scheme) -> None:
    page.locator(f"{FIGURES}, {EXCEPTION}").first.wait_for()
    until(page, lambda: page.locator(f"{FIGURES}:not([aria-label])").count() == 0)  # all is drawn
    seen = Seen(
        figures=page.locator(FIGURES).evaluate_all("all => all.map(one => one.ariaLabel)"),
        exceptions=page.locator(EXCEPTION).count(),
        complaints=page.get_by_role("alert").count(),
        provenance="".join(page.locator(".st-key-provenance").all_inner_texts()),
        **page.evaluate(LOOK),
    )
    expect_figures_with_alt_text_and_what_was_measured(name, seen)
    assert max(seen.widths) <= WIDTH
    assert max(seen.subplots, default=0) <= 16
    expect_text_to_be_read(name, seen.texts)
    if scheme == "dark":
        assert not seen.bright
    else:
        for part in ("stApp", "provenance"):
            assert any(part in element for element in seen.bright)


def expect_figures_with_alt_text_and_what_was_measured(name: str, seen: Seen) -> None:
    assert not seen.exceptions, name
    assert seen.figures, name
    assert all(alt and re.fullmatch(r"\S[^\n]+", alt) for alt in seen.figures), name
    assert not seen.complaints, name
    assert seen.provenance.startswith("swin_tiny" if name == "zoo" else MODEL)
    assert " · sample: " in seen.provenance or not PAGES[name].shows_model


def expect_text_to_be_read(name: str, texts: list[dict[str, Any]]) -> None:
    """No text is small, indices of equations aside, which are smaller than their letters; and all
    stands out, beside the axes of figures too, but for a control that is off."""
    assert len(texts) > 5, name
    letters = [text for text in texts if text["in"] != "equation"]
    assert not [text for text in letters if text["size"] < SMALLEST], name
    meant = [text for text in texts if text["in"] != "control that is off"]
    low = [text for text in meant if text["contrast"] < 4.5]
    assert not low, (name, low)
