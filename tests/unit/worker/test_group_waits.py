"""Waits of a worker for its group: they leave the core to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpips.transport import waiting
from mpips.worker.groups.level import WAIT_S, GroupLevel
from mpips.worker.groups.part import GroupPart


def test_a_push_that_waits_for_a_message_of_its_worker_leaves_the_core_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock before is summed, but this worker's contribution to it has not left the worker yet."""
    yielded: list[None] = []
    monkeypatch.setattr(waiting.os, "sched_yield", lambda: yielded.append(None))
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
    assert not level._has_room(0, 0.0)
    assert not yielded, "the first look does not wait"
    assert not level._has_room(0, WAIT_S)
    assert yielded
