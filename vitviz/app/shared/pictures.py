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
from vitviz.app.shared.started import options
from vitviz.common.language import tr

if TYPE_CHECKING:
    from PIL import Image

MAX_MEGABYTES = 25  # of a file; more is refused when it is opened
UPLOAD = "upload"
DEFAULT = "red_panda"


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
        """The upright picture, decoded again if it is not in the cache."""
        return _image(self.data, self.digest)


@st.cache_resource
def images() -> LRUCache:
    return LRUCache(options().cache * 500_000)


@st.cache_resource
def samples() -> dict[str, str]:
    """Return the subject of each sample picture by the stem of its file."""
    from vitviz.common.files import assets

    with (assets() / "samples" / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
        return {row["file"].rsplit(".", 1)[0]: row["subject"] for row in csv.DictReader(file)}


def title(name: str) -> str:
    """Return what a sample picture is called on screen."""
    return tr(samples()[name])


def menu() -> dict[str, str]:
    """Return what each picture of the menu is called; this session's own comes first."""
    uploaded: Picture | None = st.session_state.get("uploaded")
    own = {} if uploaded is None else {UPLOAD: uploaded.name}
    return own | {name: title(name) for name in samples()}


@st.cache_resource
def sample(name: str) -> Picture:
    from vitviz.common.files import assets

    data = (assets() / "samples" / f"{name}.jpg").read_bytes()
    return _open(f"sample: {samples()[name]}", data)


@st.cache_resource
def decode_queue() -> Queue:
    """Return the queue of decoding: one file at a time, which bounds the memory."""
    return Queue()


def _open(name: str, data: bytes) -> Picture:
    digest = hashlib.sha256(data).hexdigest()
    return Picture(name, data, digest, _image(data, digest).size)


def _image(data: bytes, digest: str) -> "Image.Image":
    from vitviz import open_image

    def make() -> "Image.Image":
        with decode_queue().turn(lambda ahead: None):  # no drawing, which may stop the run
            return open_image(data)

    return images().get(digest, make)


def most_megabytes() -> int:
    """Return how large a file may be."""
    size: int = st.get_option("server.maxUploadSize")
    return min(size, MAX_MEGABYTES)


def receive(name: str, data: bytes) -> None:
    """Accept a picture. For a bad one, store the error and keep the last good picture."""
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
    settings.use_stored_language()
    file = st.session_state[widget]
    if isinstance(file, UploadedFile):
        receive(file.name, file.getvalue())
        _forget_all_but(widget, file.file_id)
    else:  # none, or one that the server no longer has
        st.session_state.upload_error = None


def receive_sent(file_id: str, name: str | None, problem: str | None) -> None:
    """Accept a file that the page sent by itself, or that an uploader left when its box was closed.

    Parameters
    ----------
    name : optional
        What to call it; by default as it was sent.
    problem : optional
        Why it did not arrive.
    """
    context = get_script_run_ctx()
    if context is None:
        return
    if file_id in _files().values():
        # Its uploader has told of it, and the page had not heard so: its menu is from before.
        if not st.session_state.upload_error:
            settings.change(picture=UPLOAD)
        return
    files = context.uploaded_file_mgr.get_files(context.session_id, [file_id])
    if problem:
        st.session_state.upload_error = problem
    elif files:
        receive(name or files[0].name, files[0].data)
    _forget_all_but("page", file_id)


def session_and_files() -> tuple[str, list[str]]:
    """Return the session under which a page sends files, and the files it last received."""
    context = get_script_run_ctx()
    return "" if context is None else context.session_id, list(_files().values())


def _files() -> dict[str, str]:
    """Return the id of the last file of each widget."""
    files: dict[str, str] = st.session_state.setdefault("files", {})
    return files


def _forget_all_but(widget: str, file_id: str) -> None:
    """Delete the file that this one replaces: Streamlit would keep all until the session ends."""
    context, files = get_script_run_ctx(), _files()
    before, files[widget] = files.get(widget, file_id), file_id
    if before != file_id and context is not None:
        manager = context.uploaded_file_mgr
        if isinstance(manager, MemoryUploadedFileManager):
            manager.remove_file(context.session_id, before)


def chosen_picture(name: str) -> Picture:
    uploaded: Picture | None = st.session_state.get("uploaded")
    if name == UPLOAD and uploaded is not None:
        return uploaded
    return replace(sample(name), name=tr("sample: {subject}", subject=title(name)))
