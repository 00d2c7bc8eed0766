"""A coordinator of cuts on a stage: tests play its workers and servers, message by message."""

from __future__ import annotations

from mpips.config.triggers import Triggers
from mpips.mpi.messages import (
    Agreed,
    Commit,
    Propose,
    Saved,
    Taken,
    Write,
)
from mpips.recovery.exchange import Exchange
from mpips.snapshot.coordinator import Coordinator


class Stage:
    """A coordinator, the messages that it has sent, and the answers of workers and servers."""

    def __init__(
        self,
        triggers: Triggers = Triggers(),  # noqa: B008
        *,
        common: bool = True,
        n_workers: int = 2,
        n_servers: int = 2,
        before: int = 0,
        timeout_s: float = 60.0,
        exchange: Exchange | None = None,
        again: str = "run again to continue",
    ) -> None:
        self.sent: list[object] = []
        self.warnings: list[str] = []
        self.n_workers, self.n_servers = n_workers, n_servers
        self.coordinator = Coordinator(
            triggers,
            common,
            before,
            n_workers,
            n_servers,
            lambda worker, message: self.sent.append((worker, message)),
            lambda message: self.sent.append(("servers", message)),
            timeout_s,
            self.warnings.append,
            exchange,
            again,
        )

    def take(self) -> list[object]:
        sent, self.sent = self.sent, []
        return sent

    def proposed(self) -> Propose:
        """Poll, and return the proposal that all workers must have received."""
        self.coordinator.poll()
        sent = self.take()
        assert [worker for worker, _ in sent] == list(range(self.n_workers))
        assert all(message == sent[0][1] for _, message in sent)
        assert isinstance(sent[0][1], Propose)
        return sent[0][1]

    def agree(self, number: int, *clocks: int, clock: int) -> None:
        for worker, now in enumerate(clocks):
            self.coordinator.agreed(worker, Agreed(number, now < clock, now))

    def committed(self) -> Commit:
        sent = self.take()
        assert sent[0] == ("servers", sent[0][1])
        assert {who for who, _ in sent[1:]} == set(range(self.n_workers))
        assert all(message == sent[0][1] for _, message in sent)
        assert isinstance(sent[0][1], Commit)
        return sent[0][1]

    def write(self, number: int, error: str = "") -> None:
        for server in range(self.n_servers):
            assert self.take() == []
            self.coordinator.taken(server, Taken(number, True))
        assert self.take() == [("servers", Write(number))]
        for server in range(self.n_servers):
            self.coordinator.saved(server, Saved(number, "" if error else "path", error))

    def whole(self, error: str = "") -> int:
        """Run one cut from proposal to end; return its clock."""
        proposal = self.proposed()
        self.agree(proposal.id, *[0] * self.n_workers, clock=proposal.clock)
        assert self.committed() == Commit(proposal.id, proposal.clock)
        self.write(proposal.id, error)
        return proposal.clock
