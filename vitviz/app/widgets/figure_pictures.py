"""A menu at each figure of the page that saves it as a picture."""

from vitviz.app.widgets.component import component
from vitviz.common.language import strings

_component = component("vitviz_figure_pictures", "figure_pictures.built.js")


def figure_pictures() -> None:
    """Offer the menus; one call a page. Each picture gets the page's provenance line."""
    _component(key="figure_pictures", height=1, data={"strings": strings("browser")})
