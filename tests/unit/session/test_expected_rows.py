"""Rows that a job is expected to have: shown at its start, and refused if they do not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import mpips
from mpips import ASP, DenseTable, EmbeddingTable, StreamTable
from mpips.errors import ConfigError, RegionError
from mpips.model.placement import embedding_memory
from mpips.session import expected_rows
from mpips.session.expected_rows import check_room, describe, server_bytes

MIB = 1 << 20


def table(name: str = "e", rows: int = 1000, **options: Any) -> EmbeddingTable:
    return EmbeddingTable(name, 16, "adam", ASP(), expected_rows=rows, **options)


def test_bytes_are_those_of_the_rows_with_their_state() -> None:
    tables = [table(rows=1001), table("f", 10), table("unknown", 0), DenseTable("w", (5,))]
    sizes = [embedding_memory(t, t.expected_rows, 2) for t in tables[:2]]  # type: ignore[arg-type]
    rows = (501 + 5) * (8 + 4 * 16 * 3)  # values and two moments of Adam, and the key
    found = server_bytes(tables, 2)
    assert found == (sum(s.row_bytes + s.key_bytes for s in sizes), sum(s.map_bytes for s in sizes))
    assert rows <= found[0] <= rows + 506 * 8
    assert describe(tables, 2) == "expected rows: e 1,001, f 10; 0.2 MiB on 2 servers"
    assert describe(tables[2:], 2) == ""


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("scarce", ["shm", "memory"])
def test_rows_that_do_not_fit_are_refused(
    shared: bool, scarce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [table(rows=1 << 20)]
    rows, maps = server_bytes(tables, 4)
    # Two of four servers are here.
    need = 2 * (rows if scarce == "shm" else rows + maps)

    def has(free: int) -> None:
        plenty = 1 << 50
        space = SimpleNamespace(f_frsize=1, f_bavail=free if scarce == "shm" else plenty)
        monkeypatch.setattr(expected_rows, "os", SimpleNamespace(statvfs=lambda _: space))
        monkeypatch.setattr(
            expected_rows, "free_bytes", lambda: (free if scarce == "memory" else plenty, plenty)
        )

    has(need)
    check_room(tables, 4, 2, shared)
    has(need - 1)
    if scarce == "shm" and not shared:
        check_room(tables, 4, 2, shared)
        return
    where = "/dev/shm" if scarce == "shm" else "memory"
    with pytest.raises(
        RegionError,
        match=rf"^{where} is too small: the rows that tables are expected to have \(e \(1,048,576\)\) "
        rf"need {need / MIB:,.0f} MiB on this node, .* MiB are free; expect fewer rows",
    ):
        check_room(tables, 4, 2, shared)
    check_room([table(rows=0)], 4, 2, shared)


def test_what_is_free_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: str) -> None:
        raise OSError(path)

    monkeypatch.setattr(expected_rows, "os", SimpleNamespace(statvfs=unknown))
    monkeypatch.setattr(expected_rows, "free_bytes", lambda: (0, 0))
    check_room([table(rows=1 << 31)], 1, 1, True)


@pytest.mark.parametrize("rows", [-1, 1.5, True, 1 << 32])
def test_other_numbers_of_rows_are_refused(rows: Any) -> None:
    with pytest.raises(ConfigError, match=f"table 'e': expected_rows = {rows!r}: must be a whole"):
        table(rows=rows)


@pytest.mark.parametrize("size", [{"capacity": 1 << 31}, {"capacity_mib": 1 << 25}])
def test_a_stream_that_does_not_fit_is_refused_before_main_runs(size: Any) -> None:
    stream = StreamTable("field", {"x": (64, 64)}, **size)
    with pytest.raises(RegionError, match=r"memory is too small: .* \(field\.samples \("):
        mpips.run(lambda worker: pytest.fail("it has begun"), [stream], verbose=False)


def test_streams_declare_their_rows() -> None:
    stream = StreamTable("s", {"x": (251,)}, capacity_mib=10, producers=4, held_out=0.1)
    samples, counts = stream.tables
    assert samples.expected_rows == 10 * 1024 == stream.slots.n * 4  # type: ignore[union-attr]
    assert counts.expected_rows == 6  # type: ignore[union-attr]
    assert describe(stream.tables, 1).startswith("expected rows: s.samples 10,240, s.counts 6; 10.")
