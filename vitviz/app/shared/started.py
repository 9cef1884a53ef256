"""The options with which the operator started the app."""

import sys
from pathlib import Path

import streamlit as st

from vitviz.app.options import OptionError, Options, check, parse
from vitviz.common.language import MessageError


@st.cache_resource(show_spinner=False)
def options() -> Options:
    """Return the options of the command line, parsed once."""
    script, *words = sys.argv
    # Under pytest, for example, sys.argv holds the options of another program.
    parsed = parse(words if Path(script).name in ("app.py", "vitviz") else [])
    try:
        _read_files(parsed)
    except MessageError as error:
        raise OptionError(error.message) from error
    return parsed


def _read_files(parsed: Options) -> None:
    """Read what the options name, so that the first page says what is wrong with it."""
    if parsed.models or parsed.checkpoints or parsed.labels:
        from vitviz.zoo import catalogue, check_adapter

        for _, path, *_ in parsed.checkpoints.values():
            check_adapter(path)
        check(parsed, [entry.name for entry in catalogue()])
    if parsed.device != "cpu" or parsed.words:
        from vitviz import Words
        from vitviz.model.devices import find_device

        find_device(parsed.device)
        if parsed.words:
            Words.read(parsed.words)
    if parsed.profiles:
        from vitviz.profiling import load_profile

        for path in parsed.profiles:
            load_profile(path)
