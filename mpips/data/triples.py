"""Triples (head, relation, tail) of a knowledge graph: lines of text as keys of entities and relations."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.delimited import Line, lines_of, tabs_or_blanks
from mpips.data.headers import LOOKED_AT, plain, stands_above_numbers
from mpips.data.several import files_of
from mpips.data.vocabulary import Vocabulary
from mpips.errors import DataError

Int64: TypeAlias = npt.NDArray[np.int64]
Int32: TypeAlias = npt.NDArray[np.int32]
Texts: TypeAlias = npt.NDArray[np.str_]

UNKNOWN = -1  # key of a name that the training data does not contain
ASKED = -2  # key of "?", in the place of a head or tail that is to be predicted
_WHAT = "head, relation and tail, divided by tabs"


# Names of the three columns in a header, as `mpips.data.headers.plain` returns them: a line for each.
_NAMES = """
h head headid heads headentity s subj subject subjectid source src from entity1 e1 entityhead
r rel relation relationid relations p pred predicate predicateid property edge edgetype
t tail tailid tails tailentity o obj object objectid target dst to entity2 e2 entitytail
"""
_HEADER = [frozenset(line.split()) for line in _NAMES.strip().splitlines()]
_LETTERS = 2  # of names that can be those of entities, too


class TripleBatch(msgspec.Struct, frozen=True):
    """Triples.

    Attributes:
        ids: Keys of head, relation and tail, int64, shape (n, 3); in data to evaluate also UNKNOWN and ASKED.
        weight: Factor of the mean gradient over the batch.
        known: Further triples that are true: all those of the file, int64, shape (m, 3).
        names: Head, relation and tail as the file has them, shape (n, 3); None: not a file of questions.
    """

    ids: Int64
    weight: float
    known: Int64
    names: Texts | None = None

    @property
    def n(self) -> int:
        """Number of triples; may be 0."""
        return len(self.ids)


class TripleData(msgspec.Struct, frozen=True):
    """A worker's triples; the attributes are those of `TripleBatch`."""

    ids: Int64
    known: Int64
    names: Texts | None = None

    @property
    def n(self) -> int:
        """Number of triples."""
        return len(self.ids)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.ids.nbytes + self.known.nbytes

    def take(self, rows: Int64, weight: float = 1.0) -> TripleBatch:
        """Copy triples `rows` (int64, shape (n,), any order) into a batch."""
        names = self.names[rows] if self.names is not None else None
        return TripleBatch(self.ids[rows], weight, self.known, names)


class _Names:
    """Names by the order in which they come; memory for each distinct name once."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}

    def key(self, name: str) -> int:
        return self.keys.setdefault(name, len(self.keys))

    def sorted(self) -> tuple[Vocabulary, Int64]:
        """Return the vocabulary, sorted, and the key in it of each name in the order in which they came."""
        names = sorted(self.keys)
        places = np.empty(len(names), np.int64)
        for key, name in enumerate(names):
            places[self.keys[name]] = key
        return Vocabulary(names), places


def header_notes(pattern: str) -> tuple[str, ...]:
    """Return a sentence on each file of triples whose first line names the columns.

    Raises:
        DataError: A first line is not a triple, or looks like a header of other columns.
        OSError: A file cannot be read.
    """
    notes = []
    for path in files_of(pattern):
        some = list(itertools.islice(lines_of(path, tabs_or_blanks, 2, 3, _WHAT), LOOKED_AT))
        if _order(some) is not None:
            notes.append(f"{path}: the first line names the columns: {', '.join(some[0].cells)}")
    return tuple(notes)


def _order(lines: Sequence[Line]) -> list[int] | None:
    """Return the places of head, relation and tail that the first line of a file names; None: no header.

    Args:
        lines: The first lines.

    Raises:
        DataError: The first line looks like a header of other columns.
    """
    if not lines:
        return None
    place, cells = lines[0]
    names = [plain(cell) for cell in cells]
    found = [next((i for i, n in enumerate(names) if n in known), -1) for known in _HEADER]
    there = [own for own in found if own >= 0]
    sure = [own for own in there if len(names[own]) > _LETTERS]
    if len(set(there)) == len(cells) and (len(cells) == len(_HEADER) or sure == there):
        return there
    others = [line.cells for line in lines[1:]]
    if len(set(sure)) > 1 or stands_above_numbers(cells, others):
        raise DataError(
            f"{place}: {' '.join(cells)[:60]!r} looks like a header: call the columns head, relation and "
            "tail, or remove the line"
        )
    return None


def _lines(pattern: str, least: int, what: str) -> Iterator[Line]:
    """Yield the lines of triples behind headers, in the order head, relation, tail; see `lines_of`."""
    for path in files_of(pattern):
        lines = lines_of(path, tabs_or_blanks, least, 3, what)
        first = list(itertools.islice(lines, LOOKED_AT))
        order = _order(first)
        for place, cells in itertools.chain(first[1:] if order is not None else first, lines):
            same = order is None or len(cells) != len(order)
            yield Line(place, cells if same else [cells[i] for i in order or ()])


def read_new(pattern: str) -> tuple[Int64, Vocabulary, Vocabulary, int]:
    """Read the triples of training data. Not collective; blocks.

    Args:
        pattern: A file, or a pattern of several.

    Returns:
        The distinct triples in the order of the file, int64, shape (n, 3); the vocabularies of entities and
        relations, sorted; and the number of triples that occurred before and were left out.

    Raises:
        DataError: A line is not a triple.
        OSError: A file cannot be read.
    """
    entities, relations, found = _Names(), _Names(), array("q")
    for place, (head, relation, tail) in _lines(pattern, 3, _WHAT):
        if not (head and relation and tail):
            raise DataError(f"{place}: an empty cell: must be {_WHAT}")
        found.extend((entities.key(head), relations.key(relation), entities.key(tail)))
    ids = np.frombuffer(found, np.int64).reshape(-1, 3)
    _, first = np.unique(ids, axis=0, return_index=True)
    distinct = ids[np.sort(first)]
    (names, places), (relation_names, relation_places) = entities.sorted(), relations.sorted()
    if len(distinct):
        columns = (places, relation_places, places)
        distinct = np.stack([place[distinct[:, i]] for i, place in enumerate(columns)], axis=1)
    return distinct, names, relation_names, len(ids) - len(distinct)


def read_as(pattern: str, entities: Vocabulary, relations: Vocabulary) -> Int64:
    """Read triples as keys of known vocabularies. Not collective; blocks.

    Args:
        pattern: A file, or a pattern of several.
        entities: The vocabulary of entities.
        relations: The vocabulary of relations.

    Returns:
        int64, shape (n, 3), in the order of the file; UNKNOWN for unknown names.

    Raises:
        DataError: A line is not a triple.
        OSError: A file cannot be read.
    """
    found = array("q")
    for place, (head, relation, tail) in _lines(pattern, 3, _WHAT):
        if not (head and relation and tail):
            raise DataError(f"{place}: an empty cell: must be {_WHAT}")
        found.extend((entities.find(head), relations.find(relation), entities.find(tail)))
    return np.frombuffer(found, np.int64).reshape(-1, 3)


def questions(
    pattern: str, entities: Vocabulary, relations: Vocabulary
) -> Iterator[tuple[list[int], tuple[str, str, str]]]:
    """Yield triples in which "?" can stand for head or tail. Not collective; reads while iterated over.

    Args:
        pattern: A file, or a pattern of several. A line of two cells asks for the tail.
        entities: The vocabulary of entities.
        relations: The vocabulary of relations.

    Yields:
        Three keys as of `read_as`, with ASKED for "?"; and the cells.

    Raises:
        DataError: A line is not a triple, or asks for more than one entity.
        OSError: A file cannot be read.
    """
    what = "head, relation and tail, with ? for what is asked"
    for place, cells in _lines(pattern, 2, what):
        head, relation, tail = cells if len(cells) == 3 else (*cells, "?")
        if not (head and relation and tail):
            raise DataError(f"{place}: an empty cell: must be {what}")
        keys = [entities.find(head), relations.find(relation), entities.find(tail)]
        if "?" in (head, tail):
            if head == tail or relation == "?":
                raise DataError(f"{place}: ? stands for the head or for the tail, not for more")
            keys[0 if head == "?" else 2] = ASKED
        yield keys, (head, relation, tail)


def known_of(parts: Sequence[Int64]) -> Int32:
    """Return the distinct triples of all parts without unknown names, sorted, int32, shape (n, 3)."""
    triples = np.concatenate(parts) if parts else np.zeros((0, 3), np.int64)
    return np.unique(triples[(triples >= 0).all(axis=1)], axis=0).astype(np.int32)
