"""Built-in workloads: models and their gradients. They use only the interface of the worker.

Open `base.py` first: it defines a task. `softmax.py` is the simplest example.
"""

from typing import TYPE_CHECKING

from mpips.process.lazy import lazy_names

if TYPE_CHECKING:
    from mpips.tasks.base import Schedule, StepResult, Task, Worker
    from mpips.tasks.registry import TASKS, load_task

__all__ = ["TASKS", "Schedule", "StepResult", "Task", "Worker", "load_task"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mpips.tasks.base": ["Schedule", "StepResult", "Task", "Worker"],
            "mpips.tasks.registry": ["TASKS", "load_task"],
        },
    )
