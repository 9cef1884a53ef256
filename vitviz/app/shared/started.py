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
    given = parse(words if Path(script).name in ("app.py", "vitviz") else [])
    try:
        _read_files(given)
    except MessageError as error:
        raise OptionError(error.message) from error
    return given


def _read_files(given: Options) -> None:
    """Read what the options name, so that the first page says what is wrong with it."""
    if given.models or given.checkpoints or given.labels:
        from vitviz.zoo import catalogue, check_adapter

        for _, path, *_ in given.checkpoints.values():
            check_adapter(path)
        check(given, [entry.name for entry in catalogue()])
    if given.device != "cpu" or given.words:
        from vitviz import Words
        from vitviz.model.devices import find_device

        find_device(given.device)
        if given.words:
            Words.read(given.words)
    if given.profiles:
        from vitviz.profiling import load_profile

        for path in given.profiles:
            load_profile(path)
