"""Pictures: samples, shared by all sessions, and uploads, which belong to one session."""

import csv
import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.uploaded_file_manager import UploadedFile

from vitviz.app import settings
from vitviz.app.shared.cache import LRUCache
from vitviz.app.shared.queue import Queue
from vitviz.language import tr

if TYPE_CHECKING:
    from PIL import Image

MAX_BYTES = 256_000_000  # of decoded pictures
UPLOAD = "upload"
DEFAULT = "dog"


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of its file, which take a tenth of the memory of its pixels.

    Attributes
    ----------
    name : under which it is shown
    data : the file's bytes
    digest : their hash
    size : (width, height) of the upright picture
    """

    name: str
    data: bytes = field(repr=False)
    digest: str
    size: tuple[int, int]

    @property
    def image(self) -> "Image.Image":
        """The upright picture, from the cache of decoded pictures or decoded again."""
        return _image(self.data, self.digest)


@st.cache_resource
def images() -> LRUCache:
    return LRUCache(MAX_BYTES)


@st.cache_resource
def samples() -> dict[str, str]:
    """File stem and subject of each sample picture."""
    from vitviz.checkpoints import assets

    with (assets() / "samples" / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
        return {row["file"].rsplit(".", 1)[0]: row["subject"] for row in csv.DictReader(file)}


def title(name: str) -> str:
    """What a sample picture is called on screen."""
    return tr(samples()[name])


@st.cache_resource
def sample(name: str) -> Picture:
    from vitviz.checkpoints import assets

    data = (assets() / "samples" / f"{name}.jpg").read_bytes()
    return _open(f"sample: {samples()[name]}", data)


@st.cache_resource
def decodings() -> Queue:
    """The queue of decoding: one file at a time, which bounds the memory."""
    return Queue()


def _open(name: str, data: bytes) -> Picture:
    digest = hashlib.sha256(data).hexdigest()
    return Picture(name, data, digest, _image(data, digest).size)


def _image(data: bytes, digest: str) -> "Image.Image":
    from vitviz import open_image

    def make() -> "Image.Image":
        with decodings().turn(lambda ahead: None):  # no drawing, which may stop the run
            return open_image(data)

    # Pillow keeps four bytes of a pixel in RGB.
    return images().get(digest, make, lambda made: 4 * made.width * made.height)


def receive(name: str, data: bytes) -> None:
    """Accept a picture; a bad one leaves an error message, and the last good picture stays."""
    from vitviz import ImageError

    try:
        st.session_state.uploaded = _open(name, data)
    except ImageError as error:
        st.session_state.upload_error = error
    else:
        settings.change(picture=UPLOAD)
        st.session_state.upload_error = None


def receive_file(widget: str) -> None:
    """Accept the file of an uploader or the camera; removing it clears its error message."""
    settings.speak_on()
    file = st.session_state[widget]
    if isinstance(file, UploadedFile):
        receive(file.name, file.getvalue())
        _forget_all_but(widget, file.file_id)
    else:  # none, or one that the server no longer has
        st.session_state.upload_error = None


def _forget_all_but(widget: str, file_id: str) -> None:
    """Delete the file that this one replaces: Streamlit would keep all until the session ends."""
    context = get_script_run_ctx()
    files: dict[str, str] = st.session_state.setdefault("files", {})
    before, files[widget] = files.get(widget, file_id), file_id
    if before != file_id and context is not None:
        manager = context.uploaded_file_mgr
        if isinstance(manager, MemoryUploadedFileManager):
            manager.remove_file(context.session_id, before)


def picture(name: str) -> Picture:
    uploaded: Picture | None = st.session_state.get("uploaded")
    if name == UPLOAD and uploaded is not None:
        return uploaded
    return replace(sample(name), name=tr("sample: {subject}", subject=title(name)))
