"""The settings of every page: kept at a change of page, and written into the address.

Streamlit forgets a widget's value on a page that does not draw it, and drops values of the address
that do not fit without a word; so each setting has its place here, as the text that the address
holds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from vitviz import language
from vitviz.language import tr

T = TypeVar("T")
_address = st.components.v2.component(
    "vitviz_address", js=Path(__file__).with_name("address.js").read_text(encoding="utf-8")
)
PRESENTER = 1.25  # how much larger everything is on a projector

#: What the address may hold. Other words in it are dropped.
NAMES = (
    *("lang", "presenter", "lesson", "picture", "model", "weights", "size"),
    *("layer", "head", "query", "step", "key"),
    *("read", "view", "scale", "leave_out", "smooth", "seen", "predict"),
    *(
        "filters",
        "filter",
        "gain",
        "order",
        "kind",
        "grid",
        "interpolation",
        "variant",
        "over",
        "beside",
        "profile",
    ),
    *(
        "fusion",
        "residual",
        "discard",
        "start_layer",
        "class_map",
        "basis",
        "components",
        "threshold",
        "flip",
    ),
    *(
        "muted",
        "painted",
        "fill",
        "brush",
        "class",
        "block",
        "moment",
        "depth",
        "shuffle",
        "experiment",
        "mute_to",
    ),
    *("family", "zoo_layer", "zoo_down", "zoo_across"),
    *("compare", "other_model", "other_weights", "other_picture", "matches"),
)
#: Of a reader, and not of a view that is shown to others.
_PERSONAL = ("lang", "presenter")
#: What a view keeps when all its other settings get their defaults, and when a lesson goes on.
STAYING = ("lang", "presenter", "lesson", "picture", "model", "weights", "size")


def setting(name: str, options: Sequence[T], default: T) -> T:
    """The value of a setting: its widget's, else the one kept, else the one in the address.

    Call it before the widget that has `name` as its key. A value that is none of the options falls
    back to the default, and the reader is told.

    Parameters
    ----------
    options : sequence
        All values that fit; `str` of one is its text in the address.
    """
    fitting = {str(option): option for option in options}
    text = _fitting(name, fitting.__contains__, default)
    value = default if text is None else fitting[text]
    _keep(name, value, default)
    return value


def text_setting(name: str, fits: Callable[[str], bool], default: str = "") -> str:
    """As `setting`, for free text: `fits` tells whether it can be read."""
    text = _fitting(name, fits, default)
    value = default if text is None else text
    _keep(name, value, default)
    return value


def _fitting(name: str, fits: Callable[[str], bool], default: object) -> str | None:
    """The text of a setting; None where it has none, or, with a message, one that does not fit."""
    drawn = st.session_state.get(name)  # None where it is not on this page, or nothing is selected
    text = _kept().get(name) if drawn is None else str(drawn)
    if text is None or fits(text):
        return text
    called = name.replace("_", " ").capitalize()
    shown = tr("none") if default == "" else default
    tell(
        tr(
            "{called}: {said} is not valid here; {shown} is used.",
            called=called,
            said=plain(text),
            shown=shown,
        )
    )
    return None


def plain(text: str) -> str:
    """The beginning of a text that somebody typed or linked, which may carry markup."""
    return re.sub(r"[^\w. -]", "?", text[:40])


def _keep(name: str, value: object, default: object) -> None:
    st.session_state[name] = value
    _kept()[name] = str(value)
    if value == default:
        _defaults().add(name)
    else:
        _defaults().discard(name)


def kept(name: str) -> str | None:
    """The stored text of a setting, whether it is valid or not."""
    return _kept().get(name)


def change(**values: object) -> None:
    """Give settings other values, as their widgets would; only before those are drawn."""
    for name, value in values.items():
        _kept()[name] = str(value)
        st.session_state.pop(name, None)


def reset() -> None:
    """Give all settings but `STAYING` their defaults."""
    for name in (*NAMES, "query_grid"):
        if name not in STAYING:
            _kept().pop(name, None)
            st.session_state.pop(name, None)


def tell(message: str) -> None:
    """Show a message once, at the top of the page."""
    messages: list[str] = st.session_state.setdefault("messages", [])
    if message not in messages:
        messages.append(message)


def take_messages() -> list[str]:
    """The messages of this run, which are then forgotten."""
    messages: list[str] = st.session_state.pop("messages", [])
    return messages


def follow_address() -> None:
    """After Back or Forward in the browser, take the settings from the address.

    Call it before any setting is read.
    """
    run = get_script_run_ctx()
    if run is not None and run.is_history_navigation:
        for name in (*NAMES, "query_grid", "written"):
            st.session_state.pop(name, None)
        st.session_state.kept = st.query_params.to_dict()


def watch_address() -> None:
    """Draw what tells of Back and Forward in the browser."""
    _address(
        key="address",
        height=1,
        data={"lang": language.spoken()},
        on_reconnected_change=lambda: None,
    )


def speak() -> None:
    """Use the language of this session; by default that of the browser, else English."""
    browser = (st.context.locale or "").split("-")[0]
    default = browser if browser in language.LANGUAGES else "en"
    language.speak(setting("lang", list(language.LANGUAGES), default))


def speak_on() -> None:
    """The same in a thread of its own: a fragment's run, or a callback."""
    language.speak(kept("lang") or "en")


def asked_for() -> bool:
    """Whether this is the first run of a link that was opened, before any setting was changed."""
    return "written" not in st.session_state


def write_address() -> None:
    """Put every setting that is not at its default into the address."""
    st.session_state.written = True
    wanted = _wanted()
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def _wanted() -> dict[str, str]:
    texts, defaults = _kept(), _defaults()
    return {name: text for name, text in texts.items() if name in NAMES and name not in defaults}


def link() -> dict[str, str]:
    """What the address holds of the view on screen, without what is the reader's own."""
    return {name: text for name, text in _wanted().items() if name not in _PERSONAL}


def take(texts: Mapping[str, str]) -> None:
    """Give all settings the values of another view, as `link` gives them; only before any is read.

    What the view does not name gets its default; what is the reader's own stays.
    """
    own = {name: text for name, text in _kept().items() if name in _PERSONAL}
    for name in (*NAMES, "query_grid"):
        if name not in _PERSONAL:
            st.session_state.pop(name, None)
    st.session_state.kept = {**own, **texts}
    _defaults().difference_update(texts)


def _kept() -> dict[str, str]:
    if "kept" not in st.session_state:
        st.session_state.kept = st.query_params.to_dict()  # a link that was opened
    texts: dict[str, str] = st.session_state.kept
    return texts


def _defaults() -> set[str]:
    defaults: set[str] = st.session_state.setdefault("defaults", set())
    return defaults
