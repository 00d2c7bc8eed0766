"""The program of a script: tables that are declared until the first pull, and worker 0's initial values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from mpips.recovery.saving import Saving, SavingPlan
from mpips.session.declared import Declared
from mpips.session.initial_values import InitialValues
from mpips.session.session import CheckedArguments, FunctionPlan

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.model.table import Table
    from mpips.session.driver import JobRanks, JobView
    from mpips.worker.worker import Worker


class ScriptProgram:
    """The program of a script: its tables are declared until the first pull."""

    def __init__(
        self,
        checked: CheckedArguments,
        resume: str,
        verbose: bool,
    ) -> None:
        """Take checked arguments of `init`."""
        self.options = checked.options
        self.monitor = checked.monitor
        self.warm = True
        self.has_partners = False
        self.declared = Declared()
        self.has_ended = False
        self._tables: list[Table] = []
        self._values = InitialValues([], [])
        self._folder = checked.folder
        self._resume = resume
        self._triggers = checked.triggers
        self._verbose = verbose

    def prepare(
        self, ranks: JobRanks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Wait for the first pull of all workers, and learn the tables of worker 0. Collective; blocks."""
        self._tables = self.declared.meet(ranks, self.has_ended)
        if ranks.worker == 0:
            self._values = self.declared.initial_values()
        draft = Saving(self._folder, run_id, triggers=self._triggers)
        return FunctionPlan(draft, self._resume, comm)

    def tables(self) -> list[Table]:
        """Return the tables of worker 0."""
        return self._tables

    def initial_values(self) -> InitialValues:
        """Return the initial values that the script declared; none where this rank is not worker 0."""
        return self._values

    def begin(self, saving: Saving, n_workers: int) -> None:
        """Do nothing: `mpips.torch` reads the start of the worker."""

    def show(self, view: JobView) -> None:
        """Print roles and transports of several ranks."""
        if self._verbose and view.description:
            print(view.description, file=sys.stderr, flush=True)

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Show nothing."""

    def main(self, worker: Worker) -> NoReturn:
        """Raise RuntimeError: the script does the work of the worker."""
        raise RuntimeError("a script has no worker function")

    def close(self) -> None:
        """Do nothing: `show` has begun nothing."""
