"""The image of a worker: what it keeps over a restart and no server has, as bytes in files and in memory.

Parts of a worker contribute named arrays, and notes of their own: residuals (mpips.worker.feedback) and the
state of local training (mpips.worker.local).

    bytes 0 to 8    length of the head, uint64
    bytes 8 to 16   offset of the first array, uint64
    head            JSON: for each part its name, its notes, and name and length of each array
    arrays          float32, little-endian, in the order of the head, each at a multiple of 64 bytes

An image in memory may be shorter than its memory. Checkpoints of formats 1 and 2 have two other kinds of
files in place of images: `.local` with the state of local training, `.f32` with residuals.

    .local     its notes, which name the tables and their states, behind their length as uint64; then arrays
    as
               in an image, from an offset that follows from the names of the tables
    .f32       the arrays alone, without gaps; the manifest has their names and lengths
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.errors import CheckpointError

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

RESIDUALS, LOCAL = "residuals", "local"  # names of parts
_LINE = 64
WORDS_BYTES = 16  # in front of the head
T = TypeVar("T")


class PartImage(NamedTuple):
    """The share of one part in an image: notes as JSON, and arrays by name, float32, flat."""

    notes: bytes
    arrays: Mapping[str, Float32]


Image = Mapping[str, PartImage]  # by name of the part


class PartHead(msgspec.Struct, frozen=True):
    """One part in the head of an image: its name, its notes, and name and length of each array."""

    name: str
    notes: msgspec.Raw
    arrays: tuple[tuple[str, int], ...]


def padded(n_bytes: int) -> int:
    """Return the next multiple of a line."""
    return -(-n_bytes // _LINE) * _LINE


def image_bytes(head_bytes: int, lengths: Iterable[int]) -> int:
    """Return the bytes of an image with a head of at most `head_bytes` and arrays of these lengths."""
    return padded(WORDS_BYTES + head_bytes) + sum(padded(4 * n) for n in lengths)


def pieces(image: Image) -> Iterator[Bytes]:
    """Yield the bytes of an image, piece by piece; arrays are not copied."""
    text = msgspec.json.encode(
        tuple(
            PartHead(
                name, msgspec.Raw(part.notes), tuple((k, a.size) for k, a in part.arrays.items())
            )
            for name, part in image.items()
        )
    )
    first = np.zeros(padded(WORDS_BYTES + len(text)), np.uint8)
    first[:WORDS_BYTES] = np.array([len(text), first.size], "<u8").view(np.uint8)
    first[WORDS_BYTES : WORDS_BYTES + len(text)] = np.frombuffer(text, np.uint8)
    yield first
    for part in image.values():
        for array in part.arrays.values():
            yield np.ascontiguousarray(array, "<f4").view(np.uint8)
            if padding := padded(array.nbytes) - array.nbytes:
                yield np.zeros(padding, np.uint8)


class ImageLayout(NamedTuple):
    """The places of the arrays of an image: head, offset of the first one, and multiple of their offsets."""

    parts: tuple[PartHead, ...]
    first: int
    line: int = _LINE


def layout_of(first: bytes) -> ImageLayout:
    """Return the layout of an image from its first bytes, which contain the head.

    Raises:
        CheckpointError: They contain no head.
    """
    n, offset = np.frombuffer(first[:WORDS_BYTES].ljust(WORDS_BYTES, b"\0"), "<u8").tolist()
    return ImageLayout(_decoded(first[WORDS_BYTES : WORDS_BYTES + n], tuple[PartHead, ...]), offset)


def older_local_layout(first: bytes) -> ImageLayout:
    """Return the layout of a `.local` file from its first bytes, which contain its notes.

    Raises:
        CheckpointError: They contain no notes.
    """
    text = first[8 : 8 + int.from_bytes(first[:8], "little")]
    tables = _decoded(text, _OlderNotes).tables
    arrays = tuple((f"{t.name}/{k}", t.n) for t in tables for k in ("values", *t.states))
    room = 1024 + sum(1024 + len(msgspec.json.encode(t.name)) for t in tables)
    return ImageLayout((PartHead(LOCAL, msgspec.Raw(text), arrays),), padded(room))


def older_residual_layout(tables: Sequence[tuple[str, int]]) -> ImageLayout:
    """Return the layout of a `.f32` file, from names and lengths of its tables."""
    return ImageLayout((PartHead(RESIDUALS, msgspec.Raw(b"{}"), tuple(tables)),), 0, 4)


def read_image(data: Bytes, layout: ImageLayout | None = None) -> dict[str, PartImage]:
    """Return the parts of an image. The arrays are views of `data`, which may be longer than the image.

    Args:
        data: The image.
        layout: Its layout; None: that of its head.

    Raises:
        CheckpointError: `data` has no head, or is shorter than the image.
    """
    layout = layout or layout_of(data[: head_end(data[:8].tobytes())].tobytes())
    found, at = dict[str, PartImage](), layout.first
    for part in layout.parts:
        arrays = dict[str, Float32]()
        for name, n in part.arrays:
            end = at + -(-4 * n // layout.line) * layout.line
            if not at <= end <= len(data):
                raise CheckpointError("the image of a worker is damaged: its length is wrong")
            arrays[name], at = data[at : at + 4 * n].view("<f4"), end
        found[part.name] = PartImage(bytes(part.notes), arrays)
    return found


def head_end(first: bytes) -> int:
    """Return the bytes up to the end of the head or of the notes, from the first 8 bytes of a file."""
    return WORDS_BYTES + int.from_bytes(first[:8], "little")


def _decoded(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the image of a worker cannot be read: {error}") from None


class _OlderTable(msgspec.Struct):
    name: str
    n: int
    states: tuple[str, ...]


class _OlderNotes(msgspec.Struct):
    tables: tuple[_OlderTable, ...] = ()
