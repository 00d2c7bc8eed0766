"""A prepared optimizer: still the script's torch.optim object, whose step is done by the servers.

`zero_grad`, `param_groups`, hooks of steps and learning-rate schedulers work as before. The optimizer's class
becomes a subclass of its own class, with the same name.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch

from mpips.errors import ConfigError
from mpips.torch.cursor import NOT_PLAIN, from_plain, to_plain
from mpips.torch.embedding import Embedding
from mpips.torch.handlers import refuse_interrupting
from mpips.torch.job import Pushed, TorchJob
from mpips.torch.model_part import ModelPart
from mpips.torch.module import make_plain, prepared_class
from mpips.torch.optimizer_state import initial_state, state_of, step_of
from mpips.torch.overlap import Overlap
from mpips.torch.parameters import ParameterTable
from mpips.torch.row_moments import PREFIX, row_states
from mpips.torch.rules import rates_text, rule_of
from mpips.torch.skips import Marks
from mpips.torch.streamed_gradients import StreamedGradients
from mpips.torch.streamed_table import StreamedTable
from mpips.worker.connection import Connection
from mpips.worker.worker import Worker, connection_of

_ABSENT = object()


class Stepping:
    """The tables that one optimizer steps, and its place in the cursor."""

    def __init__(
        self,
        job: TorchJob,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[Sequence[ParameterTable]],
        tables: Sequence[ParameterTable],
        layers: Sequence[Embedding],
        buffers: Sequence[Pushed],
        model: ModelPart,
        overlap: bool | None,
        added: Sequence[torch.Tensor] = (),
        takes_state: bool = True,
        is_staged: bool = False,
    ) -> None:
        """Take what a step pushes.

        Args:
            job: The script's job.
            optimizer: The optimizer.
            groups: Tables of each param group, also those of other stages, until `leave_out`.
            tables: Tables of the model that this worker pushes, in the order of their pushes.
            layers: Layers whose rows are pushed behind them.
            buffers: Buffers, which are pushed when the clock ends.
            model: Model of the values.
            overlap: Push gradients while backward runs; see Overlap.
            added: Parameters in the first param group that the script has not given: layers of rows.
            takes_state: The servers can begin with the state of an optimizer of torch.
            is_staged: The model is in stages, whatever the number of workers.
        """
        self._job = job
        self._added, self._takes_state = {id(p) for p in added}, takes_state
        self._is_staged = is_staged
        self._is_partial = False  # workers of other stages have some of the parameters
        self._optimizer = optimizer
        self._groups = groups
        self._layers, self._buffers = layers, buffers
        self._model = model
        streamed = [table for table in tables if isinstance(table, StreamedTable)]
        self._is_streamed = bool(streamed)
        self._overlap = (
            StreamedGradients(streamed, self._begin, lambda: model.is_stale)
            if streamed
            else Overlap(
                tables,
                self._begin,
                self._current,
                lambda: model.is_accumulating,
                lambda: model.is_stale,
                overlap,
                self._in_order_of_use,
            )
        )
        self._parameters = [list(group["params"]) for group in optimizer.param_groups]
        self._made = [_hyperparameters(group) for group in optimizer.param_groups]
        self._known = list(self._made)  # those that the script gives at its beginning
        self._connection: Connection | None = None  # until backward sends gradients
        trained = [t.parameter for own in groups for t in own if not isinstance(t, StreamedTable)]
        self._marks = Marks(trained)
        self._n_rows = [0] * len(layers)  # gradients of each layer that do not wait
        # Passes since the last step or drop that brought gradients to workers of other stages alone, and
        # those of them that do not wait.
        self._n_elsewhere = self._n_elsewhere_noted = 0
        model.optimizers.append(self)
        job.skips.add(self)

    def open(self, worker: Worker) -> None:
        """Make the hooks of the parameters at the start of the job."""
        self._overlap.open(self._job.n_optimizers == 1)
        self._connection = connection_of(worker)
        self._job.script.before_end.append(self._overlap.check_end)

    def step(self) -> None:
        """Push all gradients that backward has not pushed.

        Raises:
            ConfigError: Backward has pushed gradients, and they or hyperparameters were changed since.
        """
        self._job.start()
        if not self._overlap.has_sent:
            self._begin()
        elif self._current() != self._known:
            raise ConfigError(
                "a hyperparameter of the optimizer was changed between backward, which had sent gradients, "
                f"and step(): change it before backward, or {self._overlap.way_out}"
            )
        self._overlap.step()
        self._end_step(self._layers)
        if self._overlap.is_on and self._connection is not None:
            # Let gradients that backward sends travel while it computes.
            self._connection.begin_progress()
            self._connection = None

    def skip(self) -> None:
        """Make a step that pushes nothing: under BSP the other workers' gradients of it count.

        Hyperparameters that have changed are sent: the other workers send them with this step.

        Raises:
            ConfigError: Backward has pushed gradients.
        """
        self._job.start()
        if not self._overlap.has_sent:
            self._begin()
        self._overlap.drop()
        for layer in self._layers:
            layer.drop()
        self._job.progress.losses.drop()
        self._end_step(())

    def _end_step(self, layers: Sequence[Embedding]) -> None:
        self.drop_elsewhere()
        self._job.push(layers, self._buffers)
        self._job.progress.note_step(self._optimizer)
        self._model.is_stale = True
        self._job.skips.note_step(self)

    @property
    def waits(self) -> bool:
        """True if a backward pass has made or changed gradients since `note_gradients`."""
        layers = any(
            layer.waits and layer.n_gradients != n
            for layer, n in zip(self._layers, self._n_rows, strict=True)
        )
        elsewhere = self._n_elsewhere != self._n_elsewhere_noted
        return layers or elsewhere or self._overlap.has_sent or self._marks.has_others()

    @property
    def has_gradients(self) -> bool:
        """True if a parameter has a gradient."""
        layers = any(layer.waits for layer in self._layers) or self._n_elsewhere > 0
        return layers or self._overlap.has_sent or self._marks.has_any()

    @property
    def rates(self) -> str:
        """Hyperparameters of the newest step as text; "": unknown, before the first one of a restart."""
        return rates_text(self._known)

    def note_gradients(self) -> None:
        """Note that the gradients that parameters have now do not wait for a step."""
        if self._job.has_loaders:
            self._marks.note()
            self._n_rows = [layer.n_gradients for layer in self._layers]
            self._n_elsewhere_noted = self._n_elsewhere

    def note_pass(self) -> None:
        """Note a pass over a model in stages. All workers of a pipeline must end the same clocks.

        A worker whose stage is frozen has no gradients by which the others decide whether a batch waits for a
        step (see skips.py).
        """
        if self._is_partial and not self._marks.has_any():
            self._n_elsewhere += 1

    def drop_elsewhere(self) -> None:
        """Forget passes that brought gradients to workers of other stages alone."""
        self._n_elsewhere = self._n_elsewhere_noted = 0

    def dropping(self, sets_to_none: bool) -> AbstractContextManager[None]:
        """Return a block that drops the gradients of the optimizer."""
        self._job.progress.losses.drop()
        return self._job.skips.dropping([self], sets_to_none)

    def check_scaler(self) -> None:
        """Raise ConfigError if a GradScaler must not make the step."""
        if self._is_staged:
            raise ConfigError(
                "GradScaler with a model in stages: each worker would look for infinity in the gradients of "
                "its stage alone; train without it, for example in bfloat16, which needs no scale"
            )

    def unscale(self, scale: torch.Tensor) -> None:
        """Divide all gradients by the factor by which GradScaler has multiplied the loss, in place.

        Raises:
            ValueError: A gradient is float16, as in GradScaler.unscale_.
        """
        inverse = float(scale.double().reciprocal().float())
        with torch.no_grad():
            for gradient in (p.grad for g in self._optimizer.param_groups for p in g["params"]):
                if gradient is None:
                    continue
                if gradient.dtype == torch.float16:
                    raise ValueError("Attempting to unscale FP16 gradients.")
                (gradient._values() if gradient.is_sparse else gradient).mul_(inverse)

    @property
    def has_started(self) -> bool:
        """True from the start of the job on."""
        return self._job.has_started

    def check_whole(self) -> None:
        """Raise ConfigError if workers of other stages have a part of the state."""
        if self._is_partial:
            raise ConfigError(
                "the state of the optimizer of a model in stages: this worker has that of its stage alone; "
                "continue from a checkpoint of mpips, which has the whole"
            )

    def leave_out(self, is_left_out: Callable[[torch.Tensor], bool]) -> None:
        """Take parameters out of the param groups: those that a worker of another stage steps."""
        self._is_partial = True
        for i, group in enumerate(self._optimizer.param_groups):
            group["params"] = [p for p in group["params"] if not is_left_out(p)]
            self._parameters[i] = list(group["params"])
        for table in (table for tables in self._groups for table in tables):
            if is_left_out(table.parameter):
                table.state = None  # the servers have it
        self._groups = [[t for t in own if not is_left_out(t.parameter)] for own in self._groups]
        self._marks = Marks([t.parameter for own in self._groups for t in own])

    def state(self) -> dict[Any, dict[str, torch.Tensor]]:
        """Return the entries of `optimizer.state` in torch's form, by parameter. Blocks like a pull.

        Behind them are those of the layers of rows; see row_moments.py.
        They are those after this worker's newest step, whose clock this ends as a read of the model's values
        does. Before the start of the job they are those with which it begins.

        Raises:
            ConfigError: Backward has sent gradients of the next step, or a signal's handler has interrupted a
                call of mpips.
        """
        if self._job.makes_cursor:
            return {}  # a restart has the moments of the run
        refuse_interrupting("optimizer.state_dict()")
        self.check_whole()
        if self._job.has_started:
            if self._overlap.has_sent:
                raise ConfigError(
                    "the state of the optimizer was read between backward, which had sent gradients, and "
                    f"step(): read it after step(), or {self._overlap.way_out}"
                )
            self._job.settle()
        found: dict[Any, dict[str, torch.Tensor]] = {}
        for group, tables in zip(self._optimizer.param_groups, self._groups, strict=False):
            for table in tables:
                if state := state_of(table, group):
                    found[table.parameter] = state
        for layer in self._layers:
            if (rows := layer.states()) is not None:
                found[PREFIX + layer.own_table.name] = rows.entry()
        return found

    def begin_with(self, states: Mapping[Any, Mapping[str, Any]]) -> None:
        """Let the servers begin with the state of an optimizer of torch, given as by `state`.

        Raises:
            ConfigError: It does not fit, or the servers cannot begin with it; nothing is changed.
        """
        rows = row_states(states, [layer.own_table for layer in self._layers])
        # Adagrad has state, with step 0, before its first step.
        is_of_rows = all(
            isinstance(key, str) or not step_of(state) for key, state in states.items() if state
        )
        if not is_of_rows and not self._takes_state:
            raise ConfigError(
                "load_state_dict of a prepared optimizer cannot load the moments of each parameter under "
                "LocalSGD and DiLoCo, and with stream: pass {'state': {}, 'param_groups': ...}"
            )
        tables = [table for own in self._groups for table in own]
        found = [
            initial_state(table.name, table.parameter, table.rule, states.get(table.parameter, {}))
            for table in tables
            if table.rule is not None
        ]
        trained = (table for table in tables if table.rule is not None)
        for table, state in zip(trained, found, strict=True):
            table.state = state
        for layer in self._layers:
            layer.begin_with(rows.get(layer.own_table.name))

    @contextmanager
    def given_groups(self) -> Iterator[None]:
        """Within the block param groups have the parameters that the script gave, without layers of rows."""
        whole = self._optimizer.param_groups[0]["params"]
        self._optimizer.param_groups[0]["params"] = [p for p in whole if id(p) not in self._added]
        try:
            yield
        finally:
            # `load_state_dict` makes new groups.
            self._optimizer.param_groups[0]["params"] = whole

    def _in_order_of_use(self) -> Sequence[ParameterTable]:
        """Return the tables in the order of their use; empty where the order of pushes must not change.

        A worker that may repeat a clock must push in the same order then, and an evaluation between two steps
        may have used the parameters in another one than the step.
        """
        worker = self._job.start()
        return self._model.by_use if connection_of(worker).may_order else ()

    def _begin(self) -> None:
        """End the clock before, and send changed hyperparameters."""
        self._job.start()
        self._job.settle()
        if len(self._optimizer.param_groups) != len(self._groups):
            raise ConfigError(
                "a param group was added after prepare: add all groups before mpips.torch.prepare"
            )
        self._check_groups()
        for i, (group, tables) in enumerate(
            zip(self._optimizer.param_groups, self._groups, strict=True)
        ):
            found = _hyperparameters(group)
            if found != self._known[i]:
                rule = rule_of(self._optimizer, group)
                for table in tables:
                    table.configure(rule)
                self._known[i] = found

    def _check_groups(self) -> None:
        """Raise ConfigError if a param group has other parameters than at prepare. Cheap.

        Each table got the rule of its group then.
        """
        for i, (group, made) in enumerate(
            zip(self._optimizer.param_groups, self._parameters, strict=True)
        ):
            now = group["params"]
            if len(now) == len(made) and all(map(operator.is_, now, made)):
                continue
            known = {id(p) for p in now}
            tables = self._groups[i]
            gone = [table.name for table in tables if id(table.parameter) not in known]
            what = f"{gone[0]!r} is not in it any more" if gone else "it has others now"
            raise ConfigError(
                f"the parameters of param group {i} were changed after prepare: {what}. Each parameter keeps "
                "the rule of its group at mpips.torch.prepare: change groups before it, or afterwards freeze "
                "a parameter by requires_grad_(False) or change hyperparameters of its group"
            )

    def _current(self) -> list[dict[str, Any]]:
        return [_hyperparameters(group) for group in self._optimizer.param_groups]

    def position(self) -> dict[str, Any]:
        """Return the hyperparameters that have changed since prepare, by the index of their param group.

        A cursor has no room for all hyperparameters of hundreds of groups.
        """
        found = {}
        for i, (group, made) in enumerate(
            zip(self._optimizer.param_groups, self._made, strict=False)
        ):
            now = _hyperparameters(group)
            changed = {name: now[name] for name in now if now[name] != made.get(name, _ABSENT)}
            if changed:
                found[str(i)] = changed
        place = {"groups": len(self._made), "changed": found, "overlap": self._overlap.is_on}
        return {**place, "streamed": True} if self._is_streamed else place

    def resume(self, position: Mapping[str, Any]) -> None:
        """Set the hyperparameters of all param groups; the next step sends them.

        Raises:
            ConfigError: The optimizer of the checkpoint has another number of param groups.
        """
        if position["groups"] != len(self._made):
            raise ConfigError(
                f"the checkpoint's optimizer has {position['groups']} param groups, this one has "
                f"{len(self._made)}: use the same script, or resume='never'"
            )
        worker = self._job.start()
        repeats = any(c.writer.is_ahead_of(worker.now) for c in connection_of(worker).channels)
        if repeats and position.get("streamed", False) != self._is_streamed:
            raise ConfigError(
                "the run ended within a step, and this launch has another stream argument, with which it "
                "would repeat the pushes of the step in another order: continue it with stream as it was, "
                "or, from its newest checkpoint, after mpips run --discard-memory"
            )
        if position.get("overlap", False):
            self._overlap.resume(repeats)
        # Tensors, such as a learning rate that a compiled step reads, stay tensors.
        for i, (group, made) in enumerate(
            zip(self._optimizer.param_groups, self._made, strict=True)
        ):
            for name, plain in {**made, **position["changed"].get(str(i), {})}.items():
                present, value = group.get(name), from_plain(plain)
                if isinstance(present, torch.Tensor):
                    present.fill_(value)
                else:
                    group[name] = tuple(value) if isinstance(present, tuple) else value
        # Each server has the values of its newest step or of the declaration: send these with the next step.
        self._known = [{} for _ in self._groups]
        for table in (table for tables in self._groups for table in tables):
            table.forget_rule()
        # A scheduler warns of steps before the first optimizer step, which a restart does not repeat.
        setattr(self._optimizer, "_opt_called", True)  # noqa: B010 - an attribute of schedulers only


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and flags of a param group, as values that a cursor can hold."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        if name == "params":
            continue
        plain = to_plain(value)
        if plain is not NOT_PLAIN:
            found[name] = plain
    return found


class _ServerState(defaultdict[Any, Any]):
    """The attribute `state` of a prepared optimizer: empty, and a script cannot reset it."""

    def clear(self) -> NoReturn:
        """Raise ConfigError: the moments on the servers would stay."""
        _refuse_reset()

    def pop(self, *arguments: Any) -> NoReturn:
        """Raise ConfigError: the moments on the servers would stay."""
        _refuse_reset()

    def __reduce__(self) -> Any:
        return defaultdict, (dict,)


def _refuse_reset() -> NoReturn:
    raise ConfigError(
        "the state of a prepared optimizer (moments, sums of gradients) lies on the servers, so a script "
        "cannot reset or replace it: start another run with the values of this one, or leave optimizer.state "
        "as it is"
    )


class PreparedOptimizer(torch.optim.Optimizer):
    """Methods of a prepared optimizer."""

    _mpips_stepping: Stepping
    _mpips_plain: type[torch.optim.Optimizer]
    _mpips_embeddings: Sequence[Embedding]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Nothing: moments and sums lie on the servers. `state_dict` reads them."""
        return self.__dict__["state"]

    @state.setter
    def state(self, value: Any) -> NoReturn:
        _refuse_reset()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Push the gradients and end the worker's clock; the servers apply the rule.

        Not collective; blocks only while a ring is full. The next forward pass waits for the values.
        Called by a GradScaler that has found infinity, it ends the clock without a push.

        Raises:
            ConfigError: A GradScaler calls it, and the model is in stages.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._opt_called = True
        # GradScaler sets both while it calls this method; the scale is None if `unscale_` was called before.
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is not None or scale is not None:
            self._mpips_stepping.check_scaler()
        if found is not None and float(found):
            self._mpips_stepping.skip()
            return loss
        if scale is not None:
            self._mpips_stepping.unscale(scale)
        self._mpips_stepping.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch; also drops gradients of embeddings that no step has pushed."""
        with self._mpips_stepping.dropping(set_to_none):
            for embedding in self._mpips_embeddings:
                embedding.drop()
            self._mpips_stepping.drop_elsewhere()
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As in torch, with the moments and sums that the servers have: a plain dict in new memory.

        Not collective: one worker may call it alone. Blocks like a pull. The state belongs to the values of
        `model.state_dict()`: under BSP without backup workers it is that after this worker's newest step.
        Otherwise servers apply pushes of other workers meanwhile, so parts of the dict can be of different
        updates. Under LocalSGD and DiLoCo it is the state of this worker's own inner steps. Layers of rows
        have entries of their own, which other optimizers of torch leave as they are; see
        mpips.torch.row_moments.

        Raises:
            ConfigError: Backward has sent gradients of the next step, or a signal's handler has interrupted a
                call of mpips.
        """
        state, empty = self._mpips_stepping.state(), self.__dict__["state"]
        self.__dict__["state"] = defaultdict(dict, state)
        try:
            with self._mpips_stepping.given_groups():
                return super().state_dict()
        finally:
            self.__dict__["state"] = empty

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the hyperparameters of the param groups, and before the job starts the state.

        The servers begin with the state that worker 0 has loaded; a job that continues a run has that of the
        run instead.

        Raises:
            ConfigError: The dict has moments or sums, and the job has started, so they are on the servers; or
                they do not fit, or the servers cannot begin with them (LocalSGD, DiLoCo, `stream`).
        """
        stepping = self._mpips_stepping
        stepping.check_whole()
        if state_dict.get("state") and stepping.has_started:
            raise ConfigError(
                "load_state_dict of a prepared optimizer comes too late for the moments of each parameter: "
                "the job has started with the first forward pass, and they are on the servers; load them "
                "before it, or pass {'state': {}, 'param_groups': ...}"
            )
        groups, empty = self.param_groups, self.__dict__["state"]
        parameters = [list(group["params"]) for group in groups]
        # Some optimizers look for a step in each entry.
        given = state_dict.get("state", {})
        rows = {key: entry for key, entry in given.items() if isinstance(key, str)}
        others = {key: entry for key, entry in given.items() if key not in rows}
        for entry in others.values():
            step_of(entry)
        try:
            with stepping.given_groups():
                super().load_state_dict({**state_dict, "state": others})
            if given:
                stepping.begin_with({**self.__dict__["state"], **rows})
        except BaseException:
            self.param_groups = groups
            for group, own in zip(groups, parameters, strict=True):
                group["params"] = own
            raise
        finally:
            self.__dict__["state"] = empty

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy is a plain optimizer.
        state = {**self.__getstate__(), "state": defaultdict(dict, self._mpips_stepping.state())}
        return make_plain, (self._mpips_plain,), state


# Schedulers wrap `step` to note that it was called; this one notes it itself.
_step = torch.optim.Optimizer.profile_hook_step(PreparedOptimizer.step)
_step.hooked = True  # type: ignore[attr-defined]
_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
PreparedOptimizer.step = _step  # type: ignore[method-assign]


def make_stepping(
    optimizer: torch.optim.Optimizer, stepping: Stepping, embeddings: Sequence[Embedding]
) -> None:
    """Turn an optimizer into a prepared one, in place."""
    plain = type(optimizer)
    optimizer.__dict__["state"] = _ServerState(dict)
    optimizer.__dict__.pop("step", None)  # the wrapper of a scheduler, around torch's own step
    optimizer.__class__ = prepared_class(plain, PreparedOptimizer)
    # GradScaler then calls `step` also where it has found infinity: the clock ends on this worker, too.
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    optimizer._mpips_stepping = stepping  # type: ignore[attr-defined]
    optimizer._mpips_plain = plain  # type: ignore[attr-defined]
    optimizer._mpips_embeddings = embeddings  # type: ignore[attr-defined]
