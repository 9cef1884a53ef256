"""`Profile`, the measures of a model over a set of pictures, and the files that hold it."""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.files import open_replacement, printable, replace_file
from ..common.language import Message, format_count, reason_of
from ..inspection.head_table import as_csv, head_table
from ..model import Preprocessing
from ..model.families import Layer
from .entries import ProfileError
from .heads import BY_PICTURE, MEASURES
from .measuring import COLUMNS, CONFIDENCE_BINS, NORM_BINS, SINKS
from .state import Moments, State, cka

if TYPE_CHECKING:
    import pandas

#: The table of some pictures, and by measure their values (pictures, layers, heads).
Part = tuple[Mapping[str, Sequence[Any]], Mapping[str, np.ndarray]]
#: Types of the entries of `run.json` that figures and comparisons read.
_KINDS = {
    **dict.fromkeys(("model", "source"), str),
    **dict.fromkeys(("pictures", "skipped", "num_classes", "minibatch"), int),
    **dict.fromkeys(("layers", "importance"), list),
    **dict.fromkeys(("preprocessing", "refused_layers"), dict),
    "labels": list | None,
}
#: Columns of the table of confusions.
CONFUSION = ("label", "answer", "label_name", "answer_name", "pictures", "share")
#: Entries that must be the same to merge two profiles.
SAME = ("model", "weights_sha256", "preprocessing", "layers", "minibatch", "importance")


class Profile:
    """Measures of a model over a set of pictures.

    Attributes
    ----------
    about : dict
        The content of `run.json`: model, weights, versions, preprocessing, layers, pictures, what
        was skipped and refused, and the largest error of a proof.
    state : State
        The sums from which all results are computed.
    """

    def __init__(
        self, about: dict[str, Any], state: State, parts: Callable[[], Iterator[Part]]
    ) -> None:
        self.about = about
        self.state = state
        self._parts = parts

    def __repr__(self) -> str:
        return f"Profile({self.about['model']}, {format_count(self.about['pictures'], 'picture')})"

    def mean(self, measure: str) -> np.ndarray:
        """Return the mean of a measure over the pictures; NaN where it was not measured.

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
        """Return the sample standard deviation (n - 1) over pictures, of shape (layers, heads)."""
        return self._moments(measure).std

    def sem(self, measure: str) -> np.ndarray:
        """Return the standard error of the mean, std / sqrt(n), of shape (layers, heads)."""
        return self._moments(measure).sem

    def interval(self, measure: str, share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the mean's confidence interval, by Student's t.

        Two ndarrays of shape (layers, heads). The interval assumes that the pictures are a random
        sample.
        """
        return self._moments(measure).interval(share)

    def to_frame(self, *, by_picture: bool = False) -> "pandas.DataFrame":
        """Return a table with a row for each layer, head and measure, as `heads.csv` has it.

        Parameters
        ----------
        by_picture : bool
            Add one row per measured picture instead, of the measures that `values` has.

        Returns
        -------
        pandas.DataFrame
            `layer` and `head`, counted from 1 as on screen, `measure`, `unit` ("px", "bit",
            "share" or "nat") and `value`. The value is the mean over the pictures: `std` is their
            sample standard deviation (n - 1), `sem` the mean's standard error, `low` and `high` its
            95 % interval by Student's t, `pictures` how many have a value. By picture there are
            `picture`, `sha256` and `label` instead of these.
        """
        import pandas

        if not by_picture:
            return pandas.DataFrame(profile_columns(self))
        heads = [layer["num_heads"] for layer in self.about["layers"]]
        columns = ("picture", "sha256", "label")
        frames = []
        for table, rows in self._parts():
            for place, why in enumerate(table["skipped"]):
                if why is not None:
                    continue
                measures = {name: {"value": rows[name][place]} for name in BY_PICTURE}
                frame = pandas.DataFrame(head_table(heads, measures))
                for column, name in enumerate(columns):
                    frame.insert(column, name, table[name][place])
                frames.append(frame)
        return pandas.concat(frames, ignore_index=True)

    def values(self, measure: str) -> np.ndarray:
        """Return a measure in every picture, float32 of shape (pictures, layers, heads).

        The measure is "distance", "entropy", "prefix_mass", "self_mass" or "outlier_mass". Pictures
        are in the order of the list; skipped ones are NaN.
        """
        if measure not in BY_PICTURE:
            raise ProfileError(f"Expected one of {', '.join(BY_PICTURE)}, got {measure!r}.")
        return np.concatenate([rows[measure] for _, rows in self._parts()])

    @property
    def pictures(self) -> dict[str, list[Any]]:
        """Table of the pictures: a list for each column.

        `picture` (its name), `sha256`, `label` and `answer` (class numbers), `confidence` (0 to 1)
        and `skipped`: why the picture was not measured, or None.
        """
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for table, _ in self._parts():
            for name in COLUMNS:
                columns[name] += table[name]
        return columns

    def offset_attention(self, layer: int) -> np.ndarray:
        """Return the mean attention by offset from query to key, over pictures and queries.

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
            raise ProfileError(f"The profile has no map by offset of layer {layer}.")
        attention, pairs = sums[f"offset/{layer}"], sums[f"offset_pairs/{layer}"]
        return np.divide(attention, pairs, out=np.full_like(attention, np.nan), where=pairs > 0)

    def cls_attention(self, layer: int) -> np.ndarray:
        """Return the mean attention from CLS to the patches over pictures, in a global layer.

        Returns
        -------
        ndarray of shape (heads, rows, cols)
            Shares of 1; attention to the prefix tokens is left out.
        """
        sums = self.state.sums
        if f"cls/{layer}" not in sums:
            raise ProfileError(f"The profile has no map of CLS of layer {layer}.")
        return sums[f"cls/{layer}"] / sums[f"cls_pictures/{layer}"]

    @property
    def norms(self) -> tuple[np.ndarray, np.ndarray]:
        """Histograms of token norms at each depth, in logarithmic bins.

        Returns
        -------
        counts : ndarray of shape (2, depth + 1, bins)
            Of prefix tokens, and of patches. Norms beyond the ends are in the end bins.
        edges : ndarray of shape (bins + 1,)

        References
        ----------
        Darcet et al., "Vision Transformers Need Registers" (ICLR 2024), Fig. 3 and 4.
        """
        return self.state.sums["norms"], NORM_BINS

    @property
    def outlier_share(self) -> Moments:
        """Share of patches that are outliers (`inspection.norm_outliers`), by depth."""
        return self.state.moments["outlier_share"]

    def cka(self) -> np.ndarray:
        """Return linear CKA between the tokens at all pairs of depths: (depth + 1, depth + 1).

        The features are the flattened tokens z_l. The estimate is unbiased, over minibatches of 256
        pictures in the order of the list, weighted by their number of pictures. A minibatch of
        fewer than 4 pictures is left out.

        Notes
        -----
        The ratio of two means over minibatches differs a little from the full batch, which would
        need all tokens of all pictures at once. For `vitviz_tiny_cifar10` over 1,024 test pictures
        of CIFAR-10 it is off by 0.003 at most and by 0.0013 on average (a single minibatch by up to
        0.045); for a trained ViT-S/14 over 512 pictures of Tiny-ImageNet by 0.008 at most.

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
        """Return the ratio of the skip connection's norm to the branch's output norm.

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
        """Return the principal components of the last tokens of all patches of all pictures.

        Returns
        -------
        axes : ndarray of shape (n_components, D)
            Unit vectors, whose entry of largest magnitude is positive. A picture's colours are
            `(tokens - mean) @ axes.T`; equal colours mean the same in every picture.
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
        """Return how muting each head changes the answer, if the profile measured it.

        Parameters
        ----------
        kind : "zero" or "mean"

        Returns
        -------
        changed, lost : Moments of values of shape (layers, heads)
            Whether the answer changes (0 or 1), and by how many nats its log-probability falls.

        Notes
        -----
        Other heads may compensate for a muted one. A head's mean output is taken over the first 256
        pictures of the list; merged parts keep the means of their own lists.
        """
        moments = self.state.moments
        if f"importance/{kind}/changed" not in moments:
            raise ProfileError(
                f"The importance {kind!r} of heads was not measured. Profile again with "
                f"importance=[{kind!r}]."
            )
        return moments[f"importance/{kind}/changed"], moments[f"importance/{kind}/lost"]

    @property
    def sinks(self) -> dict[str, np.ndarray] | None:
        """Number of pictures by layer with a no-op sink and with a broadcast.

        Returns
        -------
        dict of ndarray of shape (layers,), or None if they were not looked for
            `no_ops`, `broadcasts`, and `pictures` that were looked at.
        """
        counts = self.state.sums.get("sinks")
        return None if counts is None else dict(zip(SINKS, counts, strict=True))

    @property
    def labelled(self) -> int:
        """Number of measured pictures that have a label."""
        count = self.state.sums.get("answers/count")
        return 0 if count is None else int(count.sum())

    @property
    def accuracy(self) -> tuple[float, float] | None:
        """Top-1 and top-5 accuracy over the labelled pictures; None if there are none."""
        if not self.labelled:
            return None
        first, five = self.state.sums["answers/top"] / self.labelled
        return float(first), float(five)

    @property
    def calibration(self) -> dict[str, np.ndarray] | None:
        """`count`, sum of `confidence` and number `right` of each of 15 equal confidence bins."""
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

    def confusion(self) -> dict[str, list[Any]]:
        """Return how often each class was the answer to each label, the most frequent errors first.

        Returns
        -------
        dict of lists
            `label` and `answer` (class numbers), their names `label_name` and `answer_name` ("" if
            the classes have none), `pictures` with both, and their `share` of the label's pictures.
            Pairs without a picture are left out. Right answers come last.
        """
        pairs: Counter[tuple[int, int]] = Counter()
        for table, _ in self._parts():
            for label, answer in zip(table["label"], table["answer"], strict=True):
                if label is not None and answer is not None:
                    pairs[label, answer] += 1
        total: Counter[int] = Counter()
        for (label, _), count in pairs.items():
            total[label] += count
        names = self.about["labels"]
        result: dict[str, list[Any]] = {name: [] for name in CONFUSION}
        for label, answer in sorted(pairs, key=lambda p: (p[0] == p[1], -pairs[p], p)):
            count = pairs[label, answer]
            both = ("", "") if names is None else (names[label], names[answer])
            for name, value in zip(
                CONFUSION, (label, answer, *both, count, count / total[label]), strict=True
            ):
                result[name].append(value)
        return result

    def top_confusions(self, most: int = 5) -> list[tuple[str, str, int, float]]:
        """Return the most frequent errors of `confusion`.

        Each is label, answer (by name, or by number), pictures and their share of the label's.
        """
        table = self.confusion()
        rows: list[tuple[str, str, int, float]] = []
        for label, answer, one, other, count, share in zip(*table.values(), strict=True):
            if label == answer or len(rows) == most:
                break
            rows.append((one or f"class {label}", other or f"class {answer}", count, share))
        return rows

    def merge(self, other: "Profile") -> "Profile":
        """Return the profile of both lists of pictures, this one's first.

        It equals the profile of the joined list if the first part ends after a multiple of 256
        pictures. Otherwise CKA has other minibatches, and `about["note"]` says so.

        Raises
        ------
        ProfileError
            When the models, weights, preprocessing, classes or kinds of answer differ, or the two
            have the same list of pictures.
        """
        for key in (*SAME, "answers", "labels", "list_of_words", "sinks"):
            values = [with_defaults(each.about).get(key) for each in (self, other)]
            if values[0] != values[1] and None not in values:  # older profiles lack some
                raise ProfileError(f"Two profiles that differ in {key} cannot be merged.")
        if {*self._lists} & {*other._lists} and self._shares_pictures(other):
            raise ProfileError("Two profiles of the same list of pictures cannot be merged.")
        about = dict(self.about)
        for key in ("pictures", "skipped", "seconds"):
            about[key] = self.about[key] + other.about[key]
        about["proof_error"] = max(self.about["proof_error"], other.about["proof_error"])
        about["refused_layers"] = self.about["refused_layers"] | other.about["refused_layers"]
        about["source"] = ", ".join(dict.fromkeys((self.about["source"], other.about["source"])))
        about["notes"] = [*self.about.get("notes", ()), *other.about.get("notes", ())]
        about["merged_from"] = self._lists + other._lists
        about["list_sha256"] = None  # a merged profile cannot be resumed
        if "note" in other.about or self.about["pictures"] % self.about["minibatch"]:
            about["note"] = (
                "CKA has other minibatches than in a run over the whole list, because a merged "
                f"part has no multiple of {self.about['minibatch']} pictures."
            )

        def parts() -> Iterator[Part]:
            yield from self._parts()
            yield from other._parts()

        return Profile(about, self.state.merge(other.state), parts)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the profile into a folder.

        `profile.parquet` (one row per picture), `profile.npz` (the sums), `heads.csv` (every
        measure of every head), `run.json` and `profile.html`, which shows all figures and needs no
        other file; and with labels `confusion.csv`.
        """
        from ..plots.profile_page import page

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        _write_rows(self._parts(), place / "profile.parquet", about=self.about)
        file = io.BytesIO()
        about = json.dumps(self.about)  # also here, so that profile.npz can be read alone
        np.savez_compressed(file, allow_pickle=False, about=about, **self.state.to_arrays())
        replace_file(place / "profile.npz", file.getvalue())
        replace_file(place / "heads.csv", as_csv(profile_columns(self)).encode())
        if self.labelled:
            table = self.confusion()
            lines = io.StringIO()
            rows = csv.writer(lines, lineterminator="\n")
            rows.writerows([[*table], *zip(*table.values(), strict=True)])
            replace_file(
                place / "confusion.csv", lines.getvalue().encode(errors="backslashreplace")
            )
        replace_file(place / "profile.html", page(self).encode(errors="backslashreplace"))
        # last: a folder with run.json is complete
        replace_file(place / "run.json", (json.dumps(self.about, indent=2) + "\n").encode())

    def _shares_pictures(self, other: "Profile") -> bool:
        """Whether a picture is in both: two folders may have files of the same names."""
        digests = [{*each.pictures["sha256"]} - {None} for each in (self, other)]
        return bool(digests[0] & digests[1])

    @property
    def _lists(self) -> list[str]:
        """Digests of the lists of pictures that were merged, or of the only one."""
        digests: list[str] = self.about.get("merged_from") or [self.about["list_sha256"]]
        return digests

    def _moments(self, measure: str) -> Moments:
        if measure not in MEASURES:
            raise ProfileError(f"Expected one of {', '.join(MEASURES)}, got {measure!r}.")
        return self.state.moments[f"head/{measure}"]


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Load a profile that was saved.

    Parameters
    ----------
    path : str or path
        The folder, or its `profile.npz` alone, which has no rows by picture.

    Raises
    ------
    ProfileError
        When there is no profile, or it cannot be read.
    """
    place = Path(path)
    alone, rows = place.is_file(), place / "profile.parquet"

    def parts() -> Iterator[Part]:
        if alone:
            raise ProfileError(f"{place} alone has no rows by picture. Load its whole folder.")
        try:
            yield from read_rows(rows, shape)
        except ProfileError:
            raise
        except Exception as error:  # a damaged parquet file raises nearly anything
            raise ProfileError(
                f"{printable(rows)} cannot be read: {reason_of(error)}. Measure again, or load "
                f"{printable(place / 'profile.npz')} alone, which has the sums."
            ) from error

    try:
        data = (place if alone else place / "profile.npz").read_bytes()
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        shape = len(about["layers"]), max(layer["num_heads"] for layer in about["layers"])
        if not alone and not rows.is_file():
            raise FileNotFoundError("profile.parquet is not there")
        profile = Profile(about, State.from_arrays(arrays), parts)
        _check_complete(profile, shape)
    except Exception as error:  # a damaged archive or JSON raises nearly anything
        why = Message(
            "{place} holds no profile that can be read: {error}.", place=place, error=error
        )
        raise ProfileError(why) from error
    return profile


def _check_complete(profile: Profile, shape: tuple[int, int]) -> None:
    """Raise an error if something that every profile has is missing or has another shape."""
    for name in MEASURES:
        moments = profile._moments(name)
        if {each.shape for each in (moments.count, moments.mean, moments.m2)} != {shape}:
            raise ValueError(f"{name} has another shape")
    sums, parts = profile.state.sums, profile.state.to_arrays()
    if not all(
        isinstance(each, np.ndarray) and each.dtype.kind in "fiu" for each in parts.values()
    ):
        raise ValueError("sums are no numbers")
    depth = shape[0] + 1
    bins = len(NORM_BINS) - 1
    expected = {"norms": (2, depth, bins), "hsic": (depth, depth), "answers/top": (2,)}
    expected |= {"sinks": (len(SINKS), shape[0])}
    expected |= {"answers/loss": ()}
    expected |= {f"answers/{name}": (CONFIDENCE_BINS,) for name in ("count", "confidence", "right")}
    for name, size in expected.items():
        is_needed = name == "norms" or ("answers/" in name and "answers/count" in sums)
        if (is_needed or name in sums) and sums[name].shape != size:
            raise ValueError(f"{name} has another shape")
    for branch in ("skip_attention", "skip_mlp", "outlier_share", "tokens"):
        profile.state.moments[branch]
    about = profile.about
    for key, kind in _KINDS.items():
        if not isinstance(about[key], kind):
            raise ValueError(f"{key} is no {kind}")
    for key in SAME:
        about[key]


def with_defaults(about: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of settings and of facts on layers that are newer than the file."""
    result = {"sinks": False, **about}
    result["preprocessing"] = _defaults_of(Preprocessing) | about.get("preprocessing", {})
    if "layers" in about:
        result["layers"] = [_defaults_of(Layer) | layer for layer in about["layers"]]
    return result


def _defaults_of(kind: type[Preprocessing] | type[Layer]) -> dict[str, Any]:
    usual = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return dict(json.loads(json.dumps(usual)))


def profile_columns(profile: Profile) -> dict[str, list[Any]]:
    """Return a table with one row per layer, head and measure, as `summary` has its columns."""
    measures = {name: profile._moments(name) for name in MEASURES}
    for kind in profile.about["importance"]:
        changes, falls = profile.importance(kind)
        measures |= {f"changed_by_{kind}": changes, f"nats_lost_by_{kind}": falls}
    heads = [layer["num_heads"] for layer in profile.about["layers"]]
    return head_table(heads, {name: summary(moments) for name, moments in measures.items()})


def summary(moments: Moments) -> dict[str, np.ndarray]:
    """Return mean, standard deviation (n - 1), standard error, 95 % interval and count."""
    low, high = moments.interval()
    return {
        "value": moments.means,
        "std": moments.std,
        "sem": moments.sem,
        "low": low,
        "high": high,
        "pictures": moments.count,
    }


def _write_rows(parts: Iterator[Part], path: Path, *, about: Mapping[str, Any]) -> None:
    """Write the rows by picture part by part, each measure as nested lists by layer and head.

    The file's metadata hold `about` as JSON, under "vitviz".
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    text, number = pa.string(), pa.int32()
    kinds = dict(zip(COLUMNS, (text, text, number, number, pa.float32(), text), strict=True))
    writer: Any = None
    with open_replacement(path) as file:
        for table, rows in parts:
            columns = {name: pa.array(table[name], kinds[name]) for name in COLUMNS}
            for name in BY_PICTURE:
                flat = np.ascontiguousarray(rows[name], np.float32)
                by_head = pa.list_(pa.field("head", pa.float32()), flat.shape[2])
                heads = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), type=by_head)
                by_layer = pa.list_(pa.field("layer", by_head), flat.shape[1])
                columns[name] = pa.FixedSizeListArray.from_arrays(heads, type=by_layer)
            output = pa.table(columns).replace_schema_metadata({"vitviz": json.dumps(about)})
            writer = writer or ParquetWriter(
                file, output.schema, compression="zstd", use_compliant_nested_type=False
            )
            writer.write_table(output)
        writer.close()


def read_rows(path: Path, shape: tuple[int, int]) -> Iterator[Part]:
    """Read the rows by picture part by part."""
    from pyarrow.parquet import ParquetFile

    # No pre-buffering: if one of pyarrow's threads still holds bytes of Python's when Python ends,
    # the process aborts.
    with open(path, "rb") as data, ParquetFile(data, pre_buffer=False) as file:
        for number in range(file.metadata.num_row_groups):
            table = file.read_row_group(number, use_threads=False)
            columns = {name: table[name].to_pylist() for name in COLUMNS}
            rows = {}
            for name in BY_PICTURE:
                numbers = table[name].combine_chunks().flatten().flatten()  # by layer and head
                rows[name] = numbers.to_numpy(zero_copy_only=False).reshape(-1, *shape)
            yield columns, rows
