"""Draw maps over the patches, in pixels of the picture."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..common.images import data_url
from ..common.language import as_percent, mark, patch_name, tr, tr_n
from .template import (
    BARE,
    GREY,
    INVISIBLE,
    KEY,
    QUERY,
    RELEVANCE,
    SHARES,
    SIGNED,
    Crop,
    add_picture_below,
    box_shape,
    cells,
    centre,
    colorbar,
    escape_text,
    finish,
    grid_lines,
    largest_patch,
    patch_names,
    picture_axes,
    query_box,
    smallest_patch,
)

_SHOWN_SIDE = 640  # pixels of the photo's longer side as it is sent to the browser
_COLORBAR = 66  # pixels that a horizontal colour bar takes below a map
_TITLE = 25  # pixels of a line above a map, enlarged for a presenter
_ROW = 195  # pixels of a row of maps with a line above; wider screens draw it larger
_LETTERS = 20  # of a line above a map, which on a phone has 160 pixels
_COLUMN = 360  # pixels of a usual column on screen


def picture(
    image: Image.Image,
    *,
    crop: Crop,
    grid: tuple[int, int],
    query: tuple[int, int] | None,
) -> go.Figure:
    """Draw the picture with its patch grid, and a solid cyan box around the query (row, column)."""
    figure = go.Figure()
    photo(figure, image)
    grid_lines(figure, crop, grid)
    if query is not None:
        query_box(figure, crop, grid, query)
    figure.add_trace(_span(image))
    _picture_axes(figure, image)
    query_text = (
        "" if query is None else tr("; the query is the patch at {patch}", patch=patch_name(*query))
    )
    return finish(
        figure,
        tr(
            "The picture, cut into {rows} rows and {cols} columns of patches{asked}.",
            rows=grid[0],
            cols=grid[1],
            asked=query_text,
        ),
        height=_picture_height(image),
    )


def attention_rollout(
    rollout: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    equal_share: float,
    name: str = mark("Attention rollout"),
) -> go.Figure:
    """Draw a rollout map (rows, columns), shares of 1, over the picture.

    `name` is the kind of rollout, for the alt text.
    """
    return share_map(rollout, image, crop=crop, equal_share=equal_share, name=tr(name))


def share_map(
    shares: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    name: str,
    equal_share: float | None = None,
) -> go.Figure:
    """Draw shares of 1 of each patch (rows, columns) in per cent, over the picture."""
    percent = 100 * shares
    highest = float(percent.max())
    ticks = {0.0: "0 %", highest: tr("{highest} max", highest=as_percent(highest / 100))}
    if equal_share is not None and 100 * equal_share <= highest:
        ticks[100 * equal_share] = tr("<br>▲ equal sharing")  # on a line of its own
    heat = heat_map(percent, crop, tr("share, %"), ticks, zmax=highest if highest > 0 else 1)
    return on_picture(go.Figure(heat), image, share_words(shares, name))


def share_words(shares: np.ndarray, name: str) -> str:
    """Say of a map of shares which patch is the strongest."""
    return f"{name}: {_strongest(shares)}."


def relevance(values: np.ndarray, image: Image.Image, *, crop: Crop, name: str) -> go.Figure:
    """Draw the relevance of each patch (rows, columns) for the class `name`, over the picture.

    Relevance is not negative and has no unit, so its colours are not those of shares. The colour
    bar prints the maximum.
    """
    highest = float(values.max())
    heat = heat_map(
        values,
        crop,
        tr("relevance for {name}", name=escape_text(name)),
        {0.0: "0", highest: tr("{highest:.2g} max", highest=highest)},
        zmax=highest if highest > 0 else 1,
        colorscale=RELEVANCE,
        hovertemplate="%{customdata}: %{z:.2g}<extra></extra>",
    )
    words = tr(
        "{title}: largest at {largest}, {highest:.2g}.",
        title=tr("Relevance of each patch for {name}", name=name),
        largest=largest_patch(values),
        highest=highest,
    )
    return on_picture(go.Figure(heat), image, words)


def ranked_maps(
    ranks: Mapping[str, np.ndarray],
    image: Image.Image,
    *,
    crop: Crop,
    values: Mapping[str, np.ndarray],
    patch: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw the picture and, beside it, maps of its patches by their ranks, all on one scale.

    Parameters
    ----------
    ranks : dict of a map's name to its ranks (rows, columns), from 0 to 1
        As `inspection.patch_ranks` returns them.
    values : dict of the same names to the numbers that were ranked, which are shown on hover
    patch : row and column of the one that gets a frame in each map, or None
    """
    count = 1 + len(ranks)
    rows = 1 if count <= 3 else 2
    across = -(-count // rows)
    titles = [tr("The picture"), *ranks]
    lines = [wrap(title, _LETTERS) for title in titles]
    by_row = [lines[row * across : (row + 1) * across] for row in range(rows)]
    # Shares of the figure's height: of the titles above each row, and of a row of maps.
    above = [_TITLE * max(map(len, of_row)) / (rows * _ROW) for of_row in by_row]
    side = (1 - sum(above)) / rows
    bar = colorbar(tr("rank among the patches"), below=False)
    bar["title"]["side"] = "right"  # above the bar it would touch the upper end's name
    bar |= dict(tickvals=[0, 100], ticktext=[tr("lowest"), tr("highest")])
    # Collected, as adding one after another takes Plotly three times as long.
    traces: list[go.Scatter | go.Heatmap] = []
    layout: dict[str, Any] = dict(annotations=[], shapes=[])
    grid = next(iter(ranks.values())).shape if ranks else (1, 1)
    for number, title in enumerate(titles):
        row, column = divmod(number, across)
        end = "" if number == 0 else str(number + 1)
        left, top = column / across, 1 - row * side - sum(above[: row + 1])
        layout[f"xaxis{end}"] = dict(
            range=[0, image.width],
            domain=[left + 0.01, left + 1 / across - 0.01],
            anchor=f"y{end}",
            constrain="domain",
            **BARE,
        )
        layout[f"yaxis{end}"] = dict(
            range=[image.height, 0],
            domain=[max(0, top - side), top],
            anchor=f"x{end}",
            scaleanchor=f"x{end}",
            constrain="domain",
            constraintoward="top",
            **BARE,
        )
        layout["annotations"].append(
            dict(
                text="<br>".join(map(escape_text, lines[number])),
                x=left + 0.5 / across,
                y=top,
                xref="paper",
                yref="paper",
                xanchor="center",
                yanchor="bottom",
                showarrow=False,
                font=dict(size=14),
            )
        )
        axes = dict(xref=f"x{end}", yref=f"y{end}")
        around = dict(x0=0, y0=0, x1=image.width, y1=image.height, **axes)
        layout["shapes"].append(dict(type="rect", line=dict(color=GREY, width=1), **around))
        if number == 0:
            traces.append(_span(image))
        else:
            texts = np.empty((*grid, 3), object)
            texts[..., 0] = patch_names(grid)
            texts[..., 1] = [[f"{value:.3g}" for value in line] for line in values[title]]
            # Not the rank, in which equal patches count half: many maps have patches of 0.
            smaller = np.searchsorted(np.sort(values[title], axis=None), values[title])
            texts[..., 2] = np.round(100 * smaller / max(smaller.size - 1, 1)).astype(int)
            traces.append(
                go.Heatmap(
                    z=100 * ranks[title],
                    zmin=0,
                    zmax=100,
                    colorscale=RELEVANCE,
                    xaxis=f"x{end}",
                    yaxis=f"y{end}",
                    showscale=number == 1,
                    colorbar=bar if number == 1 else None,
                    customdata=texts,
                    hovertemplate=tr(
                        "%{{customdata[0]}}: higher than %{{customdata[2]}} % of the other patches"
                        "<br>{name}: %{{customdata[1]}}<extra></extra>",
                        name=escape_text(title),
                    ),
                    **cells(crop, grid),
                )
            )
        if patch is not None:
            layout["shapes"].append(box_shape(crop, grid, patch) | axes)
    figure = go.Figure(traces)
    figure.update_layout(layout, overwrite=True)
    photo(figure, image)
    peaks = ", ".join(
        f"{name} {largest_patch(each) if np.ptp(each) else tr('nowhere')}"
        for name, each in ranks.items()
    )
    words = tr_n(
        "The picture and {count} map by rank; highest: {peaks}.",
        "The picture and {count} maps by rank; highest: {peaks}.",
        count - 1,
        peaks=peaks,
    )
    return finish(figure, words, height=rows * _ROW)


def patch_answers(
    probabilities: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    labels: Sequence[str],
    index: int,
    full_names: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the probability of one class if each patch alone answered, over the picture.

    Parameters
    ----------
    probabilities : ndarray of shape (rows, columns, K), shares of 1
    labels : K names; hovering shows each patch's most probable class
    index : of the class whose probability is drawn
    full_names : K texts to show on hover instead of `labels`
    """
    values, best = probabilities[..., index], probabilities.argmax(axis=-1)
    name = escape_text(labels[index])
    texts = [
        [
            tr(
                "{patch}: {label} {probability}",
                patch=patch_name(r, c),
                label=escape_text((full_names or labels)[top]),
                probability=as_percent(probabilities[r, c, top]),
            )
            for c, top in enumerate(row)
        ]
        for r, row in enumerate(best)
    ]
    percent, highest = 100 * values, max(float(values.max()), 1e-12)
    ticks = {0.0: "0 %", 100 * highest: tr("{highest} max", highest=as_percent(highest))}
    heat = heat_map(
        percent,
        crop,
        tr("probability of {label}", label=name),
        ticks,
        zmax=float(percent.max()) or 1,
        customdata=texts,
        hovertemplate=f"%{{customdata}}<br>{name} %{{z:.2f}} %<extra></extra>",
    )
    words = tr(
        "Probability of {label} as each patch alone would answer: {strongest}; {share} of the "
        "patches answer {label}.",
        label=labels[index],
        strongest=_strongest(values),
        share=as_percent((best == index).mean()),
    )
    return on_picture(go.Figure(heat), image, words)


def receptive_fields(
    image: Image.Image, *, crop: Crop, grid: tuple[int, int], patch: tuple[int, int], pixel: float
) -> go.Figure:
    """Draw what a patch of a ViT sees, and a pixel of a CNN of 3 x 3 kernels, on the picture.

    Parameters
    ----------
    crop : (left, top, right, bottom) of the grid in pixels of the picture
    patch : row and column of the patch
    pixel : side of a pixel of the model's input, in pixels of the picture
    """
    figure = picture(image, crop=crop, grid=grid, query=patch)
    x, y = centre(crop, grid, *patch)
    whole = dict(zip(("x0", "y0", "x1", "y1"), crop, strict=True))
    figure.add_shape(type="rect", line=dict(color=QUERY, width=4), **whole)
    for layer in (3, 2, 1):
        half = (2 * layer + 1) / 2 * pixel
        figure.add_shape(
            type="rect",
            x0=x - half,
            x1=x + half,
            y0=y - half,
            y1=y + half,
            line=dict(color=KEY, width=2, dash=("solid", "dash", "dot")[layer - 1]),
        )
    words = tr(
        "The patch at {patch} sees its own pixels in the embedding and the whole picture "
        "from layer 1 on; a pixel in its middle sees 3, 5 and 7 pixels across after "
        "layers 1, 2 and 3 of a CNN.",
        patch=patch_name(*patch),
    )
    return figure.update_layout(meta={"alt": words})


def filter_response(
    response: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    name: str,
    query: tuple[int, int] | None = None,
) -> go.Figure:
    """Draw the inner product of each patch with one filter (rows, columns), over the picture.

    The picture is grey, so that its colours are not mixed with those of the scale, which runs as
    far below 0 as above. An invisible point on each patch, row by row, can be clicked.

    Parameters
    ----------
    query : row and column of the patch that gets a frame, or None
    """
    low, high = float(response.min()), float(response.max())
    reach = max(-low, high) or 1.0
    heat = heat_map(
        response,
        crop,
        tr("inner product x E"),
        _signed_ticks(low, high, reach),
        zmin=-reach,
        zmax=reach,
        colorscale=SIGNED,
        opacity=0.65,
        hoverinfo="skip",
        hovertemplate=None,
    )
    points = _clickable_patches(crop, response, "{:+.2f}".format)
    words = tr(
        "Response of each patch to {name}: from {low:+.2f} at {least} to {high:+.2f} at {most}.",
        name=name,
        low=low,
        least=smallest_patch(response),
        high=high,
        most=largest_patch(response),
    )
    figure = on_grey(go.Figure([heat, points]), image, words)
    if query is not None:
        query_box(figure, crop, response.shape, query)
    return figure


def word_map(
    values: np.ndarray, image: Image.Image, *, crop: Crop, title: str, signed: bool
) -> go.Figure:
    """Draw how each patch (rows, columns) answers to a phrase, over the picture.

    Cosines with one phrase lie in a narrow range, so their colours run from the smallest to the
    largest. `signed` values, such as the difference of two phrases, have as much colour below 0 as
    above. The picture is grey, so that its colours do not mix with those of the scale.
    """
    low, high = float(values.min()), float(values.max())
    words = tr(
        "{title}: from {low:+.2g} at {least} to {high:+.2g} at {most}.",
        title=title,
        low=low,
        least=smallest_patch(values),
        high=high,
        most=largest_patch(values),
    )
    reach = max(-low, high) or 1.0
    ends, scale = (-reach, reach), SIGNED
    ticks = _signed_ticks(low, high, reach, "+.2g")
    if not signed:
        ends, scale = (low, high if high > low else low + 1), RELEVANCE
        ticks = {
            low: tr("{low} min", low=f"{low:+.2g}"),
            high: tr("{high} max", high=f"{high:+.2g}"),
        }
    heat = heat_map(
        values,
        crop,
        escape_text(title),
        ticks,
        zmin=ends[0],
        zmax=ends[1],
        colorscale=scale,
        opacity=0.65,
        hovertemplate="%{customdata}: %{z:+.2g}<extra></extra>",
    )
    return on_grey(go.Figure(heat), image, words)


def on_grey(figure: go.Figure, image: Image.Image, words: str) -> go.Figure:
    """Lay a signed map over the grey picture; white means 0, so what is not seen is grey."""
    figure = on_picture(figure, image, words)
    photo(figure, image.convert("L").convert("RGB"))
    around = dict(x0=0, y0=0, x1=image.width, y1=image.height, line_width=0, layer="below")
    return figure.add_shape(type="rect", fillcolor="rgba(138,143,152,0.45)", **around)


def _clickable_patches(crop: Crop, values: np.ndarray, words: Callable[[float], str]) -> go.Scatter:
    """Return an invisible point per patch, row by row, that shows its value and can be clicked."""
    places = list(np.ndindex(*values.shape))
    x, y = centre(crop, values.shape, *np.array(places).T)
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        **INVISIBLE,
        text=[f"{patch_name(*place)}: {words(float(values[place]))}" for place in places],
        hovertemplate="%{text}<extra></extra>",
    )


def query_map(
    shares: np.ndarray, image: Image.Image, *, crop: Crop, query: tuple[int, int], name: str
) -> go.Figure:
    """Draw the shares of 1 that the query pays to each patch (rows, columns), over the picture.

    The picture is grey, so that its colours do not mix with those of the scale. An invisible
    point on each patch, row by row, can be clicked.
    """
    highest = float(shares.max())
    heat = heat_map(
        100 * shares,
        crop,
        tr("share, %"),
        {0.0: "0 %", 100 * highest: tr("{highest} max", highest=as_percent(highest))},
        zmax=100 * highest or 1,
        opacity=0.65,
        hoverinfo="skip",
        hovertemplate=None,
    )
    figure = go.Figure([heat, _clickable_patches(crop, shares, as_percent)])
    photo(figure, image.convert("L").convert("RGB"))
    query_box(figure, crop, shares.shape, query)
    return on_picture(figure, image, share_words(shares, name))


def _signed_ticks(low: float, high: float, reach: float, digits: str = "+.2f") -> dict[float, str]:
    """Return the ticks of a signed colour bar: smallest and largest value, and 0 if it fits."""
    ticks = {
        low: tr("{low} min", low=f"{low:{digits}}"),
        high: tr("{high} max", high=f"{high:{digits}}"),
    }
    room = 0.4 * reach  # a fifth of the bar, on which a label just fits
    if high - low < room:
        ticks = {low: ticks[low]} if -low > high else {high: ticks[high]}
    if all(abs(value) >= room for value in ticks):
        ticks[0.0] = "0"
    return ticks


def heat_map(
    values: np.ndarray,
    crop: Crop,
    title: str,
    ticks: Mapping[float, str] | None = None,
    **style: Any,
) -> go.Heatmap:
    """Make a heat map of patches, each in one colour; by default of shares in per cent from 0."""
    bar = colorbar(title)
    if ticks is not None:
        bar |= dict(tickvals=list(ticks), ticktext=list(ticks.values()))
    usual = dict(
        zmin=0,
        colorscale=SHARES,
        customdata=patch_names(values.shape),
        hovertemplate="%{customdata}: %{z:.2f} %<extra></extra>",
    )
    return go.Heatmap(z=values, colorbar=bar, **cells(crop, values.shape), **{**usual, **style})


def on_picture(
    figure: go.Figure, image: Image.Image, words: str, *, below: int = _COLORBAR
) -> go.Figure:
    """Give a map the axes of the picture, `words` as alt text, and `below` pixels under it."""
    _picture_axes(figure, image)
    return finish(figure, words, height=_picture_height(image) + below)


def photo(figure: go.Figure, image: Image.Image) -> None:
    add_picture_below(figure, photo_source(image), (0, 0), image.size)


def photo_source(image: Image.Image) -> str:
    """Return the picture as a data address, no larger than the screen needs."""
    return _source(image.mode, image.size, image.tobytes())


@lru_cache(8)  # a page shows the same few pictures after each change: 0.5 ms instead of 8 ms
def _source(mode: str, size: tuple[int, int], pixels: bytes) -> str:
    small = Image.frombytes(mode, size, pixels)
    small.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
    return data_url(small, "JPEG", quality=88)


def _span(image: Image.Image) -> go.Scatter:
    """Return two invisible points that span a picture: in some browsers it alone has no axes."""
    x, y = [0, image.width], [0, image.height]
    return go.Scatter(x=x, y=y, mode="markers", marker_opacity=0, hoverinfo="skip")


def _picture_axes(figure: go.Figure, image: Image.Image) -> None:
    picture_axes(figure, (0, 0, image.width, image.height))
    outline = dict(x0=0, x1=image.width, y0=0, y1=image.height)
    figure.add_shape(type="rect", line=dict(color=GREY, width=1), **outline)


def _picture_height(image: Image.Image) -> int:
    """Return the height on screen of a figure of the picture in a usual column."""
    return round(min(380, _COLUMN * max(0.45, image.height / image.width))) + 16


def _strongest(values: np.ndarray) -> str:
    share = as_percent(float(values.max()))
    return tr("strongest at {patch}, {share}", patch=largest_patch(values), share=share)
