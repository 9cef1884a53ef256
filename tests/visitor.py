"""A visitor without a browser: speaks with the real server as Streamlit's page does."""

import json
import re
import time
import uuid
from contextlib import ExitStack
from html import unescape
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from vitviz.app.pages import OPENING

PATIENCE = 60.0  # seconds
COOKIE = "_streamlit_xsrf"


class Visitor:
    """One session.

    Attributes
    ----------
    session : its name on the server
    query : what stands behind "?" in the address
    progress : what the page said while it was being made, so far
    """

    def __init__(
        self,
        url: str,
        query: str = "",
        *,
        page: str = "attention",
        origin: str | None = None,
        session: str = "",
        cookie: str = "",
        address: str = "",
    ) -> None:
        self.url, self.query = url, query
        # as a proxy on this machine tells the server from where a visitor comes
        self._told = {"X-Forwarded-For": address} if address else {}
        with urlopen(f"{url}/_stcore/health", timeout=PATIENCE) as answer:
            self.token = re.findall(f"{COOKIE}=([^;]+)", answer.headers["Set-Cookie"])[0]
        words = ("streamlit", self.token, session)
        self._open = ExitStack()
        self._socket = self._open.enter_context(
            connect(
                f"{url.replace('http', 'ws', 1)}/_stcore/stream",
                origin=Origin(origin or url),
                subprotocols=[Subprotocol(word) for word in words if word],
                additional_headers={
                    "Cookie": "; ".join(filter(None, (f"{COOKIE}={self.token}", cookie))),
                    **self._told,
                },
                max_size=None,
                ping_interval=None,  # a busy server may answer late
                close_timeout=1,  # in the middle of a run the server does not say goodbye
                proxy=None,
            )
        )
        self.session = session
        self.progress: list[str] = []
        self._page, self._name = "", page
        self._pages: dict[str, str] = {}
        self._drawn: dict[tuple[int, ...], Any] = {}
        self._widgets: dict[str, WidgetState] = {}

    def __enter__(self) -> "Visitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    # --- what is on screen ----------------------------------------------------------------------

    def elements(self, kind: str) -> list[Any]:
        """All elements of a kind, from the top of the page to its foot."""
        drawn = [self._drawn[path] for path in sorted(self._drawn)]
        return [getattr(one, kind) for one in drawn if one.WhichOneof("type") == kind]

    def find(self, kind: str, label: str) -> Any:
        """Return the only element of a kind with this label."""
        found = [one for one in self.elements(kind) if one.label == label]
        if len(found) != 1:
            labels = [one.label for one in self.elements(kind)]
            raise LookupError(
                f"{len(found)} of {kind} {label!r} on {self.page}, which has {labels}. "
                f"Provenance: {self.provenance!r}. Notices: {self.complaints}."
            )
        return found[0]

    @property
    def provenance(self) -> str:
        lines = [one.body for one in self.elements("html") if "<details>" in one.body]
        return unescape(re.sub("<.*?>", "", lines[-1])) if lines else ""

    @property
    def complaints(self) -> list[str]:
        return [alert.body for alert in self.elements("alert")]

    @property
    def codes(self) -> np.ndarray:
        """The token map's numbers, flat uint8; empty where there is none."""
        for component in self.elements("bidi_component"):
            sent = json.loads(component.mixed.json or "{}")
            if "codes" in sent:
                blob = component.mixed.arrow_blobs[sent["codes"]["__streamlit_arrow_ref__"]].data
                codes: np.ndarray = pa.ipc.open_stream(blob).read_all()["values"].to_numpy()
                return codes
        return np.zeros(0, np.uint8)

    # --- what a visitor does --------------------------------------------------------------------

    def ask(self, *, from_history: bool = False) -> None:
        """Ask for the page with what was chosen, and wait for nothing."""
        message = BackMsg()
        message.rerun_script.query_string = self.query
        message.rerun_script.page_script_hash = self._page
        message.rerun_script.page_name = self._name
        message.rerun_script.widget_states.widgets.extend(self._widgets.values())
        message.rerun_script.is_history_navigation = from_history
        self._socket.send(message.SerializeToString())

    def run(self) -> "Visitor":
        """Ask for the page, and wait until it is drawn."""
        self.ask()
        self.read_until("script_finished")
        return self

    def go_back(self, query: str) -> "Visitor":
        """Go to a view of the same page in the browser's history, and wait for it."""
        self.query = query
        self.ask(from_history=True)
        self.read_until("script_finished")
        return self

    @property
    def page(self) -> str:
        return self._name

    def turn_to(self, page: str) -> "Visitor":
        """Turn to another page by its name, as a click on the navigation does, and wait for it."""
        self._page, self._name = self._pages[page], page
        return self.run()

    def download(self, label: str) -> bytes:
        """Press a button whose file is made on demand; returns the file."""
        with urlopen(self.make_file(label), timeout=PATIENCE) as file:
            data: bytes = file.read()
        return data

    def make_file(self, label: str) -> str:
        """Press such a button, and wait until the file is made; returns its address."""
        button = self.find("download_button", label)
        message = BackMsg()
        message.backend_operation_request.request_id = uuid.uuid4().hex
        message.backend_operation_request.session_id = self.session
        message.backend_operation_request.deferred_file.file_id = button.deferred_file_id
        self._socket.send(message.SerializeToString())
        answer = self.read_until("backend_operation_response").backend_operation_response
        assert not answer.error_msg, answer.error_msg
        return f"{self.url}{answer.deferred_file.url}"

    def choose(self, label: str, value: Any) -> "Visitor":
        """Give a menu or a slider another value, as text or as a number; the page is not asked."""
        kind = "slider" if isinstance(value, int) else "selectbox"
        widget = self.find(kind, label)
        state = self._widgets.setdefault(widget.id, WidgetState(id=widget.id))
        if kind == "slider":
            state.double_array_value.data[:] = [value]
        else:
            state.string_value = value
        return self

    def press(self, label: str) -> None:
        """Press a button, and wait for nothing."""
        button = self.find("button", label)
        self._widgets[button.id] = WidgetState(id=button.id, trigger_value=True)
        self.ask()
        del self._widgets[button.id]

    def upload(self, name: str, data: bytes) -> "Visitor":
        """Give the uploader a file, and wait until the page is drawn."""
        file = self.place_for(name)
        status = self.put(file.upload_url, name, data)
        assert status == 204, status
        self.hold(file, name, len(data))
        return self.run()

    def place_for(self, name: str) -> Any:
        """Where the server wants a file."""
        message = BackMsg()
        message.file_urls_request.request_id = uuid.uuid4().hex
        message.file_urls_request.file_names.append(name)
        message.file_urls_request.session_id = self.session
        self._socket.send(message.SerializeToString())
        (place,) = self.read_until("file_urls_response").file_urls_response.file_urls
        return place

    def put(self, url: str, name: str, data: bytes, *, token: str | None = None) -> int:
        """Send a file; the status of the answer. An empty token sends none."""
        token, edge = self.token if token is None else token, uuid.uuid4().hex
        about = f'form-data; name="{name}"; filename="{name}"'.encode()
        body = b"--%b\r\nContent-Disposition: %b\r\n\r\n%b\r\n--%b--\r\n" % (
            edge.encode(),
            about,
            data,
            edge.encode(),
        )
        headers = {"Content-Type": f"multipart/form-data; boundary={edge}", **self._told}
        if token:
            headers |= {"X-Xsrftoken": token, "Cookie": f"{COOKIE}={self.token}"}
        return status(Request(self.url + urlsplit(url).path, body, headers, method="PUT"))

    def hold(self, file: Any, name: str, size: int) -> None:
        """Let the uploader hold a file that was sent; the page is not asked."""
        (uploader,) = self.elements("file_uploader")
        state = WidgetState(id=uploader.id)
        held = state.file_uploader_state_value.uploaded_file_info.add()
        held.file_id, held.name, held.size = file.file_id, name, size
        held.file_urls.CopyFrom(file)
        self._widgets[uploader.id] = state

    def read_until(self, kind: str, patience: float = PATIENCE) -> ForwardMsg:
        """Take what the server says until a message of this kind; of runs, until one ends well."""
        deadline = time.monotonic() + patience
        while True:
            message = self._take(deadline)
            finished = message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY
            if message.WhichOneof("type") == kind and finished:
                return message

    def read_progress(self, words: str) -> None:
        """Take what the server says until a bar of progress has these words."""
        deadline, seen = time.monotonic() + PATIENCE, len(self.progress)
        while not any(words in text for text in self.progress[seen:]):
            self._take(deadline)

    def _take(self, deadline: float) -> ForwardMsg:
        message = ForwardMsg()
        message.ParseFromString(self._socket.recv(max(0.0, deadline - time.monotonic())))
        match message.WhichOneof("type"):
            case "new_session":
                self.session = message.new_session.initialize.session_id
                self._drawn.clear()
            case "navigation":
                self._page = message.navigation.page_script_hash
                pages = message.navigation.app_pages
                self._pages = {one.url_pathname or OPENING: one.page_script_hash for one in pages}
            case "page_info_changed":
                self.query = message.page_info_changed.query_string
            case "delta" if message.delta.HasField("new_element"):
                element = message.delta.new_element
                self._drawn[tuple(message.metadata.delta_path)] = element
                if element.WhichOneof("type") == "progress":
                    self.progress.append(element.progress.text)
            case "ref_hash":
                raise AssertionError("The server takes this visitor for one with a cache.")
        return message


def status(request: Request) -> int:
    """The status of the server's answer, good or bad."""
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
