"""wide_deep, deepfm and dcnv2, compared with their objectives, computed sample by sample in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from objectives import FakeWorker, Values, log_sum_exp, make_task, numeric_gradient

from mpips.data import DataInfo, DenseData, Moments, SparseBatch, SparseData
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
NAMES = (("wide_deep", {}), ("deepfm", {}), ("dcnv2", {"cross": 3}))
KINDS = ("two", "three", "targets", "several")
CASES = [
    *(
        (name, {**DEFAULTS, "hidden": hidden, **more}, "two")
        for name, more in NAMES
        for hidden in ([], [5], [5, 4])
    ),
    *(
        (name, {**DEFAULTS, "hidden": [5], **more}, kind)
        for name, more in NAMES
        for kind in KINDS[1:]
    ),
]


def info(
    columns: tuple[str, ...] = COLUMNS, text: tuple[str, ...] = TEXT, kind: str = "two"
) -> DataInfo:
    own = DataInfo(
        N, N, HASHED, (0.0, 1.0), "sparse", columns=columns, categorical=text, label_column="y"
    )
    if kind == "three":
        return dataclasses.replace(own, labels=(0.0, 1.0, 2.0))
    if kind == "targets":
        reach = (-5e6, 8e6)
        return dataclasses.replace(own, labels=(), wants="targets", target_range=reach)
    if kind == "several":
        return dataclasses.replace(own, labels=(), wants="several", label_names=("p", "q"))
    return own


def labels_of(kind: str, n: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(5)
    if kind == "targets":
        return rng.normal(2e6, 1e6, n)
    if kind == "several":
        return rng.integers(0, 2, (n, 2))
    return rng.integers(0, 3 if kind == "three" else 2, n)


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


def data_of(
    samples: list[list[float | None]], columns: tuple[str, ...] = COLUMNS, kind: str = "two"
) -> SparseData:
    """Return the samples as the reader of CSV does; numbers have keys of their own."""
    keys, values, fields, indptr = [], [], [], [0]
    for sample in samples:
        for field, (name, cell) in enumerate(zip(columns, sample, strict=True)):
            if cell is not None:
                fields.append(field)
                keys.append(int(cell) if name in TEXT else 1000 + NUMBERS.index(name))
                values.append(1.0 if name in TEXT else cell)
        indptr.append(len(keys))
    labels = labels_of(kind, len(samples))
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


def outputs_of(
    name: str, samples: list[list[float | None]], values: Values
) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of each sample, written out with a loop over every pair."""
    numbers, found = standardised(samples), []
    for sample, x in zip(samples, numbers, strict=True):
        keys = [sample[COLUMNS.index(column)] for column in TEXT]
        rows = [np.zeros(DIM) if k is None else values["embedding"][int(k) + 1] for k in keys]
        inputs = np.concatenate([*rows, x])
        h, layers = inputs, sum(table.startswith("weight") for table in values)
        for i in range(layers):
            h = h @ values[f"weight{i}"] + values[f"bias{i}"]
            h = np.maximum(h, 0) if i < layers - 1 else h
        out = h.copy()
        if name != "dcnv2":
            for k in keys:
                out += 0 if k is None else values["wide"][int(k) + 1]
            out += x @ values["linear"].reshape(6, -1)
        if name == "deepfm":
            factors = rows + [x[j] * values["number_factor"][j] for j in range(6)]
            for a in range(len(factors)):
                for b in range(a):
                    # Several outputs weigh the terms of the product.
                    out += (factors[a] * factors[b]) @ values.get("pair_output", np.ones((DIM, 1)))
        if name == "dcnv2":
            c = inputs
            for i in range(sum(table.startswith("cross_weight") for table in values)):
                c = inputs * (c @ values[f"cross_weight{i}"] + values[f"cross_bias{i}"]) + c
            out += c @ values["cross_output"]
        found.append(out)
    return found


def losses_of(kind: str, outputs: list[np.ndarray[Any, Any]], labels: Any) -> list[float]:
    """Return the loss of each sample."""
    if kind == "targets":
        whole = labels_of(kind, N)
        standardised = (labels - whole.mean()) / whole.std()
        return [
            (float(z[0]) - float(np.float32(y))) ** 2 / 2
            for z, y in zip(outputs, standardised, strict=True)
        ]
    if kind == "several":
        return [
            sum(log_sum_exp(np.array([0.0, z])) - z * y for z, y in zip(own, ys, strict=True))
            for own, ys in zip(outputs, labels, strict=True)
        ]
    if kind == "two":
        outputs = [np.array([0.0, z[0]]) for z in outputs]
    return [log_sum_exp(z) - z[y] for z, y in zip(outputs, labels, strict=True)]


def prepared(name: str, options: dict[str, Any], kind: str = "two") -> tuple[Any, FakeWorker]:
    task = make_task(TASKS[name], info(kind=kind), options, seed=0)
    worker = FakeWorker(task.tables())
    task.prepare(worker, Moments.of(data_of(cells(), kind=kind), kind in ("targets", "several")))
    return task, worker


@pytest.mark.parametrize(
    "chosen",
    [[0, 3, 6, 17, 8, 29], [3], [17], pytest.param(list(range(N)), marks=pytest.mark.long)],
    ids=str,
)
@pytest.mark.parametrize(("name", "options", "kind"), CASES, ids=str)
def test_step_pushes_the_gradient_of_the_objective(
    name: str, options: dict[str, Any], kind: str, chosen: list[int]
) -> None:
    task, worker = prepared(name, options, kind)
    data = data_of(cells(), kind=kind)
    samples = [cells()[i] for i in chosen]
    batch = data.take(np.array(chosen), weight=0.75)
    found = task.step(worker, batch)
    values = worker.values()
    in_all = np.bincount(data.indices[data.indices < 1000], minlength=5)

    def losses(values: Values) -> float:
        return sum(losses_of(kind, outputs_of(name, samples, values), batch.labels))

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcnv2"])
def test_predictions_of_samples_that_were_not_seen(name: str, kind: str) -> None:
    task, worker = prepared(name, DEFAULTS, kind)
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
    outputs = np.array(outputs_of(name, kept, values))
    batch = data_of(samples).take(np.arange(N))
    found, none = task.predict(worker, batch), task.predict(worker, batch_of_nothing())
    assert found.dtype == np.float32
    if kind == "targets":
        whole = labels_of(kind, N)
        expected = outputs[:, 0] * whole.std() + whole.mean()
        np.testing.assert_allclose(found, expected, atol=2e-6 * float(np.abs(expected).max()))
        assert task.logits(worker, batch) is None
        assert none.shape == (0,)
        return
    if kind == "several":
        np.testing.assert_allclose(found, 1 / (1 + np.exp(-outputs)), atol=2e-6)
        np.testing.assert_allclose(task.logits(worker, batch), outputs, atol=1e-4, rtol=1e-4)
        assert none.shape == (0, 2)
        return
    logits = outputs - outputs.max(axis=1, keepdims=True)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if kind == "two":
        expected = 1 / (1 + np.exp(-outputs[:, 0]))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert none.shape == ((0,) if kind == "two" else (0, 3))
    np.testing.assert_allclose(
        task.logits(worker, batch),
        outputs[:, 0] if kind == "two" else outputs,
        atol=1e-4,
        rtol=1e-4,
    )


def test_targets_that_no_float32_can_show_are_refused() -> None:
    data = replace(data_of(cells()), labels=1e9 + np.arange(N) / N)
    task = make_task(TASKS["wide_deep"], info(kind="targets"), DEFAULTS, seed=0)
    worker = FakeWorker(task.tables())
    with pytest.raises(DataError, match=r"about 1e\+09 and differ by 0\.288.*subtract a constant"):
        task.prepare(worker, Moments.of(data, True))
    with pytest.raises(DataError, match="moments of the targets of the training data are missing"):
        task.prepare(worker, Moments.of(data))
    same = dataclasses.replace(info(kind="targets"), target_range=(3.5, 3.5))
    with pytest.raises(DataError, match=r"task 'wide_deep': all targets are 3\.5, so nothing"):
        make_task(TASKS["wide_deep"], same, DEFAULTS, seed=0)
    one = dataclasses.replace(info(), labels=(4.0,))
    with pytest.raises(DataError, match="task 'deepfm' needs two classes or more, the data has 1"):
        make_task(TASKS["deepfm"], one, DEFAULTS, seed=0)


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
        "'age'; with empty cells, which are no words: 'colour', 'kind'; constant, without influence: 'flat'"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": (), "categorical": ()}, "the data has no named columns; use task 'mlp'"),
        ({"kind": "dense", "categorical": ()}, "the data has columns of numbers alone"),
    ],
    ids=["libsvm", "numbers"],
)
def test_other_data_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        ColumnFeatures(dataclasses.replace(info(), **changes), "wide_deep")


def test_labels_of_one_value_are_reported_and_only_such_are_refused() -> None:
    data = data_of(cells())
    for columns, said in (
        (np.array([[1, 0]] * N), ""),
        (np.eye(N, 2, dtype=np.int64) * [1, 0], "q"),
    ):
        task = make_task(TASKS["dcnv2"], info(kind="several"), DEFAULTS, seed=0)
        worker = FakeWorker(task.tables())
        moments = Moments.of(replace(data, labels=columns), True)
        if not said:
            with pytest.raises(DataError, match="each label has one value in all samples"):
                task.prepare(worker, moments)
            continue
        task.prepare(worker, moments)
        assert task.report().endswith("; labels that are equal in all samples: 'q' (0)")


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


@pytest.mark.parametrize("n_parts", [1, 2, 7])
def test_moments_of_targets_of_all_workers_are_those_of_one(n_parts: int) -> None:
    labels = labels_of("targets", N)
    data = replace(data_of(cells()), labels=labels)
    dense = DenseData(np.ones((N, 2), np.float32), labels)
    for whole in (data, dense):
        parts = []
        for offset in range(n_parts):
            rows = np.arange(offset, N, n_parts)
            own = (
                DenseData(dense.x[rows], labels[rows])
                if whole is dense
                else replace(data, labels=labels[rows], indptr=np.zeros(len(rows) + 1, np.int64))
            )
            parts.append(Moments.of(own, True))
        combined = Moments.combine(parts)
        again = Moments.from_arrays(combined.to_arrays())
        for found in (combined, again):
            assert found.targets is not None
            mean, scale = found.targets.standardise()
            np.testing.assert_allclose(mean, [labels.mean()], rtol=1e-12)
            np.testing.assert_allclose(scale, [1 / labels.std()], rtol=1e-9)
        n_fields = 5 if whole is data else 0
        empty = Moments.empty(HASHED if whole is data else 2, n_fields, 1)
        assert set(empty.to_arrays()) == set(combined.to_arrays())
