"""A button that writes what is on screen of a picture into one HTML file."""

import streamlit as st

from vitviz.app.shared.view import View
from vitviz.app.widgets.data_table import Data, provenance
from vitviz.language import speaking, spoken, tr


def report_button(view: View, data: Data | None) -> None:
    """Draw the button; the file is made when it is clicked."""
    beside = data.beside if data else None
    line = provenance(view, "compare", data) if beside else ""

    language = spoken()

    def content() -> bytes:
        from vitviz.report import Captured, html

        sides = [
            Captured(one.model, one.picture.name, one.acts, one.picture.image, one.picture.digest)
            for one in (view, *([beside.view] if beside else []))
        ]
        compared = None
        if beside:
            compared = beside.found, line, beside.figures
        with speaking(language):  # it is called in another thread
            return html(sides, compared=compared).encode()

    what = tr("both sides and of their comparison") if beside else tr("this picture")
    st.download_button(
        tr("Report"),
        content,
        file_name="vitviz_report.html",
        mime="text/html",
        key="report",
        on_click="ignore",
        icon=":material/download:",
        help=tr(
            "One HTML file with the live maps and the figures of {what}, for any browser.",
            what=what,
        ),
    )
