"""Write word vectors in the forms of the program word2vec of Mikolov et al., which many libraries read.

Both begin with a line "WORDS DIM". In the form of text a line follows for each word: the word and its values
in decimal, separated by spaces, from which float32 values are read back exactly. In the binary form each word
is followed by a space, its values as float32 (little endian), and a line feed.
"""

from __future__ import annotations

from typing import IO, Any

import numpy as np

from mpips.errors import ConfigError
from mpips.inference.model import Model

_ROWS = 1 << 14  # vectors that are read at a time


def write_vectors(model: Model, file: IO[bytes], binary: bool) -> None:
    """Write the vectors of all words, most frequent first.

    Args:
        model: A model of the task `word2vec`.
        file: Receives the bytes.
        binary: Write the binary form.

    Raises:
        ConfigError: The model has another task.
    """
    if model.manifest.config["task"] != "word2vec":
        raise ConfigError(
            f"--format word2vec: the model's task is {model.manifest.config['task']!r}: must be 'word2vec'"
        )
    words = model.arrays["vocabulary/words"].tobytes().split(b"\n")[:-1]
    table: Any = model.tables.table("input")
    for first in range(0, len(words), _ROWS):
        block = words[first : first + _ROWS]
        rows = table.pull(np.arange(first, first + len(block)))
        if first == 0:
            file.write(b"%d %d\n" % (len(words), rows.shape[1]))
        for word, row in zip(block, rows, strict=True):
            values = row.astype("<f4").tobytes() if binary else _decimal(row)
            file.write(word + b" " + values + b"\n")


def _decimal(row: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    return " ".join([f"{value:.9g}" for value in row.tolist()]).encode()
