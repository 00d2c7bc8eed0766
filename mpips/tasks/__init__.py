"""Built-in workloads: models and their gradients. They use only the interface of the worker.

Open `base.py` first: it defines a task. `softmax.py` is the simplest example.
"""

from mpips.tasks.base import Schedule, StepResult, Task, Worker
from mpips.tasks.registry import TASKS, load_task

__all__ = ["TASKS", "Schedule", "StepResult", "Task", "Worker", "load_task"]
