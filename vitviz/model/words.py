"""`Words`: classes given by vectors of a text tower, compared with the picture's embedding."""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, from_numpy
from torch.nn import functional as F

from ..common.files import replace_file
from ..common.language import Message, Phrase
from .devices import own_precision
from .families import ModelError

_FIELDS = ("names", "vectors", "logit_scale")  # of every file; logit_bias is optional
_ROUNDING = 2e-3  # error in the length of a vector in half precision
#: Bytes of a file, and of its arrays; 21,843 vectors of 2,048 numbers take 180 MB.
MAX_WORDS_BYTES = 500_000_000


def _check_size(name: str, count: int) -> None:
    if count > MAX_WORDS_BYTES:
        raise ModelError(
            "{name} holds {count:,} bytes, and at most {most:,} are read. Give words for fewer "
            "classes.",
            name=name,
            count=count,
            most=MAX_WORDS_BYTES,
        )


def describe_templates(templates: Sequence[str]) -> Message | str:
    """Return a note on the templates for the provenance line; "" for phrases as they are."""
    if [*templates] in ([], ["{}"]):
        return ""
    quoted = ", ".join(f'"{each}"' for each in templates)
    if len(templates) == 1:
        return Message(", template {template}", template=quoted)
    return Message(", mean of the templates {templates}", templates=quoted)


@dataclass(frozen=True, eq=False)
class Words:
    """Names of classes, with a vector of the text tower for each.

    The logit of a name is logit_scale times the cosine between its vector and the picture's
    embedding, plus logit_bias. Without a bias, as in CLIP, probabilities are the softmax over the
    names; with a bias, as in SigLIP, each is the sigmoid of its own logit, also if the bias is 0.

    Attributes
    ----------
    names : tuple of str
    vectors : ndarray of shape (K, E)
        Vectors of length 1, one for each name, of the text tower that belongs to the model.
    logit_scale : float
        The factor itself (about 100 in a trained CLIP), not its logarithm.
    logit_bias : float or None
        None if there is none, as in CLIP.
    source : str
        Where the vectors come from, for the provenance line.
    templates : tuple of str
        What the model's own text tower read for each name, with {} in its place. Empty if the
        vectors were given, so that nothing proves that they belong to the model.

    Raises
    ------
    ModelError
        When names, vectors and numbers do not fit together.

    References
    ----------
    Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (ICML
    2021), Figure 3. Zhai et al., "Sigmoid Loss for Language Image Pre-Training" (ICCV 2023),
    section 3.2 and Algorithm 1.
    """

    names: tuple[str, ...]
    vectors: np.ndarray
    logit_scale: float
    logit_bias: float | None = None
    source: str = "text vectors in memory"
    templates: tuple[str, ...] = ()

    def __init__(
        self,
        names: Sequence[str],
        vectors: ArrayLike,
        *,
        logit_scale: float,
        logit_bias: float | None = None,
        source: str = "text vectors in memory",
        templates: Sequence[str] = (),
    ) -> None:
        table = np.array(vectors, np.float32)
        words = tuple(Phrase(name) for name in names)
        if table.ndim != 2 or len(table) != len(words) or not words:
            raise ModelError(
                "Expected a vector for each of {count} names, got an array of shape {shape}.",
                count=len(words),
                shape=table.shape,
            )
        if len(set(words)) < len(words):
            twice = next(name for name in words if words.count(name) > 1)
            raise ModelError("Expected each name once, got {name!r} twice.", name=twice)
        lengths = np.linalg.norm(table, axis=1)
        is_unit = np.abs(lengths - 1) < _ROUNDING  # false for NaN, too
        if not is_unit.all():
            raise ModelError(
                "Expected vectors of length 1, got one of length {length:.4g}.",
                length=lengths[~is_unit][0],
            )
        bias = None if logit_bias is None else float(logit_bias)
        if not (np.isfinite(logit_scale) and logit_scale > 0 and np.isfinite(bias or 0.0)):
            raise ModelError(
                "Expected a logit_scale above 0 and a finite logit_bias, got {logit_scale} "
                "and {bias}.",
                logit_scale=logit_scale,
                bias=bias,
            )
        table.setflags(write=False)
        for name, value in (
            ("names", words),
            ("vectors", table),
            ("logit_scale", float(logit_scale)),
            ("logit_bias", bias),
            ("source", source),
            ("templates", tuple(templates)),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Words":
        """Read an NPZ file with `names` (K,), `vectors` (K, E), `logit_scale`, and for SigLIP
        `logit_bias`. `templates`, if it is there, is noted in the source.

        Raises
        ------
        ModelError
            When the file cannot be read, is too large, or lacks one of these.
        """
        name = Path(path).name
        if not Path(path).is_file():
            raise ModelError(
                "There is no file {name} in {folder}.", name=name, folder=Path(path).parent
            )
        _check_size(name, Path(path).stat().st_size)
        try:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
            with ZipFile(path) as archive:  # a small file can unpack to any size
                size = sum(entry.file_size for entry in archive.infolist())
            _check_size(name, size)
            with np.load(path, allow_pickle=False) as arrays:
                fields = {key: np.asarray(values) for key, values in arrays.items()}
        except ModelError:
            raise
        except Exception as error:  # damaged archives raise nearly anything
            raise ModelError(
                "{name} is not a valid NPZ file of words. Write it by numpy.savez, with arrays of "
                "text and of numbers.",
                name=name,
            ) from error
        missing = [field for field in _FIELDS if field not in fields]
        if missing:
            raise ModelError(
                "{name} has no {missing}.", name=name, missing=" and no ".join(missing)
            )
        for field in ("logit_scale", "logit_bias"):
            if field in fields and fields[field].size != 1:
                raise ModelError(
                    "{name} has {size} numbers as {field}, expected 1.",
                    name=name,
                    size=fields[field].size,
                    field=field,
                )
        try:
            templates = fields.get("templates", np.array([])).astype(str).ravel().tolist()
            return cls(
                fields["names"].astype(str).ravel().tolist(),
                fields["vectors"],
                logit_scale=float(fields["logit_scale"].item()),
                logit_bias=float(fields["logit_bias"].item()) if "logit_bias" in fields else None,
                source=Message(
                    "words of {file}, sha256 {digest}{note}",
                    file=name,
                    digest=digest,
                    note=describe_templates(templates),
                ),
            )
        except Exception as error:
            raise ModelError("{name}: {error}", name=name, error=error) from error

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file that `read` reads."""
        arrays: dict[str, ArrayLike] = dict(
            names=np.array(self.names), vectors=self.vectors, logit_scale=self.logit_scale
        )
        if self.logit_bias is not None:
            arrays["logit_bias"] = self.logit_bias
        if self.templates:
            arrays["templates"] = np.array(self.templates)
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        replace_file(Path(path), content.getvalue())

    @property
    def activation(self) -> Literal["softmax", "sigmoid"]:
        """Function that turns logits into probabilities."""
        return "softmax" if self.logit_bias is None else "sigmoid"

    @property
    def provenance(self) -> Message:
        """Description for the provenance line."""
        bias: Message | str = ""
        if self.logit_bias is not None:
            bias = Message(", bias {bias:.4g}", bias=self.logit_bias)
        return Message(
            "{count} classes by {source}, scale {scale:.4g}{bias}, {activation}",
            count=len(self.names),
            source=self.source,
            scale=self.logit_scale,
            bias=bias,
            activation=self.activation,
        )

    @own_precision()
    def logits(self, embeddings: Tensor) -> Tensor:
        """Compute logits (B, K) from embeddings (B, E)."""
        # A scale of 100 costs two digits of single precision, the highest that MPS has.
        wide = embeddings.float() if embeddings.device.type == "mps" else embeddings.double()
        vectors = F.normalize(from_numpy(self.vectors.copy()).to(wide), dim=-1)
        cosines = F.normalize(wide, dim=-1) @ vectors.T
        return (self.logit_scale * cosines + (self.logit_bias or 0.0)).float()
