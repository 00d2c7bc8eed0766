"""The sizes of buffers that a run with a budget stores: the same in all of its attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import mpips
from mpips import DenseTable, EmbeddingTable
from mpips.config.options import SessionOptions
from mpips.errors import ConfigError
from mpips.model.buffers import BufferShares
from mpips.mpi.roles import Assignment, assign
from mpips.rundir.directory import RunFolder
from mpips.session.buffers import decide_shares
from mpips.session.session import make_options
from mpips.worker.buffers import JobBuffers

TABLES = [DenseTable("w", (1 << 20,)), EmbeddingTable("e", 8)]
BEFORE = assign([0, 0, 0, 1, 1, 1], ["a", "b"], 2)
LOST = assign([0] * 6, ["a"], 2)  # the ranks of node b are on a


class OneCluster:
    """The scheduler of a job, which decides alone: the others get what it returns."""

    is_scheduler = True

    def __init__(self, a: Assignment) -> None:
        self.assignment = a
        self.agreed: list[str] = []

    def agree(self, what: str, work: Callable[[], Any]) -> list[Any]:
        self.agreed.append(what)
        return [msgspec.msgpack.decode(msgspec.msgpack.encode(work())), None]


def decided(
    run: Any, a: Assignment, budget_mib: int, digest: str = "tables"
) -> tuple[BufferShares, list[str]]:
    options = SessionOptions(node_buffers_mib=budget_mib)
    buffers = JobBuffers(TABLES, TABLES, options, a, ((), ()))
    cluster: Any = OneCluster(a)
    return decide_shares(cluster, buffers, run, digest)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return SimpleNamespace(folder=RunFolder(tmp_path))


def test_an_attempt_on_fewer_nodes_has_the_sizes_of_the_first(run: Any) -> None:
    first, _ = decided(run, BEFORE, 40)
    assert decided(run, LOST, 40) == (first, [])
    alone, _ = decided(None, LOST, 40)
    assert alone.rings < first.rings


def test_a_stored_decision_holds_where_a_node_now_exceeds_the_budget(run: Any) -> None:
    least = JobBuffers(TABLES, TABLES, SessionOptions(), BEFORE, ((), ())).least()[0]
    first, _ = decided(run, BEFORE, least)
    with pytest.raises(ConfigError, match="too small"):
        decided(None, LOST, least)
    assert decided(run, LOST, least)[0] == first


def test_other_tables_or_numbers_of_ranks_decide_anew(run: Any) -> None:
    first, _ = decided(run, BEFORE, 40)
    other = assign([0] * 3 + [1] * 4, ["a", "b"], 2)
    for a, digest in ((LOST, "other tables"), (other, "other tables")):
        assert decided(run, a, 40, digest) == (decided(None, a, 40)[0], [])
    run.folder.buffers_file.write_text("{")
    assert decided(run, LOST, 40)[0] == decided(None, LOST, 40)[0] != first


def test_a_decision_that_cannot_be_stored_is_a_note(tmp_path: Path) -> None:
    run = SimpleNamespace(folder=RunFolder(tmp_path / "missing"))
    shares, notes = decided(run, BEFORE, 40)
    assert shares == decided(None, BEFORE, 40)[0]
    assert ["a restart decides anew" in note for note in notes] == [True]


@pytest.mark.parametrize("name", ["lookahead_mib", "remote_staging_mib"])
def test_removed_options_name_their_successor(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' was removed: .*node_buffers_mib"):
        make_options({name: 1})


def test_a_budget_that_is_too_small_makes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("memory was made")

    monkeypatch.setattr("mpips.session.startup.Regions", refuse)
    with pytest.raises(ConfigError, match=r"node_buffers_mib = 1 is too small .* set it to \d+ or"):
        mpips.run(lambda worker: None, TABLES, node_buffers_mib=1)


def test_the_least_budget_starts_and_holds() -> None:
    """A worker has the staging memory of its share, and large and small updates arrive."""

    def main(worker: mpips.Worker) -> tuple[float, float, str]:
        w, e = worker.table("w"), worker.table("e")
        own = worker.allocate(1000)
        own[:] = 1
        for _ in range(3):
            w.push(1 + 0 * w.pull())
            e.push([5, 7], 0 * e.pull([5, 7]) + 1)
            worker.clock()
        with pytest.raises(
            ConfigError, match="staging memory of 1 MiB: raise staging_mib or"
        ) as e_:
            worker.allocate(1 << 20)
        return float(w.pull()[-1]), float(e.pull([7])[0, 3]), str(e_.value)

    rule = mpips.SGD(1.0)
    tables = [
        DenseTable("w", (1 << 20,), rule, mpips.BSP(reduce="sum")),
        EmbeddingTable("e", 8, rule, mpips.BSP(reduce="sum"), init="zeros"),
    ]
    with pytest.raises(ConfigError) as found:
        mpips.run(main, tables, node_buffers_mib=1)
    least = int(str(found.value).partition("set it to ")[2].split()[0])
    assert mpips.run(main, tables, node_buffers_mib=least).value[:2] == (-3.0, -3.0)
