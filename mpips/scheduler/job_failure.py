"""The failure of another rank, as the scheduler raises it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class JobFailure(Exception):
    """A failure that ends the job, with its message and exit code.

    Attributes:
        exit_code: Exit code of the job.
        rank: The rank that failed.
        silent: True if the rank sent no Failure itself: it is stopped, dead or cut off.
    """

    def __init__(self, message: str, exit_code: int, rank: int, silent: bool = False) -> None:
        """Set the attributes; `message` names the rank."""
        super().__init__(message)
        self.exit_code = exit_code
        self.rank = rank
        self.silent = silent
