"""The record of the words in the training data of all workers, and the words of the test data beside it."""

from __future__ import annotations

import numpy as np

from mpips.data import DataInfo, Dataset, Moments
from mpips.data.known_words import PATH, KnownWords, WordCounts, counts_of, has_words
from mpips.data.stream import StreamedData
from mpips.worker.collectives import AnyArray, Collectives


def names_of(info: DataInfo) -> tuple[str, ...]:
    """Return the path of the record in checkpoints of such data; () if they have none."""
    return (PATH,) if has_words(info) else ()


def known_words(collectives: Collectives, info: DataInfo, moments: Moments) -> KnownWords | None:
    """Return the words of the training data of all workers; None: it has none. Collective over workers.

    Args:
        collectives: Gathers and reductions of this worker.
        info: Description of the training data.
        moments: Moments of all workers, with the keys of this one.
    """
    if not has_words(info):
        return None
    n_keys = collectives.reduce("words", np.array([len(moments.keys)]))
    assert n_keys is not None
    own = KnownWords.of(moments.keys, int(n_keys[0]))
    bits = collectives.reduce("record of words", own.bits, _either)
    assert bits is not None
    return KnownWords(bits).halved()


def _either(low: AnyArray, high: AnyArray) -> AnyArray:
    found: AnyArray = low | high
    return found


def notes_on_words(
    collectives: Collectives,
    known: KnownWords | None,
    info: DataInfo,
    data: Dataset | StreamedData,
    source: str,
) -> tuple[str, ...]:
    """Return sentences on the words of data to evaluate on. Collective over workers.

    Args:
        collectives: Gathers and reductions of this worker.
        known: The words of the training data; None: it has none.
        info: Its description.
        data: This worker's samples.
        source: The data, for people.
    """
    counts = counts_of(known, info)
    if counts is None:
        return ()
    for part in data.parts() if isinstance(data, StreamedData) else (data,):
        counts.add(part)
    total = collectives.reduce("unknown words", np.stack([counts.cells, counts.unknown]))
    assert total is not None
    assert known is not None
    whole = WordCounts(known, info)
    whole.add_counts(total.tolist())
    return whole.notes(source)
