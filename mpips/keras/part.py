"""The tables of one Keras model, and what a training step does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import torch

from mpips import _native
from mpips.data.shares import bounds
from mpips.errors import ConfigError
from mpips.keras.job import KerasJob
from mpips.keras.local_steps import LocalSteps
from mpips.keras.metrics import MetricSums
from mpips.keras.optimizer import make_stepping
from mpips.keras.rules import check_optimizer, rule_of
from mpips.keras.shares import add_to_hash, n_rows, share
from mpips.keras.values import array_of
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import BSP, Consistency
from mpips.model.replicated import TablePlacement
from mpips.torch.buffers import BufferTable
from mpips.torch.generators import mix, seed_defaults, seeded
from mpips.torch.parameters import ParameterTable
from mpips.worker.worker import Worker

_STEP_TAG = 0x6B657261732D7374
_ORDER_TAG = 0x6B657261732D6F72
_LAYER_TAG = 0x6B657261732D6C79


class StateTable(BufferTable):
    """One non-trainable variable and its table: worker 0's value counts.

    Keras assigns variables in place, and torch counts the changes. So a state that has not changed is neither
    copied nor sent.
    """

    def __init__(self, name: str, variable: Any) -> None:
        """Take the variable. The tensor behind it stays the same."""
        super().__init__(name, variable, "_value", "worker 0")
        self._seen = -1  # torch's count of changes at the newest pull or push

    def pull(self) -> None:
        """Fetch the values into the variable. Blocks like DenseHandle.pull."""
        super().pull()
        self._seen = self._tensor._version

    def push(self) -> None:
        """Push the values, if this is worker 0 and they were assigned since the newest pull or push."""
        if self._tensor._version != self._seen:
            super().push()
            self._seen = self._tensor._version


class ModelTables:
    """The tables of a model.

    Attributes:
        job: The script's job.
        is_stepping: True within a training step.
    """

    def __init__(
        self,
        model: Any,
        job: KerasJob,
        consistency: Consistency,
        compression: PushCodec | None = None,
        pull_compression: PullCodec | None = None,
        placement: TablePlacement = "servers",
    ) -> None:
        """Take the model, which need not be built or compiled yet."""
        self.job = job
        self.is_stepping = False
        self._model = model
        self._consistency = consistency
        self._codecs = compression, pull_compression
        self._placement: TablePlacement = placement
        self._optimizer: Any = None
        self._trained: dict[int, ParameterTable] = {}  # by the id of the variable
        self._parameters: list[ParameterTable] = []
        self._states: list[StateTable] = []
        self._sums: MetricSums | None = None
        self._seeds: list[
            tuple[Any, int]
        ] = []  # states of seed generators, with the layers' own seeds
        self._is_stale = True
        self._has_applied = False
        self._weight = 1.0  # of this worker's gradients in the step
        self._n_own = 0  # rows of this worker's share of the batch; 0: unknown
        self._rate: float | None = None  # learning rate of the newest step
        self._skipped = 0  # batches of this epoch that were complete before a restart
        self._read = 0  # batches of this epoch
        self._hash = _native.Xxh3()  # of these batches
        self._watch: LocalSteps | None = LocalSteps(model)  # until the job starts

    @property
    def _tables(self) -> list[ParameterTable | StateTable]:
        return [*self._states, *self._parameters]

    def declare(self) -> None:
        """Declare the tables, directly before the job starts.

        Raises:
            ConfigError: The model has no variables yet, or one of them or the optimizer is not accepted.
        """
        model = self._model
        if not model.built or not model.weights:
            raise ConfigError(
                f"the model {model.name!r} has no variables yet: build it before, for example with an Input "
                "layer, model.build(shape) or one call"
            )
        trained = {id(v) for v in model.trainable_variables}
        own = {id(v) for layer in model._flatten_layers() for v in layer._non_trainable_variables}
        for v in model.weights:
            name = v.path.replace("/", ".")
            if id(v) in own:
                self._states.append(StateTable(name, v))
                continue
            if id(v) in trained and v.constraint is not None:
                raise ConfigError(
                    f"the variable {v.path!r} has a constraint ({type(v.constraint).__name__}), which "
                    "servers cannot apply: use a regularizer"
                )
            rule = None
            if id(v) in trained and self._optimizer is not None:
                rule = rule_of(self._optimizer, v)
            parameter = ParameterTable(name, v._value, rule)
            self._parameters.append(parameter)
            if rule is not None:
                self._trained[id(v)] = parameter
        for state in self._states:
            self.job.script.declare(state.table(self._consistency), state.initial_values)
        for parameter in self._parameters:
            where: TablePlacement = self._placement if parameter.rule is not None else "servers"
            declared = parameter.table(self._consistency, where, *self._codecs)
            self.job.script.declare(declared, parameter.initial_values)
        if isinstance(self._consistency, BSP) and model.compiled:
            self._sums = MetricSums(f"{model.name}.epoch_metrics", model.metrics_variables)
            self.job.script.declare(self._sums.table())
        found = [v for v in model.variables if v.name == "seed_generator_state"]
        self._seeds = [(v, int(array_of(v)[0])) for v in found]

    def take_optimizer(self) -> None:
        """Take the model's optimizer, if it is compiled: the servers do its steps.

        Raises:
            ConfigError: The job has started, or the servers cannot apply this optimizer.
        """
        optimizer = self._model.optimizer if self._model.compiled else None
        if optimizer is None:
            return
        self.job.check_time(
            "compile", ", and the servers have the optimizer; compile once, before it"
        )
        check_optimizer(optimizer)
        if self._model.jit_compile is True:
            raise ConfigError("compile: jit_compile = True: must be False or 'auto'")
        if any(
            getattr(loss, "reduction", "") == "sum" for loss in keras.tree.flatten(self._model.loss)
        ):
            raise ConfigError(
                "compile: a loss with reduction = 'sum' has no mean over the workers: use "
                "'sum_over_batch_size', and a learning rate that is greater by the size of the batch"
            )
        if int(array_of(optimizer.iterations)):
            raise ConfigError(
                "the optimizer has made steps before prepare, whose moments the servers would not have: "
                "prepare the model before its first fit"
            )
        make_stepping(optimizer, self)
        self._optimizer = optimizer

    def open(self, worker: Worker) -> None:
        """Take the handles at the start of the job."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        for table in self._tables:
            table.open(worker)
        if self._sums is not None:
            self._sums.open(worker, self.job.script.n_workers)

    def refresh(self) -> None:
        """Pull all values, if a step has been made since the newest pull. Blocks then."""
        if self._is_stale:
            self.job.start()
            self.job.settle()
            for table in reversed(self._tables):
                table.pull()
            self._is_stale = False

    def read(self) -> None:
        """Start the job, if it has not started, and pull all values. Collective at the first call; blocks."""
        self.job.start()
        self.refresh_started()

    def refresh_started(self) -> None:
        """Pull all values as `refresh` does, but leave a job that has not started, and a step, alone.

        Raises:
            ConfigError: Another optimizer than the model's own has made a step.
        """
        if self._watch is not None:
            self._watch.look()
        if self.job.has_started and not self.is_stepping:
            self.refresh()

    def train(self, data: Any, step: Callable[[Any], Any]) -> Any:
        """Make a training step with this worker's share of a batch.

        Args:
            data: The batch of all workers.
            step: The model's train_step.

        Raises:
            ConfigError: The step did not apply gradients with the model's optimizer.
        """
        worker, script = self.job.start(), self.job.script
        self.job.settle()
        self._read += 1
        if script.n_workers > 1:
            add_to_hash(self._hash, data)
        if self._read <= self._skipped:
            self.job.place.batch += 1
            return self._model.get_metrics_result()
        self.refresh()
        n = n_rows(data)
        first, last = bounds(n, script.rank, script.n_workers)
        self._weight = (last - first) * script.n_workers / n
        self._n_own = last - first
        self.is_stepping = True
        self._has_applied = False
        try:
            with seeded(_STEP_TAG, worker.seed, worker.index, self.job.steps):
                self._seed_layers(worker)
                result = self._push_nothing() if first == last else step(share(data, first, last))
        finally:
            self.is_stepping = False
            self._weight = 1.0
        if not self._has_applied:
            raise ConfigError(
                f"train_step of the model {self._model.name!r} did not call apply() of its optimizer, "
                "model.optimizer: mpips.keras trains models with this one"
            )
        self._end_step()
        return result

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Push gradients: one step of the optimizer. Blocks only while a ring is full.

        Args:
            gradients: Tensors, None for a variable that had no part in the loss.
            variables: Their variables.

        Raises:
            ConfigError: A variable has no table, or the optimizer was applied twice in a step.
            ValueError: A gradient contains NaN or infinity.
        """
        self.job.start()
        if self.is_stepping and self._has_applied:
            raise ConfigError("train_step applied the optimizer twice: apply it once per step")
        if not self.is_stepping:
            self.job.settle()
        tables = []
        for v in variables:
            if id(v) not in self._trained:
                raise ConfigError(
                    f"the variable {v.path!r} was made or became trainable after the job had started: build "
                    "and compile the model before the first fit"
                )
            tables.append(self._trained[id(v)])
        for gradient, v, table in zip(gradients, variables, tables, strict=True):
            if gradient is None:
                continue
            rule = rule_of(self._optimizer, v)
            self._rate = rule.lr
            table.configure(rule)
            table.parameter.grad = gradient if self._weight == 1.0 else gradient * self._weight
        # Gradients come from the last layer to the first.
        for table in reversed(tables):
            table.push()
        for table in tables:
            table.parameter.grad = None
        self._has_applied = True
        if not self.is_stepping:
            self._end_step()

    def note_loss(self, loss: Any) -> None:
        """Note what compute_loss has returned, if it is the loss of a training step."""
        if self.is_stepping:
            self.job.progress.note_loss(loss)

    def begin_fit(self, first: int, n_epochs: int, n_batches: int | None) -> int | None:
        """Begin a fit; see KerasJob.begin_fit. Collective over all ranks at the first call; blocks then."""
        self.job.start()
        if self._sums is not None:
            self._sums.take(self._model.metrics_variables)
        return self.job.begin_fit(first, n_epochs, n_batches)

    def begin_epoch(self, epoch: int) -> None:
        """Seed the generators by which data are shuffled, equally on all workers."""
        worker = self.job.start()
        self._read, self._hash, self._skipped = 0, _native.Xxh3(), 0
        seed_defaults(_ORDER_TAG, worker.seed, self.job.place.fit, epoch)

    def continue_epoch(self, epoch: int) -> None:
        """Go on in the epoch where a restart continues, behind the callbacks of the script."""
        self._skipped = self.job.begin_epoch(epoch)

    def collect(self) -> None:
        """Sum the metrics of the epoch over all workers. Blocks until all workers have ended it."""
        place = self.job.place
        self.job.settle()
        if self._sums is None:
            return
        digest: int | None = (
            None  # a restart may read other batches than those of which the table has a digest
        )
        if not place.has_collected:
            digest = self._hash.digest()
            self._sums.push(digest)
            place.has_collected = True
            self.job.end_clock()
        self._sums.pull(digest)

    def end_fit(self) -> None:
        """End a fit and pull the final values. Blocks."""
        self.job.end_fit()
        self.refresh()

    def report(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an epoch for `mpips top` and metrics.jsonl, on worker 0."""
        worker = self.job.start()
        self.job.progress.flush()
        if worker.index == 0:
            worker.report_metrics(epoch + 1, worker.now, metrics)

    def rates(self) -> list[Any]:
        """Return the optimizer's step and its learning rate; None for the rate of a schedule."""
        optimizer = self._optimizer
        if optimizer is None:
            return []
        rate = None
        if isinstance(optimizer._learning_rate, keras.Variable):
            rate = float(array_of(optimizer._learning_rate))
        return [int(array_of(optimizer.iterations)), rate]

    def set_rates(self, rates: Sequence[Any]) -> None:
        """Set what `rates` returned; the next step sends the rate to the servers."""
        if rates and self._optimizer is not None:
            self._optimizer.iterations.assign(rates[0])
            if rates[1] is not None and isinstance(self._optimizer._learning_rate, keras.Variable):
                self._optimizer.learning_rate = rates[1]
            for table in self._trained.values():
                table.forget_rule()

    def metrics(self) -> list[float]:
        """Return the metrics' states of this worker in the epoch, if they are few."""
        return self._sums.values() if self._sums is not None else []

    def set_metrics(self, values: Sequence[float]) -> None:
        """Set what `metrics` returned."""
        if self._sums is not None:
            self._sums.set_values(values)

    def _push_nothing(self) -> Any:
        """Push zeros: the batch has no row for this worker, which counts in the mean over all workers."""
        variables = self._model.trainable_variables
        self._model.optimizer.apply([torch.zeros_like(v._value) for v in variables], variables)
        return self._model.get_metrics_result()

    def _end_step(self) -> None:
        for state in self._states:
            state.push()
        self.job.note_step()
        place = self.job.place
        place.batch += 1
        self.job.progress.note_step(id(self), self._n_own, self._rate, place.epoch, place.batch)
        self._n_own = 0
        self._is_stale = True

    def _seed_layers(self, worker: Worker) -> None:
        """Set the layers' seed generators to functions of their own seeds and of this step."""
        for number, (state, own) in enumerate(self._seeds):
            word = mix(_LAYER_TAG, worker.seed, worker.index, self.job.steps, number, own)
            state.assign([word & 0x7FFF_FFFF, 0])
