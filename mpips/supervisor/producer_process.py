"""Run the programs of [producers]: `python -m mpips.supervisor.producer_process RUN_DIR`.

A child of the supervisor, which may be busy with hosts for minutes. It starts and ends programs as
producer_states.py decides, and writes producers.json and the logs of members. It ends when it is asked to and
no process of a program is left.

stdin    lines of the supervisor: "done" (the run is done: members have `end_s` to end by themselves), "stop"
         (SIGTERM now, SIGKILL after `end_s`), "kill" (SIGKILL now). The end of stdin, with which a killed
         supervisor ends as well, counts as "stop", and so does SIGTERM.
stdout   lines of JSON for the supervisor: {"say": text for people}, {"failed": why the run must end}.

The output of a program goes into a file, so no program waits for a reader. A file that is too long is cut
(member_log.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from mpips.config.producers import ProducersConfig
from mpips.config.schema import load_config
from mpips.errors import ConfigError, MpipsError
from mpips.monitor.logs import clean
from mpips.mpi.signals import name_of
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.producers import (
    COUNT,
    FIRST,
    MEMBER,
    MEMBER_OF,
    MEMBER_RUNNER,
    STREAM,
    MemberRecord,
    ProducersRecord,
    member_log,
    producers_file,
    queue_name,
    read_producers,
)
from mpips.rundir.reading import end_of
from mpips.supervisor import member_processes
from mpips.supervisor.member_log import cut_log
from mpips.supervisor.member_queues import MemberQueues
from mpips.supervisor.member_watcher import MemberWatcher
from mpips.supervisor.producer_states import EnsembleMember, MemberStates

_QUICK_S, _SLOW_S = 0.02, 0.2  # s between two rounds while members end, and else
_LOOK_S = 0.5  # s between two looks at the queues of members that are over
_WRITE_S = (
    2.0  # s between two writes of producers.json in which only numbers of samples have changed
)
_LAST_LINE = 200  # characters of a log's last line in a message


@dataclass
class MemberEnd:
    """A member whose command has ended, until no process of it is left.

    Attributes:
        code: Exit code of the command, negative for a signal.
        seconds: Seconds from its start.
        kill_at: Monotonic time of SIGKILL; 0: SIGTERM was not sent yet.
    """

    code: int
    seconds: float
    kill_at: float = 0.0


@dataclass
class MemberWork:
    """The work of one member: its processes and queues.

    Attributes:
        queues: Its queues.
        process: Its command while it runs.
        ending: Set from the end of the command to that of its last process.
        sessions: Session of its start; empty: no process of it is left.
        began: Monotonic time of the last start.
        replacements: `MemberQueues.replacements` at the last start.
        earlier: Starts under earlier supervisors.
        cause: See `MemberRecord`.
    """

    queues: MemberQueues
    process: subprocess.Popen[bytes] | None = None
    ending: MemberEnd | None = None
    sessions: set[int] = field(default_factory=set)
    began: float = 0.0
    replacements: int = 0
    earlier: int = 0
    cause: str = ""

    @property
    def is_there(self) -> bool:
        """True if processes of it may be there."""
        return self.process is not None or self.ending is not None


class ProducerRunner:
    """Runs all members. Main thread only."""

    def __init__(
        self, run: RunFolder, config: ProducersConfig, stream: str, watcher: MemberWatcher
    ) -> None:
        """Read the state that an earlier supervisor has left, and start nothing yet.

        Args:
            run: The run directory.
            config: [producers] of the run.
            stream: Name of the queues.
            watcher: Ends the programs if this process is killed.
        """
        self._watcher = watcher
        self._run, self._config, self._stream = run, config, stream
        self._cwd = Path(run.info().cwd)
        self._host = socket.gethostname()
        self.states = MemberStates(config)
        self._running = [
            MemberWork(MemberQueues(stream, config.numbers(member)))
            for member in range(config.members)
        ]
        self._take_over()
        self._end_at: float | None = (
            None  # monotonic time of the next signal to all; None: no end yet
        )
        self._was_terminated = False  # SIGTERM was sent to all
        self._next_look = self._next_write = 0.0
        self._written: ProducersRecord | None = None
        self._printed: set[str] = set()

    def _take_over(self) -> None:
        """Let members that had ended under an earlier supervisor stay so."""
        record = None
        with contextlib.suppress(ConfigError):
            record = read_producers(self._run)
        for each in record.members if record is not None else ():
            if each.member >= self._config.members:
                continue
            mine = self._running[each.member]
            mine.earlier = each.starts
            mine.queues = MemberQueues(
                self._stream, self._config.numbers(each.member), each.produced
            )
            member = self.states.members[each.member]
            if each.state == "ended" or (
                each.state == "failed" and self._config.on_failure == "continue"
            ):
                member.state, mine.cause = each.state, each.cause

    # --- Rounds ------------------------------------------------------------------------------------

    @property
    def pause_s(self) -> float:
        """Seconds to the next round, unless a process ends before."""
        ends = self._end_at is not None or any(each.ending is not None for each in self._running)
        return _QUICK_S if ends else _SLOW_S

    def round(self) -> bool:
        """Do what is due. Return False if the end was requested and no process of a member is left."""
        now = time.monotonic()
        self._collect(now)
        if any(each.ending is not None for each in self._running):
            rows = member_processes.processes()  # once for all members
            for member in self.states.members:
                self._settle(member, rows, now)
        if self._end_at is None:
            for member in self.states.to_start(self._is_served, now):
                self._start(member, now)
            self._tell_of_wait(now)
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            self._look_at_queues(now)
        goes_on = self._end_at is None or self._end_round(now)
        self._write(now, at_once=not goes_on)
        return goes_on

    def _collect(self, now: float) -> None:
        """Note commands that have ended, and wait for orphans, which are children of this process."""
        pids = {each.process.pid for each in self._running if each.process is not None}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            if found.si_pid not in pids:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(found.si_pid, os.WNOHANG)
                self._watcher.was_reaped(found.si_pid)
                continue
            for each in self._running:
                if each.process is not None and each.process.pid == found.si_pid:
                    each.ending = MemberEnd(each.process.wait(), now - each.began)
                    each.process = None

    def _settle(
        self, member: EnsembleMember, rows: list[member_processes.ProcessRow], now: float
    ) -> None:
        """End what a command has left; when nothing is left, decide what follows."""
        mine = self._running[member.number]
        if mine.ending is None:
            return
        left = member_processes.of_member(member.number, mine.sessions, rows)
        if left and not mine.ending.kill_at:
            mine.ending.kill_at = now + self._config.end_s
            member_processes.send(left, signal.SIGTERM)
        elif left and now >= mine.ending.kill_at:
            member_processes.send(left, signal.SIGKILL)
        if not left:
            self._conclude(member, mine, mine.ending, now)

    def _conclude(
        self, member: EnsembleMember, mine: MemberWork, ending: MemberEnd, now: float
    ) -> None:
        mine.ending = None
        for session in mine.sessions:
            self._watcher.forget(session)
        mine.sessions.clear()
        mine.queues.note()
        self._cut_log(member.number)
        replaced = mine.queues.replacements > mine.replacements
        following = self.states.ended(
            member, ending.code, now, replaced=replaced, closed=mine.queues.are_closed
        )
        if member.state == "ended":
            mine.cause = ""
            if not any(mine.queues.produced):
                self._say(
                    f"member {member.number} of the producers has ended with code 0 and has pushed no "
                    f"sample: its program must call mpips_open with NULL, or with {self._stream!r}; log: "
                    f"{member_log(self._run, member.number)}"
                )
            if all(each.state == "ended" for each in self.states.members):
                self._say_once(f"all {self._config.members} members of the producers have ended")
        elif member.state != "stopped":
            mine.cause = self._failure(member, ending)
            self._report(member, following, replaced)

    def _report(self, member: EnsembleMember, following: str, replaced: bool = False) -> None:
        """Print a failure and what follows; tell the supervisor if the run must end."""
        cause = self._running[member.number].cause
        if following == "start" and replaced:
            self._say(f"{cause}; it starts again, since the job has gone back to an earlier state")
        elif following == "start":
            pause_s = max(member.ready_at - time.monotonic(), 0.0)
            self._say(
                f"{cause}; restart {member.failures} of {self._config.max_restarts} in {pause_s:.0f} s"
            )
        elif following == "end of its producers":
            self._say(f"{cause}; the run goes on with the samples that it has pushed")
        elif following == "end of the run":
            self._send(failed=cause)
            self.stop()

    def _failure(self, member: EnsembleMember, ending: MemberEnd) -> str:
        """Return a sentence on the end of a command: member, exit code, host and log."""
        log = member_log(self._run, member.number)
        how = f"ended with exit code {ending.code}"
        if ending.code < 0:
            how = f"was killed by {_signal_name(-ending.code)}"
        lines = [line.strip() for line in end_of(log).splitlines() if line.strip()]
        last = clean(lines[-1][:_LAST_LINE]) if lines and not lines[-1].startswith("--- ") else ""
        printed = f"; it printed last: {last}" if last else ""
        return (
            f"member {member.number} of the producers {how} on {self._host} after {ending.seconds:.1f} s"
            f"{printed}; log: {log}"
        )

    # --- Starts ------------------------------------------------------------------------------------

    def _is_served(self, member: int) -> bool:
        return self._running[member].queues.are_served

    def _start(self, member: EnsembleMember, now: float) -> None:
        """Start the command of a member. An error counts as its end."""
        mine = self._running[member.number]
        mine.began, mine.replacements = now, mine.queues.replacements
        self.states.started(member)
        try:
            mine.process = self._launch(member, mine.earlier + member.starts)
        except OSError as error:
            command, folder = self._config.member(member.number)
            why = error.strerror or str(error)
            mine.cause = (
                f"member {member.number} of the producers cannot be started on {self._host}: "
                f"{error.filename or command[0]}: {why} (command {shlex.join(command)}, working folder "
                f"{self._cwd / folder})"
            )
            self._report(member, self.states.ended(member, 127, now, futile=True))
            return
        mine.sessions.add(mine.process.pid)
        self._watcher.note(mine.process.pid)
        if self._config.members == 1:
            self._say_once("the producers are started")
        elif sum(each.starts > 0 for each in self.states.members) == self._config.n_at_once:
            n = self._config.n_at_once
            self._say_once(f"{n} of {self._config.members} members of the producers are started")

    def _launch(self, member: EnsembleMember, start: int) -> subprocess.Popen[bytes]:
        """Start a command; its output is added to the log of the member.

        Raises:
            OSError: Log or working folder cannot be made, or there is no such program.
        """
        command, folder = self._config.member(member.number)
        cwd = self._cwd / folder
        if self._config.makes_folders:
            cwd.mkdir(parents=True, exist_ok=True)
        marks = {
            STREAM: self._stream,
            FIRST: str(self._config.numbers(member.number)[0]),
            COUNT: str(self._config.queues),
            MEMBER: str(member.number),
            MEMBER_OF: str(self._run.path),
            MEMBER_RUNNER: self._watcher.mark,
        }
        log = member_log(self._run, member.number)
        log.parent.mkdir(exist_ok=True)
        with log.open("ab", buffering=0) as file:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            # On a full disk the program may start all the same: it need not print.
            with contextlib.suppress(OSError):
                file.write(f"--- start {start}, {when}: {shlex.join(command)}\n".encode())
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **self._config.environment, **marks},
                start_new_session=True,
                preexec_fn=functools.partial(member_processes.end_with_parent, os.getpid()),
            )

    def _tell_of_wait(self, now: float) -> None:
        """Print once for a member what is missing if its queues are not served for long."""
        member = self.states.unserved(self._is_served, now)
        if member is None:
            return
        numbers = [*self._config.numbers(member.number)]
        named = f"{self._config.stream!r}, " if self._config.stream else ""
        self._say_once(
            f"the producers wait: no worker on {self._host} serves the queues of member {member.number}; "
            f"main must call stream.serve(worker, {named}producers={numbers}) there, and samples do not go "
            "between hosts"
        )

    # --- Queues and files --------------------------------------------------------------------------

    def _look_at_queues(self, now: float) -> None:
        """Note samples of running members and cut their logs; close the producers of those that are over."""
        for member, mine in zip(self.states.members, self._running, strict=True):
            if mine.is_there:
                mine.queues.note()
                self._cut_log(member.number)
            elif member.state == "ended" and mine.queues.are_behind:
                if self.states.misses_samples(member, now):
                    self._say(
                        f"member {member.number} of the producers starts again: the job has gone back to a "
                        "state with fewer of its samples"
                    )
            elif self._end_at is None and member.state in ("ended", "failed"):
                # A failure that ends the run leaves its producers open: a later run goes on with them.
                mine.queues.close()

    def _cut_log(self, member: int) -> None:
        """Cut the log of a member if it has printed too much."""
        with contextlib.suppress(OSError):
            cut_log(member_log(self._run, member), int(self._config.log_mib * (1 << 20)))

    def _write(self, now: float, at_once: bool) -> None:
        """Write producers.json if it has changed. On a full disk the programs go on."""
        rows = tuple(
            MemberRecord(
                member=member.number,
                state=member.state,
                pid=mine.process.pid if mine.process is not None else 0,
                starts=mine.earlier + member.starts,
                failures=member.failures,
                produced=tuple(mine.queues.produced),
                values={
                    name: value
                    for name, value in self._config.values(member.number).items()
                    if name in self._config.parameters
                },
                cause=mine.cause,
            )
            for member, mine in zip(self.states.members, self._running, strict=True)
        )
        before = self._written.members if self._written is not None else ()
        same = [(row.state, row.pid) for row in rows] == [(row.state, row.pid) for row in before]
        if rows == before or (same and not at_once and now < self._next_write):
            return
        self._next_write = now + _WRITE_S
        record = ProducersRecord(host=self._host, pid=os.getpid(), time_s=time.time(), members=rows)
        with contextlib.suppress(OSError):
            replace_json(producers_file(self._run), record)
            self._written = record

    # --- The end -----------------------------------------------------------------------------------

    def order(self, word: str) -> None:
        """Obey a line of the supervisor."""
        if word == "done" and self._end_at is None:
            self.states.stop()
            self._end_at = time.monotonic() + self._config.end_s
            there = [str(i) for i, mine in enumerate(self._running) if mine.is_there]
            if there:
                self._say(
                    f"the run is done: waiting {self._config.end_s:g} s for members {', '.join(there[:8])} "
                    "of the producers to end"
                )
        elif word == "stop":
            self.stop()
        elif word == "kill":
            self.states.stop()
            self._end_at, self._was_terminated = time.monotonic(), True

    def stop(self) -> None:
        """Send SIGTERM to all members, and SIGKILL after `end_s` to what is left. Returns at once."""
        self.states.stop()
        if not self._was_terminated:
            self._end_at = time.monotonic()

    def _end_round(self, now: float) -> bool:
        """Send the signal that is due; return False if no process is left."""
        assert self._end_at is not None
        left = self._left()
        if not left and not any(mine.is_there for mine in self._running):
            return False
        if now >= self._end_at and not self._was_terminated:
            self._was_terminated, self._end_at = True, now + self._config.end_s
            for mine in self._running:
                # The group of the command, as a terminal and a batch system send it.
                if mine.process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(mine.process.pid, signal.SIGTERM)
            groups = {mine.process.pid for mine in self._running if mine.process is not None}
            rows = member_processes.processes()
            beside = left - {row.pid for row in rows if row.session in groups}
            member_processes.send(beside, signal.SIGTERM)
        elif now >= self._end_at:
            member_processes.send(left, signal.SIGKILL)
        return True

    def _left(self) -> set[int]:
        """Return all processes of programs, which are below this one."""
        found = member_processes.below({os.getpid()}, member_processes.processes())
        return found - {os.getpid(), self._watcher.pid}

    # --- Lines -------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._send(say=text)

    def _say_once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            self._say(text)

    def _send(self, **line: str) -> None:
        # Without a supervisor there is no reader.
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps(line) + "\n").encode())


def _signal_name(number: int) -> str:
    """Return the name of a signal; those for programs' own use have none."""
    try:
        return name_of(number)
    except ValueError:
        return f"signal {number}"


class SupervisorOrders:
    """Lines of the supervisor, and signals, for `ProducerRunner.order`."""

    def __init__(self, stdin: BinaryIO) -> None:
        """Take the handlers of signals. `stdin`: a pipe."""
        self._stdin, self._text, self._has_ended = stdin, b"", False
        self._signalled = False
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._wake = reading
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # Handlers, and not SIG_IGN, which the programs would inherit.
        for number in (
            signal.SIGCHLD,
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGUSR2,
        ):
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._signalled = True

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for a line, a signal or the timeout; return the orders that have come."""
        pipes = [self._wake] if self._has_ended else [self._wake, self._stdin.fileno()]
        ready, _, _ = select.select(pipes, [], [], timeout_s)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if not self._has_ended and self._stdin.fileno() in ready:
            more = os.read(self._stdin.fileno(), 4096)
            self._has_ended = not more
            self._text += more or b"\nstop\n"
        if self._signalled:
            self._signalled = False
            self._text += b"\nstop\n"
        *lines, self._text = self._text.split(b"\n")
        return [line.decode() for line in lines if line]


def main() -> int:
    """Run the programs of a run directory until the supervisor ends them."""
    run = RunFolder(Path(sys.argv[1]))
    orders = SupervisorOrders(sys.stdin.buffer)
    member_processes.become_subreaper()
    try:
        config = load_config(str(run.config_file), []).producers
        member_processes.kill_marked(run.path)
        watcher = MemberWatcher(config.end_s)
        stream = queue_name(run.info().token, config.stream)
        runner = ProducerRunner(run, config, stream, watcher)
    except (MpipsError, TimeoutError) as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        return 1
    while runner.round():
        for word in orders.wait(runner.pause_s):
            runner.order(word)
    watcher.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
