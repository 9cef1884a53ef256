"""`html`: captures as one HTML file, which needs no server, no network and no other file."""

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert
from plotly.io import to_json

from .. import inspection, plots
from ..families import ModelError
from ..language import told, tr
from ..plots.template import on_white
from ..text import page_text
from ..text import report as text
from ..traits import traits
from .components import anatomy, attention
from .file import file

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from PIL import Image

    from ..activations import Activations
    from ..model import Model

_PACKAGES = ("torch", "timm", "numpy", "plotly")
_Figure = tuple[str, "Callable[[Activations], go.Figure]"]
#: Figures of a capture, each with the page of the lesson that explains it.
_ANSWER: _Figure = "classify", lambda acts: plots.class_probabilities(acts)
_ALIKE: tuple[_Figure, ...] = (  # those of tokens that are the same in each layer
    ("distance", lambda acts: plots.attention_distance(acts, selected=(acts.depth - 1, None))),
    ("distance", lambda acts: plots.distance_histogram(acts, acts.depth - 1, 0)),
    ("distance", lambda acts: plots.offset_attention(acts, acts.depth - 1, 0)),
    ("rollout", lambda acts: plots.attention_rollout(acts)),
    ("tokens", lambda acts: plots.token_components(acts)),
    ("tokens", lambda acts: plots.token_scatter(acts)),
    ("tokens", lambda acts: plots.token_norms(acts)),
    ("tokens", lambda acts: plots.token_film(acts)),
)


@dataclass(frozen=True, eq=False)
class Captured:
    """A picture in a report.

    Attributes
    ----------
    name : of the picture
    image : the picture; without it the report has no Anatomy
    checksum : SHA-256 of its file
    """

    model: "Model"
    name: str
    acts: "Activations"
    image: "Image.Image | None" = None
    checksum: str | None = None


def html(
    captured: Sequence[Captured], *, compared: "tuple[str, str, Sequence[go.Figure]] | None" = None
) -> str:
    """The report of some captures, of one model or of several.

    Parameters
    ----------
    captured : sequence of Captured
    compared : (found, line, figures), optional
        What was found when they were compared, in words and in figures, and the line that says of
        what; this comes first.

    Returns
    -------
    str
        The file. For each picture it has the token map of all layers and heads and Anatomy, both
        live, and the figures of the capture; then those of the weights of each model. All have
        captions, equations and the line that says what was measured. It prints on A4. What cannot
        be shown of a model says so in a sentence.
    """
    models = list({id(one.model): one.model for one in captured}.values())
    made, sections = _Made(), []
    made.traits = traits(captured[0].model, captured[0].acts)
    if compared is not None:
        found, line, figures = compared
        words = f"<p>{escape(found.replace('**', ''))}</p><p class=line>{escape(line)}</p>"
        drawn = [made.figure(figure, "compare", line) for figure in figures]
        sections.append(_section(tr(text.COMPARED), [words, *drawn]))
    sections += [_picture_section(made, one, several=len(models) > 1) for one in captured]
    sections += [_weights_section(made, model, several=len(models) > 1) for model in models]
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    about = tr(
        "{models}. Made with vitviz {version} on Python {python} with {packages}, {time} UTC.",
        models="; ".join(tr(model.provenance) for model in models),
        version=version("vitviz"),
        python=platform.python_version(),
        packages=packages,
        time=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    )
    names = [dict.fromkeys(each) for each in ((m.name for m in models), (c.name for c in captured))]
    title = escape(": ".join(", ".join(each) for each in names))
    untrained = [model for model in models if not model.trained]
    said = tr(text.UNTRAINED if len(models) == 1 else text.SOME_UNTRAINED)
    warning = f"<p class=warning>{said}</p>" if untrained else ""
    head = (
        f"<h1>{title}</h1><p class=line>{escape(about)}</p>{warning}<p>{tr(text.EXPERIMENTS)}</p>"
    )
    return file(title, head + "".join(sections), made.components, made.figures)


class _Made:
    """What the body of the file draws, by the ids of its elements."""

    def __init__(self) -> None:
        self.traits: frozenset[str] = frozenset()  # of what is drawn now
        self.components: dict[str, dict[str, Any]] = {"attention": {}, "anatomy": {}}
        self.figures: dict[str, Any] = {}

    def live(
        self, kind: str, make: Callable[[str], dict[str, Any]], line: str, said: str = ""
    ) -> str:
        """A live component with its caption; where it is refused, the reason."""
        name = f"{kind}-{len(self.components[kind])}"
        try:
            self.components[kind][name] = make(name)
        except ModelError as error:
            return f"<p>{escape(tr(error))}</p>"
        return (
            f'<figure class=live><div id="{name}"></div>{self.caption(kind, said, line)}</figure>'
        )

    def figure(self, figure: "go.Figure", page: str, line: str) -> str:
        name = f"figure-{len(self.figures)}"
        alt = figure.layout.meta["alt"]
        self.figures[name] = json.loads(to_json(on_white(figure), validate=False))
        return (
            f'<figure><div id="{name}" role="img" aria-label="{escape(alt)}"></div>'
            f"{self.caption(page, alt, line)}</figure>"
        )

    def caption(self, page: str, said: str, line: str) -> str:
        words = page_text(page, self.traits)
        return (
            f"<figcaption><b>{escape(words.title)}: {escape(words.question)}</b> {escape(said)} "
            f"{_mathml(words.equation)} <span class=line>{escape(line)}</span></figcaption>"
        )


def _picture_section(made: _Made, one: Captured, *, several: bool) -> str:
    model, acts, image = one.model, one.acts, one.image
    made.traits = traits(model, acts)
    width, height = acts.picture_size
    line = f"{told(acts.provenance)} · {one.name}"
    digest = f"SHA-256 {one.checksum}" if one.checksum else ""
    size = tr("{width} × {height} pixels.", width=width, height=height)
    parts = [f"<p class=line>{size} {digest}</p>"]
    if image is None:
        parts.append(f"<p>{tr(text.NO_PICTURE)}</p>")
    else:
        said = tr(text.OPENED, layer=acts.depth)
        parts.append(made.live("anatomy", lambda id: anatomy(model, image, acts, id), line, said))
    parts.append(made.live("attention", lambda id: attention(acts, id), line))
    for page, draw in (_ANSWER, *(_ALIKE if acts.all_to_all else ())):
        try:
            parts.append(made.figure(draw(acts), page, line))
        except ValueError as error:  # what this model does not have, in one sentence
            parts.append(f"<p>{escape(tr(error))}</p>")
    if not acts.all_to_all:
        parts.append(f"<p>{escape(tr(text.NOT_ALIKE, model=model.name))}</p>")
    return _section(f"{one.name}, {_called(model)}" if several else one.name, parts)


def _section(title: str, parts: Sequence[str]) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _called(model: "Model") -> str:
    return f"{model.name}, {told(model.weights)}"


def _weights_section(made: _Made, model: "Model", *, several: bool) -> str:
    """Figures of the weights, which are the same for every picture."""
    parts, line = [], tr(model.provenance)
    kernel, table = model.patch_kernel, model.position_embedding
    if kernel is not None:
        count = min(28, len(kernel), kernel[0].size)
        found = inspection.filter_components(kernel, n_components=count)
        parts.append(made.figure(plots.filter_components(*found), "filters", line))
    grid = model.layers[0].query_grid
    if table is not None and len(table) >= grid[0] * grid[1]:
        similarity = inspection.position_similarity(table, grid=grid)
        parts.append(made.figure(plots.position_similarity(similarity), "positions", line))
    title = tr(text.WEIGHTS)
    if several:
        title = f"{title}, {_called(model)}"
    return _section(title, parts) if parts else ""


def _mathml(equation: str) -> str:
    """LaTeX as MathML, which browsers draw by themselves; each line of it is a block."""
    known = equation.replace(r"\arg", r"\operatorname{arg}\,")
    within = known.removeprefix(r"\begin{gathered}").removesuffix(r"\end{gathered}")
    return "".join(convert(line.strip(), display="block") for line in within.split(r"\\"))
