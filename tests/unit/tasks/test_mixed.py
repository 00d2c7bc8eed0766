"""wide_deep, deepfm and dcnv2, compared with their objectives, computed sample by sample in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from objectives import FakeWorker, Values, log_sum_exp, make_task, numeric_gradient

from mpips.data import DataInfo, Moments, SparseBatch, SparseData
from mpips.data.dataset import DenseBatch
from mpips.errors import DataError
from mpips.tasks import TASKS
from mpips.tasks.columns import ColumnFeatures

HASHED = 1 << 62
COLUMNS = ("size", "colour", "flat", "age", "kind")
TEXT = ("colour", "kind")
NUMBERS = ("size", "flat", "age")
DIM = 3
N = 30
DEFAULTS = {"dim": DIM, "l2": 0.05, "prior": 7.0}
CASES = [
    (name, {**DEFAULTS, "hidden": hidden, **more})
    for name, more in (("wide_deep", {}), ("deepfm", {}), ("dcnv2", {"cross": 3}))
    for hidden in ([], [5], [5, 4])
]


def info(columns: tuple[str, ...] = COLUMNS, text: tuple[str, ...] = TEXT) -> DataInfo:
    return DataInfo(
        N, N, HASHED, (0.0, 1.0), "sparse", columns=columns, categorical=text, label_column="y"
    )


def cells(seed: int = 3) -> list[list[float | None]]:
    """Samples as lists of cells: keys 0 to 2 of colour, 3 and 4 of kind, numbers; None: empty."""
    rng = np.random.default_rng(seed)
    found: list[list[float | None]] = []
    for i in range(N):
        colour = None if i % 7 == 3 else int(rng.integers(0, 3))
        age = None if i % 5 == 1 else float(rng.normal(40, 9))
        kind = None if i == 17 else int(rng.integers(3, 5))
        found.append([float(rng.normal(-2, 3)), colour, 7.0, age, kind])
    return found


def data_of(samples: list[list[float | None]], columns: tuple[str, ...] = COLUMNS) -> SparseData:
    """Return the samples as the reader of CSV does; numbers have keys of their own."""
    keys, values, fields, indptr = [], [], [], [0]
    for sample in samples:
        for field, (name, cell) in enumerate(zip(columns, sample, strict=True)):
            if cell is not None:
                fields.append(field)
                keys.append(int(cell) if name in TEXT else 1000 + NUMBERS.index(name))
                values.append(1.0 if name in TEXT else cell)
        indptr.append(len(keys))
    labels = np.random.default_rng(5).integers(0, 2, len(samples))
    return SparseData(
        np.array(indptr),
        np.array(keys, np.int64),
        np.array(values, np.float32),
        labels,
        HASHED,
        np.array(fields, np.int32),
        len(columns),
    )


def standardised(samples: list[list[float | None]]) -> np.ndarray[Any, Any]:
    """Return the numbers of each sample: three scaled ones, then three flags of empty cells."""
    train = cells()
    x = np.zeros((len(samples), 6))
    for j, name in enumerate(NUMBERS):
        place = COLUMNS.index(name)
        seen = np.array([s[place] for s in train if s[place] is not None])
        for i, sample in enumerate(samples):
            cell = sample[place]
            if cell is None:
                x[i, 3 + j] = len(seen) < N
            elif name != "flat":
                x[i, j] = np.clip((np.float32(cell) - seen.mean()) / seen.std(), -10, 10)
    return x


def logits_of(name: str, samples: list[list[float | None]], values: Values) -> list[float]:
    """Return the logits, written out with a loop over every pair."""
    numbers, found = standardised(samples), []
    for sample, x in zip(samples, numbers, strict=True):
        keys = [sample[COLUMNS.index(column)] for column in TEXT]
        rows = [np.zeros(DIM) if k is None else values["embedding"][int(k) + 1] for k in keys]
        inputs = np.concatenate([*rows, x])
        h, layers = inputs, sum(table.startswith("weight") for table in values)
        for i in range(layers):
            h = h @ values[f"weight{i}"] + values[f"bias{i}"]
            h = np.maximum(h, 0) if i < layers - 1 else h
        logit = float(h[0])
        if name != "dcnv2":
            logit += sum(values["wide"][int(k) + 1, 0] for k in keys if k is not None)
            logit += float(x @ values["linear"])
        if name == "deepfm":
            factors = rows + [x[j] * values["number_factor"][j] for j in range(6)]
            for a in range(len(factors)):
                for b in range(a):
                    logit += float(factors[a] @ factors[b])
        if name == "dcnv2":
            c = inputs
            for i in range(sum(table.startswith("cross_weight") for table in values)):
                c = inputs * (c @ values[f"cross_weight{i}"] + values[f"cross_bias{i}"]) + c
            logit += float(c @ values["cross_output"][:, 0])
        found.append(logit)
    return found


def prepared(name: str, options: dict[str, Any]) -> tuple[Any, FakeWorker]:
    task = make_task(TASKS[name], info(), options, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data_of(cells())))
    return task, worker


@pytest.mark.parametrize("chosen", [[0, 3, 6, 17, 8, 29], [3], [17], list(range(N))], ids=str)
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_step_pushes_the_gradient_of_the_objective(
    name: str, options: dict[str, Any], chosen: list[int]
) -> None:
    task, worker = prepared(name, options)
    data = data_of(cells())
    samples = [cells()[i] for i in chosen]
    batch = data.take(np.array(chosen), weight=0.75)
    found = task.step(worker, batch)
    values = worker.values()
    in_all = np.bincount(data.indices[data.indices < 1000], minlength=5)

    def losses(values: Values) -> float:
        logits = logits_of(name, samples, values)
        pairs = zip(logits, batch.labels, strict=True)
        return sum(log_sum_exp(np.array([0.0, z])) - z * y for z, y in pairs)

    def objective(values: Values) -> float:
        total = losses(values) / batch.n
        for table, value in values.items():
            if table in ("embedding", "wide"):
                for key in batch.keys[batch.keys < 1000].tolist():
                    row = value[key + 1]
                    total += 7.0 / 2 * float(row @ row) / in_all[key] / batch.n
            elif "bias" not in table:
                total += 0.05 / 2 * float((value * value).sum())
        return 0.75 * total

    assert found.n == len(chosen)
    assert found.loss_sum == pytest.approx(losses(values), rel=1e-4)
    for table in worker.tables:
        expected = numeric_gradient(objective, values, table)
        pushed = worker.tables[table].gradient
        np.testing.assert_allclose(pushed, expected, rtol=1e-3, atol=3e-5, err_msg=table)


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcnv2"])
def test_probabilities_of_samples_that_were_not_seen(name: str) -> None:
    task, worker = prepared(name, DEFAULTS)
    # Key 4 was in no sample: its row has the initial value.
    embedding = worker.tables["embedding"]
    embedding.initial = lambda keys: embedding.values[keys + 1] * (keys == 4)[:, np.newaxis]
    samples = cells(8)
    samples[0][0] = 1e6  # far outside: clipped
    samples[1][3] = None
    kept = [[None if c == 4 and j == 4 else c for j, c in enumerate(s)] for s in samples]
    values = worker.values()
    if "wide" in values:
        values["wide"][5] = worker.tables["wide"].values[5] = 0
    expected = [1 / (1 + math.exp(-z)) for z in logits_of(name, kept, values)]
    batch = data_of(samples).take(np.arange(N))
    np.testing.assert_allclose(task.predict(worker, batch), expected, atol=2e-6)
    assert task.predict(worker, batch_of_nothing()).shape == (0,)


def batch_of_nothing() -> SparseBatch:
    return data_of(cells()).take(np.zeros(0, np.int64))


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcnv2"])
def test_prefetch_announces_what_the_step_pulls(name: str) -> None:
    task, worker = prepared(name, DEFAULTS)
    batches = [data_of(cells()).take(np.array(rows)) for rows in ([0, 1, 2], [20, 21])]
    task.prefetch(worker, batches[0])
    handles = [h for h in worker.tables.values() if hasattr(h, "announced")]
    announced = [handle.announced for handle in handles]
    task.prefetch(worker, batches[1])
    task.step(worker, batches[0])
    assert [handle.pulled for handle in handles] == announced
    assert all(key < 5 for keys in announced for key in keys)


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcnv2"])
def test_columns_of_text_alone_have_no_tables_for_numbers(name: str) -> None:
    own = info(("colour", "kind"), TEXT)
    task = make_task(TASKS[name], own, DEFAULTS, seed=0)
    worker = FakeWorker(task.tables())
    assert not {"linear", "number_factor"} & set(worker.tables)
    samples: list[list[float | None]] = [[s[1], s[4]] for s in cells()]
    data = data_of(samples, ("colour", "kind"))
    task.prepare(worker, Moments.of(data))
    assert task.step(worker, data.take(np.arange(9))).n == 9
    assert "2 columns of text, 0 of numbers" in task.report()


def test_the_report_names_empty_and_constant_columns() -> None:
    task, _ = prepared("wide_deep", DEFAULTS)
    assert task.report() == (
        "2 columns of text, 3 of numbers (standardised); with empty cells, which are inputs of their own: "
        "'age'; constant, without influence: 'flat'"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": (), "categorical": ()}, "the data has no named columns; use task 'mlp'"),
        ({"kind": "dense", "categorical": ()}, "the data has columns of numbers alone"),
        ({"labels": (0.0, 1.0, 2.0)}, "takes two classes, the data has 3"),
    ],
    ids=["libsvm", "numbers", "classes"],
)
def test_other_data_is_refused(changes: dict[str, Any], said: str) -> None:
    import dataclasses

    with pytest.raises(DataError, match=said):
        ColumnFeatures(dataclasses.replace(info(), **changes), "wide_deep")


def test_samples_without_named_columns_are_refused() -> None:
    task, worker = prepared("deepfm", DEFAULTS)
    nameless = replace(data_of(cells()).take(np.arange(3)), fields=None)
    for batch in (nameless, DenseBatch(np.zeros((3, 5), np.float32), np.zeros(3))):
        with pytest.raises(DataError, match="takes samples with named columns"):
            task.predict(worker, batch)
    with pytest.raises(DataError, match="moments of the columns"):
        task.prepare(worker, Moments.empty(HASHED))


@pytest.mark.parametrize("n_parts", [2, 3, 7])
def test_moments_of_columns_of_all_workers_are_those_of_one(n_parts: int) -> None:
    data = data_of(cells())
    whole = Moments.of(data).columns
    parts = []
    for offset in range(n_parts):
        batch = data.take(np.arange(offset, N, n_parts))
        own = SparseData(
            batch.indptr, batch.keys, batch.values, batch.labels, HASHED, batch.fields, 5
        )
        parts.append(Moments.of(own))
    combined = Moments.combine(parts)
    assert whole is not None
    assert combined.columns is not None
    np.testing.assert_array_equal(combined.columns.present, whole.present)
    np.testing.assert_allclose(combined.columns.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(combined.columns.squares, whole.squares, rtol=1e-9, atol=1e-12)
    again = Moments.from_arrays(combined.to_arrays())
    assert again.columns is not None
    assert again.columns.mean.tobytes() == combined.columns.mean.tobytes()
    assert again.columns.count == N
    assert set(Moments.empty(HASHED, 5).to_arrays()) == set(combined.to_arrays())
