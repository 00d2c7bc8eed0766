"""Waits of a worker for its group: they leave the core to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpips.worker import group_level, waits
from mpips.worker.group_level import WAIT_S, GroupLevel
from mpips.worker.group_part import GroupPart


def test_a_push_that_waits_for_a_message_of_its_worker_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock before is summed, but this worker's contribution to it has not left the worker yet."""
    slept: list[float] = []
    monkeypatch.setattr(group_level.time, "sleep", slept.append)
    anything: Any = SimpleNamespace
    part = GroupPart(
        tables={},
        members=(0, 1),
        number=0,
        memory=anything(),
        layout=anything(),
        reduction=anything(wait_room=lambda table, max_s: True),
        contributions=anything(poll=lambda: None, is_idle=False),
    )
    level = GroupLevel(anything(), part, ["worker 0", "worker 1"])
    assert not level._has_room(0, WAIT_S)
    assert slept == [waits.BETWEEN_POLLS_S]
    assert not level._has_room(0, 0.0)
    assert slept[1:] == [0.0]
