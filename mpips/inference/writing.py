"""Write predictions to a file or to stdout: CSV, npz or Parquet."""

from __future__ import annotations

import csv
import io
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpips.errors import CapabilityError, ConfigError
from mpips.inference.model import Model, Numbers

_ROWS = 1 << 14  # lines of CSV that are made at once


def columns_of(model: Model, data: Any) -> dict[str, Numbers]:
    """Predict, and return the result as columns of equal length.

    Args:
        model: The model.
        data: As of `Model.predict`.

    Returns:
        "prediction", the label or the number of each sample; for classes also "probability_LABEL", float32,
        for each label. Or the columns of a task that has its own (`mpips.tasks.base.Task.columns`).
    """
    own = model.columns(data)
    if own is not None:
        return own
    if model.info.wants != "classes":
        return {"prediction": model.predict(data)}
    probabilities = model.predict_proba(data)
    found = {"prediction": model.labels_of(probabilities)}
    for name, column in zip(model.info.class_names, probabilities.T, strict=True):
        found[f"probability_{name}"] = column
    return found


def write(columns: dict[str, Numbers], out: Path) -> None:
    """Write columns into a new file, whose extension says the format; it appears when it is complete.

    Raises:
        ConfigError: The extension means no format, or the file cannot be written.
        CapabilityError: Parquet without pyarrow.
    """
    ending = out.suffix.lower()
    if ending not in WRITERS:
        raise ConfigError(
            f"{out}: cannot tell the format: use an extension of {', '.join(WRITERS)}"
        )
    new = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(new, "xb") as file:
            WRITERS[ending](columns, file)
        os.replace(new, out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        new.unlink(missing_ok=True)


def write_csv(columns: dict[str, Numbers], file: IO[bytes]) -> None:
    """Write columns as CSV with a header; %.9g, from which every float32 can be read back exactly."""
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    n = len(next(iter(columns.values())))
    for start in range(0, n, _ROWS):
        texts = [_texts(column[start : start + _ROWS]) for column in columns.values()]
        lines.writerows(zip(*texts, strict=True))
    text.flush()
    text.detach()


def _texts(values: Numbers) -> list[str]:
    if values.dtype.kind == "f":
        return [f"{value:.9g}" for value in values.tolist()]
    return [str(value) for value in values.tolist()]


def _write_npz(columns: dict[str, Numbers], file: IO[bytes]) -> None:
    np.savez(file, **columns)  # type: ignore[arg-type]


def _write_parquet(columns: dict[str, Numbers], file: IO[bytes]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise CapabilityError(
            f"writing Parquet needs pyarrow (pip install pyarrow): {error}"
        ) from None
    parquet.write_table(pyarrow.table(columns), file)


WRITERS: dict[str, Callable[[dict[str, Numbers], IO[bytes]], None]] = {
    ".csv": write_csv,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}
