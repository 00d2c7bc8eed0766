"""The suite `transport`: names, units, and its result on machines that cannot imitate nodes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from mpips.bench import launching, transport
from mpips.bench.measure import BARS, Findings, typical_seconds
from mpips.errors import CapabilityError
from mpips.testing.nodes import AGENT


@pytest.fixture
def launches(monkeypatch):
    """Record programs that the suite starts on this machine, instead of starting them."""
    started = []

    def note(program, n, options, timeout_s):
        started.append((program, n))
        return Findings(notes=["this machine"])

    monkeypatch.setattr(transport, "on_ranks", note)
    return started


@pytest.mark.parametrize(("nodes", "reason"), [(0, "no root"), (1, "--nodes 1")])
def test_without_nodes_their_ratios_are_skipped_with_the_reason(
    launches, monkeypatch, nodes, reason
):
    monkeypatch.setattr(transport, "why_not_on_nodes", lambda: "no root")
    found = transport.run("transport", launching.Options(), nodes)
    assert found.skipped == dict.fromkeys(transport.BETWEEN_NODES, reason)
    assert found.notes == ["this machine"]
    assert launches == [("mpips.bench.rank.transport:run", 2)]


def test_requested_nodes_that_cannot_be_imitated_are_an_error(launches, monkeypatch):
    monkeypatch.setattr(transport, "why_not_on_nodes", lambda: "no root")
    with pytest.raises(CapabilityError, match=r"^--nodes 2: no root$"):
        transport.run("transport", launching.Options(), 2)
    assert launches == []


def test_another_mpirun_is_refused_with_the_name_of_open_mpi_5(monkeypatch):
    monkeypatch.setattr(launching, "find_mpirun", lambda: "/bin/echo")
    assert "Open MPI 5" in launching.why_not_on_nodes()


def test_every_ratio_between_nodes_has_a_bar_and_the_agent_is_installed():
    assert set(transport.BETWEEN_NODES) <= set(BARS)
    assert AGENT.read_text().startswith("#!/usr/bin/env bash")


def test_typical_seconds_are_not_moved_by_one_interruption():
    calls = []

    def work():
        calls.append(0)
        if len(calls) == 7:
            sum(range(3_000_000))

    assert typical_seconds(work, 40) < 1e-4
    assert len(calls) == 41


def test_findings_of_the_ranks_program():
    # The program imports MPI (without starting it), so run it in its own process.
    code = """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpips.bench.rank import transport as t
        from mpips.bench.measure import BARS
        from mpips.bench.transport import BETWEEN_NODES

        ours = dict(push_ack_4k=40e-6, push_16m=2**24 / 2e9, pull_16m=1.0, rows_push=0.01,
                    rows_pull=0.005, push_16m_queued=2**24 / 3e9)
        raw = dict(put_flush=20e-6, put=2**24 / 4e9, bare=2**24 / 2e9, get=1.0,
                   ping_pong_8=30e-6, ping_pong_4k=1e-4, message_16m=2**24 / 1e9)
        turns = dict(rma=[(ours, raw)] * 3, p2p=[(ours, raw)] * 3)
        found = t.findings("tcp", turns, dict(put=1 << 20, get=32 << 10))
        found.judge(BARS)
        by_name = {c.name: c for c in found.comparisons}
        assert set(BETWEEN_NODES) < set(by_name), tuple(by_name)
        assert len(by_name) == 10
        queued = by_name["tcp_push_16m_queued_vs_put"]
        assert (queued.unit, round(queued.ratio, 9)) == ("GB/s", 0.75)
        push = by_name["tcp_push_ack_4k_vs_put_flush"]
        assert (push.unit, round(push.ratio, 9), push.met) == ("us", 2.0, True)
        large = by_name["tcp_push_16m_vs_put"]
        assert (large.unit, round(large.ratio, 9), large.met) == ("GB/s", 0.5, False)
        assert "1024 KiB" in large.baseline_name
        assert by_name["tcp_push_16m_vs_bare"].ratio == 1.0
        assert by_name["tcp_p2p_push_16m_vs_put"].met is None
        figures = {f.name: round(f.median, 6) for f in found.figures}
        assert figures["tcp_latency"] == 15.0 and figures["tcp_bandwidth"] == 1.0
        assert figures["tcp_rma_rows_push"] == 1.0 and figures["tcp_p2p_rows_pull"] == 2.0
        names = {c.name for c in t.findings("node", turns, dict(put=1, get=1)).comparisons}
        assert "node_rma_push_16m_vs_put" in names and not names & set(by_name)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
