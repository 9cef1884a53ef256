"""Downloads of trained weights in the background, while the last model stays on screen.

Sessions that want the same weights share one download, and it goes on when the session that started
it shows something else.
"""

import threading

import streamlit as st

from vitviz.app import settings
from vitviz.app.shared import visitors
from vitviz.common.language import Message, message, tr, tr_md


class _CancelledError(Exception):
    pass


class Download:
    """One download, in a thread of its own.

    Parameters
    ----------
    after : one that was cancelled and has not ended yet

    Attributes
    ----------
    done, total : bytes that are here, and how many there are (None until that is known)
    failure : why it ended without the weights; None if it did not
    """

    def __init__(self, name: str, after: "Download | None" = None) -> None:
        self.name, self._after = name, after
        self.done, self.total = 0, None  # type: int, int | None
        self.failure: str | None = None
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def cancelled(self) -> bool:
        return self._unwanted.is_set()

    def cancel(self) -> None:
        self._unwanted.set()

    def _run(self) -> None:
        from vitviz.zoo import ModelError, fetch_weights

        if self._after is not None:
            self._after._thread.join()
            self._after = None
        self.failure = Message(
            "The download of the weights of {name} did not finish.", name=self.name
        )
        try:
            fetch_weights(self.name, progress=self._progress)
        except ModelError as error:
            self.failure = message(error)
        except _CancelledError:
            self.failure = Message(
                "The download of the weights of {name} was cancelled.", name=self.name
            )
        else:
            self.failure = None

    def _progress(self, done: int, total: int | None) -> None:
        if self._unwanted.is_set():
            raise _CancelledError
        self.done, self.total = done, total


class Downloads:
    """At most one download of each model at a time."""

    def __init__(self) -> None:
        self._running: dict[str, Download] = {}
        self._lock = threading.Lock()

    def ask(self, name: str) -> Download:
        """Return the running download of a model's weights, or start one."""
        with self._lock:
            self._running = {key: one for key, one in self._running.items() if one.running}
            last = self._running.get(name)
            if last is None or last.cancelled:
                self._running[name] = Download(name, after=last)
            return self._running[name]


def may_download() -> bool:
    """Return whether this session may download weights: only the server's own machine may.

    A server that others can reach downloads for nobody. One on localhost may still be reached
    through a proxy, so the request is checked too.
    """
    return not visitors.for_class() and visitors.is_local_request()


@st.cache_resource
def downloads() -> Downloads:
    return Downloads()


def show_progress(name: str, last: tuple[str, str]) -> None:
    """Show the progress of the download of a model's weights; start it if necessary.

    Parameters
    ----------
    last : what Cancel goes back to, as the settings "model" and "weights"

    Raises
    ------
    ModelError
        When it has failed; a button offers to try again.
    """
    from vitviz import ModelError

    download: Download | None = st.session_state.get("download")
    if download is None or download.name != name:
        download = st.session_state.download = downloads().ask(name)
    if download.running:
        bar, button = st.columns([6, 1], vertical_alignment="center")
        with bar:
            _bar(download)
        button.button(
            tr("Cancel"),
            key="cancel download",
            icon=":material/cancel:",
            on_click=_cancel,
            args=(last,),
        )
    elif download.failure is not None:
        st.button(tr("Try again"), key="try again", icon=":material/refresh:", on_click=forget)
        raise ModelError(download.failure)
    else:
        forget()
        st.rerun()  # the weights came just now


@st.fragment(run_every=0.5)  # without the rest of the page being made again
def _bar(download: Download) -> None:
    settings.use_stored_language()
    if not download.running:
        st.rerun()
    of = "" if download.total is None else tr(" of {total:,.0f}", total=download.total / 1e6)
    st.progress(
        min(1.0, download.done / download.total) if download.total else 0.0,
        tr_md(
            "The trained weights of {name}: {done:,.0f}{of} MB",
            name=download.name,
            done=download.done / 1e6,
            of=of,
        ),
    )


def _cancel(last: tuple[str, str]) -> None:
    download: Download = st.session_state.download
    download.cancel()
    settings.use_stored_language()
    settings.show_message(
        tr_md("The download of the weights of {name} was cancelled.", name=download.name)
    )
    settings.change(model=last[0], weights=last[1])
    forget()


def forget() -> None:
    """Stop showing a download; choosing the model again joins it, or starts another."""
    st.session_state.pop("download", None)
