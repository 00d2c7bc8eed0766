"""Lines that all drafts of job files have."""

from __future__ import annotations

import json

from mpips.tasks import Task

CONSISTENCY = '# consistency = "bsp"  # bsp: equal bits in every run; ssp with bound = 2; asp'


def train_section(task: type[Task]) -> list[str]:
    """Return the section [train]."""
    return [
        "[train]",
        f"epochs = {task.default_epochs}",
        f"# batch_size = {task.default_batch_size}  # samples per step and worker",
        "# eval_every = 5",
    ]


def last_sections() -> list[str]:
    """Return the sections [cluster] and [checkpoint]."""
    return [
        "# [cluster]",
        "# servers = 1  # by default chosen from the number of ranks",
        "",
        "[checkpoint]",
        "every_s = 600.0  # mpips run keeps them in the run directory; mpips train needs --save FOLDER",
        "",
    ]


def as_comment(text: str) -> str:
    """Return a line of comment."""
    return f"# {' '.join(text.split())}"


def quoted(value: str) -> str:
    """Return a string of TOML."""
    return json.dumps(value, ensure_ascii=False)
