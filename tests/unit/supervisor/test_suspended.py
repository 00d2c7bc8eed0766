"""Processes of this host that are suspended."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mpips.supervisor import suspended


def test_a_process_is_suspended_while_a_signal_stops_it() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert not suspended.is_suspended(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert suspended.is_suspended(process.pid)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert not suspended.is_suspended(process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("line", "file", "frozen", "thawed"),
    [
        ("0::/job", "job/cgroup.events", "populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"),
        ("4:freezer:/job", "freezer/job/freezer.state", "FROZEN\n", "THAWED\n"),
        ("4:freezer:/job", "freezer/job/freezer.state", "FREEZING\n", "THAWED\n"),
    ],
)
def test_a_process_of_a_frozen_control_group_is_suspended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, file: str, frozen: str, thawed: str
) -> None:
    monkeypatch.setattr(suspended, "PROC", tmp_path)
    monkeypatch.setattr(suspended, "CGROUPS", tmp_path)
    pid = os.getpid()
    assert not suspended.is_suspended(pid)
    (tmp_path / str(pid)).mkdir()
    (tmp_path / str(pid) / "cgroup").write_text(f"1:name=systemd:/\n{line}\n")
    assert not suspended.is_suspended(pid)
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(frozen)
    assert suspended.is_suspended(pid)
    path.write_text(thawed)
    assert not suspended.is_suspended(pid)
