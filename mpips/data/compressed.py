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


class PackedPlace:
    """The place in a compressed file, or in its content, up to which it was read. Not thread-safe."""

    def __init__(self) -> None:
        """Begin before the file is opened."""
        self._raw: IO[bytes] | None = None
        self._size = 0

    def follow(self, raw: IO[bytes]) -> None:
        """Follow the place in an open file."""
        self._raw = raw
        self._size = os.fstat(raw.fileno()).st_size

    @property
    def share(self) -> float:
        """Share of the bytes that were read, 0 to 1; 0 after the file was closed."""
        if self._raw is None or self._raw.closed or not self._size:
            return 0.0
        return self._raw.tell() / self._size


@contextlib.contextmanager
def _zst_stream(raw: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    """Decompress piece by piece; the result cannot go back."""
    try:
        import zstandard
    except ImportError as error:
        raise CapabilityError(
            f"{path}: reading .zst needs zstandard (pip install zstandard): {error}"
        ) from None
    decompressor = zstandard.ZstdDecompressor()
    with decompressor.stream_reader(raw, read_across_frames=True) as file:
        yield file


@contextlib.contextmanager
def _open_zst(raw: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    """Decompress into a temporary file, which can go back, as the reader of CSV does."""
    with tempfile.TemporaryFile(prefix="mpips-data-") as content:
        with _zst_stream(raw, path) as file:
            shutil.copyfileobj(file, content, 1 << 20)
        content.seek(0)
        yield content


@contextlib.contextmanager
def _open_xz(raw: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    with lzma.LZMAFile(raw) as file:
        yield file


# By the ending: decompresses an open file, of which the name is given, too.
OPENERS: dict[str, Callable[[IO[bytes], str], Any]] = {
    ".gz": lambda raw, path: gzip.GzipFile(fileobj=raw),
    ".bz2": lambda raw, path: bz2.BZ2File(raw),
    ".xz": _open_xz,
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
def opened(path: str, place: PackedPlace | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed.

    Args:
        path: The file.
        place: Follows the place in it.

    Raises:
        OSError: The file cannot be opened.
        DataError: Within the block: the compressed data is damaged, or ends early.
        CapabilityError: The library of the compression is missing.
    """
    opener = OPENERS.get(compression_of(path))
    with _errors(path), open(path, "rb") as raw:
        if place is not None:
            place.follow(raw)
        if opener is None:
            yield raw
            return
        with opener(raw, path) as file:
            if place is not None and opener is _open_zst:
                # The file has been read already; what is left to be read is its content.
                place.follow(file)
            yield file


def beginning(path: str, n_bytes: int) -> bytes:
    """Return the first bytes of a file, decompressed; fewer if it is shorter. Raises as `opened` does."""
    ending = compression_of(path)
    if ending != ".zst":
        with opened(path) as file:
            return file.read(n_bytes)
    with _errors(path), open(path, "rb") as raw, _zst_stream(raw, path) as file:
        return file.read(n_bytes)


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turn errors of damaged compressed data in the block into a DataError."""
    try:
        yield
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
