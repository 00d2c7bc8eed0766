"""`declare`: the leaves of a pytree become dense tables, one each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from mpips.errors import ConfigError
from mpips.jax.arrays import DTYPES, Float32, as_gradient, as_jax, refuse_traced
from mpips.jax.job import JaxJob
from mpips.model.codec import PullCodec, PushCodec
from mpips.model.consistency import Consistency
from mpips.model.consistency import of_name as consistency_of
from mpips.model.optimizer import Optimizer, from_config
from mpips.model.python_rule import PythonRule
from mpips.model.replicated import Replicated, placement_of
from mpips.model.table import DenseTable

Rule = Optimizer | PythonRule | str


class Leaf:
    """One leaf of a pytree and its table.

    Attributes:
        name: Name of the table.
        value: The initial value; later only its shape, dtype and devices count.
        rule: The declared rule of the table.
    """

    def __init__(self, name: str, value: Any, rule: Optimizer | PythonRule) -> None:
        """Check the leaf.

        Raises:
            ConfigError: It cannot be a table.
        """
        refuse_traced("mpips.jax.declare", value)
        if not isinstance(value, jax.Array | np.ndarray):
            raise ConfigError(
                f"the leaf {name!r} is {type(value).__name__}: must be an array of JAX or NumPy"
            )
        if value.dtype.name not in DTYPES:
            raise ConfigError(
                f"the leaf {name!r} is {value.dtype.name}: must be one of {', '.join(DTYPES)}"
            )
        if not value.size:
            raise ConfigError(f"the leaf {name!r} has shape {value.shape}, without elements")
        self.name = name
        self.value = value
        self.rule = rule

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the table, which has at least one dimension."""
        return tuple(self.value.shape) or (1,)

    def initial_values(self) -> Float32:
        """Return the initial value, float32, of the table's shape."""
        return np.array(self.value, dtype=np.float32).reshape(self.shape)


class PytreeHandle:
    """The tables of one pytree; see `declare`."""

    def __init__(self, job: JaxJob, leaves: list[Leaf], structure: Any) -> None:
        """Take the declared leaves, in the order of the pytree."""
        self._job = job
        self._leaves = leaves
        self._structure = structure
        rules = (leaf.rule for leaf in leaves)
        # Different rates in the order of the leaves; rules in Python have none.
        self._rates = list(dict.fromkeys(r.lr for r in rules if isinstance(r, Optimizer)))
        job.rates.append(lambda: self._rates)

    def pull(self) -> Any:
        """Return the current values: a pytree of the declared structure, shapes and dtypes. Blocks.

        Under BSP they are the values after all workers' previous steps. The first pull of a script starts the
        job: it is collective over all ranks. The arrays are the caller's; on a CPU without a copy.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
            ConfigError: Called within a function that JAX compiles.
        """
        _refuse_compiling("pull")
        worker = self._job.start()
        found = [as_jax(worker.table(leaf.name).pull(), leaf.value) for leaf in self._leaves]
        return jax.tree_util.tree_unflatten(self._structure, found)

    def push(self, gradients: Any) -> None:
        """Push a gradient for each leaf. Not collective; blocks until JAX has computed them.

        Several pushes in one step add up. All leaves are checked before the first one is pushed.

        Args:
            gradients: A pytree of the declared structure and shapes, in float32, bfloat16 or float16.

        Raises:
            ConfigError: Structure, shapes or dtypes are others; or called within a function that JAX traces.
            ValueError: A gradient has NaN or infinity. Nothing was pushed.
        """
        found, structure = jax.tree_util.tree_flatten(gradients)
        for value in found:
            refuse_traced("push", value)
        if structure != self._structure:
            raise ConfigError(
                f"push: the gradients have the structure {structure}: must be {self._structure}"
            )
        checked = [
            as_gradient(f"the gradient of {leaf.name!r}", value, tuple(leaf.value.shape))
            for leaf, value in zip(self._leaves, found, strict=True)
        ]
        worker = self._job.start()
        self._job.has_pushed = True
        for leaf, gradient in zip(self._leaves, checked, strict=True):
            worker.table(leaf.name).push(gradient.reshape(leaf.shape))

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Change the hyperparameters of all leaves from this step on. Not collective; returns at once.

        Call it on all workers before their pushes, in every step, with the hyperparameters of that step. A
        step that a restart repeats must make the same call, and a job that starts from a checkpoint begins
        with the declared rule. A call is one small record for each leaf and server.

        Args:
            optimizer: An instance of the declared class.

        Raises:
            ConfigError: The class is another one, or a value is not accepted.
        """
        worker = self._job.start()
        for leaf in self._leaves:
            worker.table(leaf.name).set_optimizer(optimizer)
        self._rates = [optimizer.lr]


def declare(
    params: Any,
    *,
    optimizer: Rule | Callable[[str], Rule],
    consistency: Consistency | str = "bsp",
    compression: PushCodec | str | None = None,
    pull_compression: PullCodec | str | None = None,
    placement: Replicated | str = "servers",
    name: str = "",
) -> PytreeHandle:
    """Let the servers of the job hold and train a pytree. Call it before the first pull. Not collective.

    Every leaf becomes a dense table. Its name is its path, such as "layers.0.w"; a "/" in a key is a dot.
    Leaves in bfloat16 or float16 have float32 values on the server, and are rounded when they are pulled.
    Worker 0's values are the initial ones.

    Under BSP a step applies the mean of all workers' gradients. Under SSP and ASP each worker's gradient is a
    step of its own, with the whole learning rate.

    Args:
        params: A pytree of arrays of JAX or NumPy, float32, bfloat16 or float16.
        optimizer: Rule of all leaves, for example mpips.Adam(0.001), its name, or a function of a leaf's name
            that returns one.
        consistency: "bsp", "ssp", "asp", or a value such as SSP(bound=2).
        compression: Codec of pushes, such as "int8"; None: float32. See mpips.model.codec.
        pull_compression: Codec of pulls, "bf16" or "int8", under BSP also "topk" or "onebit"; None: float32.
        placement: "servers", "replicated" (every worker holds the leaves, under BSP), mpips.Replicated(...),
            or "auto"; the values are the same, bit by bit. See mpips.DenseTable.
        name: Prefix of the tables' names, for a second pytree.

    Returns:
        The handle that pulls and pushes.

    Raises:
        ConfigError: A leaf or option is not accepted; the message names it. Or the job has started, or
            `mpips.init` has not been called.
    """
    job = JaxJob.of_script("mpips.jax.declare")
    model = consistency_of(consistency) if isinstance(consistency, str) else consistency
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    if not paths:
        raise ConfigError("mpips.jax.declare: the pytree has no leaves")
    leaves, where = [], placement_of(placement)
    for path, value in paths:
        own = ".".join(filter(None, [name, *map(_part, path)])).replace("/", ".") or "value"
        leaves.append(Leaf(own, value, _rule(optimizer, own)))
    for leaf in leaves:
        table = DenseTable(
            leaf.name,
            leaf.shape,
            optimizer=leaf.rule,
            consistency=model,
            compression=compression,
            pull_compression=pull_compression,
            placement=where,
        )
        job.script.declare(table, leaf.initial_values)
    return PytreeHandle(job, leaves, structure)


def _rule(optimizer: Rule | Callable[[str], Rule], leaf: str) -> Optimizer | PythonRule:
    """Return the rule of a leaf, unchecked: `DenseTable` refuses values that are not rules."""
    rule = (
        optimizer
        if isinstance(optimizer, PythonRule) or not callable(optimizer)
        else optimizer(leaf)
    )
    return from_config(rule) if isinstance(rule, str) else rule


def _part(entry: Any) -> str:
    """Return the text of one step of a path."""
    match entry:
        case DictKey(key=key) | FlattenedIndexKey(key=key):
            return str(key)
        case SequenceKey(idx=index):
            return str(index)
        case GetAttrKey(name=name):
            return str(name)
    return str(entry)


def _refuse_compiling(what: str) -> None:
    """Raise ConfigError within a function that JAX compiles: the call would run once, while it compiles."""
    if isinstance(jnp.zeros(()), jax.core.Tracer):
        raise ConfigError(
            f"{what} was called within a function that JAX compiles (jit, scan, ...): pull before it, and "
            "pass what was pulled as an argument"
        )
