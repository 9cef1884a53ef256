"""Write captures as one HTML file that needs no server, no network and no other file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from latex2mathml.converter import convert
from plotly.io import to_json

from ... import inspection, plots
from ...common.files import creation_record
from ...common.language import tr, translate
from ...model.families import ModelError
from ...model.origin import PICTURE_LOST
from ...plots.template import as_white_json
from ...text import page_text
from ...text import report as text
from ...text.class_names import common_names, full_names
from ..traits import traits
from .components import anatomy, attention, build_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ...activations import Activations
    from ...model import Model
    from ...model.inputs import Picture

_PACKAGES = ("torch", "timm", "transformers", "numpy", "plotly")
_Figure = tuple[str, "Callable[[Activations], go.Figure]"]
#: Figures of a capture, each with the page that explains it.
_ANSWER: _Figure = (
    "classify",
    lambda acts: plots.class_probabilities(
        acts, labels=common_names(acts.output_names), full_names=full_names(acts.output_names)
    ),
)
_ALL_TO_ALL: tuple[_Figure, ...] = (  # these need the same tokens in each layer
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
class CapturedPicture:
    """A capture in a report.

    Attributes
    ----------
    name : str
        Of the picture.
    image : the picture; without it the report has no Anatomy
    checksum : str, optional
        SHA-256 of the picture's file.
    """

    model: "Model"
    name: str
    acts: "Activations"
    image: "Picture | None" = None
    checksum: str | None = None


def html(
    captured: Sequence[CapturedPicture],
    *,
    compared: "tuple[str, str, Sequence[go.Figure]] | None" = None,
    pause: Callable[[], object] = lambda: None,
) -> str:
    """Return a report of captures of one or several models.

    Parameters
    ----------
    captured : sequence of CapturedPicture
    compared : (finding, line, figures), optional
        The result of comparing them, in words and figures, and its provenance line. It comes first.
    pause : callable, optional
        Called after each figure, so that other threads can have the processor.

    Returns
    -------
    str
        The file. For each picture it has the token map of all layers and heads and Anatomy, both
        live, and the figures of the capture; then those of the weights of each model. All have
        captions, equations and a provenance line. It prints on A4. Where a figure is not possible
        for a model, the reason stands in its place.
    """
    models = list({id(one.model): one.model for one in captured}.values())
    body, sections = _Body(pause), []
    body.traits = traits(captured[0].model, captured[0].acts)
    if compared is not None:
        finding, line, figures = compared
        words = f"<p>{escape(finding.replace('**', ''))}</p><p class=line>{escape(line)}</p>"
        blocks = [body.figure(figure, "compare", line) for figure in figures]
        sections.append(_section(tr(text.COMPARED), [words, *blocks]))
    sections += [_picture_section(body, one, several=len(models) > 1) for one in captured]
    sections += [_weights_section(body, model, several=len(models) > 1) for model in models]
    records = [_record(one) for one in captured]
    creation = creation_record()
    versions = creation["versions"] | {"plotly": version("plotly")}
    packages = ", ".join(f"{name} {versions[name]}" for name in _PACKAGES)
    about = tr(
        "{models}. Made with vitviz {version} on Python {python} with {packages}, {time} UTC.",
        models="; ".join(tr(model.provenance) for model in models),
        version=versions["vitviz"],
        python=versions["python"],
        packages=packages,
        time=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    )
    names = [dict.fromkeys(each) for each in ((m.name for m in models), (c.name for c in captured))]
    title = escape(": ".join(", ".join(each) for each in names))
    untrained = [model for model in models if not model.trained]
    notice = tr(text.UNTRAINED if len(models) == 1 else text.SOME_UNTRAINED)
    warning = f"<p class=warning>{notice}</p>" if untrained else ""
    about = f"<p class=line>{escape(about)}</p>{warning}<p>{tr(text.NO_EXPERIMENTS)}</p>"
    head = f"<h1>{title}</h1>{about}"
    record = {**creation, "captures": records}
    return build_file(title, head + "".join(sections), body.components, body.figures, record)


def _record(one: CapturedPicture) -> dict[str, Any]:
    """Return `Activations.record` with the picture's name, and its file's digest if known."""
    record = one.acts.record
    record["picture"] = {**(record["picture"] or {}), "name": one.name}
    if one.checksum:
        record["picture"] |= {"sha256": one.checksum, "of": "file"}
        record["notes"] = [note for note in record["notes"] if note != PICTURE_LOST]
    return record


class _Body:
    """Builds the body of the file; its components and figures by the ids of their elements."""

    def __init__(self, pause: Callable[[], object]) -> None:
        self.pause = pause
        self.traits: frozenset[str] = frozenset()  # of the model and capture in the current section
        self.components: dict[str, dict[str, Any]] = {"attention": {}, "anatomy": {}}
        self.figures: dict[str, Any] = {}

    def live(
        self, kind: str, make: Callable[[str], dict[str, Any]], line: str, note: str = ""
    ) -> str:
        """Return a live component with its caption, or the reason if it is refused."""
        name = f"{kind}-{len(self.components[kind])}"
        try:
            self.components[kind][name] = make(name)
            self.pause()
        except ModelError as error:
            return f"<p>{escape(tr(error))}</p>"
        return (
            f'<figure class=live><div id="{name}"></div>{self.caption(kind, note, line)}</figure>'
        )

    def figure(self, figure: "go.Figure", page: str, line: str) -> str:
        name = f"figure-{len(self.figures)}"
        alt = figure.layout.meta["alt"]
        self.figures[name] = json.loads(to_json(as_white_json(figure), validate=False))
        self.pause()
        return (
            f'<figure><div id="{name}" role="img" aria-label="{escape(alt)}"></div>'
            f"{self.caption(page, alt, line)}</figure>"
        )

    def caption(self, page: str, note: str, line: str) -> str:
        words = page_text(page, self.traits)
        return (
            f"<figcaption><b>{escape(words.title)}: {escape(words.question)}</b> {escape(note)} "
            f"{_mathml(words.equation)} <span class=line>{escape(line)}</span></figcaption>"
        )


def _picture_section(body: _Body, one: CapturedPicture, *, several: bool) -> str:
    model, acts, image = one.model, one.acts, one.image
    body.traits = traits(model, acts)
    width, height = acts.picture_size
    line = f"{translate(acts.provenance)} · {one.name}"
    digest = f"SHA-256 {one.checksum}" if one.checksum else ""
    size = tr("{width} × {height} pixels.", width=width, height=height)
    record, weights = _record(one), ""
    if record["weights_sha256"]:
        weights = tr(text.WEIGHTS_DIGEST, sha256=record["weights_sha256"])
    notes = " ".join(map(tr, record["notes"]))
    parts = [f"<p class=line>{size} {digest} {weights} {escape(notes)}</p>"]
    if image is None:
        parts.append(f"<p>{tr(text.NO_PICTURE)}</p>")
    else:
        note = tr(text.OPENED, layer=acts.depth)
        parts.append(body.live("anatomy", lambda id: anatomy(model, image, acts, id), line, note))
    parts.append(body.live("attention", lambda id: attention(acts, id), line))
    for page, draw in (_ANSWER, *(_ALL_TO_ALL if acts.all_to_all else ())):
        try:
            parts.append(body.figure(draw(acts), page, line))
        except ValueError as error:  # this model does not have it
            parts.append(f"<p>{escape(tr(error))}</p>")
    if not acts.all_to_all:
        parts.append(f"<p>{escape(tr(text.NOT_ALIKE, model=model.name))}</p>")
    return _section(f"{one.name}, {_model_name(model)}" if several else one.name, parts)


def _section(title: str, parts: Sequence[str]) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _model_name(model: "Model") -> str:
    return f"{model.name}, {translate(model.weights)}"


def _weights_section(body: _Body, model: "Model", *, several: bool) -> str:
    """Return figures of the weights, which are the same for every picture."""
    parts, line = [], tr(model.provenance)
    kernel, table = model.patch_kernel, model.patch_positions
    if kernel is not None:
        count = min(28, len(kernel), kernel[0].size)
        kernel = model.preprocess.red_first(kernel, 1)
        components = inspection.filter_components(kernel, n_components=count)
        parts.append(body.figure(plots.filter_components(*components), "filters", line))
    if table is not None:
        similarity = inspection.position_similarity(table, grid=model.layers[0].query_grid)
        parts.append(body.figure(plots.position_similarity(similarity), "positions", line))
    title = tr(text.WEIGHTS_TITLE)
    if several:
        title = f"{title}, {_model_name(model)}"
    return _section(title, parts) if parts else ""


def _mathml(equation: str) -> str:
    """Convert LaTeX to MathML, which browsers draw by themselves; each line becomes a block."""
    source = equation.replace(r"\arg", r"\operatorname{arg}\,")
    within = source.removeprefix(r"\begin{gathered}").removesuffix(r"\end{gathered}")
    return "".join(convert(line.strip(), display="block") for line in within.split(r"\\"))
