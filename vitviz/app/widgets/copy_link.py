"""A button that copies the address of what is on screen."""

from vitviz.app.widgets.component import component
from vitviz.common.language import tr

_component = component("vitviz_copy_link", "copy_link.js", "button.css", "copy_link.css")


def copy_link(*, uploaded: bool) -> None:
    """Draw the button; with `uploaded` it says that the link leads to a sample picture."""
    note = tr("It shows a sample picture: a link cannot include yours.") if uploaded else ""
    words = {
        "copy": tr("Copy link"),
        "link": tr("Link to what is on screen"),
        "copied": tr("Copied."),
        "press": tr("Press Ctrl+C to copy."),
    }
    _component(
        key="copy_link", data={"note": note, "words": words}, width="content", height="content"
    )
