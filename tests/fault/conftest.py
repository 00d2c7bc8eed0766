"""Fixtures for tests that start their own mpirun: each test gets it, and leaves nothing behind."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import launcher
import long_runs
import matrix_rows
import multinode
import processes
import pytest


def pytest_report_header() -> list[str]:
    """Name the rows of the matrix of faults that all runs of this commit have."""
    if rows := [] if long_runs.LONG else matrix_rows.changed():
        return [f"rows of the matrix of faults that are new or changed: {', '.join(rows)}"]
    return []


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test after which a process or a shared-memory segment of it is still there."""
    segments = processes.segments()
    value = uuid.uuid4().hex
    mark = f"{launcher.CASE}={value}"
    monkeypatch.setenv(launcher.CASE, value)
    yield
    # What is about to end needs a moment on a loaded machine.
    processes.until(lambda: not processes.marked(mark), 2.0)
    left = processes.describe(processes.marked(mark))
    processes.end(mark)
    launcher.close_all()
    names = processes.left_segments(segments)
    assert not left, f"processes left behind:\n{left}"
    assert not names, f"shared memory left behind: {', '.join(sorted(names))}"


@pytest.fixture
def launch(_nothing_left: None) -> Iterator[Callable[..., launcher.Launch]]:
    """`launcher.launch`; whatever it started is killed at the end of the test."""
    launches: list[launcher.Launch] = []

    def start(*args: object, **kwargs: object) -> launcher.Launch:
        launches.append(launcher.launch(*args, **kwargs))  # type: ignore[arg-type]
        return launches[-1]

    yield start
    for launched in launches:
        launched.kill()


def _nodes(n: int) -> Iterator[multinode.Nodes]:
    if reason := multinode.why_not():
        pytest.skip(reason)
    with multinode.Nodes(n) as nodes:
        yield nodes
        left = {host: nodes.segments(i) for i, host in enumerate(nodes.hosts)}
        assert not any(left.values()), f"shared memory left behind on nodes: {left}"


@pytest.fixture
def nodes2(_nothing_left: None) -> Iterator[multinode.Nodes]:
    """Two imitated nodes."""
    yield from _nodes(2)


@pytest.fixture
def nodes3(_nothing_left: None) -> Iterator[multinode.Nodes]:
    """Three imitated nodes."""
    yield from _nodes(3)
