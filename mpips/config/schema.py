"""The job file: its sections, how it is read, and what may be set.

Precedence: `--set` over the file over defaults. Everything is checked before MPI starts.

The annotation of a field is the one source of what it accepts: `Literal` for a choice, `msgspec.Meta` for a
range and for the description. The reference of options is generated from it (`msgspec.inspect.type_info`,
`msgspec.json.schema`). Checks of several fields together are methods named `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from mpips.config.conversion import (
    UnknownKeyError,
    check_known,
    convert,
    fitted,
    takes_text,
    without_removed,
)
from mpips.config.launching import RunConfig, SlurmConfig
from mpips.config.monitoring import MonitorConfig
from mpips.config.options import SessionOptions
from mpips.config.producers import ProducersConfig
from mpips.config.reading import UNSET, parse_value, put, read_file, without_unset
from mpips.config.sections import DataConfig, ScheduleConfig, TrainConfig
from mpips.config.site import SiteSettings
from mpips.config.table_section import TableConfig
from mpips.config.triggers import Compact, EverySeconds, EverySteps, Grace, Incremental, OnUsr1
from mpips.errors import ConfigError
from mpips.process.path_text import check_path_text

_RUN_FILE = "config.json"  # the configuration in a run directory; see mpips.rundir.directory


class CheckpointConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[checkpoint]: when and where checkpoints are written, which ones stay, and which one is the start."""

    folder: Annotated[
        str,
        Meta(
            description="Folder for checkpoints of all servers; the last one is written when training ends. "
            "Empty: no checkpoints."
        ),
    ] = ""
    resume: Annotated[
        str,
        Meta(
            description="auto: start from the newest good checkpoint in `folder`, if there is one. never: "
            "start anew. Otherwise the path of a checkpoint. Training continues after the epochs that the "
            "checkpoint contains."
        ),
    ] = "auto"
    keep_last: Annotated[
        int, Meta(ge=1, description="Number of newest checkpoints that stay in `folder`.")
    ] = 3
    keep_every: Annotated[
        int,
        Meta(
            ge=0,
            description="Steps: the first checkpoint at or after each multiple is also kept. 0: off.",
        ),
    ] = 0
    keep_best: Annotated[
        bool,
        Meta(
            description="Write a checkpoint after each evaluation whose `train.metric` is better than all "
            "before, and do not remove the best one. Training waits until it is written. `mpips predict "
            "--best` and others use it."
        ),
    ] = False
    every_steps: EverySteps = 0
    every_s: EverySeconds = 0.0
    on_usr1: OnUsr1 = "continue"
    grace_s: Grace = 25.0
    incremental: Incremental = 0
    compact: Compact = False


class RedundancyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[redundancy]: state that survives the death of processes under `mpips run`."""

    warm: Annotated[
        bool,
        Meta(
            description="Servers hold all acknowledged updates in shared memory, and the next attempt "
            "continues there. Slows the application of updates (`mpips bench recovery`: scratch_cost)."
        ),
    ] = True
    partner: Annotated[
        bool,
        Meta(
            description="Each server has a replica on another node, so that the loss of a node loses no "
            "acknowledged update. Needs `warm`."
        ),
    ] = False

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("partner_mode", "partner_lag_records"),
        "a replica always has what was acknowledged; delete it",
    )

    def check(self) -> None:
        """Raise ConfigError for an impossible combination of options."""
        if self.partner and not self.warm:
            raise ConfigError(
                "redundancy.partner = true needs redundancy.warm = true: a replica is a copy of the memory "
                "that the next attempt continues in"
            )


class JobConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job file."""

    task: Annotated[
        str,
        Meta(
            description="softmax, mlp, logistic, fm, wide_deep, deepfm, dcnv2, kge, mf, word2vec, or "
            "module:Class for a task of your own."
        ),
    ] = ""
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    cluster: SessionOptions = SessionOptions()
    checkpoint: CheckpointConfig = CheckpointConfig()
    redundancy: RedundancyConfig = RedundancyConfig()
    monitor: MonitorConfig = MonitorConfig()
    slurm: SlurmConfig = SlurmConfig()
    run: RunConfig = RunConfig()
    producers: ProducersConfig = ProducersConfig()
    table: TableConfig = TableConfig()
    tables: Annotated[
        dict[str, TableConfig],
        Meta(description="Options of one table by its name; they precede those of [table]."),
    ] = {}
    options: Annotated[
        dict[str, Any], Meta(description="Options of the task; each task has its own.")
    ] = {}

    @property
    def watches(self) -> str:
        """The option for which the job watches `train.metric`, with its value; "": no option needs it."""
        if self.train.patience:
            return f"train.patience = {self.train.patience}"
        return "checkpoint.keep_best = true" if self.checkpoint.keep_best else ""

    def evaluation_interval(self, is_cheap: bool) -> int:
        """Return the epochs between two evaluations; 0: none before the end.

        Args:
            is_cheap: An evaluation takes a small part of an epoch.
        """
        every = self.train.eval_every
        if every == "auto":
            return int(is_cheap or bool(self.watches))
        return every or int(bool(self.watches))


def load_config(
    path: str | None,
    overrides: Sequence[tuple[str, Any]],
    options_of: Callable[[str], Sequence[str]] = lambda task: (),
    site: SiteSettings | None = None,
) -> JobConfig:
    """Read a file, apply overrides, and check the result.

    Args:
        path: A TOML file, or JSON if its name ends with ".json"; None for no file. From the file of a run,
            "config.json", options that mpips does not have any more are left out.
        overrides: (dotted key, value) pairs; later ones precede.
        options_of: Returns the names of the options of a task, for the error of an unknown key.
        site: Its defaults hold where neither file nor overrides have a value.

    Raises:
        ConfigError: Names what is wrong, its place and what is accepted.
    """
    raw = read_file(path) if path is not None else {}
    if path is not None and Path(path).name == _RUN_FILE:
        # The file of a run has all options of the mpips that began it.
        raw = without_removed(raw, JobConfig)
    for key, value in overrides:
        put(raw, key, value)
    if site is not None:
        raw = site.under(raw)
    try:
        check_known(raw, JobConfig, "")
    except UnknownKeyError as error:
        from mpips.config.suggestions import with_suggestion

        raise with_suggestion(error, JobConfig, options_of(str(raw.get("task", "")))) from None
    label = raw["data"].get("label") if isinstance(raw.get("data"), dict) else None
    if isinstance(label, int) and not isinstance(label, bool):
        raw["data"]["label"] = str(label)  # number of a column
    config = convert(fitted(without_unset(raw), JobConfig), JobConfig, "")
    _check_texts(raw, "")
    if not config.task and not config.run.script:
        raise ConfigError(
            'no task is given; write task = "logistic" (`mpips train --help` lists the tasks)'
        )
    if not config.data.train and not config.run.script:
        raise ConfigError("no training data is given; set data.train (or --train FILE)")
    config.redundancy.check()
    config.producers.check()
    return config


def _check_texts(value: Any, name: str) -> None:
    """Raise ConfigError for the first text without a form in UTF-8, such as a path."""
    if isinstance(value, str):
        check_path_text(value, name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_texts(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_texts(inner, name)


def config_of(stored: Mapping[str, Any]) -> JobConfig:
    """Return what a model needs of a configuration in a checkpoint: task, data, seed, metrics.

    Args:
        stored: The configuration, as values of JSON; other sections may be of another version.

    Raises:
        ConfigError: A value is not accepted.
    """
    raw: dict[str, Any] = {
        name: stored[name] for name in ("task", "options", "data") if name in stored
    }
    raw["cluster"] = {"seed": stored["cluster"]["seed"]}
    metrics = stored.get("train", {}).get("metrics", ())
    raw["train"] = {"metrics": list(metrics)}
    return convert(fitted(without_unset(raw), JobConfig), JobConfig, "")


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return the pair of `--set key=value`.

    The value is TOML, or text if it is not valid TOML; UNSET if it is missing. If the option accepts only
    text, a value that TOML would read as a number or a date (2021_05) also becomes text.

    Raises:
        ConfigError: There is no "=" or no key.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        raise ConfigError(f"--set {text!r}: write key=value, such as train.epochs=5")
    if not value:
        return key, UNSET
    read = parse_value(value)
    is_plain = not isinstance(read, str | list | dict)
    return key, value if is_plain and takes_text(JobConfig, key.split(".")) else read
