"""A button that writes what is on screen of a picture into one HTML file."""

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from vitviz.app.shared import limits, models, results
from vitviz.app.shared.queue import BusyError, pass_queue
from vitviz.app.shared.view import View, model_key
from vitviz.app.widgets import lesson
from vitviz.app.widgets.data_table import Data, page_provenance
from vitviz.app.widgets.file_button import file_button
from vitviz.common.language import current_language, tr, use_language

if TYPE_CHECKING:
    from vitviz import Activations
    from vitviz.web.report import CapturedPicture


@lesson.part("report")
def report_button(view: View, data: Data | None) -> None:
    """Draw the button; the file is made when it is clicked."""
    beside = data.beside if data else None
    line = page_provenance(view, "compare", data) if beside else ""

    language, visitor = current_language(), limits.visitor()

    sides = [_again(one, visitor) for one in (view, *([beside.view] if beside else []))]
    compared = (beside.found, line, beside.figures) if beside else None

    def content() -> bytes:
        from vitviz.web.report import html

        with use_language(language):  # it is called in another thread
            try:
                captures = [one() for one in sides]
                with pass_queue().turn(lambda ahead: None, patient=True, visitor=visitor) as mine:
                    return html(
                        captures, compared=compared, pause=lambda: mine.give_way(lambda ahead: None)
                    ).encode()
            except BusyError as error:  # Streamlit would say that it failed, and not why
                return f'<!DOCTYPE html><meta charset="utf-8"><p>{escape(tr(error))}</p>'.encode()

    what = tr("both sides and of their comparison") if beside else tr("this picture")
    file_button(
        tr("Report"),
        content,
        file_name="vitviz_report.html",
        mime="text/html",
        key="report",
        help=tr(
            "One HTML file with the live maps and the figures of {what}, for any browser.",
            what=what,
        ),
    )


def _again(view: View, visitor: str | None) -> "Callable[[], CapturedPicture]":
    """Return what makes a view's capture later, without holding its model or its capture.

    A session keeps it for as long as it is open, and there may be many. It draws nothing.
    """
    load, picture = models.reloader(view.model), view.picture

    def make() -> "CapturedPicture":
        from vitviz import capture
        from vitviz.web.report import CapturedPicture

        model = load()

        def in_turn() -> "Activations":
            with pass_queue().turn(lambda ahead: None, visitor=visitor):
                return capture(model, results.prepare_picture(model, picture))

        key = (*model_key(model), picture.digest)
        acts = results.capture_cache().get(key, in_turn)
        return CapturedPicture(model, picture.name, acts, picture.image, picture.digest)

    return make
