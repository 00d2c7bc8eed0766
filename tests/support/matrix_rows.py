"""Rows of the matrix of faults (mpips/testing/faults.py) that are new or changed: by day all their runs run.

matrix_rows.json has a digest of each row that the whole sample has been run with. After a row was added or
changed and `bash tests/run.sh long fault` has passed, store the new rows by
`python tests/support/matrix_rows.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from mpips.testing import faults, matrix

STORED = Path(__file__).with_name("matrix_rows.json")


def digests() -> dict[str, str]:
    """Return the digest of each row by its kind and name, such as "task dense-bsp"."""
    kinds: dict[str, Mapping[str, object]] = {
        "task": faults.TASKS,
        "transport": faults.TRANSPORTS,
        "place": faults.PLACES,
        "how": faults.HOWS,
        "servers": {str(n): n for n in faults.SERVERS},
        "together": {str(i): row for i, row in enumerate(matrix.TOGETHER)},
    }
    return {
        f"{kind} {name}": hashlib.sha256(msgspec.json.encode(row)).hexdigest()[:16]
        for kind, rows in kinds.items()
        for name, row in rows.items()
    }


def stored(path: Path = STORED) -> dict[str, str]:
    """Return the digests of the file."""
    found: dict[str, str] = json.loads(path.read_text())
    return found


def changed(path: Path = STORED) -> list[str]:
    """Return the rows that the file does not have, or has otherwise."""
    before = stored(path)
    return [row for row, digest in digests().items() if before.get(row) != digest]


def rows_of(run: matrix.Run) -> Iterator[str]:
    """Yield the rows that a run of the sample consists of."""
    shape = run.shape
    yield f"task {shape.task}"
    yield f"transport {shape.transport}"
    yield f"servers {shape.servers}"
    for cell in run.cells:
        yield f"place {cell.place}"
        yield f"how {cell.how}"
    for i, (task, servers, transport, *cells) in enumerate(matrix.TOGETHER):
        same_job = (task, servers, transport) == (shape.task, shape.servers, shape.transport)
        if same_job and cells == [(cell.place, cell.how) for cell in run.cells]:
            yield f"together {i}"


if __name__ == "__main__":
    STORED.write_text(json.dumps(digests(), indent=0) + "\n")
