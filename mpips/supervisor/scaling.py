"""A change of the shape of a running job: other numbers of workers and servers, on request.

    mpips scale RUN --workers +2 --servers 4

1. The supervisor takes the request and refuses it in one sentence if the shape is impossible.
2. It starts the launch of the new shape beside the attempt, which stays at work (`mpips.supervisor.standby`).
3. When its ranks wait, the attempt is asked to end with a consistent cut of the job in shared memory
   (`mpips.recovery.exchange`). Where that is impossible, it ends with a checkpoint, as before the time limit
   of a batch system, and the reason is printed.
4. The new launch begins from it. Samples of the epoch that no worker had read are divided among the new
   workers, each once; tables and optimizer states are divided among the new servers.

An attempt that fails in between is followed by one of the old shape, and the change is tried again there. On
crowded hosts (`mpips.supervisor.crowding`) it is planned anew for the hosts that are left, and refused if it
is impossible there.
The configuration of the run has the new shape from step 4 on, for all attempts that follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from mpips.errors import ConfigError
from mpips.mpi.started import joined
from mpips.process.patience import is_over, running_s
from mpips.rundir.requests import SCALE, SCALE_IN_MEMORY, JobSize
from mpips.supervisor.hosts import HostPool, HostsError, Layout, is_here
from mpips.supervisor.plan import SupervisionPlan

if TYPE_CHECKING:
    from mpips.config.schema import JobConfig
    from mpips.supervisor.attempt import Attempt
    from mpips.supervisor.standby import Standbys

_STARTS_S = 60.0  # s that a change waits for the ranks of the new shape before it does without them


class Change(msgspec.Struct, frozen=True):
    """A change that is possible.

    Attributes:
        shape: The numbers that were requested.
        config: The configuration with it.
        pool: The hosts with it.
        layout: The ranks and hosts of the next attempt.
        by_file: Reason why shared memory cannot carry the job to them, for people; "": it may.
        starts_s: Longest wait for the ranks of the next attempt, seconds; the change is then made without
            them.
    """

    shape: JobSize
    config: JobConfig
    pool: HostPool
    layout: Layout
    by_file: str = ""
    starts_s: float = math.inf


def change_of(plan: SupervisionPlan, shape: JobSize) -> Change:
    """Return the change of a run to a shape.

    Args:
        plan: The plan of the run.
        shape: The numbers of ranks and servers.

    Raises:
        ConfigError: The shape is not possible on the hosts of the run.
        HostsError: Too few hosts are left for it.
    """
    options = plan.config.run
    if options.script and shape.servers:
        raise ConfigError(
            f"servers = {shape.servers}: {options.script} chooses the number of servers; change only the "
            "number of workers"
        )
    pool = plan.pool.resized(shape.ranks, shape.servers)
    config = replace(
        plan.config,
        run=replace(options, ranks=shape.ranks),
        cluster=replace(plan.config.cluster, servers=shape.servers),
    )
    layout = pool.layout()
    return Change(shape, config, pool, layout, why_by_file(plan, layout))


def why_by_file(plan: SupervisionPlan, layout: Layout) -> str:
    """Return why shared memory cannot carry the job to these ranks, for people; "": it may."""
    if not plan.config.redundancy.warm:
        return "no memory of the job outlives a launch (redundancy.warm = false)"
    away = next((host.name for host in layout.hosts if not is_here(host.name)), "")
    return f"the new size has ranks on another host, {away}" if away else ""


class Scaling:
    """The requests of a run for another shape, one at a time; a later one replaces an earlier one.

    Main thread only.
    """

    def __init__(
        self,
        plan: SupervisionPlan,
        standbys: Standbys,
        answer: Callable[[int, str], None],
    ) -> None:
        """Wait for requests.

        Args:
            plan: The plan of the run, which `apply` changes.
            standbys: The launches that wait.
            answer: Takes the generation and why a request is refused.
        """
        self._plan = plan
        self._standbys = standbys
        self._answer = answer
        self._change: Change | None = None
        self._since = 0.0  # running time since which the new launch is being prepared; 0: it is not
        self._asked = False

    def begin(self) -> None:
        """Note that an attempt has begun."""
        self._since, self._asked = 0.0, False

    def propose(self, change: Change) -> None:
        """Take a change that the supervisor itself has decided; it replaces an earlier one."""
        self._change, self._since = change, 0.0

    def retry(self, generation: int) -> bool:
        """Plan the change that has not taken place anew, for the hosts that are left, or refuse it.

        Args:
            generation: Generation number of the attempt that begins.

        Returns:
            True if there is such a change, and it is possible.
        """
        if self._change is None:
            return False
        try:
            self._change = change_of(self._plan, self._change.shape)
        except (ConfigError, HostsError) as error:
            self._change = None
            self._answer(generation, str(error))
        return self._change is not None

    def withdraw(self, change: Change | None = None) -> None:
        """Forget a change that has not taken place. `change`: only this one; None: any."""
        if change is None or change is self._change:
            self._change = None

    def tick(self, generation: int, attempt: Attempt, shapes: list[JobSize]) -> None:
        """Take requests and bring the change forward. Called about twice a second; not blocking.

        Args:
            generation: Generation number of the attempt.
            attempt: The attempt, which is at work.
            shapes: New requests, the oldest first.
        """
        for shape in shapes:
            try:
                self._change, self._since = change_of(self._plan, shape), 0.0
            except (ConfigError, HostsError) as error:
                self._answer(generation, str(error))
        if self._change is None or self._asked:
            return
        if not self._since:
            self._since = running_s()
            record = joined(self._plan.run, generation)
            if record is not None and self._plan.config.run.standby:
                new = replace(self._plan, config=self._change.config, pool=self._change.pool)
                self._standbys.start(new, generation, self._change.layout, record)
        if self._standbys.is_starting and not is_over(
            self._since, min(_STARTS_S, self._change.starts_s)
        ):
            return
        self._asked = True
        attempt.ask_to_leave(SCALE if self._change.by_file else SCALE_IN_MEMORY)

    @property
    def is_asked(self) -> bool:
        """True if the attempt was asked to end for the change."""
        return self._asked

    def apply(self) -> Change:
        """Give the run its new shape; the attempt has ended with a checkpoint. Returns the change."""
        change, self._change = self._change, None
        assert change is not None
        self._plan.config, self._plan.pool = change.config, change.pool
        return change
