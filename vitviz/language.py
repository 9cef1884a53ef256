"""The language of all strings: English, unless the app's reader has chosen another.

A string of the code is its own key: `tr("Layer {layer}", layer=3)` gives its translation from
`text/<language>/strings.po`, and where there is none the English string itself. A string that is
written where no language is chosen yet, in a constant, is marked there by `mark` and translated by
`tr` where it is used. The components in the browser do the same with `browser.po`.

What is said long before it is read, such as why a model is refused, is a `Message`: English text,
as libraries have it in their errors, from which `tr` makes that of the reader's language. Shares
and patches are named here too, so that they are written alike everywhere.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from babel.messages import Catalog

#: Each by its own name, and by its code in a link. The first is the language of the code.
LANGUAGES = {"en": "English", "ko": "한국어"}
T = TypeVar("T")
_FOLDER = Path(__file__).parent / "text"
_spoken: ContextVar[str] = ContextVar("language", default="en")


def speak(language: str) -> None:
    """Use a language from here on, in this thread alone."""
    _spoken.set(language if language in LANGUAGES else "en")


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Use a language within a `with` block."""
    before = spoken()
    speak(language)
    try:
        yield
    finally:
        speak(before)


def spoken() -> str:
    """The code of the language in use."""
    return _spoken.get()


class Message(str):
    """An English text with the placeholders and values that it was made of.

    Values that are messages, or errors with a message, are translated with it.
    """

    english: str
    values: dict[str, Any]

    def __new__(cls, english: str, /, **values: object) -> "Message":
        if isinstance(english, Message) and not values:
            return english
        made = super().__new__(cls, english.format(**values) if values else english)
        made.english = english
        made.values = {name: _kept(value) for name, value in values.items()}
        return made

    def __add__(self, more: str) -> "Message":
        return type(self)("{first}{more}", first=self, more=more) if more else self

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (self.english,), self.values


class MessageError(ValueError):
    """An error whose text is a `Message`, made of the same arguments or given as it is."""

    def __init__(self, english: str, /, **values: object) -> None:
        self.message = Message(english, **values)
        super().__init__(self.message)


def _kept(value: object) -> object:
    """A value without an error's traceback, and what that holds."""
    return message(value) if isinstance(value, Exception) else value


def message(error: Exception) -> str:
    """What an error says: a `Message` where it was made of one."""
    if isinstance(error, MessageError):
        return error.message
    english = getattr(error, "english", None)  # of ImageError, whose module imports none of ours
    return Message(english, **getattr(error, "values", {})) if english else str(error)


def tr(english: str | Exception, /, **values: object) -> str:
    """A string in the language in use, with the values of its placeholders.

    Or a message, or that of an error.
    """
    if isinstance(english, Exception):
        english = message(english)
    if isinstance(english, Message):
        values = english.values | values
        english = english.english
    said = catalogue(spoken()).gettext(english) if english else ""
    return said.format(**{name: told(value) for name, value in values.items()}) if values else said


def told(value: T) -> T | str:
    """A message in the language in use, and all else as it is."""
    return tr(value) if isinstance(value, Message) else value


def tr_n(one: str, many: str, count: int, /, **values: object) -> str:
    """As `tr`, in the form that the language uses for this count: `one` or `many` in English."""
    return catalogue(spoken()).ngettext(one, many, count).format(count=count, **values)


def mark(english: str) -> str:
    """The same string: it is to be translated, later."""
    return english


def patch_name(row: int, col: int) -> str:
    return tr("row {row}, column {column}", row=row + 1, column=col + 1)


def as_percent(share: float) -> str:
    """Two significant digits, so that shares of very different size can be read."""
    percent = 100 * float(share)
    if percent >= 9.95 or percent <= 0:
        return f"{percent:.0f} %"
    digits = 1 - math.floor(math.log10(percent))
    return f"{percent:.{digits}f} %"


@cache
def catalogue(language: str) -> NullTranslations:
    """All strings of a language."""
    if language == "en":
        return NullTranslations()
    from babel.messages.mofile import write_mo

    compiled = BytesIO()
    write_mo(compiled, _read("strings", language))
    compiled.seek(0)
    return GNUTranslations(compiled)


def strings(name: str) -> dict[str, str]:
    """The translations of another catalogue, by the English strings; none of them in English."""
    return {} if spoken() == "en" else _strings(name, spoken())


@cache
def _strings(name: str, language: str) -> dict[str, str]:
    return {str(each.id): str(each.string) for each in _read(name, language) if each.id}


def _read(name: str, language: str) -> "Catalog":
    from babel.messages.pofile import read_po

    with (_FOLDER / language / f"{name}.po").open("rb") as file:
        return read_po(file, locale=language)
