"""Contents of the page for one run: `refresh` reads them from its run directory as they change.

A file of a run directory is replaced, grows, is thinned or is torn off at its end; it may be on a file
system of other machines, and of a run that ended long ago. So every file is read for itself, what cannot be
read now is read by a later call, and a damaged file costs its part of the page only.

The parts of the page, each with a number that changes with its content:

    state    state, progress, ranks and events, and what the run is about: see `mpips.monitor.about`
    curve    rows of metrics.jsonl, see `mpips.web.curve`
    history  lines of history.jsonl, see `mpips.rundir.history`
    config   configuration, result and attempts with logs

Rows of curve and history are sent once each: a `SentParts` knows what a browser has.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mpips.errors import ConfigError
from mpips.monitor import about
from mpips.monitor.differences import values_of
from mpips.monitor.lent_hosts import host_lines
from mpips.monitor.logs import attempts
from mpips.monitor.top import summary_of
from mpips.rundir.directory import RunFolder, version_of
from mpips.rundir.files import RowLoad
from mpips.rundir.history import AttemptHead, Counts, read_line
from mpips.rundir.reading import DAMAGED, read_regular
from mpips.rundir.thinning import even_places, gathered
from mpips.rundir.view import RunView, damaged, view_of
from mpips.web.curve import COLUMNS, Curve, is_sane
from mpips.web.line_file import LineFile, sample
from mpips.web.members import members_of

_SLICE_S = 0.25  # s that `refresh` reads a long file for; the next call goes on
_LONG_BYTES = 8 << 20  # bytes; of a longer file a sample is shown until it is read
_BYTES_PER_ROW = (
    400_000  # bytes of a long file divided by this: lines that become one row, of about 200 bytes
)
_MOST_LOSSES = 100  # epochs whose losses are sent, for a run too short to have a curve
_READ_S = 600.0  # s that reading a run to the ends of its files may take
_SETTLED_S = 10.0  # s after the end of a run from which its files no longer change
_N_SAMPLES = 2000  # lines of that sample
_MOST_VALUES = 6000  # ranks times lines of history that are held
_LEAST_LINES = 24  # of these lines, with however many ranks
_MOST_EVENTS = 500  # events that are sent, the newest


class SentParts(msgspec.Struct):
    """The state of one run in a browser: content numbers of the parts, and numbers of their rows."""

    state: int = -1
    config: int = -1
    curve: tuple[int, int, int] = (0, 0, 0)  # epoch, rows, evaluations
    history: tuple[int, int, int] = (0, 0, 0)  # epoch, heads and marks, rows


class History:
    """Lines of history.jsonl, a bounded number. One thread uses it at a time.

    Attributes:
        marks: Heads and checkpoints as JSON.
        head: Head of the newest attempt; None: not read yet.
        rows: Counts as JSON, each with its generation and Unix time.
        epoch: A number that changes when lines other than new ones have changed.
    """

    def __init__(self, epoch: int = 0) -> None:
        """Begin without lines. `epoch`: the first one."""
        self.marks: list[bytes] = []
        self.head: AttemptHead | None = None
        self.rows: list[tuple[int, float, bytes]] = []
        self.epoch = epoch

    def add(self, lines: list[bytes]) -> None:
        """Add lines of the file; those that are damaged or of another form are skipped."""
        for given in lines:
            line = read_line(given)
            if line is None or not is_sane(line.time_s):
                continue
            # Encode the line again: the decoder skips unknown parts, which may be no valid JSON, and then a
            # browser would refuse the whole message. Rows are left out: the page takes them from the state.
            if isinstance(line, Counts):
                line = msgspec.structs.replace(line, rows={})
            encoded = msgspec.json.encode(line)
            if isinstance(line, Counts):
                self.rows.append((line.generation, line.time_s, encoded))
                most = max(_MOST_VALUES // max(len(line.clock), 1), _LEAST_LINES)
                if len(self.rows) > most:
                    self._thin(most // 2)
            else:
                self.marks.append(encoded)
                if isinstance(line, AttemptHead):
                    self.head = line

    def _thin(self, n: int) -> None:
        """Leave out lines so that about `n` are left, spread over time evenly.

        Counts are sums, so those left stay exact. The first line of an attempt stays, and the last line of
        every interval.
        """
        places = even_places([row[:2] for row in self.rows], n)
        remaining: list[tuple[int, float, bytes]] = []
        for together in gathered(zip(self.rows, places, strict=True)):
            first, last = together[0], together[-1]
            begins = not remaining or remaining[-1][0] != first[0]
            remaining += [first, last] if begins and first is not last else [last]
        self.rows = remaining
        self.epoch += 1


class RunData:
    """One run. `refresh` is called from one thread at a time; `parts` from any."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet. `path`: the run directory."""
        self.run = RunFolder(path)
        self.name = self.run.path.name
        self._lock = threading.Lock()
        self._metrics = LineFile(self.run.metrics_file)
        self._lines = LineFile(self.run.history_file)
        self._curve = Curve()
        self._sampled: Curve | None = None  # shown until a long file is read
        self._group = 1  # lines that become one row, while a long file is read
        self._history = History()
        self._state: dict[str, Any] = {}
        self._view: RunView | None = None  # the last one that could be read
        self._job = about.JobDescription()
        self._result: about.RunResult | None = None
        self._size: about.ModelSize | None = None
        self._about_version: Any = None  # versions of the files that these three come from
        self._config: dict[str, Any] = {}
        self._config_version: Any = None
        self._numbers = SentParts()  # -1: not read yet
        self._failed = False  # the last reading ended in an error that is not known

    def refresh(self, now: float | None = None) -> None:
        """Read what has changed. Blocks for at most about a second, unless the file system does.

        A run whose files make it fail in an unexpected way is shown as damaged: other runs of
        the page must not suffer from it.

        Args:
            now: Unix time; None: the current time.
        """
        try:
            self._refresh(now)
            self._failed = False
        except Exception as error:
            self._failed = True
            state = self._damaged(error)
            with self._lock:
                if state != self._state:
                    self._state = state
                    self._numbers.state += 1

    def read_all(self, now: float | None = None) -> None:
        """Read all files to their ends. Blocks until then. `now`: as of `refresh`.

        Raises:
            ConfigError: That takes more than some minutes.
        """
        end = time.monotonic() + _READ_S
        self.refresh(now)
        while self.is_loading:
            if time.monotonic() > end:
                raise ConfigError(f"{self.run.path}: could not be read within {_READ_S:.0f} s")
            self.refresh(now)

    def _refresh(self, now: float | None) -> None:
        state = self._read_state(now)
        curve, sampled = self._read_metrics()
        replaced, lines = self._lines.read()
        config = self._read_config()
        self._read_about()
        with self._lock:
            if curve is not None:
                self._curve = curve
            self._sampled = sampled
            for each in (self._curve, sampled):
                if each is not None:
                    each.settle(self._view.events if self._view is not None else ())
            state["loading"] = None if sampled is None else self._share()
            if replaced:
                self._history = History(self._history.epoch + 1)
            self._history.add(lines)
            state["about"] = self._describe(state)
            if state != self._state:
                self._state = state
                self._numbers.state += 1
            if config is not None:
                self._config = config
                self._numbers.config += 1

    @property
    def is_loading(self) -> bool:
        """True while a long file has not been read to its end, and can be read."""
        with self._lock:
            return not self._failed and not (self._metrics.at_end and self._lines.at_end)

    @property
    def is_done(self) -> bool:
        """True if the run has been done for a while and its files have been read to their ends."""
        with self._lock:
            if self._failed or not (self._metrics.at_end and self._lines.at_end):
                return False
            finished_s = self._state.get("finished_s")
            is_old = finished_s is not None and time.time() - finished_s > _SETTLED_S
            return is_old and self._state.get("state") == "done"

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts that have logs."""
        with self._lock:
            return list(self._config.get("attempts", ()))

    def _share(self) -> float:
        return round(self._metrics.offset / max(self._metrics.size, 1), 3)

    def _read_metrics(self) -> tuple[Curve | None, Curve | None]:
        """Read new lines of metrics.jsonl.

        Returns:
            A curve that replaces the present one, None: none does; and the curve of a sample, while the file
                is too long to have been read, else None.
        """
        new, sampled = None, self._sampled
        end = time.monotonic() + _SLICE_S
        while True:
            replaced, lines = self._metrics.read()
            # Let a long file have about so many rows that they need not be merged again.
            left = self._metrics.size - self._metrics.offset
            if left > _LONG_BYTES:
                self._group = max(self._group, self._metrics.size // _BYTES_PER_ROW)
            if replaced:
                # Go on with a new curve: nothing of the old file may stay.
                new = Curve(self._curve.epoch + 1)
            if lines:
                curve = new or self._curve
                with self._lock:
                    curve.add(lines, self._group)
            if not lines or self._metrics.at_end:
                self._group = 1
                return new, None
            if time.monotonic() > end:
                break
        if sampled is None and self._metrics.size > _LONG_BYTES:
            sampled = Curve(self._curve.epoch - 1_000_000)
            sampled.add(sample(self._metrics.path, _N_SAMPLES))
        return new, sampled

    def _read_state(self, now: float | None) -> dict[str, Any]:
        try:
            view = self._view = view_of(self.run, now)
            return _state_of(view, self.run)
        except Exception as error:
            return self._damaged(error)

    def _damaged(self, error: Exception) -> dict[str, Any]:
        """Return what is known of the state of a run that cannot be read."""
        known = self._state or {"name": self.name, "ranks": [], "events": [], "progress": None}
        view = damaged(self.run, error)
        return {**known, "state": view.state, "alive": view.alive, "note": view.note}

    def _read_about(self) -> None:
        """Read job, result and size of the model again if their files have changed."""
        status = self._view.status if self._view is not None else None
        checkpoint = status.checkpoint if status is not None else ""
        version = (version_of(self.run.config_file), version_of(self.run.result_file), checkpoint)
        if version != self._about_version:
            self._about_version = version
            self._job, self._result = about.read_job(self.run), about.read_result(self.run)
            self._size = about.read_size(self.run, status)

    def _describe(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return what the run is about, for the first screen."""
        status = self._view.status if self._view is not None else None
        size = self._size or about.size_from_head(self._history.head)
        curve = self._sampled or self._curve
        # By these the job chooses; test data beside validation data is evaluated once.
        evaluations, result = about.chosen_from(curve.evaluations()), self._result
        names = dict.fromkeys(name for each in evaluations for name in each.metrics)
        directions = {name: about.higher_is_better(name) for name in names}
        return {
            "task": self._job.name,
            "data": about.data_text(self._job, result),
            "model": msgspec.to_builtins(size) if size is not None else None,
            "best": about.best_evaluation(self._job, result, evaluations),
            "higher": {name: higher for name, higher in directions.items() if higher is not None},
            "losses": result.losses[:_MOST_LOSSES] if result is not None else [],
            "seconds": result.seconds if result is not None else None,
            "samples_per_s": result.samples_per_s if result is not None else None,
            "epochs": about.epoch_anchors(evaluations, status),
            "sentence": about.state_sentence(
                state["state"],
                result,
                status.progress if status is not None else None,
                bool(state["alive"]),
            ),
        }

    def _attempts_with_logs(self) -> list[int]:
        try:
            return attempts(self.run)
        except OSError:
            return []

    def _read_config(self) -> dict[str, Any] | None:
        """Return configuration, result and logs if they have changed, else None."""
        there = self._attempts_with_logs()
        decided = (self.run.placement_file, self.run.stages_file)
        files = (self.run.config_file, self.run.path / "summary.json", *decided)
        version = (tuple(map(version_of, files)), tuple(there))
        if version == self._config_version:
            return None
        self._config_version = version
        found: dict[str, Any] = {"attempts": there, "config": {}, "result": {}, "reasons": []}
        try:
            found["config"], found["result"] = values_of(self.run)
        except (ConfigError, OSError, AttributeError, TypeError, *DAMAGED):
            # A damaged file of the run is named by the state; a run need not have these files.
            return found
        for path in decided:
            with suppress(OSError, AttributeError, TypeError, *DAMAGED):
                reasons = msgspec.json.decode(read_regular(path)).get("reasons", [])
                found["reasons"] += [str(text) for text in reasons]
        return found

    def parts(self, cursor: SentParts) -> bytes | None:
        """Return as JSON what a browser has not got yet, and set its cursor; None: it has all."""
        with self._lock:
            found: dict[str, Any] = {}
            if cursor.state != self._numbers.state:
                cursor.state = self._numbers.state
                found["state"] = self._state
            if cursor.config != self._numbers.config:
                cursor.config = self._numbers.config
                found["config"] = self._config
            self._add_curve(found, cursor)
            self._add_history(found, cursor)
        if not found:
            return None
        return msgspec.json.encode({"run": self.name, **found})

    def _add_curve(self, found: dict[str, Any], cursor: SentParts) -> None:
        curve = self._sampled or self._curve
        epoch, rows, tests = cursor.curve
        if epoch != curve.epoch:
            rows = tests = 0
        if epoch == curve.epoch and rows == len(curve.rows) and tests == len(curve.tests):
            return
        found["curve"] = {
            "from": rows,
            "columns": COLUMNS,
            "rows": curve.rows[rows:],
            "tests_from": tests,
            "tests": curve.tests[tests:],
            "n_lines": curve.n_lines,
        }
        cursor.curve = curve.epoch, len(curve.rows), len(curve.tests)

    def _add_history(self, found: dict[str, Any], cursor: SentParts) -> None:
        history = self._history
        epoch, marks, rows = cursor.history
        if epoch != history.epoch:
            marks = rows = 0
        if epoch == history.epoch and marks == len(history.marks) and rows == len(history.rows):
            return
        found["history"] = {
            "marks_from": marks,
            "marks": [msgspec.Raw(line) for line in history.marks[marks:]],
            "from": rows,
            "rows": [msgspec.Raw(line) for *_, line in history.rows[rows:]],
        }
        cursor.history = history.epoch, len(history.marks), len(history.rows)


def _row_of(row: RowLoad) -> dict[str, Any]:
    """Return a hot row for the page: its key is text, because JavaScript has no integers of 64 bits."""
    return {**msgspec.to_builtins(row), "key": str(row.key)}


def _state_of(view: RunView, run: RunFolder) -> dict[str, Any]:
    """Return the state of a run as plain values, without what the page does not show: no token, no paths."""
    status = view.status
    finished = run.finished()
    return {
        "name": view.name,
        "state": view.state,
        "alive": view.alive,
        "note": view.note,
        "created_s": run.info().created_s,
        "finished_s": finished.time_s if finished is not None else None,
        "generation": status.generation if status is not None else None,
        "written_s": status.time_s if status is not None else None,
        "progress": msgspec.to_builtins(status.progress) if status is not None else None,
        "restarts": status.restarts if status is not None else 0,
        "checkpoint": Path(status.checkpoint).name if status is not None else "",
        "paths": status.paths if status is not None else {},
        "ranks": msgspec.to_builtins(view.rows),
        "ssp_bound": view.load.bound,
        "switched": view.load.switched,
        "backup": view.load.backup,
        "hot_rows": [_row_of(row) for row in view.load.rows],
        "quiet_s": view.quiet_s,
        "events": [msgspec.to_builtins(event) for event in view.events[-_MOST_EVENTS:]],
        "hosts": host_lines(view.members, view.now),
        "producers": members_of(run),
        "summary": summary_of(run) if view.state == "done" else "",
    }
