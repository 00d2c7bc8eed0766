"""The importance of columns: how much worse a metric becomes when the values of a column are shuffled.

See Breiman, "Random Forests" (2001), section 10, and Fisher, Rudin and Dominici (2019). The values of one
column are permuted among the samples, so the column keeps its distribution and is independent of the other
columns and of the label. The loss of the metric is the importance; several permutations give its mean and
spread. Columns with the same information as others seem unimportant, since the others remain. A column that
gives several features, such as a date, has one permutation for all of them.

The samples are in memory, so of a larger file a random part is used: each sample has a random number that
depends on the seed and its place alone, and those with the least numbers are used, in the order of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data import Dataset, DenseData, ReadOptions, SparseData
from mpips.data.columns import source_of
from mpips.data.dataset import join
from mpips.data.info import DataInfo
from mpips.errors import ConfigError, DataError

MOST_SAMPLES = 1 << 16  # samples that are used by default
_MOST_BYTES = 256 << 20  # bytes of them
_LEAST_SAMPLES = 1000  # that are used in any case, if there are so many
_MOST_COLUMNS = 10_000
_MOST_SHOWN = 40  # columns in a table of text

Metric = Callable[[Dataset], float]


class ColumnImportance(msgspec.Struct, frozen=True):
    """The importance of a column.

    Attributes:
        column: Name of the column, or number of the feature as in the file.
        mean: Mean loss of the metric over the permutations; below 0: the metric became better.
        std: Standard deviation of the losses, over `repeats - 1`; 0 for one permutation.
        losses: The loss of each permutation.
    """

    column: str
    mean: float
    std: float
    losses: tuple[float, ...]


class Importance(msgspec.Struct, frozen=True):
    """The importance of all columns, the most important first.

    Attributes:
        metric: Name of the metric.
        value: Its value without any permutation.
        n_samples: Number of samples that were used.
        n_total: Number of samples of the file.
        repeats: Permutations of each column.
        seed: Seed of permutations and of the choice of samples.
        columns: The columns.
    """

    metric: str
    value: float
    n_samples: int
    n_total: int
    repeats: int
    seed: int
    columns: tuple[ColumnImportance, ...]


def sample(blocks: Iterable[Dataset], most: int, seed: int) -> tuple[Dataset, int]:
    """Return a random part of samples that come block by block, in their order, and the number of all.

    Needs memory for twice as many samples as it returns.

    Args:
        blocks: The samples.
        most: Greatest number of samples to return; fewer if they would take more than 256 MiB.
        seed: Seed of the choice, which does not depend on the size of the blocks.

    Raises:
        DataError: There are no samples.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    parts: list[Dataset] = []
    drawn: list[npt.NDArray[np.float64]] = []
    n_total, n_held = 0, 0
    for block in blocks:
        if not block.n:
            continue
        if not n_total:
            most = min(most, max(_MOST_BYTES // _bytes_of(block), _LEAST_SAMPLES))
        parts.append(block)
        drawn.append(generator.random(block.n))
        n_total, n_held = n_total + block.n, n_held + block.n
        if n_held > 2 * most:
            data, numbers = _least(parts, drawn, most)
            parts, drawn, n_held = [data], [numbers], data.n
    if not n_total:
        raise DataError("there are no samples")
    return _least(parts, drawn, most)[0], n_total


def _bytes_of(block: Dataset) -> int:
    """Return the bytes of a sample, at least 1, as a mean over a block."""
    if isinstance(block, DenseData):
        return max(block.x.nbytes // block.n, 1)
    entry = 16 if block.fields is None else 20
    return max(entry * len(block.indices) // block.n, 1)


def _least(
    parts: list[Dataset], drawn: list[npt.NDArray[np.float64]], most: int
) -> tuple[Dataset, npt.NDArray[np.float64]]:
    """Return the samples with the least numbers, in their order, and their numbers."""
    data, numbers = join(parts), np.concatenate(drawn)
    if len(numbers) <= most:
        return data, numbers
    chosen = np.sort(np.argpartition(numbers, most - 1)[:most])
    return rows_of(data, chosen), numbers[chosen]


def rows_of(data: Dataset, rows: npt.NDArray[np.int64]) -> Dataset:
    """Return the samples `rows`, int64, shape (n,), as data of their own."""
    if isinstance(data, DenseData):
        return DenseData(data.x[rows], data.labels[rows])
    batch = data.take(rows)
    return msgspec.structs.replace(
        data,
        indptr=batch.indptr,
        indices=batch.keys,
        values=batch.values,
        labels=batch.labels,
        fields=batch.fields,
        weights=None,
    )


def columns_of(
    data: Dataset, info: DataInfo, options: ReadOptions, base: int = 0
) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and numbers of each column: of its dense features, its columns of samples, or its key.

    Args:
        data: The samples.
        info: Description of the training data.
        options: Options of the reader, by which a column of a table gives several features.
        base: Number of the first feature in files without names of columns.

    Raises:
        ConfigError: There are too many.
    """
    if info.columns:
        found: dict[str, tuple[int, ...]] = {}
        for i, name in enumerate(info.columns):
            source = source_of(name, options)
            found[source] = (*found.get(source, ()), i)
        return list(found.items())
    numbers: Sequence[int] = range(info.n_features)
    if isinstance(data, SparseData):
        numbers = np.unique(data.indices).tolist()
    if len(numbers) > _MOST_COLUMNS:
        raise ConfigError(
            f"--importance: the samples have {len(numbers):,} features; it is for at most {_MOST_COLUMNS:,}"
        )
    return [(str(number + base), (number,)) for number in numbers]


def shuffled(data: Dataset, column: Sequence[int], order: npt.NDArray[np.int64]) -> Dataset:
    """Return samples of which sample i has the values of `column` of sample order[i]; shares the others.

    Args:
        data: The samples.
        column: Numbers of the column.
        order: A permutation of the samples, int64, shape (n,).
    """
    if isinstance(data, DenseData):
        x = data.x.copy()
        x[:, list(column)] = data.x[np.ix_(order, np.asarray(column, np.int64))]
        return msgspec.structs.replace(data, x=x)
    groups = data.fields if data.fields is not None else data.indices
    rows = np.repeat(np.arange(data.n), np.diff(data.indptr))
    # An entry of the column goes to the sample that takes its values from the entry's sample.
    taker = np.empty_like(order)
    taker[order] = np.arange(data.n)
    rows = np.where(np.isin(groups, list(column)), taker[rows], rows)
    # Entries of a sample stay in the order of their columns, or of their keys.
    places = np.lexsort((groups, rows))
    counts = np.bincount(rows, minlength=data.n)
    return msgspec.structs.replace(
        data,
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(data.indptr.dtype),
        indices=data.indices[places],
        values=data.values[places],
        fields=data.fields[places] if data.fields is not None else None,
    )


def measure(
    data: Dataset,
    columns: Sequence[tuple[str, Sequence[int]]],
    metric: Metric,
    higher: bool,
    repeats: int,
    seed: int,
) -> tuple[float, tuple[ColumnImportance, ...]]:
    """Return the metric of the samples, and the importance of each column, the most important first.

    Args:
        data: The samples.
        columns: Name and numbers of each column.
        metric: Returns the metric of samples.
        higher: Higher values of the metric are better.
        repeats: Permutations of each column. A column whose first number is c has the permutations of
            (seed, c), whatever others do.
        seed: Seed of the permutations.
    """
    value, sign = metric(data), 1.0 if higher else -1.0

    def losses(column: Sequence[int]) -> Iterator[float]:
        generator = np.random.Generator(np.random.PCG64([seed, column[0]]))
        for _ in range(repeats):
            order = generator.permutation(data.n)
            yield sign * (value - metric(shuffled(data, column, order)))

    found = []
    for name, column in columns:
        each = tuple(losses(column))
        mean = math.fsum(each) / repeats
        spread = math.fsum((loss - mean) ** 2 for loss in each) / max(repeats - 1, 1)
        found.append(ColumnImportance(name, mean, math.sqrt(spread), each))
    # A mean that is no number comes last.
    return value, tuple(sorted(found, key=lambda c: math.inf if math.isnan(c.mean) else -c.mean))


def rows_of_table(found: Importance) -> list[tuple[str, ...]]:
    """Return the cells of a table of the most important columns, with a header."""
    name = found.metric.replace("_", " ")
    rows: list[tuple[str, ...]] = [("column", f"loss of {name}", "spread")]
    for column in found.columns[:_MOST_SHOWN]:
        rows.append((column.column, f"{column.mean:.5f}", f"{column.std:.5f}"))
    return rows


def more_columns(found: Importance) -> str:
    """Return a sentence on the columns that the table does not show; "": it shows all."""
    left = len(found.columns) - _MOST_SHOWN
    return f"{left} columns with smaller losses are left out; --json has all" if left > 0 else ""


def as_plain(found: Importance) -> dict[str, Any]:
    """Return the importance as values of JSON; numbers that are not finite are None."""

    def finite(value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, list | tuple):
            return [finite(one) for one in value]
        return {k: finite(v) for k, v in value.items()} if isinstance(value, dict) else value

    plain: dict[str, Any] = finite(msgspec.to_builtins(found))
    return plain
