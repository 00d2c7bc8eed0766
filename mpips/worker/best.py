"""The checkpoint of the best values, for which all workers wait at one place of their programs."""

from __future__ import annotations

from mpips.model.best_value import BestValue
from mpips.worker.worker import Worker, connection_of


def can_cut_here(worker: Worker) -> bool:
    """Return True if a cut here can describe the worker: it is between two clocks. Not collective."""
    connection = connection_of(worker)
    return connection.position.known and not connection.has_pushed


def save_best(worker: Worker, best: BestValue) -> str:
    """Write a checkpoint of the tables as they are, marked as the best one. Collective; blocks until durable.

    `can_cut_here` must be True on all workers, and the job must have a folder for checkpoints.

    Args:
        worker: This worker.
        best: The value for which it is written; equal on all workers.

    Returns:
        Path of the checkpoint; "" if it could not be written, of which the scheduler warns.

    Raises:
        StallError: The scheduler is silent for the job's timeout.
    """
    connection = connection_of(worker)

    def drive() -> None:
        for channel in connection.channels:
            channel.send()

    return connection.snapshot.cut_here(best, drive, connection.wait_until)
