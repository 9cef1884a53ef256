"""`Profile`: what a model does over a set of pictures, and the files that hold it."""

import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..language import Message
from .heads import KEPT, MEASURES
from .measuring import COLUMNS, NORM_BINS
from .pictures import ProfileError
from .similarity import cka
from .state import Moments, State

#: The table of some pictures, and their rows: by measure (pictures, layers, heads).
Part = tuple[Mapping[str, Sequence[Any]], Mapping[str, np.ndarray]]
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error)
#: What two profiles of one model agree in.
SAME = ("model", "weights_sha256", "preprocessing", "layers", "minibatch", "importance")


class Profile:
    """Measures of a model over a set of pictures.

    Attributes
    ----------
    about : dict
        What `run.json` says: model, weights, versions, preprocessing, layers, pictures, what was
        skipped and refused, and the largest error of a proof.
    state : State
        The sums from which all is computed.
    """

    def __init__(
        self, about: dict[str, Any], state: State, parts: Callable[[], Iterator[Part]]
    ) -> None:
        self.about = about
        self.state = state
        self._parts = parts

    def __repr__(self) -> str:
        return f"Profile({self.about['model']}, {self.about['pictures']} pictures)"

    def mean(self, measure: str) -> np.ndarray:
        """Mean over the pictures, of each layer and head; NaN where there is none.

        Parameters
        ----------
        measure : "distance", "distance_paper" (pixels), "entropy" (bits), "prefix_mass",
            "self_mass", "outlier_mass" or "mutual_information" (0 to 1)

        Returns
        -------
        ndarray of shape (layers, heads)
        """
        return self._moments(measure).means

    def std(self, measure: str) -> np.ndarray:
        """Standard deviation between pictures: ndarray of shape (layers, heads)."""
        return self._moments(measure).std

    def sem(self, measure: str) -> np.ndarray:
        """Standard error of the mean: ndarray of shape (layers, heads)."""
        return self._moments(measure).sem

    def interval(self, measure: str, share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The interval that holds the mean with that confidence, by Student's t.

        Two ndarrays of shape (layers, heads). It holds for pictures that are a random sample.
        """
        return self._moments(measure).interval(share)

    def values(self, measure: str) -> np.ndarray:
        """The measure in every picture, float32 of shape (pictures, layers, heads).

        In the order of the list; NaN where a picture was skipped. Of "distance", "entropy",
        "prefix_mass", "self_mass" and "outlier_mass".
        """
        if measure not in KEPT:
            raise ProfileError(f"Expected one of {', '.join(KEPT)}, got {measure!r}.")
        return np.concatenate([rows[measure] for _, rows in self._parts()])

    @property
    def pictures(self) -> dict[str, list[Any]]:
        """By column a list over the pictures.

        `picture` (its name), `sha256`, `label` and `answer` (numbers of classes), `confidence`
        (0 to 1) and `skipped`: why it was not measured, or None.
        """
        found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for table, _ in self._parts():
            for name in COLUMNS:
                found[name] += table[name]
        return found

    def offset_attention(self, layer: int) -> np.ndarray:
        """Mean attention by the offset from query to key, over pictures and queries.

        Returns
        -------
        ndarray of shape (heads, 2 rows - 1, 2 cols - 1)
            As `inspection.offset_attention`, renormalised.

        References
        ----------
        Walmer et al., "Teaching Matters: Investigating the Role of Supervision in Vision
        Transformers" (CVPR 2023), section 4.
        """
        sums = self.state.sums
        if f"offset/{layer}" not in sums:
            raise ProfileError(f"There is no map by offset of layer {layer}.")
        attention, pairs = sums[f"offset/{layer}"], sums[f"offset_pairs/{layer}"]
        return np.divide(attention, pairs, out=np.full_like(attention, np.nan), where=pairs > 0)

    def cls_attention(self, layer: int) -> np.ndarray:
        """Mean attention from CLS to the patches, over pictures, where every token attends.

        Returns
        -------
        ndarray of shape (heads, rows, cols)
            Shares of 1; what goes to the prefix tokens is not in it.
        """
        sums = self.state.sums
        if f"cls/{layer}" not in sums:
            raise ProfileError(f"There is no map of CLS of layer {layer}.")
        return sums[f"cls/{layer}"] / sums[f"cls_pictures/{layer}"]

    @property
    def norms(self) -> tuple[np.ndarray, np.ndarray]:
        """Lengths of the tokens after each layer, counted in logarithmic bins.

        Returns
        -------
        counts : ndarray of shape (2, depth + 1, bins)
            Of prefix tokens, and of patches. Lengths beyond the ends are in the last bins.
        edges : ndarray of shape (bins + 1,)

        References
        ----------
        Darcet et al., "Vision Transformers Need Registers" (ICLR 2024), Fig. 3 and 4.
        """
        return self.state.sums["norms"], NORM_BINS

    @property
    def outlier_share(self) -> Moments:
        """Share of the patches that are outliers (`inspection.norm_outliers`): (depth + 1,)."""
        return self.state.moments["outlier_share"]

    def cka(self) -> np.ndarray:
        """Linear CKA of the tokens after all pairs of layers: (depth + 1, depth + 1).

        Of z_l of all tokens, flattened, by the unbiased estimate over minibatches of 256 pictures
        in the order of the list, each weighted by its pictures; one of fewer than 4 is left out.

        Notes
        -----
        The ratio of two means over minibatches is not quite that of the full batch, which would
        need all tokens of all pictures at once. Of `vitviz_tiny_cifar10` over 1,024 test pictures
        of CIFAR-10 it is off by 0.003 at most, and by 0.0013 on average, a single minibatch of them
        by up to 0.045; of a trained ViT-S/14 over 512 pictures of Tiny-ImageNet by 0.008 at most.

        References
        ----------
        Nguyen, Raghu and Kornblith, "Do Wide and Deep Networks Learn the Same Things?" (ICLR 2021),
        section 2; Raghu et al., "Do Vision Transformers See Like Convolutional Neural Networks?"
        (NeurIPS 2021), Fig. 1.
        """
        if "hsic" not in self.state.sums:
            raise ProfileError("CKA needs at least 4 pictures.")
        return cka(self.state.sums["hsic"])

    def skip_ratio(self, branch: str) -> Moments:
        """How long what passes a branch by is, in lengths of what the branch adds to it.

        Parameters
        ----------
        branch : "attention" or "mlp"

        Returns
        -------
        Moments of values of shape (layers, 2): of prefix tokens, and of patches

        References
        ----------
        Raghu et al. (NeurIPS 2021), Fig. 7.
        """
        return self.state.moments[f"skip_{branch}"]

    def token_components(self, n_components: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Principal components of the last tokens of all patches of all pictures.

        Returns
        -------
        axes : ndarray of shape (n_components, D)
            Unit vectors, whose entry of largest magnitude is positive. A picture's colours are
            `(tokens - mean) @ axes.T`, and mean the same in every picture.
        mean : ndarray of shape (D,)
        explained_variance : ndarray of shape (n_components,)
            Shares of the variance, from 0 to 1.
        """
        moments = self.state.moments["tokens"]
        if not 1 <= n_components <= len(moments.mean):
            raise ProfileError(f"Expected 1 to {len(moments.mean)} components, got {n_components}.")
        axes, variances = moments.components(n_components)
        total = max(float(np.trace(moments.m2)), np.finfo(float).tiny)
        return axes, moments.mean, variances / total

    def importance(self, kind: str) -> tuple[Moments, Moments]:
        """What muting a head does to the answer, of a profile for which it was asked.

        Parameters
        ----------
        kind : "zero" or "mean"

        Returns
        -------
        changed, lost : Moments of values of shape (layers, heads)
            Whether the answer is another one (0 or 1), and by how many nats the log-probability of
            the answer falls.

        Notes
        -----
        Other heads may compensate for one that is muted. The means are over the first 256 pictures
        of the list: two parts that are merged have a mean each.
        """
        known = self.state.moments
        if f"importance/{kind}/changed" not in known:
            raise ProfileError(f"The importance {kind!r} of heads was not measured.")
        return known[f"importance/{kind}/changed"], known[f"importance/{kind}/lost"]

    @property
    def labelled(self) -> int:
        """How many of the measured pictures have a label."""
        return int(self.state.sums["answers/count"].sum()) if self._answered else 0

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Share of the labelled pictures whose label is the answer, or among the first five."""
        if not self.labelled:
            return None
        first, five = self.state.sums["answers/top"] / self.labelled
        return float(first), float(five)

    @property
    def calibration(self) -> dict[str, np.ndarray] | None:
        """By bin of confidence, 15 equal ones: `count`, sum of `confidence`, number `right`."""
        if not self.labelled:
            return None
        return {
            name: self.state.sums[f"answers/{name}"] for name in ("count", "confidence", "right")
        }

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error over 15 equal bins (Guo et al., ICML 2017, section 2)."""
        bins = self.calibration
        if bins is None:
            return None
        return float(np.abs(bins["confidence"] - bins["right"]).sum() / self.labelled)

    def merge(self, other: "Profile") -> "Profile":
        """The profile of both lists of pictures, this one's first.

        It is the profile of the whole list where the first part ends after a multiple of 256
        pictures; elsewhere CKA has other minibatches, and `about["note"]` says so.

        Raises
        ------
        ProfileError
            When they are of different models, weights or preprocessing, or have the same pictures.
        """
        for key in SAME:
            if self.about[key] != other.about[key]:
                raise ProfileError(f"Two profiles that differ in {key} cannot be merged.")
        if {*self._lists} & {*other._lists}:
            raise ProfileError("Two profiles of the same list of pictures cannot be merged.")
        about = dict(self.about)
        for key in ("pictures", "skipped", "seconds"):
            about[key] = self.about[key] + other.about[key]
        about["proof_error"] = max(self.about["proof_error"], other.about["proof_error"])
        about["refused_layers"] = self.about["refused_layers"] | other.about["refused_layers"]
        about["source"] = ", ".join(dict.fromkeys((self.about["source"], other.about["source"])))
        about["merged_from"] = self._lists + other._lists
        about["list_sha256"] = None  # no run over a list of its own, which could go on
        if "note" in other.about or self.about["pictures"] % self.about["minibatch"]:
            about["note"] = (
                f"Parts of other sizes than multiples of {self.about['minibatch']} pictures were "
                "merged, so CKA has other minibatches than in a run over the whole list."
            )

        def parts() -> Iterator[Part]:
            yield from self._parts()
            yield from other._parts()

        return Profile(about, self.state.merged(other.state), parts)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the profile into a folder.

        `profile.parquet` (a row a picture), `profile.npz` (the sums), `heads.csv` (every measure of
        every head), `run.json` and `profile.html`, which shows all figures and needs no other file.
        """
        from .writing import write

        write(self, Path(folder))

    @property
    def _lists(self) -> list[str]:
        """Digests of the lists of pictures that were merged, or of the only one."""
        found: list[str] = self.about.get("merged_from") or [self.about["list_sha256"]]
        return found

    @property
    def _answered(self) -> bool:
        return "answers/count" in self.state.sums

    def _moments(self, measure: str) -> Moments:
        if measure not in MEASURES:
            raise ProfileError(f"Expected one of {', '.join(MEASURES)}, got {measure!r}.")
        return self.state.moments[f"head/{measure}"]


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """A profile that was saved.

    Parameters
    ----------
    path : the folder, or its `profile.npz` alone, which has no rows by picture

    Raises
    ------
    ProfileError
        When there is none, or it cannot be read.
    """
    from .writing import rows_of

    place = Path(path)
    alone, rows = place.is_file(), place / "profile.parquet"
    try:
        data = (place if alone else place / "profile.npz").read_bytes()
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        shape = len(about["layers"]), max(layer["num_heads"] for layer in about["layers"])
        if not alone and not rows.is_file():
            raise FileNotFoundError("profile.parquet is not there")
    except _UNREADABLE as error:
        why = Message(
            "{place} holds no profile that can be read: {error}.", place=place, error=error
        )
        raise ProfileError(why) from error

    def parts() -> Iterator[Part]:
        if alone:
            raise ProfileError(f"{place} alone has no rows by picture.")
        return rows_of(rows, shape)

    return Profile(about, State.of_arrays(arrays), parts)
