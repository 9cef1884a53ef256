"""The files of a profile."""

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .heads import KEPT, MEASURES
from .measuring import COLUMNS

if TYPE_CHECKING:
    from .results import Part, Profile


def write(profile: "Profile", folder: Path) -> None:
    """Write all files; `run.json` comes last, so that a folder that has it is whole."""
    from ..plots.profile_page import page

    folder.mkdir(parents=True, exist_ok=True)
    write_rows(profile._parts(), folder / "profile.parquet")
    file = io.BytesIO()
    about = json.dumps(profile.about)  # in the file, too, so that it can be read without the others
    np.savez_compressed(file, allow_pickle=False, about=about, **profile.state.arrays())
    replace(folder / "profile.npz", file.getvalue())
    replace(folder / "heads.csv", heads_csv(profile).encode())
    replace(folder / "profile.html", page(profile).encode())
    replace(folder / "run.json", (json.dumps(profile.about, indent=2) + "\n").encode())


def replace(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole, or as it was before."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(data)
    os.replace(beside, path)


def heads_csv(profile: "Profile") -> str:
    """A line for each head: of every measure mean, deviation, standard error and interval."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    kinds = ("mean", "std", "sem", "low", "high")
    names = [f"{name}_{kind}" for name in MEASURES for kind in kinds]
    for kind in profile.about["importance"]:
        names += [f"changed_by_{kind}", f"nats_lost_by_{kind}"]
    table.writerow(["layer", "head", *names])
    columns = []
    for name in MEASURES:
        columns += [profile.mean(name), profile.std(name), profile.sem(name)]
        columns += profile.interval(name)
    for kind in profile.about["importance"]:
        columns += [moments.means for moments in profile.importance(kind)]
    for number, layer in enumerate(profile.about["layers"]):
        for head in range(layer["num_heads"]):
            values = (float(column[number, head]) for column in columns)
            cells = ("" if np.isnan(value) else f"{value:.8g}" for value in values)
            table.writerow([number + 1, head + 1, *cells])
    return text.getvalue()


def write_rows(parts: Iterator["Part"], path: Path) -> None:
    """Write the rows by picture, one part at a time: layer and head of a number run together."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    text, number = pa.string(), pa.int32()
    kinds = dict(zip(COLUMNS, (text, text, number, number, pa.float32(), text), strict=True))
    beside = path.with_name(path.name + ".part")
    writer: Any = None
    for table, rows in parts:
        columns = {name: pa.array(table[name], kinds[name]) for name in COLUMNS}
        for name in KEPT:
            flat = np.ascontiguousarray(rows[name], np.float32)
            size = flat.shape[1] * flat.shape[2]
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), size)
        made = pa.table(columns)
        writer = writer or ParquetWriter(beside, made.schema, compression="zstd")
        writer.write_table(made)
    writer.close()
    os.replace(beside, path)


def rows_of(path: Path, shape: tuple[int, int]) -> Iterator["Part"]:
    """The rows by picture, as they were written."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        for number in range(file.metadata.num_row_groups):
            table = file.read_row_group(number)
            columns = {name: table[name].to_pylist() for name in COLUMNS}
            rows = {
                name: table[name].combine_chunks().flatten().to_numpy().reshape(-1, *shape)
                for name in KEPT
            }
            yield columns, rows
