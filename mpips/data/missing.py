"""Texts that mean an empty cell: those of data.missing, beside the usual ones (`mpips.data.words`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.words import is_missing, word_of

Float64: TypeAlias = npt.NDArray[np.float64]

# Texts in small letters that people write for a value that they do not have. `mpips init` looks for them in
# columns of numbers, where they are no category.
USUAL = frozenset(
    {
        *(
            "unknown",
            "unk",
            "missing",
            "undefined",
            "undef",
            "nil",
            "void",
            "blank",
            "empty",
            "not set",
        ),
        *(
            "not available",
            "not applicable",
            "not known",
            "no data",
            "no value",
            "n.a.",
            "n.a",
            "n.d.",
            "nd",
        ),
        *(
            "\\n",
            "#n/a",
            "#na",
            "#n/a n/a",
            "#null!",
            "#value!",
            "#div/0!",
            "#ref!",
            "#name?",
            "#num!",
        ),
        *("-", "--", "---", "\u2013", "\u2014", ".", "..", "...", "*", "??", "???"),
        *(
            "(null)",
            "(none)",
            "(blank)",
            "(empty)",
            "(unknown)",
            "(not set)",
            "<null>",
            "<none>",
            "<na>",
        ),
        *(
            "nat",
            "-nan",
            "+nan",
            "1.#ind",
            "1.#qnan",
            "-1.#ind",
            "-1.#qnan",
            "inf",
            "-inf",
            "+inf",
            "infinity",
            "-infinity",
            "+infinity",
            "tbd",
            "tba",
        ),
        *(
            "0000-00-00",
            "0000-00-00 00:00:00",
            "00.00.0000",
            "00/00/0000",
            "none given",
            "not reported",
        ),
        *(
            "k.a.",
            "k. a.",
            "keine angabe",
            "unbekannt",
            "fehlt",
            "inconnu",
            "desconocido",
            "sconosciuto",
        ),
    }
)


class Missing(msgspec.Struct, frozen=True):
    """The texts of the option data.missing.

    Attributes:
        texts: Their words, in small letters.
        numbers: The numbers among them.
    """

    texts: frozenset[str] = frozenset()
    numbers: tuple[float, ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str]) -> Missing:
        """Return the texts as readers need them."""
        return _of(tuple(texts))

    def has(self, cell: str) -> bool:
        """Return True if a cell is empty or means it; white space around it is removed already."""
        if is_missing(cell):
            return True
        return bool(self.texts) and (cell.lower() in self.texts or self.has_word(word_of(cell)))

    def has_word(self, word: str) -> bool:
        """Return True for the word of a text that means an empty cell."""
        return word.lower() in self.texts

    def blanked(self, values: Float64) -> Float64:
        """Return numbers, shape (n,), with nan in the place of those that mean an empty cell."""
        if not self.numbers:
            return values
        return np.where(np.isin(values, self.numbers), np.nan, values)

    @property
    def ascii_texts(self) -> list[str]:
        """The texts that the native parser knows: those of ASCII characters."""
        return sorted(text for text in self.texts if text.isascii())


@lru_cache(maxsize=64)
def _of(texts: tuple[str, ...]) -> Missing:
    words = {word_of(text.strip()).lower() for text in texts}
    numbers = []
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            continue
        if math.isfinite(number):
            numbers.append(number)
    return Missing(frozenset(words - {""}), tuple(sorted(set(numbers))))
