"""Tests that run on all ranks at once: `mpirun -n N python -m mpi4py -m pytest --with-mpi tests/mpi`.

The ranks enter and leave every test together. If one has failed while others still wait for it in a
collective of the test, the failure is printed and the job is ended soon after.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playing import SIZE, Played, Session

import mpips
from mpips.mpi.launch import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

HERE = Path(__file__).parent
# Seconds that a rank waits for others to leave a test: after a failure here, and after the session.
_GRACE_S = 5.0
# Pairs of transport and number of servers that five ranks run by day, of nine: all values, and both
# transports between nodes with several servers and workers.
_BY_DAY = {("shm", 1), ("rma", 1), ("rma", 2), ("p2p", 2), ("p2p", 3)}
_report = pytest.StashKey[pytest.TestReport]()
_comms = pytest.StashKey["list[MPI.Intracomm]"]()
_meeting = pytest.StashKey["MPI.Intracomm"]()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-mpi"):
        config.stash[_meeting] = load_mpi().Dup()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark everything in this folder that has no mark of its own, and what few ranks leave to the long run.

    That comes first: tests/conftest.py then selects by the mark `long`.
    Refuse to run without the option: pytest-mpi would skip what is marked without a message.
    """
    if not config.getoption("--with-mpi"):
        raise pytest.UsageError(
            "tests/mpi needs a launcher: bash tests/run.sh mpi, or "
            "mpirun -n 2 python -m mpi4py -m pytest tests/mpi --with-mpi"
        )
    for item in items:
        if HERE not in item.path.parents:
            continue
        if item.get_closest_marker("mpi") is None:
            item.add_marker(pytest.mark.mpi)
        marked = {mark.name for mark in item.iter_markers()}
        if (SIZE == 2 and "two_ranks" not in marked) or (SIZE < 4 and "several_workers" in marked):
            item.add_marker(pytest.mark.long)
    for item in _resting(items):
        item.add_marker(pytest.mark.long)


def _resting(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that the marker `one_of` leaves to the long run.

    Cases that follow each other in the other parameters, and numbers of ranks, take the values of the named
    one in turn. Within one process all values run: a job costs little there.
    """
    found, seen = [], dict[str, tuple[list[str], list[str]]]()
    for item in items:
        mark = item.get_closest_marker("one_of")
        if mark is None or SIZE == 1:
            continue
        (name,) = mark.args
        params = {key: str(value) for key, value in item.callspec.params.items()}  # type: ignore[attr-defined]
        value, rest = params.pop(name), str(params)
        values, others = seen.setdefault(item.nodeid.partition("[")[0], ([], []))
        for each, known in ((value, values), (rest, others)):
            if each not in known:
                known.append(each)
        n = len(_values_of(item, name))
        if (SIZE + others.index(rest) - values.index(value)) % n:
            found.append(item)
    return found


def _values_of(item: pytest.Item, name: str) -> Sequence[object]:
    """Return the values of a parameter of a test."""
    marks = [mark.args for mark in item.iter_markers("parametrize")]
    values: Sequence[object] = next(given[1] for given in marks if given[0] == name)
    return values


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `transport`, `remote` and `servers` with the values that this number of ranks allows.

    `remote` is a transport between nodes. Of the pairs with a number of servers, the long run takes
    those that are not in `_BY_DAY`.
    """
    ways = {
        "transport": ["local"] if SIZE == 1 else ["shm", "rma", "p2p"],
        "remote": ["rma", "p2p"],
    }
    servers = range(1, 2 if SIZE <= 2 else min(3, SIZE - 2) + 1)
    has_servers = "servers" in metafunc.fixturenames
    name = next((name for name in ways if name in metafunc.fixturenames), None)
    if name is not None and has_servers:
        pairs = list(itertools.product(ways[name], servers))
        daily = _BY_DAY if len(servers) > 1 else pairs
        cases = [pytest.param(*p, marks=() if p in daily else pytest.mark.long) for p in pairs]
        metafunc.parametrize((name, "servers"), cases)
    elif name is not None:
        metafunc.parametrize(name, ways[name])
    elif has_servers:
        metafunc.parametrize("servers", servers)


def _meet(comm: MPI.Intracomm, timeout_s: float | None) -> bool:
    """Wait for all ranks; without a time limit if there is none."""
    request = comm.Ibarrier()
    started = time.monotonic()
    while not request.Test():
        if timeout_s is not None and time.monotonic() - started > timeout_s:
            return False
        time.sleep(0.0005)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_report] = report
    return report


@pytest.fixture(autouse=True)
def _together(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start and end each test at the same time on all ranks. Collective."""
    meeting = request.config.stash[_meeting]
    _meet(meeting, None)
    yield
    report = request.node.stash.get(_report, None)
    if _meet(meeting, None if report is None else _GRACE_S):
        # Free only when all ranks have left the test, because Free is collective.
        for comm in request.node.stash.get(_comms, []):
            comm.Free()
        return
    # Print the failure now: pytest prints failures at the end of its session, which this rank does not reach.
    assert report is not None
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(
            f"\n{report.longreprtext}\n{request.node.nodeid} failed on rank {meeting.rank}, "
            "and other ranks wait for it: ending the job",
            file=sys.stderr,
            flush=True,
        )
    meeting.Abort(1)


@pytest.fixture
def comm(request: pytest.FixtureRequest, _together: None) -> MPI.Intracomm:
    """Return a communicator of all ranks for this test. Collective."""
    comm = load_mpi().Dup()
    request.node.stash[_comms] = [comm]
    return comm


@pytest.fixture
def folder(comm: MPI.Intracomm, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return the same empty folder on all ranks, in memory: workers push until checkpoints exist.

    Tests with the marker `on_disk` get one on the disk.
    """
    on_disk = request.node.get_closest_marker("on_disk") is not None
    place = "/dev/shm" if os.path.isdir("/dev/shm") and not on_disk else None
    name = tempfile.mkdtemp(prefix="test-folder-", dir=place) if comm.Get_rank() == 0 else ""
    path = Path(comm.bcast(name))
    yield path
    comm.Barrier()
    if comm.Get_rank() == 0:
        shutil.rmtree(path)


@pytest.fixture
def session(comm: MPI.Intracomm) -> Session:
    """Run `mpips.run` on all ranks, and return all results on every rank. Collective.

    So an assertion on the results fails on every rank alike.
    """

    def play(main: Callable[[mpips.Worker], Any], tables: Sequence[Any], **options: Any) -> Played:
        outcome = mpips.run(main, tables, comm=comm, verbose=False, **options)
        rows = comm.allgather((outcome.role, outcome.value))
        by_worker = {
            int(role.rpartition(" ")[2]): value for role, value in rows if "worker" in role
        }
        values = [by_worker[w] for w in sorted(by_worker)]
        # Only the first worker has the entries of all ranks.
        first = next(rank for rank, (role, _) in enumerate(rows) if role.endswith("worker 0"))
        statistics = comm.bcast(outcome.statistics, first)
        return Played(values, statistics, [role for role, _ in rows], outcome.transports)

    return play


def _parallel_assert(comm: MPI.Intracomm, condition: bool, message: str = "") -> None:
    failed = comm.allgather(None if condition else message or "the condition is false")
    lines = [f"rank {rank}: {text}" for rank, text in enumerate(failed) if text is not None]
    assert not lines, "\n".join(lines)


@pytest.fixture
def parallel_assert() -> Callable[..., None]:
    """Return `parallel_assert(comm, condition, message="")`: it fails on all ranks if false on any.

    Collective over `comm`, so it may stand between two collectives of the code under test, where a
    plain assert would leave the other ranks waiting.
    """
    return _parallel_assert


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let all ranks finish their reports: the first that leaves with a failure ends the job."""
    meeting = config.stash.get(_meeting, None)
    if meeting is not None:
        sys.stdout.flush()
        _meet(meeting, _GRACE_S)
