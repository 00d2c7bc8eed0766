"""The choice of the stages of a script's model before its job starts, the same on all ranks and restarts.

All ranks run these steps. Servers and the scheduler are in `Declared.meet` then, where they wait for the
first pull, and run them each time that the workers request a choice.

    meeting     all ranks exchange the requests of the workers, which must be equal
    reading     the scheduler reads the choice of the run, or that of the checkpoint from which it continues
    measuring   without a stored choice worker 0 measures and chooses
    writing     the scheduler stores the choice in the run directory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.find import is_checkpoint, order
from mpips.errors import ConfigError, MpipsError
from mpips.rundir.directory import Supervised, read_json, replace_json
from mpips.rundir.files import StagesChoice

if TYPE_CHECKING:
    from mpips.mpi.one_rank import Ranks

CURSOR_ENTRY = "cut"  # of the cursor of a worker whose stages were chosen by a measurement


class StoredStages:
    """Where the choice of a run is stored."""

    def __init__(
        self, run: Supervised | None, folder: Path | None, resume: str, is_own: bool
    ) -> None:
        """Take the places in which an earlier launch has stored its choice.

        Args:
            run: The supervised run of which this launch is an attempt.
            folder: Folder for checkpoints; None: none are written.
            resume: "auto", "never" or the path of a checkpoint; see `mpips.run`.
            is_own: Only attempts of this run write checkpoints into the folder.
        """
        self._run = run
        self._folder = folder
        self._resume = resume
        self._is_own = is_own

    def read(self, digest: str) -> StagesChoice | None:
        """Return the stored choice with this digest: that of the run, else that of a checkpoint. Local."""
        found = None
        if self._run is not None:
            with suppress(ConfigError):  # a damaged file: choose anew
                found = read_json(self._run.folder.stages_file, StagesChoice)
        if found is not None and found.digest == digest:
            return found
        return next((one for one in self._of_checkpoints() if one.digest == digest), None)

    def write(self, choice: StagesChoice) -> str:
        """Store a choice in the run directory. Return a note for people if it cannot be stored; else ""."""
        if self._run is None:
            return ""
        path = self._run.folder.stages_file
        with suppress(ConfigError):
            if read_json(path, StagesChoice) == choice:
                return ""
        try:
            replace_json(path, choice, durable=True)
        except OSError as error:
            return (
                f"{path}: cannot be written ({error.strerror}): a restart measures the stages anew"
            )
        return ""

    def _of_checkpoints(self) -> list[StagesChoice]:
        """Return the choices of the checkpoints from which the job can start; the first one counts.

        Start-up reports what cannot be read.
        """
        paths = []
        with suppress(MpipsError):
            if self._folder is not None and (self._is_own or self._resume == "auto"):
                paths += [name.path for name in order(self._folder).readable[:1]]
        if self._resume not in ("auto", "never") and is_checkpoint(Path(self._resume)):
            paths.append(Path(self._resume))
        found = []
        for path in paths:
            with suppress(MpipsError, msgspec.ValidationError):
                with open_checkpoint(path) as checkpoint:
                    entries = [one.cursor.get(CURSOR_ENTRY) for one in checkpoint.manifest.workers]
                found += [msgspec.convert(one, StagesChoice) for one in entries[:1] if one]
        return found


def chosen_stages(
    ranks: Ranks,
    digest: str,
    stored: StoredStages,
    choose: Callable[[], StagesChoice] | None,
) -> tuple[StagesChoice, list[str]]:
    """Return the choice of all ranks, and notes for people. Collective over the ranks, behind a meeting.

    Args:
        ranks: All ranks.
        digest: Digest of the model and of the rules of the choice; the same on all ranks.
        stored: Where the choice of the run is stored.
        choose: Measures and chooses; called on worker 0, if nothing is stored. None: on servers and
            the scheduler.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """

    def read() -> dict[str, Any] | None:
        return _plain(stored.read(digest)) if ranks.is_scheduler else None

    def measure() -> dict[str, Any] | None:
        return _plain(choose()) if ranks.worker == 0 and choose is not None else None

    choice = _first(ranks.agree("reading the stages of the run", read, lengthy=True))
    is_new = choice is None
    if choice is None:
        choice = _first(ranks.agree("measuring the stages of the model", measure, lengthy=True))
    assert choice is not None
    found = choice

    def write() -> str:
        return stored.write(found) if ranks.is_scheduler else ""

    notes = [f"{'' if is_new else 'as before in this run: '}{reason}" for reason in choice.reasons]
    return choice, [*notes, *filter(None, ranks.agree("writing stages.json", write))]


def _plain(choice: StagesChoice | None) -> dict[str, Any] | None:
    """Return a choice as values that messages and cursors have: with lists in place of tuples."""
    found: dict[str, Any] | None = msgspec.json.decode(msgspec.json.encode(choice))
    return found


def entry_of(choice: StagesChoice) -> Mapping[str, Any]:
    """Return the entry of a cursor with a choice."""
    return _plain(choice) or {}


def _first(rows: list[dict[str, Any] | None]) -> StagesChoice | None:
    """Return the choice of the rank that has one."""
    return next((msgspec.convert(row, StagesChoice) for row in rows if row is not None), None)
