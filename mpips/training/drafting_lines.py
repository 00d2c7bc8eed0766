"""Lines that all drafts of job files have."""

from __future__ import annotations

import json

from mpips.tasks import Task

CONSISTENCY = '# consistency = "bsp"  # bsp: equal bits in every run; ssp with bound = 2; asp'


def validation_line(holds_out: bool) -> str:
    """Return the option `validation`; `holds_out`: a part of the training samples chooses the best epoch."""
    mark = "" if holds_out else "# "
    return f"{mark}validation = 0.1  # part of the training samples that is held out to choose the best epoch"


def train_section(task: type[Task], holds_out: bool = False) -> list[str]:
    """Return the section [train]; `holds_out`: training ends when the validation data is predicted worse."""
    stop = ["patience = 5  # evaluations without improvement, after which training ends"]
    return [
        "[train]",
        f"epochs = {task.default_epochs}{'  # at most' if holds_out else ''}",
        *(stop if holds_out else []),
        f"# batch_size = {task.default_batch_size}  # samples per step and worker",
        *([] if holds_out else ["# eval_every = 5"]),
    ]


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
