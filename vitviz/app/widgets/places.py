"""The places of a page, and the explanation that stands in them."""

import html
import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.widgets import lesson
from vitviz.common.language import literal, tr
from vitviz.text import PageText, glossary

# A mark that opens the text after it, which is on the page all the time, and cut off by style.css.
_FOLD = (
    '<details><summary data-more="{} ▾" data-less="{} ▴" aria-label="{}"></summary></details>'
    "<p>{}</p>"
)


@dataclass
class Places:
    """Places at the top of every page, in this order; the page itself draws below them.

    Attributes
    ----------
    beside_title : what a presenter has beside the title
    top : warnings
    intro : the sentence that says what is seen, and what changes all of the page beside it
    bar : what one plays with
    stage : the first figure, or several side by side
    notes : the finding, and the explanation of the page
    """

    beside_title: DeltaGenerator | None
    top: DeltaGenerator = field(default_factory=st.container)
    intro: DeltaGenerator = field(default_factory=st.empty)
    bar: DeltaGenerator = field(
        default_factory=lambda: st.container(
            key="bar", horizontal=True, vertical_alignment="center", gap="medium"
        )
    )
    stage: DeltaGenerator = field(default_factory=lambda: st.container(key="stage"))
    notes: DeltaGenerator = field(default_factory=lambda: st.container(key="notes"))
    _settings: DeltaGenerator | None = None

    @cached_property
    def _row(self) -> tuple[DeltaGenerator, DeltaGenerator]:
        # A row that nobody draws into would move what is below it.
        with self.intro.container(key="intro", horizontal=True, vertical_alignment="center"):
            return st.container(key="lead"), st.container(width="content")

    @property
    def lead(self) -> DeltaGenerator:
        """The place of the sentence that says what is seen."""
        return self._row[0]

    @property
    def beside(self) -> DeltaGenerator:
        """The place beside that sentence; a presenter, who has none, has it beside the title."""
        return self.beside_title or self._row[1]

    @property
    def settings(self) -> DeltaGenerator:
        """The menu of what is seldom changed; it is drawn when a page first asks for it."""
        if self._settings is None:
            with self.bar:
                self._settings = st.popover(tr("Settings"), key="settings", icon=":material/tune:")
        return self._settings


_places: ContextVar[Places] = ContextVar("places")


def lay_out(beside_title: DeltaGenerator | None) -> Places:
    """Make the places of a page, once in a run."""
    page_places = Places(beside_title)
    _places.set(page_places)
    return page_places


def label_in_bar(label: str) -> DeltaGenerator:
    """Draw a label in the bar, and return the bar for the control beside it."""
    places().bar.markdown(label, width="content")
    return places().bar


def places() -> Places:
    """Return the places of the page that is being drawn."""
    return _places.get()


@lesson.part("finding")
def draw_finding(sentence: str, *, of: str = "") -> None:
    """Draw the sentence on what was found; lessons hide it, as they ask for it."""
    if sentence:
        places().notes.markdown(f"**{of or tr('On this picture')}:** {sentence}")


def fold(line: str, whole: str) -> str:
    """Return a line that is cut off until its mark is opened, as HTML; `whole` names the mark.

    The line is text: the name of a file in it does not become markup.
    """
    return _FOLD.format(tr("more"), tr("less"), html.escape(whole), html.escape(line))


def draw_caption(words: PageText) -> None:
    """Draw the lead sentence and, closed below the figure, the explanation of the page.

    A presenter says the sentence aloud, so it is not drawn for one.
    """
    lead, see, try_this = with_definitions(
        words.lead, words.see, f"**{tr('Try this.')}** {words.try_this}"
    )
    if not settings.is_presenting():
        places().lead.markdown(lead, unsafe_allow_html=True)  # our own strings alone
    with places().notes.expander(tr("What this shows, and what to try"), key="explanation"):
        st.latex(words.equation)
        st.markdown(see, unsafe_allow_html=True)
        st.markdown(try_this, unsafe_allow_html=True)
        for title, text in (
            (tr("What the papers found"), words.papers),
            (tr("Often said, and wrong"), words.wrong),
        ):
            if text:
                st.markdown(f"**{title}**\n\n{text}")


def with_definitions(*texts: str) -> list[str]:
    """Return Markdown texts with the definition of each glossary term where it first occurs."""
    meanings = glossary()
    forms = sorted(meanings, key=len, reverse=True)
    # A Korean word is followed by its particle, without a space.
    ends = r"(?:\b|(?=[가-힣]))"
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, forms))}){ends}", re.IGNORECASE)
    seen_terms: set[str] = set()

    def defined(match: re.Match[str]) -> str:
        meaning = meanings[match[0].lower()]
        if meaning in seen_terms:
            return match[0]
        seen_terms.add(meaning)
        return (
            f'<span class="term" tabindex="0">{match[0]}'
            f'<span class="meaning" role="tooltip">{literal(meaning)}</span></span>'
        )

    return [pattern.sub(defined, text) for text in texts]
