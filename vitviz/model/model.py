"""`Model`: a module with layers, preprocessing and labels, whose forward pass can be watched."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from html import escape
from operator import attrgetter, itemgetter
from pathlib import Path
from threading import RLock
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from ..common.language import Message, reason_of
from .answers import Answers, Grades, Labels, class_names, configured_answers, parse_answers, scores
from .devices import TOLERANCE, own_precision
from .families import (
    Family,
    Layer,
    ModelError,
    Offset,
    Parts,
    Site,
    call,
    copy_returning,
    copy_with,
    explain_unready,
    family_of,
    filters,
    gives_logits,
    image_side,
    input_channels,
    is_known_to_copy,
    one_tensor,
    read_tokens,
    receptive_field_offsets,
    replaces_method,
    token_weights,
)
from .families.description import known_class
from .memory import capture_bytes
from .origin import WeightsState
from .preprocessing import Preprocessing
from .recording import RECORDER, Recorder, hook_this_thread, record_pass
from .text import TextTower
from .words import Words

__all__ = ["RECORDER", "Model", "ModelError", "Preprocessing", "Recorder"]


class Model:
    """A Vision Transformer that can be watched.

    Parameters
    ----------
    module : nn.Module
        A module of a family in `vitviz.model.families`, or a module with one such part. It is not
        changed; a capture needs it in evaluation mode.
    path : str
        Path of that part in the module; "" for the module itself. Attention is read in the part,
        while the whole module runs and answers.
    name : str
    preprocessing : Preprocessing
    trained : bool
        False for random weights.
    weights : str
        Where the weights come from, for the provenance line.
    labels : sequence of str or mapping, optional
        Names of the classes, if they are known: see `class_names`.
    embedding_widths : collection of int
        Numbers of outputs with which a head without labels gives an embedding, as CLIP's does.
    answers : "classes", "labels", "values" or "embedding", optional
        What the outputs mean, if the module does not show it: see `Model.answers`.
    temperature : float, optional
        Divisor of the logits that makes probabilities calibrated, fitted on held-out pictures.
    grades : Grades, optional
        Probabilities at which an answer is confident, unsure or weak, fitted on such pictures.

    Raises
    ------
    ModelError
        When no family recognises the module.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        path: str = "",
        name: str,
        preprocessing: Preprocessing,
        trained: bool,
        weights: str,
        labels: Labels | None = None,
        embedding_widths: Collection[int] = (),
        answers: Answers | None = None,
        temperature: float | None = None,
        grades: Grades | None = None,
    ) -> None:
        self.module = module
        self.path = path
        self.name = name
        self.preprocess = preprocessing.with_channels(input_channels(module))
        self.trained = trained
        self.weights = weights
        self._labels = None if labels is None else class_names(labels)
        self._stated_answers = parse_answers(answers)
        self._embedding_widths = embedding_widths
        self.temperature = temperature
        self.grades = grades
        self.folder: Path | None = None  # with its config.json, if it was loaded from a folder
        self.words: Words | None = None
        #: Loads the text tower; None if the model has none.
        self.text_loader: Callable[[], TextTower] | None = None
        #: Why the text tower in its folder cannot be loaded; "" if there is none.
        self.text_refusal = ""
        self._text_tower: TextTower | None = None
        #: Layers of a changed module that attend among misplaced tokens, and why they are refused.
        self.misplaced: Mapping[int, Message] = {}
        self._weights_state: WeightsState | None = None
        self._reading: _Reading | None = None
        if self.reading.adds_weights:  # labels of the part name other outputs
            self._labels, self._embedding_widths = None, ()

    @property
    def reading(self) -> "_Reading":
        """How the module is read; computed again after the module was changed."""
        with _turn(self.module):
            current = self._reading
            if self._checked_state is None and (current is None or not current.is_of(self)):
                current = self._reading = _Reading(self)
            assert current is not None
            return current

    @contextmanager
    def assume_unchanged(self) -> Iterator[None]:
        """Check once whether the module was changed, and not again in this context.

        Each check takes a hundred microseconds, and a capture would make twenty of them.

        Raises
        ------
        ModelError
            When the module is not ready to be watched.
        """
        self._check_ready()
        before = _CHECKED.set(_CheckedState(self.reading))
        try:
            yield
        finally:
            _CHECKED.reset(before)

    @property
    def _checked_state(self) -> "_CheckedState | None":
        """State that was checked in this context (see `assume_unchanged`); None outside of one."""
        state = _CHECKED.get()
        return state if state is not None and state.reading is self._reading else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out objects with weak references; copies and other processes compute them again."""
        return {**vars(self), "_reading": None, "_weights_state": None, "_text_tower": None}

    @property
    def part(self) -> nn.Module:
        """The Vision Transformer in the module, which may be the module itself."""
        return self.module.get_submodule(self.path)

    @property
    def family(self) -> str:
        return self.reading.family.name

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.reading.sites

    @property
    def layers(self) -> tuple[Layer, ...]:
        layers = self.reading.layers
        if not self.misplaced:
            return layers
        return tuple(
            replace(layer, refusal=layer.refusal or self.misplaced.get(number))
            for number, layer in enumerate(layers)
        )

    @property
    def capture_bytes(self) -> int:
        """Bytes that one capture keeps, at most."""
        return self.reading.capture_bytes

    @property
    def positional_attention(self) -> bool:
        """Whether attention itself depends on the position of every patch."""
        return self.reading.family.positional_attention(self.part)

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
            "{whole}{answers}",
            name=self.name,
            family=self.family,
            count=self.parameter_count / 1e6,
            weights=Message(self.weights),
            height=height,
            width=width,
            whole=Message(", the whole picture") if whole else "",
            answers=self._answers_note,
        )

    @property
    def _answers_note(self) -> str:
        """Note of the provenance line on outputs that are neither classes nor an embedding."""
        if self.words is None and self.answers == "labels":
            return Message(", each output is a label with its own probability")
        return (
            Message(", outputs are values with no known unit") if self.answers == "values" else ""
        )

    @contextmanager
    def recording(
        self, recorder: Recorder, projections: Iterable[int] = (), *, first: int = 0
    ) -> Iterator[None]:
        """Call `recorder` back during the forward pass that this context makes.

        Parameters
        ----------
        recorder : Recorder
        projections : iterable of int
            Layers whose concatenated heads are passed to the recorder.
        first : int
            First layer whose block runs; a copy returns given outputs for those before it.

        Raises
        ------
        ModelError
            Before the pass, when the module is in training mode or compiled; during it, when tokens
            lie on another grid; after it, when the blocks did not run once each in their order.
        """
        self._check_ready()
        with (
            self._restoring() as reading,
            record_pass(self.parts, reading.sites, recorder, projections) as ran,
        ):
            yield
        if ran != [*range(first, len(reading.sites))]:
            raise ModelError(
                "The blocks of {model} did not run once each in their order, so their outputs "
                "cannot be matched to layers.",
                model=self.name,
            )

    @contextmanager
    def _restoring(self) -> Iterator["_Reading"]:
        """Put attributes back that a pass in this context changes: watching leaves no trace."""
        with _turn(self.module):
            reading = self.reading
            try:
                yield reading
            finally:
                reading.restore()

    def _check_ready(self) -> None:
        if self._checked_state is None and (refusal := explain_unready(self.module)):
            raise ModelError(refusal)

    @property
    def parts(self) -> Parts:
        """Modules and tables beside the layers, as they are now."""
        state = self._checked_state or _CheckedState(self.reading)
        if state.parts is None:
            with _exchanged_parts(self, state.reading.family):
                state.parts = state.reading.family.parts(self.part)
        return state.parts

    def run(self, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """Return logits or embeddings (B, K) for inputs (B, C, H, W).

        `module`, if given, is a copy of the model's own in which something was exchanged.
        """
        module = self.module if module is None else module
        return self._apply_words(self._run_to_rows(x, module))

    def _run_to_rows(self, x: Tensor, module: nn.Module, rows: int | None = None) -> Tensor:
        """Run a module, and return its output as a row of numbers for each of `rows` pictures."""
        family, size = self.reading.family, (x.shape[-2], x.shape[-1])
        rows = len(x) if rows is None else rows
        run = call if self.path else family.run
        with self._restoring():
            output = one_tensor(run(module, x, family.options(self.part, size)), module)
        if output.ndim > 2 and not self.reading.adds_weights:  # tokens of the part
            output = family.features(self.part, output)
        if output.ndim < 2 and output.numel() == rows:
            output = output.reshape(rows, 1)  # a single output, squeezed
        if output.ndim == 1 and rows == 1:
            output = output[None]
        if output.ndim != 2 or len(output) != rows:
            raise ModelError(
                "{model} gives an output of shape {shape} for a picture instead of one row of "
                "numbers. {advice}",
                model=self.name,
                shape=tuple(output.shape[output.ndim > 2 :]),
                advice=self._advice_on_rows(),
            )
        return output

    def _advice_on_rows(self) -> Message:
        # In transformers, `base_model_prefix` names the encoder under a head for dense outputs.
        part = self.path or getattr(self.module, "base_model_prefix", None) or "?"
        if part in dict(self.module.named_modules()):
            return Message("Give watch the part of it that encodes the picture, {part}.", part=part)
        return Message(
            "If its head answers each token, choose a pooling, such as "
            'global_pool="token" or "avg" in timm.'
        )

    def beginning_at(self, layer: int, outputs: Sequence[Any]) -> nn.Module | None:
        """Copy the module so that the blocks before a layer return these outputs, for `run`.

        The copy shares everything else with the module, and computes nothing in those blocks.
        None if a copy does not compute what the module computes.
        """
        if self.reading.continues != "copy":
            return None
        names = (info.name for info in self.layers[:layer])
        return copy_returning(self.module, dict(zip(names, outputs[:layer], strict=True)))

    def with_exchanged(self, path: str, value: nn.Module | Tensor) -> nn.Module:
        """Copy the module with another part or tensor at a path in its part, for `run`.

        Raises
        ------
        ModelError
            When a copy does not compute what the module computes.
        """
        if self.reading.continues != "copy":
            raise ModelError(
                "No part of {model} can be exchanged for an experiment: a method of it, or of a "
                "module around its blocks, was replaced by a function bound to the original parts.",
                model=self.name,
            )
        return copy_with(self.module, ".".join(filter(None, (self.path, path))), value)

    def answer(self, tokens: Tensor) -> Tensor:
        """Compute the output, as `run` returns it, from tokens (B, T, D) after the last block.

        Raises
        ------
        ModelError
            When the output depends on more than these tokens.
        """
        if self.reading.continues == "no":
            raise ModelError(
                "The output of {model} depends on more than the tokens after its last block, so it "
                "cannot be computed from other tokens.",
                model=self.name,
            )
        return self._apply_words(self._run_after_blocks(tokens, self.reading.continues == "copy"))

    def _run_after_blocks(self, tokens: Tensor, in_copy: bool) -> Tensor:
        """Run what follows the last block: in a copy of the module, or in a whole pass.

        The whole pass is given a black picture; `tokens` replace those of its last block.
        """
        channels = len(self.preprocess.mean)
        picture = tokens.new_zeros(1, channels, *self.preprocess.input_size)
        if in_copy:
            outputs = {layer.name: tokens for layer in self.layers}
            return self._run_to_rows(picture, copy_returning(self.module, outputs), len(tokens))
        with self.recording(ChangeTokens(len(self.layers) - 1, lambda _: tokens)):
            return self._run_to_rows(picture, self.module, len(tokens))

    def _apply_words(self, rows: Tensor) -> Tensor:
        return rows if self.words is None else self.words.logits(rows)

    def scores(self, logits: Tensor) -> Tensor:
        """Turn logits (..., K) into probabilities: softmax of classes, sigmoid of labels.

        Values and embeddings stay as they are.
        """
        return scores(logits, self.answers)

    @property
    def answers(self) -> Answers:
        """What the outputs mean.

        - "classes": one of them applies. The softmax gives probabilities that sum to 1.
        - "labels": several may apply. The sigmoid of each logit is the probability of its label.
          Chosen for `problem_type="multi_label_classification"` in transformers, for words of
          SigLIP, and for a single output with two labels: its probability is that of the second.
        - "values": numbers with no known unit, and no probabilities. Chosen for
          `problem_type="regression"`, for a single output of which nothing is known, and if the
          head, or a module around the model, has turned its logits into probabilities already.
        - "embedding": features of the picture, as a model without a head gives them.
        """
        if self.words is not None:
            return "labels" if self.words.activation == "sigmoid" else "classes"
        single = (
            self._stated_answers == "classes" and self.outputs == 1
        )  # its softmax would always be 1
        if self._stated_answers is not None and not single:
            return self._stated_answers
        if self.reading.gives_shares:  # a softmax of probabilities would be wrong
            return "values"
        if image_side(self.module) is not None:
            return "embedding"
        own_answers = None
        if known_class(self.module).__module__.startswith("transformers."):
            own_answers = configured_answers(self.module)  # around a part of timm, say
        if not self.reading.adds_weights:  # else another module than the part's head answers
            parts = self.parts
            if parts.embeds or not parts.has_head:
                return "embedding"
            if self._labels is None and self.outputs in self._embedding_widths:
                return "embedding"
            own_answers = own_answers or configured_answers(self.part)
        if self.outputs > 1 or own_answers == "labels":
            return own_answers or "classes"
        return "labels" if self._labels is not None and len(self._labels) == 2 else "values"

    @answers.setter
    def answers(self, stated: Answers | None) -> None:
        if parse_answers(stated) == "classes" and self.outputs == 1:
            raise ModelError(
                "{model} has a single output, which cannot choose among classes. Give "
                'answers="labels" for a yes or no, or answers="values" for a number.',
                model=self.name,
            )
        self._stated_answers = stated

    @property
    def has_one_answer(self) -> bool:
        """Whether the most probable output is the answer, as for classes and words."""
        return self.answers == "classes" or self.words is not None

    @property
    def has_head(self) -> bool:
        """Whether a head computes the outputs; else they are features that a head would read."""
        is_stated = self._stated_answers not in (None, "embedding")
        parts = self.parts
        return is_stated or self.reading.adds_weights or parts.has_head or parts.embeds

    @property
    def embeds(self) -> bool:
        """Whether a head gives an embedding of the picture."""
        return self.has_head and self.answers == "embedding"

    @property
    def outputs(self) -> int:
        """Count the numbers that the module gives for a picture, by running it.

        Attributes such as timm's `num_classes` would be stale after a head was exchanged. The
        module is run again once a part outside its blocks has changed.

        Raises
        ------
        ModelError
            When the module cannot run, or does not give one row of numbers.
        """
        self._check_ready()
        return self.reading.outputs

    @property
    def text_tower(self) -> TextTower:
        """The text tower that was trained with the model, loaded when it is first asked for.

        Raises
        ------
        ModelError
            When the model has none, or its files cannot be read.
        """
        tower = self._text_tower
        if tower is None:
            if self.text_refusal:
                raise ModelError(self.text_refusal)
            if self.text_loader is None:
                raise ModelError(
                    "{model} has no text tower here. Give with_words the vectors of words from a "
                    'file: vitviz.Words.read("animals.npz").',
                    model=self.name,
                )
            tower = self._text_tower = self.text_loader()
        return tower

    def drop_text_tower(self) -> None:
        """Free a text tower that was loaded from files; it is loaded again when it is needed."""
        self._text_tower = None

    def with_words(
        self, words: Words | Sequence[str], template: str | Sequence[str] = "{}"
    ) -> Self:
        """Return the model with words for its classes, whose logits it then gives.

        Parameters
        ----------
        words : Words, or sequence of str
            Phrases, which the model's own text tower turns into vectors. Or vectors of the text
            tower that was trained with this model; whether it was is not checked.
        template : str or sequence of str
            What the text tower reads for a phrase, with {} in its place: "a photo of a {}.". For
            several templates, the vectors of a phrase are scaled to length 1, averaged, and scaled
            to length 1 again.

        Raises
        ------
        ModelError
            When the model gives no embedding of the picture, or an embedding of another width; when
            it has no text tower; when a phrase is empty or longer than the tower's context.

        References
        ----------
        Radford et al., "Learning Transferable Visual Models From Natural Language Supervision"
        (ICML 2021), section 3.1.4, of templates and their mean.
        """
        if not self.embeds:
            raise ModelError(
                "{model} gives no embedding of the picture to compare words with. Give words to a "
                "model such as CLIP or SigLIP.",
                model=self.name,
            )
        if not isinstance(words, Words):
            words = self.text_tower.words(words, template)
        width = words.vectors.shape[1]
        if width != self.outputs:
            raise ModelError(
                "{model} gives {outputs} numbers, and the vectors of the words have {width}. Give "
                "words of the text tower that belongs to this model.",
                model=self.name,
                outputs=self.outputs,
                width=width,
            )
        other = copy(self)
        other.words, other._labels = words, words.names
        other.weights = Message(self.weights) + Message(", {words}", words=words.provenance)
        return other

    def pool(self, tokens: Tensor) -> Tensor:
        """Compute the input of the part's last linear layer from tokens after the last block."""
        (head,) = self.parts.heads
        with collect_inputs(self.part.get_submodule(head)) as read:
            self.answer(tokens)
        return read[-1]

    def reaching(self, x: Tensor) -> Tensor:
        """Return what the part's patch embedding is given when the module is given `x`."""
        if not self.path:
            return x
        with collect_inputs(self.parts.embedding) as read:
            self.run(x)
        return read[-1]

    @property
    def device(self) -> torch.device:
        """Device of the weights, on which the model computes."""
        return next(self.module.parameters()).device

    def to_device(self, values: Tensor) -> Tensor:
        """Move values to the device of the weights, in their precision."""
        return values.to(next(self.module.parameters()))

    @property
    def num_classes(self) -> int:
        """Number of classes, labels or values that the head gives; 0 for an embedding."""
        if self.words is not None:
            return len(self.words.names)
        return 0 if self.answers == "embedding" else self.outputs

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the outputs; None if they are unknown, as after the head was replaced.

        A single output with two labels has the name of the second.
        """
        names = self._labels
        if names is None or len(names) == self.num_classes:
            return names
        return names[1:] if self.num_classes == 1 and len(names) == 2 else None

    @labels.setter
    def labels(self, labels: Labels | None) -> None:
        before, self._labels = self._labels, None if labels is None else class_names(labels)
        if labels is None or self.labels is not None:
            return
        names, self._labels = self._labels, before
        if self.answers == "embedding":
            raise ModelError(
                "{model} gives an embedding of the picture, and its numbers have no labels.",
                model=self.name,
            )
        raise ModelError(
            "Expected a label for each of {outputs} outputs, got {names}.",
            outputs=self.num_classes,
            names=len(names or ()),
        )

    @property
    def weights_state(self) -> WeightsState:
        """State of the weights: the same object as long as they are not changed."""
        checked_state = self._checked_state
        if checked_state is not None and checked_state.weights is not None:
            return checked_state.weights
        state = self._weights_state
        if state is None or not state.is_current(self.module):
            state = self._weights_state = WeightsState(self.module)
        if checked_state is not None:
            checked_state.weights = state
        return state

    @property
    def parameter_count(self) -> int:
        return self.weights_state.parameter_count

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """Offset (down, right) of each layer's receptive fields from its patches, in pixels.

        Measured at the first use, with the weights of that time.
        """
        self._check_ready()
        return self.reading.offsets

    @property
    def read_tokens(self) -> tuple[str, ...]:
        """Names of the tokens on which the output depends; "patches" stands for all patches.

        A model may have a CLS token and not read it. Empty if the layers do not all attend
        globally over the same tokens.
        """
        if not self.reading.has_one_sequence:
            return ()
        self._check_ready()
        return self.reading.read_tokens

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm after the last block, or after the pooling if the model has it there."""
        parts = self.parts
        if parts.pooled_norm is not None and isinstance(parts.norm, nn.Identity | None):
            return parts.pooled_norm
        return parts.norm

    @property
    def patch_kernel(self) -> np.ndarray | None:
        """The filters E of eq. 1: ndarray of shape (D, C, P, P); None behind a hybrid's CNN."""
        kernel = filters(self.parts.kernel)
        return None if kernel is None else _read_only(kernel)

    def token_mixing(self, layer: int) -> np.ndarray:
        """Return the weights by which an MLP-Mixer mixes its tokens, of shape (units, rows, cols).

        Each map has the weight of every patch in one unit. This is not attention: it is the same
        for every picture, may be negative, and does not sum to 1.

        Raises
        ------
        ModelError
            When the layer attends to tokens.

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
                "{layer} attends to tokens, so it has no token-mixing weights.",
                layer=site.layer.name,
            )
        return _read_only(weights.reshape(-1, *site.layer.query_grid))

    @property
    def position_embedding(self) -> np.ndarray | None:
        """E_pos of eq. 1: ndarray of shape (N or prefix + N, D); None if there is none."""
        table = self.positions
        return None if table is None else _read_only(table.flatten(0, -2))

    @property
    def patch_positions(self) -> np.ndarray | None:
        """E_pos of the patches: ndarray of shape (N, D), in the order of the first layer's grid.

        None if there is none, or if it is for another grid and resampled in each pass.
        """
        table, first = self.position_embedding, self.layers[0]
        count = first.query_grid[0] * first.query_grid[1]
        # DINOv2 with registers gives CLS a position and the registers none.
        without_registers = [name for name in first.prefix if not name.startswith("reg")]
        rows = (count, count + len(first.prefix), count + len(without_registers))
        return table[-count:] if table is not None and len(table) in rows else None

    @property
    def positions(self) -> Tensor | None:
        """The table that `position_embedding` reads."""
        path = self.parts.positions
        return attrgetter(path)(self.part) if path else None

    @property
    def positions_learned(self) -> bool:
        """Whether E_pos is learned: of MAE it is a parameter that training leaves as it began."""
        table = self.positions
        if not isinstance(table, nn.Parameter) or not self.trained:
            return isinstance(table, nn.Parameter)
        rows = table.detach().float().flatten(0, -2)[1:]  # the first may belong to CLS
        squares = rows.square().sum(dim=1)
        # Of each pair of a sine and a cosine the squares sum to 1.
        return not torch.allclose(squares, torch.full_like(squares, rows.shape[1] / 2), rtol=1e-2)


def noise_input(model: Model) -> Tensor:
    """Return an input of normal noise (1, C, H, W), always the same for an input size."""
    random = torch.Generator().manual_seed(0)
    size = (1, len(model.preprocess.mean), *model.preprocess.input_size)
    return model.to_device(torch.randn(size, generator=random, device="cpu"))


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """Return a small table for notebooks; titles and cells are escaped."""
    lines = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(cell)}</td></tr>" for name, cell in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def _read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy().copy()
    array.flags.writeable = False
    return array


_TURNS: WeakKeyDictionary[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()


def _turn(module: nn.Module) -> AbstractContextManager[Any]:
    """Return a lock if only one thread at a time may run the module.

    The blocks of transformers' Swin set their shift before they use it.
    """
    turn = _TURNS.get(module)
    if turn is None:
        alone = any(hasattr(part, "set_shift_and_window_size") for part in module.modules())
        turn = _TURNS.setdefault(module, RLock() if alone else nullcontext())
    return turn


#: Types of the attributes that hold the geometry of a module: sizes of grids, windows and shifts.
_PLAIN_TYPES = frozenset((int, bool, str, tuple, torch.Size, type(None)))


class _PartSnapshot:
    """Snapshot of a part of a module: its children, plain attributes and replaced methods.

    Compared before each pass, so it must be quick.
    """

    def __init__(self, part: nn.Module) -> None:
        self.part = part
        self._all = vars(part)
        self._names = [
            name
            for name, value in self._all.items()
            if (type(value) in _PLAIN_TYPES and name != "training") or replaces_method(part, name)
        ]
        self._read = itemgetter("training", "training", *self._names)  # two names make a tuple
        self._values = self._read(self._all)[2:]
        self._count = len(self._all)
        # References, as another module could get the id() of one that was deleted.
        self._children = [*part._modules.values()]

    def is_unchanged(self) -> bool:
        return (
            len(self._all) == self._count
            and self._read(self._all)[2:] == self._values
            and [*self.part._modules.values()] == self._children
        )

    def restore(self) -> None:
        for name, value in zip(self._names, self._values, strict=True):
            setattr(self.part, name, value)


def _shapes(parts: Iterable[nn.Module]) -> list[tuple[nn.Module, list[torch.Size]]]:
    """Return each part that has weights of its own, with their shapes."""
    return [
        (part, [weight.shape for weight in part._parameters.values() if weight is not None])
        for part in parts
        if part._parameters
    ]


class _CheckedState:
    """State of a module that was checked in this context, and what was computed from it."""

    def __init__(self, reading: "_Reading") -> None:
        self.reading = reading
        self.parts: Parts | None = None
        self.weights: WeightsState | None = None


_CHECKED: ContextVar[_CheckedState | None] = ContextVar("vitviz_checked_state", default=None)


@contextmanager
def _exchanged_parts(model: Model, family: Family) -> Iterator[None]:
    """Refuse a module with a part of another kind than those of its family."""
    try:
        yield
    except AttributeError as error:
        raise ModelError(
            "{name} cannot be read as one of the family {family}: {reason}. A part of it was "
            "exchanged for one of another kind.",
            name=model.name,
            family=family.name,
            reason=str(error).rstrip("."),
        ) from error


class _Reading:
    """How a module is read as long as it is unchanged: its family, layers, and what follows.

    A module may be changed after `watch`, by hand or in its own forward: another input size, a
    shift of windows, a head, fewer blocks. So this is compared with the module before each use.
    """

    def __init__(self, model: Model) -> None:
        self._owner = ref(model)  # weak: the model owns this, and a cycle would outlive it
        self._size = model.preprocess.input_size
        part = model.part
        self.family: Family = family_of(part)
        with _exchanged_parts(model, self.family):
            own = self.family.sites(part, self._size)
        place = f"{model.path}." if model.path else ""
        self.sites = tuple(
            replace(site, layer=replace(site.layer, name=place + site.layer.name)) for site in own
        )
        self.layers: tuple[Layer, ...] = tuple(site.layer for site in self.sites)
        self.capture_bytes = capture_bytes(self.sites)
        blocks = [site.block for site in self.sites]
        around = [*_walk_outside(model.module, {*blocks})]
        parts = [*around, *blocks, *(site.attn for site in self.sites)]
        self._snapshots = [_PartSnapshot(each) for each in parts]
        self._shapes = _shapes(around)

    def is_of(self, model: Model) -> bool:
        """Whether the module is unchanged since this was computed."""
        return (
            model is self._owner()
            and model.module is self._snapshots[0].part
            and model.preprocess.input_size == self._size
            and all(each.is_unchanged() for each in self._snapshots)
            and _shapes(each for each, _ in self._shapes) == self._shapes
        )

    @property
    def _model(self) -> Model:
        model = self._owner()
        assert model is not None  # only the owner calls
        return model

    def restore(self) -> None:
        """Put attributes back that a pass changed."""
        for each in self._snapshots:
            if not each.is_unchanged():
                each.restore()

    @cached_property
    def offsets(self) -> tuple[Offset, ...]:
        with own_precision():
            return receptive_field_offsets(self._model.part, self.sites, self._size)

    @property
    def has_one_sequence(self) -> bool:
        """Whether every layer attends globally over the same tokens."""
        return all(
            site.layout == "tokens" and not site.layer.stage and site.layer.kind == "global"
            for site in self.sites
        )

    @cached_property
    def read_tokens(self) -> tuple[str, ...]:
        model, first = self._model, self.layers[0]
        with _wrap_errors(model):
            copied = self.continues == "copy"
            tokens = self._empty_tokens()
            return read_tokens(lambda z: model._run_after_blocks(z, copied), tokens, first.prefix)

    @cached_property
    def outputs(self) -> int:
        """Number of outputs for a picture, counted by running the module."""
        model = self._model
        with torch.inference_mode(), _wrap_errors(model):
            if self.has_one_sequence and self.continues == "copy":  # its blocks need not run
                return model._run_after_blocks(self._empty_tokens(), True).shape[1]
            return model._run_to_rows(noise_input(model), model.module).shape[1]

    @cached_property
    def adds_weights(self) -> bool:
        """Whether a module around the part has weights of its own, as a further head has."""
        model = self._model
        if not model.path:
            return False
        parameters = model.module.named_parameters()
        return any(w.ndim > 1 for name, w in parameters if not name.startswith(f"{model.path}."))

    @cached_property
    def gives_shares(self) -> bool:
        """Whether a head, or a module around the part, turns logits into probabilities itself."""
        model = self._model
        if not model.path and gives_logits(model.module, model.parts.heads):
            return False
        last, outputs = len(self.layers) - 1, []
        # Logits of negated tokens would get negative, and one of few logits on some random tokens.
        changes: list[Callable[[Tensor], Tensor | None]] = [lambda _: None, torch.neg]
        changes += [partial(_draw_tokens, seed=seed) for seed in range(8)]
        for change in changes:
            recorder = ChangeTokens(last, change)
            with torch.inference_mode(), _wrap_errors(model), model.recording(recorder):
                outputs.append(model._run_to_rows(noise_input(model), model.module).float())
            if not bool(((outputs[-1] >= 0) & (outputs[-1] <= 1)).all()):
                return False
        rows = torch.cat(outputs)
        sums_to_one = bool(((rows.sum(dim=-1) - 1).abs() < 1e-3).all())
        return sums_to_one or bool((rows != rows[0]).any())  # a head of zeros gives equal logits

    def _empty_tokens(self) -> Tensor:
        shape = 1, self.layers[0].num_tokens, self._model.parts.width
        return next(self._model.module.parameters()).new_zeros(shape)

    @cached_property
    def continues(self) -> Literal["copy", "pass", "no"]:
        """Way in which the output is computed from given tokens after the last block.

        "copy": in a shallow copy of the module whose blocks return the tokens. "pass": in a pass of
        the module itself, in which they replace the tokens of the last block. "no": the output
        depends on more than these tokens.

        Modules of known libraries can be copied. Any other is tested: the output for noise is
        compared with the output computed from its last tokens and a black picture.
        """
        model = self._model
        if not model.path and is_known_to_copy(model.module, self.layers[-1].name):
            return "copy"
        noise, last = noise_input(model), _LastTokens()
        with own_precision(), torch.inference_mode():
            with model.recording(last):
                answer = model._run_to_rows(noise, model.module)
            for way in ("copy", "pass"):
                with suppress(Exception):  # a copy may fail in any way
                    output = model._run_after_blocks(last.tokens, way == "copy")
                    if torch.allclose(output, answer, TOLERANCE, 0.1 * TOLERANCE, equal_nan=True):
                        return way
        return "no"


@contextmanager
def _wrap_errors(model: Model) -> Iterator[None]:
    """Run a module in its own precision, and turn any error of it into a ModelError."""
    try:
        with own_precision():
            yield
    except ModelError:
        raise
    except Exception as error:  # a module of the user's may raise anything
        height, width = model.preprocess.input_size
        raise ModelError(
            "{model} could not compute an input of {height} x {width} pixels: {reason}.",
            model=model.name,
            height=height,
            width=width,
            reason=reason_of(error),
        ) from error


class _LastTokens(Recorder):
    """Keep the tokens after the last block."""

    tokens: Tensor

    def on_block_output(self, layer: int, tokens: Tensor, output: Any) -> None:
        self.tokens = tokens


class ChangeTokens(Recorder):
    """Replace the tokens after a layer by what `change` returns for them, unless that is None."""

    def __init__(self, layer: int, change: Callable[[Tensor], Tensor | None]) -> None:
        self.layer, self.change = layer, change

    def after_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        return self.change(tokens) if layer == self.layer else None


def _draw_tokens(tokens: Tensor, seed: int) -> Tensor:
    """Return random tokens of the same shape."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(tokens.shape, generator=random, device="cpu").to(tokens)


@contextmanager
def collect_inputs(part: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of a part of a module in the passes of this thread."""
    inputs_read: list[Tensor] = []

    def keep(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        inputs_read.append(inputs[0])

    with hook_this_thread(part.register_forward_pre_hook, keep):
        yield inputs_read


def _walk_outside(module: nn.Module, blocks: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield a module and its parts, except its blocks and their parts."""
    yield module
    for child in module._modules.values():
        if child is not None and child not in blocks:
            yield from _walk_outside(child, blocks)
