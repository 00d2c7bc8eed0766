"""Made-up click logs of Criteo."""

from __future__ import annotations

import bz2
import gzip
import random
from collections.abc import Callable
from pathlib import Path

COLUMNS = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def click_lines(n: int, seed: int = 1) -> list[list[str]]:
    """Return the cells of n lines; the first category tells nine labels of ten, the same for all seeds."""
    # Some categories look like numbers.
    words = [f"{0x9E3779B1 * i % (1 << 32):08x}" for i in range(40)]
    words += ["00000012", "68131e01", "1e000000"]
    source = random.Random(seed)
    rows = []
    for _ in range(n):
        numbers = [
            "" if source.random() < 0.3 else str(source.randint(-3, 5000)) for _ in range(13)
        ]
        cells = ["" if source.random() < 0.2 else source.choice(words) for _ in range(26)]
        place = source.randrange(8)
        cells[0] = words[place]
        label = (place < 3) ^ (source.random() < 0.1)
        rows.append([str(int(label)), *numbers, *cells])
    return rows


def write_clicks(path: Path, rows: list[list[str]], with_label: bool = True) -> Path:
    """Write lines, compressed by the ending of the name; return the path."""
    text = "".join("\t".join(row if with_label else row[1:]) + "\n" for row in rows).encode()
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress}
    path.write_bytes(pack.get(path.suffix, bytes)(text))
    return path
