"""Translate the strings of the code into the reader's language.

A string of the code is its own key: `tr("Layer {layer}", layer=3)` looks it up in
`text/<language>/strings.po`, and falls back to English. A constant is written before a language is
chosen: it is marked by `mark`, and translated by `tr` where it is used. The components in the
browser do the same with `browser.po`.

A text that is written long before it is read, such as why a model is refused, is a `Message`:
English text that `tr` can still translate. Shares and patches are formatted here, too, so that they
look alike everywhere.
"""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from babel.messages import Catalog

#: Names of the languages by their codes in links. The first is the language of the code.
LANGUAGES = {"en": "English", "ko": "한국어"}
T = TypeVar("T")
_FOLDER = Path(__file__).parents[1] / "text"
_current: ContextVar[str] = ContextVar("language", default="en")


def set_language(language: str) -> None:
    """Use a language from now on in this thread."""
    _current.set(language if language in LANGUAGES else "en")


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Use a language within a `with` block."""
    before = current_language()
    set_language(language)
    try:
        yield
    finally:
        set_language(before)


def current_language() -> str:
    """Return the code of the language in use."""
    return _current.get()


class Message(str):
    """English text with its placeholders and values, which `tr` can translate.

    Values that are messages, or errors with a message, are translated, too.
    """

    english: str
    values: dict[str, Any]

    def __new__(cls, english: str, /, **values: object) -> "Message":
        if isinstance(english, Message) and not values:
            return english
        text = super().__new__(cls, english.format(**values) if values else english)
        text.english = english
        text.values = {name: _storable(value) for name, value in values.items()}
        return text

    def __add__(self, more: str) -> "Message":
        return type(self)("{first}{more}", first=self, more=more) if more else self

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (self.english,), self.values


class Phrase(str):
    """A phrase that a text tower read; a comma in it does not begin another name of a class."""


class MessageError(ValueError):
    """An error whose text is a `Message`."""

    def __init__(self, english: str, /, **values: object) -> None:
        self.message = Message(english, **values)
        super().__init__(self.message)


def _storable(value: object) -> object:
    """Return an error's message, as its traceback would keep objects alive; else the value."""
    return message(value) if isinstance(value, Exception) else value


def message(error: Exception) -> str:
    """Return the text of an error: a `Message` if it has one."""
    if isinstance(error, MessageError):
        return error.message
    english = getattr(error, "english", None)  # ImageError, whose module imports nothing of vitviz
    return Message(english, **getattr(error, "values", {})) if english else str(error)


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, to be quoted within a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shorten(lines[0], 200).rstrip(".")


def shorten(text: str, most: int) -> str:
    """Return a text of at most `most` letters; an ellipsis stands for those that are left out."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def tr(english: str | Exception, /, **values: object) -> str:
    """Translate a string, a message or an error's text, and fill in its placeholders."""
    if isinstance(english, Exception):
        english = message(english)
    if isinstance(english, Message):
        values = english.values | values
        english = english.english
    text = translations_of(current_language()).gettext(english) if english else ""
    texts = {key: translate(value) for key, value in values.items()}
    return text.format(**texts) if values else text


class Markdown(str):
    """A text in Markdown in which everything is escaped that must be."""

    def __add__(self, more: str) -> "Markdown":
        return Markdown(str.__add__(self, more if isinstance(more, Markdown) else literal(more)))


def literal(text: str) -> Markdown:
    """Escape a text so that Markdown shows it as it is.

    Characters of Markdown become entities. Streamlit replaces words such as :smile: and --> even
    then, so that a text with these becomes code.
    """
    line = " ".join(text.split()) if "\n" in text else text
    if _REPLACED.search(line):
        fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
        space = " " if line.startswith("`") or line.endswith("`") else ""
        return Markdown(f"{fence}{space}{line}{space}{fence}")
    return Markdown(_MARKUP.sub(lambda found: f"&#{ord(found[0])};", line))


#: Markdown's characters anywhere, at the edge of a word, and at the beginning of a line.
_MARKUP = re.compile(
    r"[\\`*\[\]<>&$~|]|(?<![^\W_])_|_(?![^\W_])"
    r"|^[-+=#]|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)"
)
#: Emojis, icons, links, arrows and signs that Streamlit replaces.
_REPLACED = re.compile(r":[\w+-]+:|:\w+/\w+:|https?://|www\.|\S@\S|<->|->|<-|--|>=|<=|~=")


def tr_md(english: str | Exception, /, **values: object) -> Markdown:
    """Translate as `tr`, for Markdown: text values are escaped, `Markdown` values are not.

    Names of models, classes and files come from users and may hold markup.
    """
    if isinstance(english, Exception):
        english = message(english)
        if not isinstance(english, Message):
            return literal(english)
    if isinstance(english, Message):
        values = english.values | values
        english = english.english
    return Markdown(tr(english, **{name: _literal(value) for name, value in values.items()}))


def _literal(value: object) -> object:
    if isinstance(value, Message):
        return tr_md(value)
    return literal(value) if isinstance(value, str) and not isinstance(value, Markdown) else value


def translate(value: T) -> T | str:
    """Return a `Message` in the language in use, and any other value unchanged."""
    return tr(value) if isinstance(value, Message) else value


def tr_n(one: str, many: str, count: int, /, **values: object) -> str:
    """Translate as `tr`, with the plural form for this count: `one` or `many` in English."""
    return (
        translations_of(current_language()).ngettext(one, many, count).format(count=count, **values)
    )


def mark(english: str) -> str:
    """Mark a string for translation and return it unchanged."""
    return english


def capitalize(words: str) -> str:
    """Return words with a capital at their beginning; `str.capitalize` makes all others small."""
    return words[0].upper() + words[1:]


def patch_name(row: int, col: int) -> str:
    return tr("row {row}, column {column}", row=row + 1, column=col + 1)


def offset_name(down: int, right: int) -> str:
    """Return an offset in rows and columns as words; empty for (0, 0)."""
    parts = []
    if down:
        where = tr("down") if down > 0 else tr("up")
        parts.append(tr_n("{count} row {where}", "{count} rows {where}", abs(down), where=where))
    if right:
        where = tr("right") if right > 0 else tr("left")
        parts.append(
            tr_n("{count} column {where}", "{count} columns {where}", abs(right), where=where)
        )
    return tr(" and ").join(parts)


def format_count(count: int, noun: str) -> str:
    """Write a count of things in English: "1 picture", "2,000 pictures"; `tr_n` translates."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_percent(share: float) -> str:
    """Format a share in per cent with two significant digits, whatever its size.

    A half is rounded up, as browsers do it.
    """
    percent = 100 * float(share)
    if 0 < percent < 1e-6:
        return "< 0.000001 %"
    digits = 0 if percent >= 9.95 or percent <= 0 else 1 - math.floor(math.log10(percent))
    return f"{Decimal(percent).quantize(Decimal(10) ** -digits, ROUND_HALF_UP):f} %"


@cache
def translations_of(language: str) -> NullTranslations:
    """Return the translations of a language."""
    if language == "en":
        return NullTranslations()
    from babel.messages.mofile import write_mo

    strings = _read("strings", language)
    for each in _read("classes", language):
        strings.add(each.id, each.string)
    file = BytesIO()
    write_mo(file, strings)
    file.seek(0)
    return GNUTranslations(file)


def strings(name: str) -> dict[str, str]:
    """Return another catalogue's translations by their English strings; {} for English."""
    return {} if current_language() == "en" else _strings(name, current_language())


@cache
def _strings(name: str, language: str) -> dict[str, str]:
    return {str(each.id): str(each.string) for each in _read(name, language) if each.id}


def _read(name: str, language: str) -> "Catalog":
    from babel.messages.pofile import read_po

    with (_FOLDER / language / f"{name}.po").open("rb") as file:
        return read_po(file, locale=language)
