"""Workloads: what a worker computes on its samples. They see only the Worker interface."""

from mpips.tasks.base import Schedule, StepResult, Task, Worker
from mpips.tasks.registry import TASKS, load_task

__all__ = ["TASKS", "Schedule", "StepResult", "Task", "Worker", "load_task"]
