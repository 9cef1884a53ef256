"""Classes by words: vectors of a text tower, with which the embedding of a picture is compared."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, from_numpy
from torch.nn import functional as F

from .families import ModelError

_FIELDS = ("names", "vectors", "logit_scale")  # that a file must have; it may have logit_bias
_ROUNDING = 2e-3  # of the length of a vector that was written in half precision


@dataclass(frozen=True, eq=False)
class Words:
    """Names of classes, and the vector that a text tower gives to each.

    The logit of a name is logit_scale times the cosine between its vector and the picture's
    embedding, plus logit_bias. Without a bias, as in CLIP, probabilities are the softmax over the
    names; with one, as in SigLIP, the sigmoid of each logit for itself.

    Attributes
    ----------
    names : tuple of str
    vectors : ndarray of shape (K, E)
        Of length 1, one for each name, by the text tower that belongs to the model.
    logit_scale : float
        The factor itself, about 100 in a trained CLIP, and not its logarithm.
    logit_bias : float
        0 where there is none.
    source : str
        Where they come from, for the provenance line.

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
    logit_bias: float = 0.0
    source: str = "text vectors in memory"

    def __init__(
        self,
        names: Sequence[str],
        vectors: ArrayLike,
        *,
        logit_scale: float,
        logit_bias: float | None = None,
        source: str = "text vectors in memory",
    ) -> None:
        table = np.array(vectors, np.float32)
        words = tuple(map(str, names))
        if table.ndim != 2 or len(table) != len(words) or not words:
            raise ModelError(
                "Expected a vector for each of {count} names, got an array of shape {shape}.",
                count=len(words),
                shape=table.shape,
            )
        if len(set(words)) < len(words):
            twice = next(name for name in words if words.count(name) > 1)
            raise ModelError("Expected each name once, got {twice!r} twice.", twice=twice)
        lengths = np.linalg.norm(table, axis=1)
        if not np.all(np.abs(lengths - 1) < _ROUNDING):  # also where they are no numbers
            wrong = lengths[int(np.argmax(~(np.abs(lengths - 1) < _ROUNDING)))]
            raise ModelError(
                "Expected vectors of length 1, got one of length {wrong:.4g}.", wrong=wrong
            )
        bias = 0.0 if logit_bias is None else float(logit_bias)
        if not (np.isfinite(logit_scale) and logit_scale > 0 and np.isfinite(bias)):
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
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Words":
        """Words in an NPZ file: `names` (K,), `vectors` (K, E), `logit_scale`, and for SigLIP
        `logit_bias`.

        Raises
        ------
        ModelError
            When the file cannot be read, or is none of words.
        """
        name = Path(path).name
        try:
            data = Path(path).read_bytes()
            with np.load(Path(path), allow_pickle=False) as file:
                found = dict(file)
        except FileNotFoundError as error:
            raise ModelError(
                "There is no file {name} in {folder}.", name=name, folder=Path(path).parent
            ) from error
        except (OSError, ValueError, EOFError, BadZipFile, TypeError, AttributeError) as error:
            raise ModelError(
                "{name} is no NPZ file of words that can be read: it needs arrays without "
                "pickled objects, which numpy.savez writes.",
                name=name,
            ) from error
        missing = [field for field in _FIELDS if field not in found]
        if missing:
            raise ModelError(
                "{name} has no {missing}.", name=name, missing=" and no ".join(missing)
            )
        for field in ("logit_scale", "logit_bias"):
            if field in found and found[field].size != 1:
                raise ModelError(
                    "{name} has {size} numbers as {field}, expected 1.",
                    name=name,
                    size=found[field].size,
                    field=field,
                )
        digest = hashlib.sha256(data).hexdigest()[:12]
        try:
            return cls(
                found["names"].astype(str).ravel().tolist(),
                found["vectors"],
                logit_scale=float(found["logit_scale"].item()),
                logit_bias=float(found["logit_bias"].item()) if "logit_bias" in found else None,
                source=f"words of {name}, sha256 {digest}",
            )
        except (TypeError, ValueError) as error:
            raise ModelError("{name}: {error}", name=name, error=error) from error

    @property
    def activation(self) -> Literal["softmax", "sigmoid"]:
        """What makes probabilities of logits."""
        return "sigmoid" if self.logit_bias else "softmax"

    @property
    def provenance(self) -> str:
        """For the provenance line."""
        bias = f", bias {self.logit_bias:.4g}" if self.logit_bias else ""
        return (
            f"{len(self.names)} classes by {self.source}, scale {self.logit_scale:.4g}{bias}, "
            f"{self.activation}"
        )

    def logits(self, embeddings: Tensor) -> Tensor:
        """Logits (B, K) of embeddings (B, E)."""
        # A scale of 100 takes two digits off those of single precision, which is all that MPS has.
        wide = embeddings.float() if embeddings.device.type == "mps" else embeddings.double()
        vectors = F.normalize(from_numpy(self.vectors.copy()).to(wide), dim=-1)
        cosines = F.normalize(wide, dim=-1) @ vectors.T
        return (self.logit_scale * cosines + self.logit_bias).float()
