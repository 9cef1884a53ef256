"""The options with which the operator started the app."""

import sys
from pathlib import Path

import streamlit as st

from vitviz.app.options import OptionError, Options, check, parse
from vitviz.common.language import message


@st.cache_resource(show_spinner=False)
def options() -> Options:
    """Return the options of the command line, parsed once."""
    script, *words = sys.argv
    # Under pytest, for example, sys.argv holds the options of another program.
    given = parse(words if Path(script).name in ("app.py", "vitviz") else [])
    if given.models or given.checkpoints or given.labels:
        from vitviz.zoo import ModelError, catalogue, check_adapter

        try:
            for _, path, *_ in given.checkpoints.values():
                check_adapter(path)
        except ModelError as error:
            raise OptionError(message(error)) from error
        check(given, [entry.name for entry in catalogue()])
    if given.device != "cpu" or given.words:
        from vitviz import ModelError, Words
        from vitviz.model.devices import find_device

        try:
            find_device(given.device)
            if given.words:
                Words.read(given.words)
        except ModelError as error:
            raise OptionError(message(error)) from error
    if given.profiles:
        from vitviz.profiling import ProfileError, load_profile

        try:
            for path in given.profiles:
                load_profile(path)
        except ProfileError as error:
            raise OptionError(message(error)) from error
    return given
