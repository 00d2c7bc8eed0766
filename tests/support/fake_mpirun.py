"""Stands in for mpirun: does for each attempt what FAKE_MPIRUN (JSON, a list) says, without any MPI.

Keys of an attempt: words (list of fields), say (text for stderr), chatter (lines of 100 bytes before it),
code, signal (to itself), finish (true), hang (seconds, after that), recoverable, start (steps), ranks (table
for status.json), sleep (seconds, before the end), beats (true: meanwhile it shows that it is alive), ahead
(seconds by which the scheduler's clock is ahead), mute (true: no status is written), ignore (numbers of
signals), log ({rank: text}), spawn (number of processes that stay), stop (those are stopped), orphan (true:
the only rank has ended before the status tells of it, and has left a process for whose end this one waits),
awaits (path of a file without which no rank is at work, for 10 s at most), leaves (true: on SIGUSR1 it ends
as ranks do that were asked to leave and have written a checkpoint).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FINISHED = {"generation": 0, "time_s": 1.0, "step": 3, "checkpoint": ""}


def main() -> None:
    if "--version" in sys.argv:
        print("mpirun (Open MPI) 5.0.0")
        return
    run, generation = Path(os.environ["MPIPS_RUN_DIR"]), int(os.environ["MPIPS_GENERATION"])
    script = json.loads(os.environ["FAKE_MPIRUN"])
    act = script[min(generation, len(script) - 1)]
    logs = run / "logs" / f"attempt-{generation}"
    (logs / "argv.json").write_text(json.dumps(sys.argv))
    if act.get("leaves"):
        signal.signal(signal.SIGUSR1, lambda number, frame: leave(logs))
    for number in act.get("ignore", []):
        signal.signal(number, signal.SIG_IGN)
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(act.get("spawn", 0))]
    if act.get("stop"):
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
    until = time.monotonic() + 10
    while "awaits" in act and not Path(act["awaits"]).exists() and time.monotonic() < until:
        time.sleep(0.01)
    orphan = leave_orphan(act) if act.get("orphan") else 0
    for rank, text in act.get("log", {}).items():
        (logs / f"rank-{rank}.log").write_text(text)
    if not act.get("mute"):
        write_status(run, generation, act, children)
    for i, words in enumerate(act.get("words", [])):
        write_words(logs, i, words)
    sys.stderr.write(act.get("chatter", 0) * ("x" * 99 + "\n") + act.get("say", ""))
    sys.stderr.flush()
    if "sleep" in act:
        (logs / "asleep").write_text("now")
        until = time.monotonic() + act["sleep"]
        while act.get("beats") and time.monotonic() < until:
            os.utime(logs / "alive")
            time.sleep(0.05)
        time.sleep(max(until - time.monotonic(), 0))
    if act.get("finish"):
        (run / "finished.json").write_text(json.dumps(FINISHED))
    time.sleep(act.get("hang", 0))
    while orphan and Path(f"/proc/{orphan}").exists():
        time.sleep(0.01)
    if "signal" in act:
        os.kill(os.getpid(), act["signal"])
    sys.exit(act.get("code", 0))


def leave(logs: Path) -> None:
    write_words(logs, 0, {"kind": "Leaving", "exit_code": 75})
    os._exit(75)


def leave_orphan(act: dict) -> int:
    with subprocess.Popen(["sh", "-c", "sleep 600 >&2 & echo $!"], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        orphan = int(rank.stdout.readline())
    here = os.uname().nodename
    act["ranks"] = [{"rank": 0, "role": "worker 0", "host": here, "pid": rank.pid}]
    return orphan


def write_status(
    run: Path, generation: int, act: dict, children: list[subprocess.Popen[bytes]]
) -> None:
    pids = [child.pid for child in children] or [os.getpid()]
    here = os.uname().nodename
    ranks = [
        {"rank": r, "role": f"worker {r}", "host": here, "pid": pid} for r, pid in enumerate(pids)
    ]
    status = {
        "state": "running",
        "generation": generation,
        "time_s": time.time() + act.get("ahead", 0),
        "start": {"source": "memory", "step": act.get("start", act.get("recoverable", 0))},
        "progress": {"step": 7, "recoverable": act.get("recoverable", 0)},
        "ranks": act.get("ranks", ranks),
    }
    new = run / "status.new"
    new.write_text(json.dumps(status))
    new.rename(run / "status.json")


def write_words(logs: Path, i: int, words: dict) -> None:
    fields = {
        "rank": i,
        "about": i,
        "host": "node1",
        "pid": 100 + i,
        "kind": "ValueError",
        "message": "it broke",
        "exit_code": 1,
        "time_s": 1.0 + i,
    }
    (logs / f"words-{i}.json").write_text(json.dumps(fields | words))


if __name__ == "__main__":
    main()
