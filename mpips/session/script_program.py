"""The program of a script: tables that are declared until the first pull, and worker 0's initial values.

All workers declare the same tables, in the same order. Servers and the scheduler learn them from worker 0,
whose initial values count: other workers may have drawn other ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from mpips.errors import ConfigError
from mpips.model.job_tables import check_tables
from mpips.model.table_config import from_config, to_config
from mpips.recovery.saving import Saving, SavingPlan
from mpips.session.initial_values import InitialValues, Rows, State, Values
from mpips.session.session import CheckedArguments, FunctionPlan
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.model.table import Table
    from mpips.mpi.one_rank import Ranks
    from mpips.session.driver import JobView
    from mpips.worker.worker import Worker

_WHAT = "the first pull, at which all workers start the job"


class EndedEarlyError(Exception):
    """All workers ended their scripts before the first pull, so there is no job to start."""


class _Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry of one worker at the first pull.

    Attributes:
        worker: Index of the worker.
        digest: Digest of its tables; "": its script ended without a pull.
        tables: Tables of the worker, in the entry of worker 0 only; see mpips.model.table_config.
    """

    worker: int
    digest: str
    tables: list[dict[str, Any]] = []


class Declared:
    """The tables of a script, and the initial values of them.

    Attributes:
        tables: The tables in the order of their declaration.
        values: Functions that return the initial values of dense tables, by name, for each group.
        rows: Functions that return the initial rows of embedding tables, by name.
        states: Functions that return the initial optimizer state of dense tables, by name.
    """

    def __init__(self) -> None:
        """Declare nothing yet."""
        self.tables: list[Table] = []
        self.values: dict[str, dict[str, Values]] = {}
        self.rows: dict[str, Rows] = {}
        self.states: dict[str, State] = {}

    def add(
        self,
        table: Table,
        values: Values | None = None,
        group: str = "",
        rows: Rows | None = None,
        state: State | None = None,
    ) -> None:
        """Declare a table.

        Args:
            table: The table.
            values: Returns the initial values of a dense table: float32, C-contiguous, of the table's shape.
                Called at the start of a job that starts from no checkpoint, on worker 0.
            group: Name of the tables whose values are in memory at the same time.
            rows: Returns the rows with which an embedding table begins; called like `values`.
            state: Returns the optimizer state with which a dense table begins; called like `values`.

        Raises:
            ConfigError: A table of this name has been declared.
        """
        if any(other.name == table.name for other in self.tables):
            raise ConfigError(
                f"two tables are named {table.name!r}: prepare each model once, and give models and "
                "embeddings different names"
            )
        self.tables.append(table)
        if values is not None:
            self.values.setdefault(group, {})[table.name] = values
        if rows is not None:
            self.rows[table.name] = rows
        if state is not None:
            self.states[table.name] = state

    def initial_values(self) -> InitialValues:
        """Return the initial values of all tables."""
        return InitialValues(list(self.values.values()), self.tables, self.rows, self.states)

    def meet(self, ranks: Ranks, has_ended: bool) -> list[Table]:
        """Compare the tables of all workers; return those of worker 0. Collective over all ranks; blocks.

        Args:
            ranks: All ranks.
            has_ended: This worker's script has ended without a pull.

        Raises:
            ConfigError: A worker has other tables than worker 0, or has ended its script.
            EndedEarlyError: All workers have ended their scripts. Raised on all ranks.
        """

        def mine() -> dict[str, Any] | None:
            if ranks.worker is None:
                return None
            row = _Row(ranks.worker, "")
            if not has_ended:
                check_tables(self.tables)
                configs = [to_config(table) for table in self.tables]
                row = _Row(ranks.worker, _digest(configs), [] if ranks.worker else configs)
            plain: dict[str, Any] = msgspec.to_builtins(row)
            return plain

        found = ranks.agree(_WHAT, mine, lengthy=True)
        rows = sorted(
            (msgspec.convert(row, _Row) for row in found if row is not None), key=lambda r: r.worker
        )
        ended = [row.worker for row in rows if not row.digest]
        if len(ended) == len(rows):
            raise EndedEarlyError
        if ended:
            raise ConfigError(
                f"worker {ended[0]} ended its script before its first pull, while other workers begin to "
                "train: all workers must run the same steps"
            )
        first = rows[0].tables
        if any(row.digest != rows[0].digest for row in rows):
            ranks.agree("comparing the models", lambda: self._refuse_other(ranks, first))
        return [from_config(config) for config in first]

    def _refuse_other(self, ranks: Ranks, first: Sequence[Mapping[str, Any]]) -> None:
        """Raise ConfigError with the first difference to worker 0's tables, if there is one."""
        own = [to_config(table) for table in self.tables]
        if ranks.worker is not None and (difference := _difference(own, first)):
            raise ConfigError(f"{difference}; all workers must make the same model")


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
        self.warm = checked.redundancy.warm
        self.has_partners = checked.redundancy.partner
        self.declared = Declared()
        self.has_ended = False
        self._tables: list[Table] = []
        self._values = InitialValues([], [])
        self._folder = checked.folder
        self._has_own_folder = checked.has_own_folder
        self._resume = resume
        self._triggers = checked.triggers
        self._verbose = verbose

    def prepare(
        self, ranks: Ranks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Wait for the first pull of all workers, and learn the tables of worker 0. Collective; blocks."""
        self._tables = self.declared.meet(ranks, self.has_ended)
        if ranks.worker == 0:
            self._values = self.declared.initial_values()
        draft = Saving(self._folder, run_id, triggers=self._triggers)
        return FunctionPlan(draft, self._resume, comm, self._has_own_folder)

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
            say(view.description)

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Show nothing."""

    def main(self, worker: Worker) -> NoReturn:
        """Raise RuntimeError: the script does the work of the worker."""
        raise RuntimeError("a script has no worker function")

    def close(self) -> None:
        """Do nothing: `show` has begun nothing."""


def _digest(configs: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(configs), digest_size=16).hexdigest()


def _difference(own: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]]) -> str:
    """Return the first difference of a worker's tables to those of worker 0; "" if they are equal."""
    for mine, other in zip(own, first, strict=False):
        if mine["name"] != other["name"]:
            return f"this worker has the parameter {mine['name']!r} where worker 0 has {other['name']!r}"
        for key in dict.fromkeys([*mine, *other]):
            if mine.get(key) != other.get(key):
                return f"{mine['name']!r} has {key} = {mine.get(key)}, on worker 0 it has {other.get(key)}"
    if len(own) != len(first):
        longer = own if len(own) > len(first) else first
        has = "this worker" if len(own) > len(first) else "worker 0"
        return f"only {has} has the parameter {longer[min(len(own), len(first))]['name']!r}"
    return ""
