"""Register the components of the browser that lie beside this module."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

_HERE = Path(__file__).parent


def component(name: str, script: str, *styles: str) -> Callable[..., Any]:
    """Return what mounts a component, made of the files of its script and of its style sheets."""
    texts = [(_HERE / file).read_text(encoding="utf-8") for file in (script, *styles)]
    return st.components.v2.component(name, js=texts[0], css="".join(texts[1:]) or None)
