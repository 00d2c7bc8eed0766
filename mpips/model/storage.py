"""Storage of an embedding table that is larger than the memory of its servers.

The rows that were used lately lie in memory, the others in a file on a disk of the server's own node. A row
that a push or a pull needs moves to memory first; rows that were not used for longest move to the file. Where
a row lies changes no result. native/src/server/row_storage.hpp has the algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from mpips.errors import ConfigError
from mpips.model.accepted import check_fields

# The package exports this name, so users write mpips.Storage.
__all__ = ["Storage"]

RECORD_BYTES = 16  # of a row in the file, beside its floats: key and checksum
PLACE_BYTES = 4  # of each row in memory: its place
# In memory. A push or a clock is a part of the journal's operation for each half of these rows, and the
# journal numbers 2^19 parts of an operation.
LEAST_ROWS = 4096


@dataclass(frozen=True)
class Storage:
    """A folder for rows that do not fit into memory, and the memory of the others.

    Attributes:
        path: Folder on a disk of each node with servers, absolute, such as "/local/nvme". Each server has a
            file of its own there.
        memory_mib: Memory of rows (values and the optimizer's state) on each server, MiB. The keys of all
            rows and their places, up to 48 bytes a row, are in memory besides.
    """

    path: str
    memory_mib: Annotated[float, Meta(gt=0, le=2**30)]

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: Names the value and what is accepted.
        """
        check_fields(self, "Storage: ")
        if not isinstance(self.path, str) or not Path(self.path).is_absolute():
            raise ConfigError(
                f"Storage: path = {self.path!r}: must be the absolute path of a folder"
            )


def settled_storage(
    name: str, given: object, row_bytes: int, others: Mapping[str, bool]
) -> Storage:
    """Return the storage that a user has given for a table, as a value or as a mapping.

    Args:
        name: Name of the table.
        given: The storage.
        row_bytes: Bytes of a row of the table.
        others: Options that no table with storage can have, and whether the table has them.

    Raises:
        ConfigError: Names the table, the value and what is accepted.
    """
    value = given
    if isinstance(value, Mapping):
        try:
            fields = ", ".join(map(str, value)) or "nothing"
            value = Storage(**value)
        except TypeError:
            raise ConfigError(
                f"table {name!r}: storage has path, memory_mib, not {fields}"
            ) from None
    if not isinstance(value, Storage):
        raise ConfigError(
            f"table {name!r}: storage = {value!r}: must be Storage(path, memory_mib), in a job file "
            'a table such as {path = "/local/nvme", memory_mib = 8192}'
        )
    for what, present in others.items():
        if present:
            raise ConfigError(
                f"table {name!r}: storage does not combine with {what}: remove one of them"
            )
    if frames(value, row_bytes) < LEAST_ROWS:
        raise ConfigError(
            f"table {name!r}: memory_mib = {value.memory_mib:g} of its storage has no room for "
            f"{LEAST_ROWS} rows of {row_bytes} bytes: give it at least "
            f"{LEAST_ROWS * row_bytes / 2**20:.3g}"
        )
    return value


def frames(storage: Storage, row_bytes: int) -> int:
    """Return the rows of `row_bytes` bytes that a server of a table with storage has in memory, at most."""
    return int(storage.memory_mib * 2**20) // row_bytes


def record_bytes(row_bytes: int) -> int:
    """Return the bytes that a row of `row_bytes` bytes takes in the file."""
    return -(-(RECORD_BYTES + row_bytes) // 8) * 8


def file_bytes(storage: Storage, row_bytes: int, n_rows: int) -> int:
    """Return the bytes of the file of a server that has `n_rows` rows, a third of them free places."""
    return max(0, n_rows - frames(storage, row_bytes)) * 3 // 2 * record_bytes(row_bytes)


def storage_config(storage: Storage | None) -> dict[str, Any] | None:
    """Return the mapping from which a table makes an equal storage; None for None."""
    return None if storage is None else asdict(storage)
