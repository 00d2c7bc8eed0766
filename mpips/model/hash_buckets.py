"""Tables of a fixed size: every key is mapped to one of N buckets, and each bucket has a row.

The bucket of a key is `mix(key + STEP) mod N`, with the key as an unsigned number of 64 bits, and with the
step and the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014). This is the hashing trick (Weinberger et al., "Feature Hashing for Large Scale Multitask
Learning", ICML 2009) without signs: ids that fall into one bucket share its row. Buckets are equal on all
machines and in all later versions.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.accepted import is_count
from mpips.model.initializer import STEP, mix
from mpips.model.partition import FrequencyPartition, Partition, RangePartition

MOST_BUCKETS = 2**32 - 1  # a server's map has at most that many rows
HashBuckets: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_BUCKETS)]


def bucket_keys(keys: NDArray[np.int64], n_buckets: int) -> NDArray[np.int64]:
    """Return the bucket of each key, int64, of the shape of `keys`, from 0 to n_buckets - 1.

    Args:
        keys: int64, any shape.
        n_buckets: Number of buckets, 1 to MOST_BUCKETS.
    """
    mixed = mix(keys.view(np.uint64) + STEP)
    return (mixed % np.uint64(n_buckets)).view(np.int64)


def settled_buckets(name: str, n: int, partition: Partition | str) -> int:
    """Return a table's number of buckets as a plain int.

    Args:
        name: Name of the table.
        n: Number of buckets as the user has given it.
        partition: Partition of the table.

    Raises:
        ConfigError: The table cannot have this number of buckets.
    """
    where = f"table {name!r}: hash_buckets = {n!r}"
    if not is_count(n) or not 0 <= n <= MOST_BUCKETS:
        raise ConfigError(
            f"{where}: must be a whole number from 1 to {MOST_BUCKETS}, or 0 for none"
        )
    if not n:
        return 0
    if isinstance(partition, FrequencyPartition):
        raise ConfigError(
            f"{where} with a FrequencyPartition, whose keys are no buckets: use HashPartition()"
        )
    if isinstance(partition, RangePartition):
        low, high = partition.low, partition.high
        if low is not None and (low > 0 or high is None or high < n):
            raise ConfigError(
                f"{where} with {partition}: buckets are the keys 0 to {n - 1}, which the range must "
                f"contain: use RangePartition(0, {n}) or HashPartition()"
            )
    return int(n)
