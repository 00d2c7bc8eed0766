"""The program of a script: tables that are declared until the first pull, and worker 0's initial values.

All workers declare the same tables, in the same order. Servers and the scheduler learn them from worker 0,
whose initial values count: other workers may have drawn other ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
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
    from mpips.rundir.files import StagesChoice
    from mpips.session.chosen_stages import StoredStages
    from mpips.session.driver import JobView
    from mpips.worker.worker import Worker

_WHAT = "the first pull, at which all workers start the job"


class EndedEarlyError(Exception):
    """All workers ended their scripts before the first pull, so there is no job to start."""


class _Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """The entry of one worker at the first pull.

    Attributes:
        worker: Index of the worker.
        digest: Digest of its tables; "": its script ended without a pull, or it
            requests a choice.
        tables: Tables of the worker, in the entry of worker 0 only; see mpips.model.table_config.
        request: Digest of the model whose stages are to be chosen; "": no request.
    """

    worker: int
    digest: str
    tables: list[dict[str, Any]] = []
    request: str = ""


class Declared:
    """The tables of a script, and the initial values of them.

    Attributes:
        tables: The tables in the order of their declaration.
        values: Functions that return the initial values of dense tables, by name, for each group.
        rows: Functions that return the initial rows of embedding tables, by name.
        states: Functions that return the initial optimizer state of dense tables, by name.
        notes: Sentences for people about what was chosen before the first pull.
    """

    def __init__(self, stages: Callable[[], StoredStages]) -> None:
        """Declare nothing yet. `stages`: returns where the choice of the stages of a model is stored."""
        self._stages = stages
        self.notes: list[str] = []
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

        def mine() -> _Row:
            if has_ended:
                return _Row(ranks.worker or 0, "")
            check_tables(self.tables)
            configs = [to_config(table) for table in self.tables]
            return _Row(ranks.worker or 0, _digest(configs), [] if ranks.worker else configs)

        # Servers and the scheduler are here while workers request choices.
        rows = _met(ranks, mine)
        while rows[0].request:
            self._choose(ranks, rows[0].request, None)
            rows = _met(ranks, mine)
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

    def ask_stages(
        self, ranks: Ranks, digest: str, choose: Callable[[], StagesChoice]
    ) -> StagesChoice:
        """Return the choice of the stages of a model. Collective over all ranks; blocks. On workers.

        Args:
            ranks: All ranks.
            digest: Digest of the model and of the rules of the choice.
            choose: Measures and chooses; called on worker 0, if no launch of the run has chosen before.

        Raises:
            ConfigError: Another worker has another model, or is at its first pull or its end.
        """
        rows = _met(ranks, lambda: _Row(ranks.worker or 0, "", request=digest))
        return self._choose(ranks, rows[0].request, choose)

    def _choose(
        self, ranks: Ranks, digest: str, choose: Callable[[], StagesChoice] | None
    ) -> StagesChoice:
        # Few scripts need it.
        from mpips.session.chosen_stages import chosen_stages

        choice, self.notes = chosen_stages(ranks, digest, self._stages(), choose)
        return choice

    def _refuse_other(self, ranks: Ranks, first: Sequence[Mapping[str, Any]]) -> None:
        """Raise ConfigError with the first difference to worker 0's tables, if there is one."""
        own = [to_config(table) for table in self.tables]
        if ranks.worker is not None and (difference := _difference(own, first)):
            raise ConfigError(f"{difference}; all workers must make the same model")


def _met(ranks: Ranks, mine: Callable[[], _Row]) -> list[_Row]:
    """Return the entries of all workers, by index. Collective over all ranks; blocks.

    Args:
        ranks: All ranks.
        mine: Returns the entry of this worker; called on workers.

    Raises:
        ConfigError: The requests of the workers differ.
    """

    def row() -> dict[str, Any] | None:
        found: dict[str, Any] | None = msgspec.to_builtins(None if ranks.worker is None else mine())
        return found

    found = ranks.agree(_WHAT, row, lengthy=True)
    rows = sorted(
        (msgspec.convert(one, _Row) for one in found if one is not None), key=lambda r: r.worker
    )
    other = next((one for one in rows if one.request != rows[0].request), None)
    if other is not None and other.request and rows[0].request:
        raise ConfigError(
            f"worker {other.worker} prepares another model, or another example or limit of AutoStages, than "
            "worker 0; all workers must make the same model"
        )
    if other is not None:
        asking, waiting = (other, rows[0]) if other.request else (rows[0], other)
        does = "begins to train" if waiting.digest else "has ended its script"
        raise ConfigError(
            f"worker {asking.worker} prepares a model with AutoStages, while worker {waiting.worker} {does}: "
            "all workers must run the same steps"
        )
    return rows


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
        self.declared = Declared(lambda: _stored_stages(checked, resume))
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
        """Print roles and transports of several ranks, and what was chosen before the first pull."""
        notes = [f"note: {note}" for note in self.declared.notes]
        lines = [*filter(None, [view.description]), *notes]
        if self._verbose and lines:
            say("\n".join(lines))

    def report(
        self, epoch: int, step: int, samples: int, loss_sum: float, rates: Sequence[float] = ()
    ) -> None:
        """Show nothing."""

    def main(self, worker: Worker) -> NoReturn:
        """Raise RuntimeError: the script does the work of the worker."""
        raise RuntimeError("a script has no worker function")

    def close(self) -> None:
        """Do nothing: `show` has begun nothing."""


def _stored_stages(checked: CheckedArguments, resume: str) -> StoredStages:
    from mpips.session.chosen_stages import StoredStages

    return StoredStages(checked.run, checked.folder, resume, checked.has_own_folder)


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
