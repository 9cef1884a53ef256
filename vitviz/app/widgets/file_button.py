"""A button whose file is made when it is clicked."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx


def file_button(
    label: str, make: Callable[[], bytes], *, file_name: str, mime: str, **more: Any
) -> None:
    """Draw a button for a file that `make` returns.

    Streamlit itself removes such a file once two pages of any visitors have been drawn, maybe
    before the browser asks for it. Here the session holds it until its own next page.
    """
    context = get_script_run_ctx()

    def make_held() -> bytes:
        data = make()
        if context is not None and runtime.exists():
            thread = Thread(target=_hold, args=(data, mime, file_name))
            add_script_run_ctx(thread, context).start()
            thread.join()
        return data

    st.download_button(
        label,
        make_held,
        file_name=file_name,
        mime=mime,
        on_click="ignore",
        icon=":material/download:",
        **more,
    )


def _hold(data: bytes, mime: str, file_name: str) -> None:
    """Give a file to the session of this thread, which keeps it until its next page."""
    files = runtime.get_instance().media_file_mgr
    files.add(data, mime, f"made {file_name}", file_name, is_for_static_download=True)
