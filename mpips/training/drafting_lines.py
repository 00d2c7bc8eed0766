"""Lines that all drafts of job files have."""

from __future__ import annotations

import json
import math

from mpips.data import DataInfo
from mpips.tasks import Task
from mpips.training.drafting_epochs import choose_passes
from mpips.training.preflight import task_options

HELD_OUT = 0.1  # part of the training samples that becomes validation data
CONSISTENCY = '# consistency = "bsp"  # bsp: equal bits in every run; ssp with bound = 2; asp'


def validation_line(holds_out: bool) -> str:
    """Return the option `validation`; `holds_out`: a part of the training samples chooses the best epoch."""
    mark = "" if holds_out else "# "
    why = "part of the training samples that is held out to choose the best epoch"
    return f"{mark}validation = {HELD_OUT}  # {why}"


def train_section(task: type[Task], info: DataInfo, holds_out: bool = False) -> list[str]:
    """Return the section [train].

    Args:
        task: The task.
        info: Description of the training data.
        holds_out: Training ends when the validation data is predicted worse.
    """
    n_samples = math.ceil(info.n_samples_total * (1 - HELD_OUT * holds_out))
    passes = choose_passes(task, n_samples, holds_out)
    updates = f"{passes.epochs * passes.per_epoch:,} updates of one worker"
    bound = ["at most"] if holds_out else []
    why = [passes.reason] if passes.reason else []
    lines = ["[train]"]
    if hasattr(task, "choose") and "train.epochs" in task.choose(info, task_options(task, {})):
        lines.append("# epochs = 0  # 0: the task chooses them by the data")
    else:
        lines.append(f"epochs = {passes.epochs}  # {', '.join([*bound, updates, *why])}")
    if holds_out:
        lines.append(
            f"patience = {passes.patience}  # evaluations without improvement, after which training ends"
        )
    lines.append(f"# batch_size = {task.default_batch_size}  # samples per step and worker")
    return lines if holds_out else [*lines, "# eval_every = 5"]


def last_sections(holds_out: bool = False) -> list[str]:
    """Return the sections [cluster] and [checkpoint]; `holds_out`: the best checkpoint is kept."""
    best = ["keep_best = true  # mpips evaluate, predict, export and serve take it with --best"]
    return [
        "# [cluster]",
        "# servers = 1  # by default chosen from the number of ranks",
        "",
        "[checkpoint]",
        "every_s = 600.0  # mpips run keeps them in the run directory; mpips train needs --save FOLDER",
        *(best if holds_out else []),
        "",
    ]


def as_comment(text: str) -> str:
    """Return a line of comment."""
    return f"# {' '.join(text.split())}"


def quoted(value: str) -> str:
    """Return a string of TOML."""
    return json.dumps(value, ensure_ascii=False)
