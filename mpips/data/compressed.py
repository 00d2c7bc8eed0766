"""Text files that are compressed: .gz, .bz2, .xz and .zst around any format of text.

CSV is decompressed piece by piece. LIBSVM that is read into memory, whose parser needs the whole text, and
.zst are decompressed into a temporary file without a name.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from mpips.errors import CapabilityError, DataError


@contextlib.contextmanager
def _open_zst(path: str) -> Iterator[IO[bytes]]:
    """Decompress into a temporary file: the reader of zstandard cannot go back, as that of CSV does."""
    try:
        import zstandard
    except ImportError as error:
        raise CapabilityError(
            f"{path}: reading .zst needs zstandard (pip install zstandard): {error}"
        ) from None
    with tempfile.TemporaryFile(prefix="mpips-data-") as content:
        with zstandard.open(path, "rb") as file:
            shutil.copyfileobj(file, content, 1 << 20)
        content.seek(0)
        yield content


OPENERS: dict[str, Callable[[str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zst,
}


def compression_of(path: str) -> str:
    """Return the ending of a compressed file's name, a key of OPENERS; "": it is not compressed."""
    ending = os.path.splitext(path)[1].lower()
    return ending if ending in OPENERS else ""


def inner_name(path: str) -> str:
    """Return the name of the file without the ending of the compression."""
    return path[: len(path) - len(compression_of(path))]


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed.

    Raises:
        OSError: The file cannot be opened.
        DataError: Within the block: the compressed data is damaged, or ends early.
        CapabilityError: The library of the compression is missing.
    """
    opener = OPENERS.get(compression_of(path))
    try:
        with opener(path) if opener is not None else open(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(f"{path}: is damaged, or not what its ending says: {error}") from None
    except OSError as error:
        # bz2 has no error of its own.
        if error.errno is None:
            raise DataError(f"{path}: is damaged, or not what its ending says: {error}") from None
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "zstandard":
            raise
        raise DataError(f"{path}: is damaged, or not what its ending says: {error}") from None


@contextlib.contextmanager
def opened_text(path: str) -> Iterator[io.TextIOWrapper]:
    """Open a file of UTF-8 text, decompressed; line ends stay as they are. Raises as `opened` does."""
    with opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        yield text


@contextlib.contextmanager
def opened_to_map(path: str) -> Iterator[IO[bytes]]:
    """Open a file that can be mapped: itself, or a temporary file with its decompressed content.

    Raises:
        OSError: The file cannot be opened, or there is no room for the content.
        DataError: As `opened`.
    """
    if not compression_of(path):
        with open(path, "rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="mpips-data-") as content:
        with opened(path) as file:
            shutil.copyfileobj(file, content, 1 << 20)
        content.flush()
        yield content
