"""Rows that are changed as a whole: row-wise Adagrad, and values stored as bf16."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from harness import Rig, rows

from mpips.kernels import reference, reference_codecs
from mpips.model.consistency import ASP, BSP, Compensate
from mpips.model.initial_rows import initial_rows
from mpips.model.initializer import table_seed
from mpips.model.optimizer import OPTIMIZERS, SGD, Adagrad, Adam, RowAdagrad
from mpips.model.placement import embedding_memory
from mpips.model.row_values import bf16_bits, bf16_values

MASK = 2**64 - 1
DIM = 5
RULES = {name: cls(lr=0.05, weight_decay=0.01, clip_value=1.5) for name, cls in OPTIMIZERS.items()}
RULES["row_adagrad"] = RowAdagrad(0.05, weight_decay=0.01, clip_value=1.5, initial_accumulator=0.5)


def random_of(key: int, count: int) -> int:
    """The key of the random numbers of a row's update."""
    return reference_codecs.mix((key + 0x9E3779B97F4A7C15 * count) & MASK)


class Row:
    """A row in NumPy, as the definitions of kernels and rounding have it."""

    def __init__(self, table, key: int) -> None:
        self.config, self.key, self.count = table.optimizer.native(), key, 0
        self.is_bf16 = table.row_dtype == "bf16"
        self.values = initial_rows(table, 0, np.array([key]))[0]
        if self.config.n_row_state:
            self.state = np.full((1, 1), self.config.initial_state(0), np.float32)
        else:
            first = [self.config.initial_state(k) for k in range(self.config.n_state)]
            self.state = np.array([[s] * table.dim for s in first], np.float32)

    def apply(self, update, scale=1.0) -> None:
        self.count += 1
        reference.update(self.config, self.values, self.state, update, self.count, scale)
        if self.is_bf16:
            codes = reference_codecs.round_bf16(self.values, random_of(self.key, self.count))
            self.values = bf16_values(codes)

    def content(self) -> np.ndarray:
        counts = self.is_bf16 or self.config.uses_step
        count = [np.array([self.count], np.uint32).view(np.float32)] if counts else []
        return np.concatenate([self.values, self.state.reshape(-1), *count])


def table_of(rule, dtype, dim=DIM, **options):
    return rows(dim, optimizer=rule, row_dtype=dtype, init="normal(0.1)", **options)


CASES = [("row_adagrad", "float32"), *((name, "bf16") for name in sorted(RULES))]


@pytest.mark.parametrize(("rule", "dtype"), CASES)
@pytest.mark.parametrize("dim", [1, 4, 5, 40])
def test_rows_have_the_bits_of_the_definition(rule, dtype, dim) -> None:
    table = table_of(RULES[rule], dtype, dim)
    rig = Rig(table, slot_bytes=1 << 15)
    handle = rig.worker(timeout_s=10.0).table("e")
    model: dict[int, Row] = {}
    rng = np.random.default_rng(dim)
    for _ in range(12):
        keys = rng.choice(20, 6, replace=False) - 10
        update = rng.normal(size=(6, dim)).astype(np.float32)
        handle.push(keys, update).wait()
        for key, row in zip(keys.tolist(), update, strict=True):
            model.setdefault(key, Row(table, key)).apply(row)
    keys, content = rig.core.embedding_content(0)
    assert sorted(keys.tolist()) == sorted(model)
    for key, row in zip(keys.tolist(), content, strict=True):
        assert row.tobytes() == model[key].content().tobytes(), key
    assert len({row.count for row in model.values()}) > 2
    # Pulls give the values, and absent keys the initial ones.
    asked = np.arange(-12, 12)
    pulled = handle.pull(asked)
    expected = [(model.get(key) or Row(table, key)).values for key in asked.tolist()]
    assert pulled.tobytes() == np.array(expected).tobytes()
    assert handle.initial(asked[:2]).tobytes() == pulled[:2].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_updates_of_all_workers_and_of_many_records(dtype) -> None:
    """BSP applies the mean of a clock; a push of more than a unit of the journal takes several records."""
    table = table_of(RowAdagrad(0.1), dtype, 40, consistency=BSP("mean"))
    rig = Rig(table, n_workers=2, n_slots=64, slot_bytes=1 << 14)
    model = {key: Row(table, key) for key in range(500)}
    rng = np.random.default_rng(3)
    for clock in range(3):
        updates = rng.normal(size=(2, 500, 40)).astype(np.float32)
        for writer, update in zip(rig.writers, updates, strict=True):
            done = 0
            while done < 500:
                done = writer.push_rows(0, clock, np.arange(500), update, None, done)
                rig.drain()
            assert writer.tick(clock)
        rig.drain()
        for key, row in model.items():
            row.apply(updates[0][key] + updates[1][key], 0.5)
    keys, content = rig.core.embedding_content(0)
    for key, row in zip(keys.tolist(), content, strict=True):
        assert row.tobytes() == model[key].content().tobytes(), key


def test_small_updates_of_bf16_count_on_average() -> None:
    """Rounding to the nearest would lose all of them: an update is 1/32 of the distance of two values."""
    n, steps = 400, 200
    rig = Rig(rows(8, optimizer=SGD(1.0), row_dtype="bf16"), slot_bytes=1 << 15)
    handle = rig.worker(timeout_s=10.0).table("e")
    keys = np.arange(n)
    handle.push(keys, np.full((n, 8), -1.0, np.float32)).wait()
    update = np.full((n, 8), -1 / 128 / 32, np.float32)
    for _ in range(steps):
        handle.push(keys, update).wait()
    found = handle.pull(keys)
    assert abs(found.mean() - (1 + steps / 128 / 32)) < 1e-3
    assert len(np.unique(found)) > 4
    # Rows have random numbers of their own.
    assert len({row.tobytes() for row in found}) > n / 2


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_compensated_updates(dtype) -> None:
    table = table_of(RowAdagrad(0.1), dtype, consistency=ASP(Compensate(0.5)))
    rig = Rig(table)
    keys, rng = np.arange(4), np.random.default_rng(0)
    model = [Row(table, key) for key in keys.tolist()]
    for step in range(3):
        update, base = rng.normal(size=(2, 4, DIM)).astype(np.float32)
        assert rig.writers[0].push_rows(0, 0, keys, update, base, 0) == 4
        rig.drain()
        for row, own, old in zip(model, update, base, strict=True):
            out = own.copy()
            # The first push is not stale; the later ones name the version before it.
            if step > 0:
                reference.compensate(out, own, row.values, old, 0.5)
            row.apply(out)
    assert rig.core.embedding_rows(0)[1].tobytes() == np.array([r.values for r in model]).tobytes()


@pytest.mark.parametrize(("rule", "dtype"), [("row_adagrad", "float32"), ("adam", "bf16")])
def test_content_that_is_loaded_goes_on_as_it_was(rule, dtype) -> None:
    table = table_of(RULES[rule], dtype, 7)
    first, second = Rig(table), Rig(table)
    keys, rng = np.arange(9), np.random.default_rng(1)
    update = rng.normal(size=(9, 7)).astype(np.float32)
    first.worker(timeout_s=10.0).table("e").push(keys, update).wait()
    second.core.load_rows(0, *first.core.embedding_content(0))
    for rig in (first, second):
        worker = rig.worker(timeout_s=10.0)
        worker.table("e").push(keys, update).wait()
    assert all(
        one.tobytes() == other.tobytes()
        for one, other in zip(
            first.core.embedding_content(0), second.core.embedding_content(0), strict=True
        )
    )
    n_floats = first.core.embedding_content(0)[1].shape[1]
    assert n_floats == table.row_floats
    with pytest.raises(ValueError, match="rows must have shape"):
        second.core.load_rows(0, keys, np.zeros((9, n_floats + 1), np.float32))


def test_set_values_are_rounded_to_the_nearest_and_state_begins() -> None:
    table = table_of(RowAdagrad(0.1, initial_accumulator=0.25), "bf16")
    rig = Rig(table)
    values = np.random.default_rng(0).normal(size=(3, DIM)).astype(np.float32)
    values[0] = [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, -0.0]
    rig.core.set_rows(0, np.arange(3), values)
    content = rig.core.embedding_content(0)[1]
    assert content[1:, :DIM].tobytes() == bf16_values(bf16_bits(values[1:])).tobytes()
    greatest = float(bf16_values(np.array([0x7F7F], np.uint16))[0])
    assert content[0, [0, 1, 3, 4]].tolist() == [np.inf, -np.inf, greatest, 0.0]
    assert np.isnan(content[0, 2])
    assert content[:, DIM].tolist() == [0.25] * 3
    assert content[:, DIM + 1].view(np.uint32).tolist() == [0] * 3


@pytest.mark.parametrize(("rule", "dtype"), CASES)
def test_all_states_have_the_rows_states(rule, dtype) -> None:
    table = table_of(RULES[rule], dtype)
    rig = Rig(table)
    handle = rig.worker(timeout_s=10.0).table("e")
    rng = np.random.default_rng(2)
    for n in (5, 3):
        handle.push(np.arange(n), rng.normal(size=(n, DIM)).astype(np.float32)).wait()
    keys, states, counts = handle.all_states()
    assert keys.tolist() == [0, 1, 2, 3, 4]
    names = (*table.optimizer.state_names, *table.optimizer.row_state_names)
    shapes = [(5,) if name in table.optimizer.row_state_names else (5, DIM) for name in names]
    assert [state.shape for state in states] == shapes
    content = rig.core.embedding_content(0)[1]
    flat = [state.reshape(5, -1) for state in states]
    assert np.hstack([handle.all_rows()[1], *flat]).tobytes() == (
        content[:, : table.row_floats - table.counts_updates].tobytes()
    )
    if table.counts_updates:
        assert counts.tolist() == [2, 2, 2, 1, 1]
    else:
        assert counts is None


def test_memory_is_half_of_float32s() -> None:
    def bytes_of(rule, dtype, dim=64):
        table = table_of(rule, dtype, dim)
        rig = Rig(table, n_slots=64, slot_bytes=1 << 16)
        handle = rig.worker(timeout_s=10.0).table("e")
        handle.push(np.arange(2000), np.ones((2000, dim), np.float32)).wait()
        _, stored = rig.core.embedding_arrays(0)
        assert stored.nbytes == 2000 * table.row_bytes
        assert stored.nbytes == embedding_memory(table, 2000, 1).row_bytes
        return stored.nbytes

    assert bytes_of(SGD(), "bf16") / bytes_of(SGD(), "float32") < 0.52
    assert bytes_of(RowAdagrad(), "float32") / bytes_of(Adagrad(), "float32") < 0.51
    assert bytes_of(RowAdagrad(), "bf16") / bytes_of(Adagrad(), "float32") < 0.27
    assert bytes_of(SGD(), "bf16", 33) == 2000 * 4 * (17 + 1)


def test_initial_rows_depend_on_the_tables_seed() -> None:
    table = table_of(SGD(), "bf16")
    plain = dataclasses.replace(table, row_dtype="float32")
    keys = np.arange(50)
    rounded, exact = initial_rows(table, 3, keys), initial_rows(plain, 3, keys)
    assert (rounded != exact).any()
    assert np.abs(rounded - exact).max() < np.abs(exact).max() / 256
    assert table_seed(3, "e") != table_seed(4, "e")
    assert (initial_rows(table, 4, keys) != rounded).any()


def test_adam_in_bf16_has_the_moments_of_float32() -> None:
    """State is not rounded: gradients that do not depend on the values give equal moments."""
    contents = []
    for dtype in ("bf16", "float32"):
        rig = Rig(table_of(Adam(0.01), dtype))
        handle = rig.worker(timeout_s=10.0).table("e")
        for seed in range(4):
            update = np.random.default_rng(seed).normal(size=(3, DIM)).astype(np.float32)
            handle.push(np.arange(3), update).wait()
        contents.append(rig.core.embedding_content(0)[1])
    assert contents[0][:, DIM:].tobytes() == contents[1][:, DIM:].tobytes()
    assert np.allclose(contents[0][:, :DIM], contents[1][:, :DIM], rtol=0.05)
