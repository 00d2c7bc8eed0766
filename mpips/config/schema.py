"""The configuration of a training job: schema, TOML, `--set`, and errors that say what to write.

Precedence: `--set` over the file over defaults. Everything is checked before MPI starts.
"""

from __future__ import annotations

import difflib
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from mpips.config.options import SessionOptions
from mpips.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Struct = TypeVar("Struct", bound=msgspec.Struct)


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[data]: what is read.

    Attributes:
        train: File to train on (.svm .libsvm .txt .csv .npz .h5), or "digits".
        test: File to evaluate on; not needed.
        format: "auto" (by the ending), "libsvm", "csv", "npz", "hdf5" or "digits".
        index_base: LIBSVM: 0, 1 or "auto".
        label: CSV: the label's column.
        categorical: CSV: columns to hash, names or patterns such as "C*".
        numeric: CSV: "raw", "log" or "auto".
        empty: CSV: what an empty numeric cell means, "error" or "zero".
    """

    train: str = ""
    test: str = ""
    format: str = "auto"
    index_base: int | str = "auto"
    label: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: str = "auto"
    empty: str = "error"


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[train]: how long and in which pieces. 0 means the task's default.

    Attributes:
        epochs: Passes over the training data.
        batch_size: Samples per step and worker.
        eval_every: Evaluate on the test file every so many epochs; 0: at the end only.
    """

    epochs: int = 0
    batch_size: int = 0
    eval_every: int = 0


class CheckpointConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[checkpoint]: what is kept of the trained tables, and what training starts from.

    Attributes:
        folder: Where the state of all servers is saved when training ends; "": nowhere.
        resume: "auto": the newest good checkpoint in `folder`, if there is one; "never"; or the path of a
            checkpoint. Training goes on after the epochs that it has behind it.
        keep_last: So many of the newest checkpoints stay.
        keep_every: And the first at or after each multiple of so many steps; 0: none for this reason.
        every_steps: A checkpoint at each multiple of so many steps, while training goes on; 0: not for
            this reason.
        every_s: And after so many seconds; 0: not for this reason.
        on_usr1: SIGUSR1, to any rank or to mpirun, asks for one, too; then "continue", or "exit" with
            code 75.
        grace_s: SIGTERM and Ctrl-C ask for one as well and then end the job with code 75, if it is written
            within this time; 0: they end it at once. Less than what the batch system leaves before it kills.
    """

    folder: str = ""
    resume: str = "auto"
    keep_last: int = 3
    keep_every: int = 0
    every_steps: int = 0
    every_s: float = 0.0
    on_usr1: str = "continue"
    grace_s: float = 25.0


class RedundancyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[redundancy]: what survives the death of processes, under `mpips run`.

    Attributes:
        warm: Servers leave everything that was acknowledged in shared memory, and the next attempt goes on
            there; see `mpips.recovery.memory`. Costs a part of the speed at which updates are applied
            (`mpips bench recovery`: scratch_cost).
        partner: Each server has a copy on another node, so that the loss of a node costs nothing that was
            acknowledged; see `mpips.recovery.replica`.
        partner_mode: "sync": what is acknowledged is in the copy; "lag": it may lag behind.
        partner_lag_records: Mode "lag": by so many records of each worker at most.
    """

    warm: bool = True
    partner: bool = False
    partner_mode: str = "sync"
    partner_lag_records: int = 1024

    @property
    def partner_bound(self) -> int | None:
        """None: no partners; 0: sync; else the greatest lag."""
        if not self.partner:
            return None
        return 0 if self.partner_mode == "sync" else self.partner_lag_records

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        if self.partner_mode not in ("sync", "lag"):
            raise ConfigError(
                f"redundancy.partner_mode = {self.partner_mode!r}: must be sync or lag"
            )
        if not 1 <= self.partner_lag_records < 1 << 32:
            raise ConfigError(
                f"redundancy.partner_lag_records = {self.partner_lag_records}: must be 1 or more"
            )
        if self.partner and not self.warm:
            raise ConfigError(
                "redundancy.partner = true needs redundancy.warm = true: a copy is memory to go on in"
            )


class TableConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[table] for all tables, [tables.NAME] for one; what is not given is the task's choice.

    Attributes:
        optimizer: A name, or a table {name = "adam", lr = 0.01, ...}; "module:function" is a rule
            of the user's own. Without a name: the task's optimizer with other values.
        consistency: "bsp", "ssp" or "asp".
        bound: SSP: clocks that a worker may run ahead.
        reduce: BSP: "mean" or "sum".
        backup: BSP: backup workers.
        policy: SSP, ASP: "accept", "scale", "reject" or "compensate".
        max_staleness: Of policy "reject".
        lambda_: Of policy "compensate".
        partition: A name or a table {name = "range", low = 0, high = 1000}.
        init: "zeros", "uniform(0.1)", "normal(0.01)", "xavier", ...
        clip_norm: Greatest L2 norm of a push.
        check_finite: Refuse pushes with NaN or infinity.
    """

    optimizer: str | dict[str, Any] | None = None
    consistency: str | None = None
    bound: int | None = None
    reduce: str | None = None
    backup: int | None = None
    policy: str | None = None
    max_staleness: int | None = None
    lambda_: float | None = None
    partition: str | dict[str, Any] | None = None
    init: str | None = None
    clip_norm: float | None = None
    check_finite: bool | None = None


class SlurmConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[slurm]: what `mpips submit` asks of Slurm. `mpips train` does not read it.

    Attributes:
        launcher: "mpirun", "srun" or "restart"; see jobs/README.md.
        nodes: To work on.
        ranks_per_node: Ranks a node.
        cpus_per_rank: CPUs a rank.
        time: Limit of one turn, in a form that Slurm knows: "04:00:00", "1-12", "90".
        warn_s: Seconds before the limit at which the job is told to write a checkpoint.
        partition, account, qos: "": the site's default.
        spares: Launcher "restart": so many nodes more, for when some are lost.
        sbatch: Further options of sbatch, as "--mem=64G".
    """

    launcher: str = "mpirun"
    nodes: int = 1
    ranks_per_node: int = 4
    cpus_per_rank: int = 1
    time: str = "01:00:00"
    warn_s: int = 180
    partition: str = ""
    account: str = ""
    qos: str = ""
    spares: int = 0
    sbatch: tuple[str, ...] = ()

    def check(self) -> SlurmConfig:
        """Itself, if all values are possible.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        if self.launcher not in ("mpirun", "srun", "restart"):
            raise ConfigError(
                f"slurm.launcher = {self.launcher!r}: must be mpirun, srun or restart"
            )
        for name in ("nodes", "ranks_per_node", "cpus_per_rank"):
            if getattr(self, name) < 1:
                raise ConfigError(f"slurm.{name} = {getattr(self, name)}: must be 1 or more")
        # Slurm stores the lead in 16 bits.
        for name, most in (("warn_s", 65535), ("spares", 65535)):
            if not 0 <= getattr(self, name) <= most:
                raise ConfigError(f"slurm.{name} = {getattr(self, name)}: must be from 0 to {most}")
        limit_s = _slurm_seconds(self.time)
        if limit_s is None:
            raise ConfigError(
                f"slurm.time = {self.time!r}: must be minutes, hours:minutes:seconds or days-hours"
            )
        if limit_s <= self.warn_s:
            raise ConfigError(
                f"slurm.time = {self.time!r} with slurm.warn_s = {self.warn_s}: the warning would come "
                "before the job has begun; give more time or a shorter warning"
            )
        return self


def _slurm_seconds(text: str) -> int | None:
    """A time limit as Slurm reads it, in seconds; None if it is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text)
    if match is None:
        return None
    parts = [int(part) for part in match[2].split(":")]
    if match[1] is not None:
        fields = [int(match[1]) * 24 + parts[0], *parts[1:], 0, 0][:3]
    else:
        # Without days one number is minutes, and two are minutes and seconds.
        fields = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    return fields[0] * 3600 + fields[1] * 60 + fields[2]


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[run]: how `mpips run` starts a job and goes on after failures. `mpips train` does not read it.

    Attributes:
        name: Of the run; "": the file's, or the task's.
        folder: Where run directories are made.
        ranks: Processes to start; 0: one per slot of the hosts, or of this machine's cores and one more.
        hosts: "node1:4,node2:4"; "": those of the batch system's allocation, or this machine.
        hostfile: File with a line "node1 slots=4" for each host, instead of `hosts`.
        spares: So many of the hosts, the last ones, are kept for when others fail.
        max_restarts: Failures after which the job is started again.
        min_workers: Go on with fewer workers, down to so many, when hosts are lost; 0: never with fewer.
        mpirun_args: Further arguments for mpirun, those after `--` on the command line.
        script, script_args: A Python program that calls `mpips.run`, in place of a task, and its arguments.
    """

    name: str = ""
    folder: str = "runs"
    ranks: int = 0
    hosts: str = ""
    hostfile: str = ""
    spares: int = 0
    max_restarts: int = 3
    min_workers: int = 0
    mpirun_args: tuple[str, ...] = ()
    script: str = ""
    script_args: tuple[str, ...] = ()


class JobConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training job.

    Attributes:
        task: "softmax", "mlp", "logistic", "fm", or "module:Class" of the user's own.
        data, train, cluster, checkpoint, redundancy, slurm, run, table, tables: See the structs.
        options: The task's own options.
    """

    task: str = ""
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    cluster: SessionOptions = SessionOptions()
    checkpoint: CheckpointConfig = CheckpointConfig()
    redundancy: RedundancyConfig = RedundancyConfig()
    slurm: SlurmConfig = SlurmConfig()
    run: RunConfig = RunConfig()
    table: TableConfig = TableConfig()
    tables: dict[str, TableConfig] = {}
    options: dict[str, Any] = {}


class Unset:
    """The value of a `--set key=` without a value: what the file has for the key is taken back."""


UNSET = Unset()


def load_config(path: str | None, overrides: Sequence[tuple[str, Any]]) -> JobConfig:
    """Read a TOML file (or JSON, or none), lay overrides over it, check everything.

    Args:
        path: The file, or None.
        overrides: (dotted key, value) pairs, later ones win.

    Raises:
        ConfigError: One sentence: what is wrong, where, what is accepted.
    """
    raw = _read_file(path) if path is not None else {}
    for key, value in overrides:
        _put(raw, key, value)
    check_known(raw, JobConfig, "")
    raw = fitted(_without_unset(raw), JobConfig)
    # Of a mapping msgspec does not say which key is wrong, so every table is looked at by itself.
    tables = raw.get("tables")
    for name, table in tables.items() if isinstance(tables, Mapping) else ():
        convert(table, TableConfig, f"tables.{name}")
    config = convert(raw, JobConfig, "")
    _check_values(config)
    return config


def convert(raw: Any, kind: type[Struct], where: str) -> Struct:
    """`raw` as a struct of this kind; `where` names it in errors ("tables.weight").

    Raises:
        ConfigError: The full name of what is wrong, its value, and what is accepted.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw, where)) from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return a `--set key=value` as (key, value): TOML, or text where it is not; UNSET without a value.

    Where the option takes text alone, what TOML would read as a number or a date (2021_05) is text too.

    Raises:
        ConfigError: There is no "=" or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: write key=value, such as train.epochs=5")
    key = key.strip()
    if not value.strip():
        return key, UNSET
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value.strip()
    is_plain = not isinstance(read, str | list | dict)
    return key, value.strip() if is_plain and _takes_text(key) else read


def _takes_text(key: str) -> bool:
    """Return True for an option that takes text, and no number."""
    struct: type[msgspec.Struct] | None = JobConfig
    hint: Any = None
    path = key.split(".")
    if path[:1] == ["tables"] and len(path) > 2:
        struct, path = TableConfig, path[2:]
    for name in path:
        if struct is None or name not in struct.__struct_fields__:
            return False
        hint = get_type_hints(struct)[name]
        struct = _struct_in(hint)
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return str in kinds and not {int, float, bool} & set(kinds)


def _read_file(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_bytes()
        if path.endswith(".json"):
            return msgspec.json.decode(text, type=dict[str, Any])
        return tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from None


def _put(raw: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    at = raw
    for name in path:
        inner = at.setdefault(name, {})
        if isinstance(inner, str) and name in _NAMED:
            inner = at[name] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {key}: {name} is a value, not a table")
        at = inner
    at[last] = value


# A name alone stands for a table with this name.
_NAMED = ("optimizer", "partition")


def _without_unset(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that have a value."""
    return {
        key: _without_unset(value) if isinstance(value, Mapping) else value
        for key, value in raw.items()
        if value is not UNSET
    }


def fitted(value: Any, hint: Any) -> Any:
    """Return a value in the form that a type wants, where its meaning is clear; else as it is.

    1e3 is a whole number where no other is taken, and one value is a list of one; text with commas is
    several.
    """
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return fitted(value, kinds[0]) if len(kinds) == 1 else value
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and isinstance(value, Mapping):
        hints = get_type_hints(hint, include_extras=True)
        return {key: fitted(inner, hints[key]) for key, inner in value.items()}
    if origin is dict and isinstance(value, Mapping):
        return {key: fitted(inner, get_args(hint)[1]) for key, inner in value.items()}
    if origin is tuple:
        one = get_args(hint)[0]
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        many = value if isinstance(value, list | tuple) else [value]
        return [fitted(inner, one) for inner in many]
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) in (Union, types.UnionType):
        return next((s for s in map(_struct_in, get_args(hint)) if s is not None), None)
    return None


def check_known(raw: Mapping[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    """Refuse keys that the schema does not have, naming the nearest that it has.

    Raises:
        ConfigError: The full name of the key and what is accepted there.
    """
    hints = get_type_hints(struct)
    known = [f.name for f in msgspec.structs.fields(struct)]
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {where + near[0]!r}?" if near else ""
            place = f"in [{where[:-1]}]" if where else "at the top"
            raise ConfigError(
                f"unknown key {where + key!r}; valid {place} are {', '.join(known)}{hint}"
            )
        inner = _struct_in(hints[key])
        if inner is not None and isinstance(value, Mapping):
            check_known(value, inner, f"{where}{key}.")
        elif key == "tables" and isinstance(value, Mapping):
            for name, table in value.items():
                if isinstance(table, Mapping):
                    check_known(table, TableConfig, f"tables.{name}.")


def _explain(message: str, raw: Any, where: str) -> str:
    what, _, path = message.partition(" - at `$")
    path = path.rstrip("`")
    value = raw
    for name in re.findall(r"[^.\[\]]+", path):
        value = value[int(name)] if isinstance(value, list) else value[name]
    full = (where + path).lstrip(".") or "the configuration"
    return f"{full} = {value!r}: {what[0].lower()}{what[1:].replace('`', '')}"


def _check_values(config: JobConfig) -> None:
    if not config.task and not config.run.script:
        raise ConfigError(
            'no task is given; write task = "logistic" (or softmax, mlp, fm, module:Class)'
        )
    if not config.data.train and not config.run.script:
        raise ConfigError("no training data is given; set data.train (or --train FILE)")
    for name in ("epochs", "batch_size", "eval_every"):
        value = getattr(config.train, name)
        if value < 0:
            raise ConfigError(f"train.{name} = {value}: must be 0 or more")
    for name in ("ranks", "spares", "max_restarts", "min_workers"):
        value = getattr(config.run, name)
        if value < 0:
            raise ConfigError(f"run.{name} = {value}: must be 0 or more")
    config.redundancy.check()
    config.cluster.check()
