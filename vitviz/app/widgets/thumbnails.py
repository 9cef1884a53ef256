"""The sample pictures as thumbnails, of which a click chooses one."""

import streamlit as st
from PIL import Image, ImageOps

from vitviz.app import settings
from vitviz.app.shared import pictures
from vitviz.app.widgets.component import component
from vitviz.common.images import data_url
from vitviz.common.language import tr

THUMBNAIL_SIDE = 88  # pixels, for screens of two a CSS pixel
_component = component("vitviz_thumbnails", "thumbnails.js", "thumbnails.css")


def thumbnails(chosen: str) -> None:
    """Draw them; a click changes the setting `picture`."""

    def pick() -> None:
        settings.change(picture=st.session_state["thumbnails"]["picked"])

    samples = [
        {"name": name, "title": pictures.title(name), "source": _source(name)}
        for name in pictures.samples()
    ]
    _component(
        key="thumbnails",
        height="content",
        data={"samples": samples, "chosen": chosen, "label": tr("Sample pictures")},
        on_picked_change=pick,
    )


@st.cache_data
def _source(name: str) -> str:
    """Return a small JPEG as a data URI."""
    small = ImageOps.fit(
        pictures.sample(name).image, (THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS
    )
    return data_url(small, "JPEG", quality=70)
