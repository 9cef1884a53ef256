"""The caption card of a page, with definitions that open on its terms, and the boxes below it."""

import re

import streamlit as st

from vitviz.language import tr
from vitviz.text import PageText, glossary

# A mark that style.css opens: what stands beside it is on the page all the time, and cut off.
_FOLD = '<details><summary data-more="{} ▾" data-less="{} ▴" aria-label="{}"></summary></details>'


def fold(whole: str) -> str:
    """The mark of what is cut off, as HTML; `whole` says what it opens."""
    return _FOLD.format(tr("more"), tr("less"), whole)


def caption(words: PageText) -> None:
    """Draw the card, a few lines high until the reader asks for all of it."""
    see, try_this = with_definitions(words.see, f"**{tr('Try this.')}** {words.try_this}")
    with st.container(border=True, key="caption"):
        equation, left, right = st.columns([3, 5, 3])
        equation.latex(words.equation)
        left.markdown(see, unsafe_allow_html=True)  # our own strings alone
        right.markdown(try_this, unsafe_allow_html=True)
        st.html(fold(tr("The whole caption")))


def boxes(words: PageText) -> None:
    """Draw what the papers found and the common errors, closed, where the page has them."""
    for title, said in (
        (tr("What the papers found"), words.papers),
        (tr("Often said, and wrong"), words.wrong),
    ):
        if said:
            with st.expander(title):
                st.markdown(said)


def with_definitions(*texts: str) -> list[str]:
    """The texts in Markdown, with the definition of each glossary term where it first occurs."""
    meanings = glossary()
    forms = sorted(meanings, key=len, reverse=True)
    # A Korean word is followed by its particle, without a space.
    ends = r"(?:\b|(?=[가-힣]))"
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, forms))}){ends}", re.IGNORECASE)
    met: set[str] = set()

    def defined(found: re.Match[str]) -> str:
        meaning = meanings[found[0].lower()]
        if meaning in met:
            return found[0]
        met.add(meaning)
        return (
            f'<span class="term" tabindex="0">{found[0]}'
            f'<span class="meaning" role="tooltip">{literal(meaning)}</span></span>'
        )

    return [pattern.sub(defined, text) for text in texts]


def literal(text: str) -> str:
    """Text in which nothing is HTML or Markdown: all but letters, digits and spaces as entities."""
    return re.sub(r"[^\w ]|_", lambda found: f"&#{ord(found[0])};", text)
