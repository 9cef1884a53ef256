"""The pages of the app: one record each, in the order in which a class goes through them.

To add a page, write `screens/NAME.py` with a function `page`, its text `../text/LANGUAGE/NAME.md`
in every language, and one line here. Navigation, controls and tests follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from vitviz.text import page_text

#: Settings of the sidebar, which most pages change with.
MODEL = ("picture", "model", "weights", "size")
#: Settings that no single page owns.
SHARED = (
    *("lang", "presenter", "lesson", *MODEL, "words", "template", "layer", "head", "query"),
    *("read", "view", "scale", "leave_out", "smooth", "seen", "predict"),
)


@dataclass(frozen=True)
class Page:
    """One page of the app, before it is drawn; its words stand in the text of its name.

    Attributes
    ----------
    name : str
        Name of its address, of its module in `screens` and of its text.
    settings : tuple of str
        Settings that change something on it: its own, and those of the shared controls that are
        drawn. With "predict" it can ask the reader to guess before it shows its figure.
    needs : str, optional
        What the layers of a model must be for the page to be drawn: "all-to-all", every token
        attends to every token and they are the same in each layer; "one grid", all layers have
        their patches in the same grid.
    picture : str, optional
        The sample that it opens with as long as the reader has chosen none, if not the app's.
    has_layer_menu : bool
        Whether its figure has a menu of the layers, so that the shell draws none.
    """

    name: str
    settings: tuple[str, ...] = MODEL
    needs: Literal["all-to-all", "one grid"] | None = None
    picture: str | None = None
    has_layer_menu: bool = False

    @property
    def draw(self) -> Callable[[Any], Any]:
        """The function that draws the page; its module is imported when it is first asked for."""
        draw: Callable[[Any], Any] = import_module(f"vitviz.app.screens.{self.name}").page
        return draw

    @property
    def title(self) -> str:
        return page_text(self.name).title

    @property
    def tab(self) -> str:
        """The page's name in the navigation: its number and its title."""
        return f"{[*PAGES].index(self.name) + 1} {self.title}"

    @property
    def heading(self) -> str:
        return f"{self.title}: {page_text(self.name).question}"

    @property
    def following(self) -> "Page | None":
        """The next page; None after the last."""
        later = [*PAGES.values()][[*PAGES].index(self.name) + 1 :]
        return later[0] if later else None

    @property
    def shows_model(self) -> bool:
        """Whether the page shows something of the weights on screen."""
        return "weights" in self.settings


PAGES: Mapping[str, Page] = {
    page.name: page
    for page in (
        Page(
            "anatomy",
            (*MODEL, "layer", "step", "key", "experiment", "shuffle", "depth", "class"),
            has_layer_menu=True,
        ),
        Page("filters", (*MODEL, "filters", "filter", "gain", "order")),
        Page(
            "positions",
            (*MODEL, "kind", "grid", "interpolation", "cosines", "shuffle"),
            "one grid",
        ),
        Page("attention", (*MODEL, "layer", "head", "counts", "scale", "predict")),
        Page(
            "distance",
            (*MODEL, "layer", "head", "counts", "predict", "over", "variant", "beside", "profile"),
        ),
        Page(
            "rollout",
            (
                *(*MODEL, "layer", "scale", "layer_counts", "fusion", "residual", "discard"),
                "start_layer",
            ),
            "all-to-all",
        ),
        Page(
            "tokens",
            (*MODEL, "layer", "basis", "components", "threshold", "flip", "profile"),
            "all-to-all",
        ),
        Page(
            "classify",
            (
                *(*MODEL, "predict", "muted", "mute_to", "painted", "fill", "brush", "class"),
                *("block", "word_map", "less"),
            ),
        ),
        Page("explain", (*MODEL, "class", "maps", "fill")),
        Page("training", ("model", "moment", "predict")),
        Page("zoo", ("picture", "model", "family", "zoo_layer", "zoo_down", "zoo_across")),
        Page(
            "compare",
            (
                *(*MODEL, "layer", "compare", "other_model", "other_weights", "other_picture"),
                *("matches", "counts", "pairs", "part"),
            ),
            picture="cat",  # of which there are two
        ),
    )
}
OPENING = next(iter(PAGES))  #: the page that the app opens with
