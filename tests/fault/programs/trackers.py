"""Logs of a run that go on under a name, by the rules of W&B and of MLflow, in files of this folder.

W&B's `init(id=..., resume="allow")` continues behind the newest step that it has: what is logged for an
earlier step is dropped with a warning. MLflow's `log_metrics` keeps every value of a step. Both share
`log(values, step)` here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from killed_at import come_to

import mpips


def lines(path: Path) -> list[Any]:
    """Return the lines of a file of JSON lines; [] if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, line: dict[str, Any]) -> None:
    """Append a line to a file in one write."""
    with path.open("a", buffering=1) as file:
        file.write(json.dumps(line) + "\n")


class Trackers:
    """A log by each of both rules."""

    def __init__(self, name: str) -> None:
        """Continue the logs of this name; `opened.jsonl` gets a line for each such call."""
        self._wandb, self._mlflow = Path(f"{name}.wandb.jsonl"), Path(f"{name}.mlflow.jsonl")
        self._next = max((line["step"] + 1 for line in lines(self._wandb)), default=0)
        launch = int(os.environ.get("MPIPS_GENERATION", "0"))
        append(Path("opened.jsonl"), {"worker": mpips.rank(), "launch": launch})

    def log(self, values: dict[str, float], step: int) -> None:
        """Log values for a step."""
        line = {"step": step, "worker": mpips.rank(), **values}
        append(self._mlflow, line)
        if step >= self._next:
            append(self._wandb, line)
            self._next = step + 1
        come_to("logged")
