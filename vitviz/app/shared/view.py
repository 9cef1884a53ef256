"""The model, picture, layer, head and query on screen, and how maps are drawn."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar
from weakref import ref

from vitviz.app.shared.pictures import Picture
from vitviz.common.language import tr
from vitviz.web.token_map import PlacedGrid

if TYPE_CHECKING:
    import numpy as np

    from vitviz import Activations, Model
    from vitviz.model.families import Layer

T = TypeVar("T")
MEAN = "mean"  # as a head: the mean of heads; as a query: the mean of the patches


@dataclass(frozen=True)
class MapStyle:
    """How maps are drawn."""

    direction: Literal["row", "column"]
    view: Literal["heat", "spotlight"]
    scale: Literal["map", "shared", "log"]
    leave_out: bool  # whether the query itself is excluded from the colour scale
    smooth: bool
    seen: bool  # whether the model's input stands in the place of the picture


class Cached(Generic[T]):
    """A value that a cache holds, made again if the cache has dropped it."""

    def __init__(self, value: T, again: Callable[[], T]) -> None:
        self._value, self._again = ref(value), again

    def __call__(self) -> T:
        value = self._value()
        return self._again() if value is None else value


@dataclass(frozen=True)
class View:
    """The model, picture and choices on screen. Layers, heads and tokens count from 0.

    Head None is the mean of heads; query None the mean of the patches, for a model whose head does
    not read CLS. Streamlit keeps the view of a session's last page until the session ends, so it
    does not hold the model and its capture.
    """

    cached_model: "Cached[Model]"
    picture: Picture
    cached_acts: "Cached[Activations]"
    layer: int
    head: int | None
    query: int | None
    style: MapStyle

    @property
    def model(self) -> "Model":
        return self.cached_model()

    @property
    def acts(self) -> "Activations":
        return self.cached_acts()

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.acts.layers[self.layer].prefix

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of the layer."""
        return self.acts.layers[self.layer].query_grid

    @property
    def query_patch(self) -> tuple[int, int] | None:
        """Row and column of the query; None if it is no patch."""
        if self.query is None or self.query < len(self.prefix):
            return None
        return divmod(self.query - len(self.prefix), self.grid[1])

    @property
    def query_name(self) -> str:
        """Name of the query on screen."""
        if self.query is None:
            return tr("the mean of the patches")
        if self.query_patch is None:
            return tr("the {name} token", name=self.prefix[self.query].upper())
        return tr(
            "the patch at row {row}, column {column}",
            row=self.query_patch[0] + 1,
            column=self.query_patch[1] + 1,
        )

    @property
    def layer_name(self) -> str:
        return tr("layer {layer} of {depth}", layer=self.layer + 1, depth=self.acts.depth)

    @property
    def place(self) -> str:
        """The layer and the head on screen, in words."""
        return tr("layer {layer}, ", layer=self.layer + 1) + head_name(self.head)

    def of_head(self, values: "np.ndarray") -> "np.ndarray":
        """Return the values of the head on screen, of an array by head; or the mean of heads."""
        own: np.ndarray = values.mean(axis=0) if self.head is None else values[self.head]
        return own

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Cache key: what the capture depends on."""
        return (*model_key(self.model), self.picture.digest)


def head_name(head: int | None) -> str:
    """Return the name of a head, or of the mean of heads."""
    return tr("mean of heads") if head is None else tr("head {head}", head=head + 1)


def model_key(model: "Model") -> tuple[str, str]:
    """Return the part of a cache key that identifies a model: name, weights and preprocessing.

    Random weights of two folders may have all of these in common, but not the folder.
    """
    words = () if model.words is None else model.words.names
    return model.name, f"{model.weights}, {model.preprocess}, {words}, {model.folder}"


def placed_grid(picture: Picture, acts: "Activations", layer: int) -> PlacedGrid:
    """Return a layer's grid of queries, and its box in fractions of the picture's sides."""
    crop = zip(acts.crop_of(layer), 2 * picture.size, strict=True)
    return acts.layers[layer].query_grid, tuple(pixels / side for pixels, side in crop)


def describe_reading(acts: "Activations") -> str:
    """Say at which token maps of the answer are read, and which others the head reads."""
    patches = "patches" in acts.read_tokens or not acts.read_tokens
    where = tr("at the mean of the patches") if patches else tr("at CLS")
    also = [name.upper() for name in acts.read_tokens if name not in ("cls", "patches")]
    if "patches" in acts.read_tokens and "cls" in acts.layers[0].prefix:
        if "cls" not in acts.read_tokens:
            return tr("{where} (the head does not read CLS)", where=where)
        also.insert(0, "CLS")
    if not also:
        return where
    return tr("{where} (the head reads {names} too)", where=where, names=tr(" and ").join(also))


def token_text(layer: "Layer", token: int | None) -> str:
    """Return a token as the address writes it: cls, reg1, mean, or row.column from 1."""
    if token is None or token < 0:
        return MEAN
    if token < len(layer.prefix):
        return layer.prefix[token]
    row, col = divmod(token - len(layer.prefix), layer.query_grid[1])
    return f"{row + 1}.{col + 1}"
