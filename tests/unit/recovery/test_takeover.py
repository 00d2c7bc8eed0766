"""The choice of memory of a launch, rank by rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpips.errors import ProtocolError
from mpips.recovery.takeover import Takeover


class WarmServer:
    """A server of which a test notes what start-up does with it."""

    def __init__(self, is_refused: bool = False) -> None:
        self.calls: list[str] = []
        self._is_refused = is_refused

    def finish_recovery(self, staging: object) -> None:
        self.calls.append("finish_recovery")

    def drain(self) -> int:
        self.calls.append("drain")
        if self._is_refused:
            raise ProtocolError("server 0: a gap")
        return 1


MEMORY: Any = SimpleNamespace(step=7)


def takeover(server: WarmServer, copied: list[int]) -> Any:
    assignment = SimpleNamespace(servers=[0], workers=[1])
    cluster = SimpleNamespace(server=0, assignment=assignment, token="t")

    def make(step: int) -> WarmServer:
        server.calls.append(f"at step {step}")
        return server

    arguments: Any = (cluster, None, SimpleNamespace(copied=copied), "", make)
    return Takeover(*arguments, None, False, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copied", "calls"),
    [
        ([0], ["finish_recovery", "drain"]),
        ([], ["finish_recovery"]),
    ],
)
def test_a_server_from_a_copy_consumes_what_the_lost_one_had_before_any_worker_pulls(copied, calls):
    # The copy may have records in its rings that the lost server had consumed, and that pulls have returned.
    server = WarmServer()
    assert takeover(server, copied)._attach(MEMORY) == {"reason": "", "staging": []}
    # Limits of rows and Switch count the clocks of the run.
    assert server.calls == ["at step 7", *calls]


def test_memory_with_a_wrong_record_in_a_copy_is_not_used():
    found = takeover(WarmServer(is_refused=True), [0])._attach(MEMORY)
    assert found == {"reason": "server 0: a gap", "staging": []}
