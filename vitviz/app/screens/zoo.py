"""The page Zoo: which tokens attend to which in each family, sizes of models, and costs."""

import html
import math
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import models, results
from vitviz.app.shared.view import View
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Data, Table, patch_columns
from vitviz.app.widgets.figure import Points, show_figure
from vitviz.app.widgets.places import places
from vitviz.common.images import data_url
from vitviz.common.language import Message, as_percent, capitalize, literal, mark, tr
from vitviz.plots import pairs
from vitviz.text.families import CARDS

if TYPE_CHECKING:
    from vitviz import Activations, Model
    from vitviz.model.families import Layer, Site
    from vitviz.zoo import Size

SHOWN_FAMILIES = tuple(CARDS)
PER_CENT = range(100)  # of the picture's height or width
INPUT_SIDES = (112, 224, 448, 896, 1792)  # pixels
PATCH, WINDOW = 16, 7  # pixels; patches
TILE = 224  # pixels: the side of a small photo
LAYER_KINDS = {
    "global": mark("global attention"),
    "window": mark("windows"),
    "grid": mark("grid attention"),
    "pooled": mark("pooled keys"),
    "class": mark("class attention"),
    "mixing": mark("token mixing, no A"),
}


def page(view: View) -> Data:
    from vitviz.zoo import TOYS

    family = choose(
        "family",
        tr("Family"),
        SHOWN_FAMILIES,
        "Swin",
        "bar",
        on_change=lambda: settings.change(zoo_layer=1),
    )
    architecture, model = TOYS[family].architecture, _narrow(family)
    acts = results.capture_picture(model, view.picture)
    with places().stage.container(key="strip"):
        _strip(view, family)
    live, matrices = places().stage.container(key="one_family").columns([5, 6])
    with live:
        layer, place = _live(view, family, model, acts)
    with matrices:
        _matrices(family, place)
    with places().notes:
        _card(family, architecture)
    st.subheader(tr("The first layer in which patches exchange information"), anchor=False)
    st.markdown(_first_layers())
    sizes, cost = st.columns([7, 5])
    with sizes:
        st.subheader(tr("Sizes of ViTs"), anchor=False)
        _sizes(view.model)
    with cost:
        st.subheader(tr("Cost of one layer"), anchor=False)
        _cost()
    line = tr(
        "{architecture}: allowed pairs, which do not depend on weights · layer {layer} of "
        "{depth} · {name}",
        architecture=architecture,
        layer=layer + 1,
        depth=acts.depth,
        name=view.picture.name,
    )
    return Data(lambda: _tables(view, model, acts, layer, place), record=line)


@st.cache_resource(show_spinner=False)
def _narrow(family: str) -> "Model":
    from vitviz.zoo import narrow_model

    return narrow_model(family)


def _place() -> tuple[int, int]:
    """Return the place of the query, in per cent down and across."""
    return setting("zoo_down", PER_CENT, 45), setting("zoo_across", PER_CENT, 45)


def _strip(view: View, family: str) -> None:
    """Draw what the first layer of each family lets the same patch attend to."""
    from vitviz.zoo import FIRST_LAYERS

    place, photo = _place(), results.reduced_photo(view)

    def make() -> tuple[str, ...]:
        edge = min(photo.size)
        left, top = ((size - edge) // 2 for size in photo.size)
        small = photo.resize((TILE, TILE), box=(left, top, left + edge, top + edge))
        tiles = []
        for first in FIRST_LAYERS.values():
            grid = (first.queries, first.queries)
            query = _patch(place, grid)
            tile = pairs.allowed_keys_tile(small, first.allowed_keys(query), grid, query)
            tiles.append(data_url(tile, "JPEG", quality=85))
        return tuple(tiles)

    tiles = results.compute((*view.key, "families", place, view.style.seen), make)
    figures = []
    for (name, first), tile in zip(FIRST_LAYERS.items(), tiles, strict=True):
        words = tr("{count} of {size}", count=first.window**2, size=first.keys**2)
        about = tr(
            "{family}: the patch may read from {count} of {size} keys.",
            family=name,
            count=first.window**2,
            size=first.keys**2,
        )
        chosen = ' class="chosen"' if name == family else ""
        figures.append(
            f'<figure{chosen}><img src="{tile}" alt="{html.escape(about)}">'
            f"<figcaption><b>{name}</b> {words}</figcaption></figure>"
        )
    st.html(f'<div class="strip">{"".join(figures)}</div>')


def _first_layers() -> str:
    """Return the table of the first layers with attention, as Markdown."""
    from vitviz.zoo import FIRST_LAYERS

    lines = [
        tr("| family | kind | patches | keys | one patch may read from |"),
        "|:--|:--|--:|--:|--:|",
    ]
    for name, first in FIRST_LAYERS.items():
        count, size = first.window**2, first.keys**2
        share = tr("{count} of {size} keys", count=count, size=size)
        grids = (_times((side, side)) for side in (first.queries, first.keys))
        cells = (name, tr(LAYER_KINDS[first.kind]), *grids, f"{share} ({as_percent(count / size)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _live(
    view: View, family: str, model: "Model", acts: "Activations"
) -> tuple[int, tuple[int, int]]:
    """Draw the keys of one query on the picture; returns the layer and the place in per cent."""
    layer = setting("zoo_layer", range(1, acts.depth + 1), 1) - 1
    place = _place()
    described, site = acts.layers[layer], model.sites[layer]
    figure_place = st.container()
    which, down, across = st.columns([3, 2, 2], vertical_alignment="bottom")
    label = tr("Layer of {family}", family=family)
    control("zoo_layer", label, range(1, acts.depth + 1), which, "slider")
    control("zoo_down", tr("Row, %"), PER_CENT, down, "slider")
    control("zoo_across", tr("Column, %"), PER_CENT, across, "slider")
    query = None if described.kind == "class" else _patch(place, described.query_grid)
    name = (
        "CLS"
        if query is None
        else tr("the patch at row {row}, column {column}", row=query[0] + 1, column=query[1] + 1)
    )
    allowed = _find_allowed_keys(model, acts, layer, query)
    figure = plots.allowed_keys(
        allowed,
        results.reduced_photo(view),
        crop=acts.crop_of(layer),
        grid=described.query_grid,
        query=query,
        query_name=name,
    )
    with figure_place:
        show_figure(figure, key="keys", on_click=_select_query)
    also = [token.upper() for token in described.prefix]
    same = allowed.shape == described.query_grid
    count_text = tr("{count} of {size} patches") if same else tr("{count} of {size} keys")
    keys = tr(" and ").join([count_text.format(count=allowed.sum(), size=allowed.size), *also])
    does = tr("{name} may attend to {keys}", name=name, keys=keys)
    if described.kind == "mixing":
        does = tr("{name} reads {keys}", name=name, keys=keys)
    st.markdown(
        tr(
            "**{kind}**, stage {stage}, {grid} patches: {does}.",
            kind=capitalize(tr(_kind(site))),
            stage=described.stage + 1,
            grid=_times(described.query_grid),
            does=does,
        )
    )
    return layer, place


def _select_query(points: Points) -> None:
    down, across = points[0]["customdata"]
    settings.change(zoo_down=down, zoo_across=across)


def _patch(place: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """Return the patch of a grid that lies so many per cent down and across."""
    row, col = (int((share + 0.5) * count / 100) for share, count in zip(place, grid, strict=True))
    return row, col


def _find_allowed_keys(
    model: "Model", acts: "Activations", layer: int, query: tuple[int, int] | None
) -> np.ndarray:
    """Return the keys to which a patch, or CLS, may attend: bool (rows, columns)."""
    if acts.layers[layer].kind == "mixing":
        return inspection.allowed_pairs(np.abs(model.token_mixing(layer)))
    return inspection.allowed_pairs(acts.attention_map(layer, query))


def _kind(site: "Site") -> Message:
    kind = Message(LAYER_KINDS[site.layer.kind])
    shifted = any(getattr(site.block, "shift_size", ()))
    return Message("shifted {kind}", kind=kind) if shifted else kind


def _times(grid: tuple[int, int]) -> str:
    return f"{grid[0]} x {grid[1]}"


@st.cache_resource(show_spinner=False)
def _toy(family: str) -> "tuple[Model, list[np.ndarray]]":
    """Return a tiny model of the family, and the pairs that each layer lets meet, seen on noise."""
    from PIL import Image

    import vitviz
    from vitviz.zoo import toy_model

    model = toy_model(family)
    noise = np.random.default_rng(0).integers(0, 256, (*model.preprocess.input_size, 3), np.uint8)
    acts = vitviz.capture(model, Image.fromarray(noise))
    return model, [
        inspection.allowed_pairs(
            np.abs(model.token_mixing(layer)).reshape(1, -1, math.prod(described.key_grid))
            if described.kind == "mixing"
            else acts.attention(layer)
        )
        for layer, described in enumerate(acts.layers)
    ]


def _matrices(family: str, place: tuple[int, int]) -> None:
    """Draw the allowed pairs of each layer of the toy, with the query on screen marked."""
    model, masks = _toy(family)
    layers = model.layers
    size = _times(model.preprocess.input_size)
    st.subheader(tr("Allowed pairs, in a tiny model of {size} pixels", size=size), anchor=False)
    mixing = layers[0].kind == "mixing"
    titles = [
        tr("layer {layer}, stage {stage}", layer=number, stage=site.layer.stage + 1)
        + f"<br>{tr(_kind(site))}<br>"
        f"{_times((mask.shape[0], mask.shape[1]))}: {as_percent(mask.mean())}"
        for number, (site, mask) in enumerate(zip(model.sites, masks, strict=True), start=1)
    ]
    show_figure(
        plots.allowed_pairs(
            masks,
            titles=titles,
            chosen=[None if mixing else _pair(layer, place) for layer in layers],
            prefixes=[[name.upper() for name in layer.prefix] for layer in layers],
            axes=(tr("unit of the MLP"), tr("patch j")) if mixing else (tr("query i"), tr("key j")),
        ),
        key="pairs",
    )
    if first := layers[0].stage:
        st.markdown(tr("Stages 1 to {first} are convolutions: there is no A.", first=first))
    if mixing:
        st.markdown(
            tr(
                "There is no A: these are the weights of the MLP that mixes the patches, "
                "which are the same for every picture."
            )
        )


def _pair(layer: "Layer", place: tuple[int, int]) -> tuple[int, int]:
    """Return row and column of A of the query and of the key at one place of the picture."""
    row, col = (
        len(layer.prefix) + int(np.ravel_multi_index(_patch(place, grid), grid))
        for grid in (layer.query_grid, layer.key_grid)
    )
    return 0 if layer.kind == "class" else row, col


def _card(family: str, architecture: str) -> None:
    card = CARDS[family]
    st.markdown(card.differs)
    st.markdown(tr("*What cannot be shown:* {hidden}", hidden=card.omissions))
    st.markdown(
        tr(
            "On the picture: {architecture}. Paper: {source}.",
            architecture=architecture,
            source=card.source,
        )
    )
    if architecture in models.model_names():
        st.button(
            tr("Open this model"),
            key="open_family",
            on_click=_open,
            args=(architecture,),
            icon=":material/visibility:",
            help=tr("Selects it as the model of all pages, and opens Attention."),
        )
    else:
        st.markdown(tr("It is not in the menu; vitviz.load_model can load it in Python."))


def _open(architecture: str) -> None:
    here = models.weights_marks().get(architecture) == models.ON_DISK
    settings.change(model=architecture, weights="trained" if here else "random")
    st.session_state.turn_to = "attention"


@st.cache_resource(show_spinner=False)
def _paper_sizes() -> "list[Size]":
    """Draw the sizes of the papers' ViTs, counted in timm's code."""
    from vitviz.zoo import PAPER_SIZES, count_architecture

    return [count_architecture(paper.architecture) for paper in PAPER_SIZES]


def _sizes(model: "Model") -> None:
    from vitviz.zoo import PAPER_SIZES, size_of

    lines = [
        tr("| | layers | D | MLP | heads | paper | counted | with head |"),
        "|:--|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for paper, size in zip(PAPER_SIZES, _paper_sizes(), strict=True):
        lines.append(_row(paper.name, size, f"{paper.parameters:.0f} M"))
    lines.append(_row(model.name, size_of(model.module, model.sites), ""))
    st.markdown("\n".join(lines))
    sources = dict.fromkeys(paper.source for paper in PAPER_SIZES)
    st.markdown(
        tr(
            "Layers, D, MLP and heads are read from timm's modules and agree with the papers "
            "({sources}). The parameters are counted at 224 px with patches of 16 px (Huge "
            "and G: 14 px), without a classification head and with one for 1000 classes (the "
            "last row: with its own). Both the head and the patch size change the number; the "
            "papers' tables do not state the head, and the ViT paper's table does not state "
            "the patch size.",
            sources="; ".join(sources),
        )
    )


def _row(name: str, size: "Size", paper: str) -> str:
    body = size.parameters - size.head_parameters
    cells = [
        literal(name).replace("|", r"\|"),  # which code in a table leaves to be escaped
        str(size.layers),
        *(_range(values) for values in (size.embed_dims, size.mlp_dims, size.heads)),
        paper,
        f"{body / 1e6:.1f} M",
        f"{size.parameters / 1e6:.1f} M",
    ]
    return f"| {' | '.join(cells)} |"


def _range(values: tuple[int, ...]) -> str:
    if not values:
        return "-"
    return str(values[0]) if len(values) == 1 else f"{min(values)}-{max(values)}"


def _cost() -> None:
    base = _paper_sizes()[0]
    (embed_dim,), (mlp_dim,) = base.embed_dims, base.mlp_dims
    tokens = [(side // PATCH) ** 2 for side in INPUT_SIDES]
    rest = [inspection.multiply_adds(n, embed_dim=embed_dim, mlp_dim=mlp_dim)[1] for n in tokens]
    every, windows = tr("A, all pairs"), tr("A, {side} x {side} windows", side=WINDOW)
    matrices = {
        name: [
            inspection.multiply_adds(n, keys or n, embed_dim=embed_dim, mlp_dim=mlp_dim)[0]
            for n in tokens
        ]
        for name, keys in ((every, None), (windows, WINDOW**2))
    }
    show_figure(plots.attention_cost(INPUT_SIDES, tokens, {**matrices, tr("the rest"): rest}))
    here = tokens.index(196)
    share = matrices[every][here] / (matrices[every][here] + rest[here])
    equal = rest[0] // tokens[0] // (2 * embed_dim)
    st.markdown(
        tr(
            "Base, patches of {patch} px: at 224 px A takes {share} of the multiply-adds; "
            "above N = {equal} it takes more than the rest. Twice the side means four times "
            "as many tokens and 16 times as many pairs, but within windows only four times as "
            "many pairs (Liu et al. 2021, equations 1 and 2).",
            patch=PATCH,
            share=as_percent(share),
            equal=equal,
        )
    )


def _tables(
    view: View, model: "Model", acts: "Activations", layer: int, place: tuple[int, int]
) -> list[Table]:
    from vitviz.zoo import PAPER_SIZES

    described = acts.layers[layer]
    query = None if described.kind == "class" else _patch(place, described.query_grid)
    allowed = _find_allowed_keys(model, acts, layer, query)
    papers, sizes = PAPER_SIZES, _paper_sizes()
    return [
        Table(
            tr("The layers of the family, and the allowed pairs in each, the same for all heads."),
            {
                Message("layer"): list(range(1, acts.depth + 1)),
                Message("stage"): [each.stage + 1 for each in acts.layers],
                Message("kind"): [_kind(site) for site in model.sites],
                Message("queries"): [_times(each.query_grid) for each in acts.layers],
                Message("keys"): [_times(each.key_grid) for each in acts.layers],
                Message("pairs"): [_pairs(acts, number) for number in range(acts.depth)],
            },
        ),
        Table(
            tr("The keys that the query may attend to."),
            {
                **patch_columns(view, grid=allowed.shape),
                Message("allowed"): allowed.ravel().astype(int),
            },
        ),
        Table(
            tr("Sizes in the papers, and as counted here."),
            {
                Message("size"): [paper.name for paper in papers],
                Message("source"): [paper.source for paper in papers],
                Message("layers"): [size.layers for size in sizes],
                "D": [size.embed_dims[0] for size in sizes],
                "MLP": [size.mlp_dims[0] for size in sizes],
                Message("heads"): [size.heads[0] for size in sizes],
                Message("parameters of the paper, M"): [paper.parameters for paper in papers],
                Message("counted, with head"): [size.parameters for size in sizes],
                Message("of which head"): [size.head_parameters for size in sizes],
            },
        ),
    ]


def _pairs(acts: "Activations", layer: int) -> int:
    described = acts.layers[layer]
    if described.kind == "mixing":
        return math.prod(described.query_grid) * math.prod(described.key_grid)
    return sum(int(inspection.allowed_pairs(each).sum()) for each, _, _ in acts.windows(layer))
