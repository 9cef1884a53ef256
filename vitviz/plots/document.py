"""A page of figures that needs no other file."""

import html
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
from plotly.io import to_html

from .template import on_white

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;"
    "text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "figure{margin:0 0 2rem;overflow-x:auto}figure>div{min-width:36rem}"
)


def document(
    title: str, facts: dict[str, str], figures: Iterable[tuple[str, str, go.Figure]]
) -> str:
    """One HTML file, which loads nothing: a table of facts, and figures with title and words."""
    parts = [_table(facts)]
    plotly: Any = True  # the library is written out once, before the first figure
    for heading, words, figure in figures:
        drawn = to_html(
            on_white(figure),
            full_html=False,
            include_plotlyjs=plotly,
            config={"displaylogo": False},
            validate=False,
        )
        plotly = False
        alt = html.escape(figure.layout.meta["alt"])
        parts.append(
            f"<h2>{html.escape(heading)}</h2><p>{html.escape(words)}</p>"
            f'<figure role="img" aria-label="{alt}">{drawn}</figure>'
        )
    title = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>\n"
    )


def _table(facts: dict[str, str]) -> str:
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"
