"""Tell the format of a file by its beginning, where the extension of its name does not."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from mpips.data.arrays import MAGIC
from mpips.data.compressed import beginning
from mpips.data.criteo import is_criteo
from mpips.data.csv_dialect import DELIMITERS, SAMPLE_CHARACTERS, find_delimiter
from mpips.errors import DataError

# A line of several labels begins with a list, or with the features.
_LIBSVM = re.compile(
    r"(?:[-+.\deE]+(?:,[-+.\deE]+)*|(?=\s*\d+:))(?:(?:^|\s+)(?:qid:\S+|\d+:[-+.\deE]+))*\s*(?:#.*)?"
    r"|\s*#.*"
)
_PAIR = re.compile(r"(?:^|\s)\d+:")
# A label, then perhaps its weight and a name, then features in groups that bars begin.
_VOWPAL_WABBIT = re.compile(
    r"(?:[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?(?:\s+[-+]?[0-9.]+)*\s+)?(?:'?\S+\s*)?"
    r"\|(?:[^\s|:]+(?::[-+0-9.eE]+)?)?(?:\s+[^\s|]+|\s*\|(?:[^\s|:]+(?::[-+0-9.eE]+)?)?)*\s*"
)
# A line of JSON lines, and the beginning of a list or of an object of lists.
_JSON_LINE = re.compile(r"\s*\{\s*(?:\"[^\"]*\"\s*:.*)?\}\s*")
_JSON = re.compile(r"\s*(?:\[\s*[\[{]|\{\s*\"[^\"]*\"\s*:\s*[\[{])")
_GROUP = re.compile(r"(?:^|\s)\|(?:\S*\s+\S)")
_LINES = 20  # lines that are compared with the form of a format


def is_vowpal_wabbit(lines: Sequence[str]) -> bool:
    """Return True if all lines of a text are samples of Vowpal Wabbit, such as `1 |user id:7 |ad size:2`."""
    return (
        bool(lines) and all(map(_GROUP.search, lines)) and all(map(_VOWPAL_WABBIT.fullmatch, lines))
    )


def format_of(path: str) -> str | None:
    """Return the format whose files begin like this one: npz, npy, parquet, ...; None: no one's.

    Raises:
        OSError: The file cannot be read.
        DataError: It is text of Vowpal Wabbit, JSON or a workbook of Excel, which no reader takes.
    """
    start = beginning(path, SAMPLE_CHARACTERS)
    if start.startswith(b"PK\x03\x04"):
        if start[30:].startswith((b"[Content_Types].xml", b"_rels/", b"docProps/", b"xl/")):
            raise DataError(
                f"{path}: is a workbook, such as of Excel, which mpips does not read: save its sheet as CSV"
            )
        return "npz"
    if start.startswith(MAGIC):
        return "npy"
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff")):
        return "arrow"
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return "hdf5"
    try:
        # A character may be cut off at the end of the sample.
        text = start.decode(
            "utf-8-sig", errors="strict" if len(start) < SAMPLE_CHARACTERS else "ignore"
        )
    except UnicodeDecodeError:
        return None
    lines = text.splitlines()
    if len(start) == SAMPLE_CHARACTERS:
        lines = lines[:-1]
    lines = [line for line in lines if line.strip()][:_LINES]
    if is_criteo(lines):
        return "criteo"
    if lines and (all(map(_JSON_LINE.fullmatch, lines)) or _JSON.match(text)):
        raise DataError(
            f"{path}: is JSON, which mpips does not read: write CSV or Parquet, for example with pandas: "
            "read_json(...).to_parquet(...)"
        )
    if lines and all(map(_LIBSVM.fullmatch, lines)) and any(map(_PAIR.search, lines)):
        return "libsvm"
    if is_vowpal_wabbit(lines):
        raise DataError(
            f"{path}: is text of Vowpal Wabbit (label |group name:value ...), which mpips does not read: "
            "write LIBSVM (label number:value ...), CSV or Parquet"
        )
    delimiter = find_delimiter(io.StringIO(text, newline=""))
    has_columns = bool(lines) and delimiter in lines[0] and "\0" not in text
    return "csv" if delimiter in DELIMITERS and has_columns else None
