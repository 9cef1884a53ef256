"""`Model`: a module with its layers, preprocessing and labels, whose pass can be watched."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from .families import (
    Layer,
    ModelError,
    Offset,
    Parts,
    exchanged,
    family_of,
    given_outputs,
    read_tokens,
    receptive_field_offsets,
    token_weights,
    why_unready,
)
from .language import Message
from .memory import capture_bytes
from .preprocessing import Preprocessing
from .recording import RECORDER, Recorder, recorded
from .words import Words

__all__ = ["RECORDER", "Model", "ModelError", "Preprocessing", "Recorder"]


class Model:
    """A Vision Transformer that can be watched.

    Parameters
    ----------
    module : nn.Module
        Of a family in `vitviz.families`. It is left as it is; a capture needs it in evaluation
        mode.
    name : str
    preprocessing : Preprocessing
    trained : bool
        False for random weights.
    weights : str
        Where the weights come from, for the provenance line.
    labels : tuple of str, optional
        Names of the classes, where they are known.
    embeds : bool
        True where the head gives an embedding of the picture and no classes, as CLIP's does.
    temperature : float, optional
        What the logits must be divided by for probabilities that can be believed, where it was
        fitted on pictures that were held out of training.

    Raises
    ------
    ModelError
        When no family recognises the module.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str,
        preprocessing: Preprocessing,
        trained: bool,
        weights: str,
        labels: tuple[str, ...] | None = None,
        embeds: bool = False,
        temperature: float | None = None,
    ) -> None:
        family = family_of(module)
        sites = family.sites(module, preprocessing.input_size)
        self.module = module
        self.name = name
        self.family = family.name
        self.preprocess = preprocessing
        self.trained = trained
        self.weights = weights
        self._labels = labels
        self.embeds = embeds or family.parts(module).embeds
        self.temperature = temperature
        self.folder: Path | None = None  # of the files it was made of, where it has one
        self.positional_attention = family.positional_attention(module)
        self._family = family
        self.words: Words | None = None
        self.sites = sites
        self.capture_bytes = capture_bytes(sites)  # asked for before each capture
        self.layers: tuple[Layer, ...] = tuple(site.layer for site in sites)
        self._read_tokens: dict[object, tuple[str, ...]] = {}  # by the pooling
        self._children = {path: _children(module, path) for path in _ancestors(self.layers)}

    def __repr__(self) -> str:
        height, width = self.preprocess.input_size
        return (
            f"Model({self.name!r}, {self.family}, {len(self.layers)} layers, "
            f"{self.parameter_count / 1e6:.1f} M parameters, {height} x {width} px, {self.weights})"
        )

    def _repr_html_(self) -> str:
        height, width = self.preprocess.input_size
        rows = {
            "weights": self.weights,
            "family": self.family,
            "parameters": f"{self.parameter_count / 1e6:.1f} M",
            "input": f"{height} x {width} pixels",
            "layers": str(len(self.layers)),
        }
        return html_table(self.name, rows)

    @property
    def provenance(self) -> Message:
        """The model's part of the provenance line: name, size, weights and input."""
        height, width = self.preprocess.input_size
        whole = self.preprocess.crop_mode == "squash" and self.preprocess.crop_pct == 1
        return Message(
            "{name} ({family}, {count:.1f} M parameters) · {weights}, input {height} × {width} px"
            "{whole}",
            name=self.name,
            family=self.family,
            count=self.parameter_count / 1e6,
            weights=Message(self.weights),
            height=height,
            width=width,
            whole=Message(", the whole picture") if whole else "",
        )

    @contextmanager
    def watched(
        self, recorder: Recorder, projections: Iterable[int] = (), *, first: int = 0
    ) -> Iterator[None]:
        """Call `recorder` back during the forward pass that this context makes.

        Parameters
        ----------
        recorder : Recorder
        projections : iterable of int
            The layers whose concatenated heads it is handed.
        first : int
            The first layer whose block runs; the outputs of those before it are given.

        Raises
        ------
        ModelError
            Before the pass, when the module is in training mode, compiled, or made of other blocks
            than the Model was; after it, when the blocks did not run once each in their order.
        """
        self._check_ready()
        with recorded(self.parts.embedding, self.sites, recorder, projections) as ran:
            yield
        if ran != [*range(first, len(self.sites))]:
            raise ModelError(
                "The blocks of {model} did not run once each in their order, so what they "
                "computed cannot be told apart.",
                model=self.name,
            )

    def _check_ready(self) -> None:
        if refusal := why_unready(self.module):
            raise ModelError(refusal)
        if any(_children(self.module, path) != known for path, known in self._children.items()):
            raise ModelError(
                "The blocks of {model} are not those that it was made of: make a new Model "
                "of its module.",
                model=self.name,
            )

    @property
    def parts(self) -> Parts:
        """What the module has beside its layers, as it is now."""
        return self._family.parts(self.module)

    def run(self, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """What the model gives for inputs (B, 3, H, W): logits or embeddings (B, K).

        `module` is left out, or one in which something was exchanged.
        """
        return self._in_words(self._family.run(self.module if module is None else module, x))

    def beginning_at(self, layer: int, outputs: Sequence[Any]) -> nn.Module:
        """The module in which the blocks before a layer return these outputs without computing.

        It shares all else with the model's own, and is given to `run`.
        """
        names = (described.name for described in self.layers[:layer])
        return given_outputs(self.module, dict(zip(names, outputs[:layer], strict=True)))

    def answer(self, tokens: Tensor) -> Tensor:
        """What the model computes after its last block, of tokens (B, T, D): as `run`."""
        return self._in_words(self._family.answer(self.module, tokens))

    def _in_words(self, output: Tensor) -> Tensor:
        return output if self.words is None else self.words.logits(output)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of logits (..., K): their softmax, or the sigmoid of each (`Words.activation`)."""
        return logits.sigmoid() if self.activation == "sigmoid" else logits.softmax(dim=-1)

    @property
    def activation(self) -> Literal["softmax", "sigmoid"]:
        """What makes probabilities of logits."""
        return "softmax" if self.words is None else self.words.activation

    def with_words(self, words: Words) -> Self:
        """The same model with words for its classes: its logits are those of the words.

        Parameters
        ----------
        words : Words
            Made by the text tower that was trained with this model, which is not checked.

        Raises
        ------
        ModelError
            When the model gives no embedding of the picture, or one of another width.
        """
        if not self.embeds:
            raise ModelError(
                "{model} gives no embedding of the picture that words could be compared "
                "with, as CLIP and SigLIP do.",
                model=self.name,
            )
        width = words.vectors.shape[1]
        if width != self.parts.outputs:
            raise ModelError(
                "{model} gives {outputs} numbers, and the vectors of the words have {width}: "
                "they belong to another model.",
                model=self.name,
                outputs=self.parts.outputs,
                width=width,
            )
        other = copy(self)
        other.words, other.embeds, other._labels = words, False, words.names
        other.weights = f"{self.weights}, {words.provenance}"
        return other

    def pooled(self, tokens: Tensor) -> Tensor:
        """What the head reads: as `answer`, of the module without the last linear layer."""
        (head,) = self.parts.heads
        return self._family.answer(exchanged(self.module, head, nn.Identity()), tokens)

    @property
    def device(self) -> torch.device:
        """Where its weights are, and where it computes."""
        return next(self.module.parameters()).device

    def placed(self, values: Tensor) -> Tensor:
        """The same values where the weights are, in their precision."""
        return values.to(next(self.module.parameters()))

    @property
    def num_classes(self) -> int:
        """How many classes the head has; 0 without a head, or where it gives an embedding."""
        if self.words is not None:
            return len(self.words.names)
        return 0 if self.embeds else self.parts.outputs

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes; None where they are unknown, as after the head was replaced."""
        known = self._labels is not None and len(self._labels) == self.num_classes
        return self._labels if known else None

    @labels.setter
    def labels(self, names: tuple[str, ...] | None) -> None:
        if names is not None and len(names) != self.num_classes:
            raise ModelError(
                "{model} has {classes} classes, and {names} names are given.",
                model=self.name,
                classes=self.num_classes,
                names=len(names),
            )
        self._labels = names

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @cached_property
    def offsets(self) -> tuple[Offset, ...]:
        """How far (down, right) each layer's receptive fields are centred from its patches.

        In pixels of the input, measured at the first use with the weights of that time.
        """
        self._check_ready()
        return receptive_field_offsets(self.module, self.sites, self.preprocess.input_size)

    @property
    def read_tokens(self) -> tuple[str, ...]:
        """Names of the tokens from which the head reads the answer; "patches" are all of them.

        Those on which the output depends: a CLS token that is there need not be read.
        Empty where not every layer attends globally over the same tokens.
        """
        if any(
            site.layout != "tokens" or site.layer.stage or site.layer.kind != "global"
            for site in self.sites
        ):
            return ()
        pooling = getattr(self.module, "global_pool", None)  # timm's can be changed later
        if pooling not in self._read_tokens:
            self._check_ready()
            prefix = self.layers[0].prefix
            self._read_tokens[pooling] = read_tokens(self._family, self.module, prefix)
        return self._read_tokens[pooling]

    @property
    def final_norm(self) -> nn.Module | None:
        """The LayerNorm after the last block, or after the pooling in models that have it there."""
        parts = self.parts
        if parts.pooled_norm is not None and isinstance(parts.norm, nn.Identity | None):
            return parts.pooled_norm
        return parts.norm

    @property
    def patch_kernel(self) -> np.ndarray | None:
        """The filters E of eq. 1: ndarray of shape (D, C, P, P); None behind a hybrid's CNN."""
        kernel = self.parts.kernel
        return _read_only(kernel.weight) if isinstance(kernel, nn.Conv2d) else None

    def token_mixing(self, layer: int) -> np.ndarray:
        """The weights by which an MLP-Mixer mixes its tokens: ndarray of shape (units, rows, cols).

        Each map is what one unit takes from each patch. It is no attention: it is the same for
        every picture, may be negative, and does not sum to 1.

        Raises
        ------
        ModelError
            When the layer attends instead.

        References
        ----------
        Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision" (NeurIPS 2021), Fig. 5.
        """
        if not 0 <= layer < len(self.sites):
            raise ValueError(f"Expected a layer in 0..{len(self.sites) - 1}, got {layer}.")
        site = self.sites[layer]
        weights = token_weights(site)
        if weights is None:
            raise ModelError(
                "{layer} attends to tokens, and has no weights that mix them.",
                layer=site.layer.name,
            )
        return _read_only(weights.reshape(-1, *site.layer.query_grid))

    @property
    def position_embedding(self) -> np.ndarray | None:
        """E_pos of eq. 1: ndarray of shape (N or prefix + N, D); None where there is none."""
        table = self.positions
        return None if table is None else _read_only(table.flatten(0, -2))

    @property
    def positions(self) -> Tensor | None:
        """The table that `position_embedding` reads."""
        path = self.parts.positions
        return attrgetter(path)(self.module) if path else None

    @property
    def positions_learned(self) -> bool:
        return isinstance(self.positions, nn.Parameter)


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """A small table for notebooks; nothing in it is markup."""
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(words)}</td></tr>" for name, words in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def _read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy().copy()
    array.flags.writeable = False
    return array


def _ancestors(layers: Iterable[Layer]) -> set[str]:
    """The paths of all modules that contain a block, directly or not, below the model itself."""
    steps = (layer.name.split(".") for layer in layers)
    return {".".join(path[:end]) for path in steps for end in range(1, len(path))}


def _children(module: nn.Module, path: str) -> tuple[nn.Module | None, ...]:
    """The direct children of the submodule at `path`; none where there is no such submodule."""
    for name in path.split("."):
        part = module._modules.get(name)
        if part is None:
            return ()
        module = part
    return tuple(module._modules.values())
