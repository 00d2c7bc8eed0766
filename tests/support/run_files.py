"""Run directories with known numbers, written by the same records as the scheduler's, without a job."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import (
    Event,
    Finished,
    Lease,
    Load,
    Places,
    Progress,
    RankPlace,
    RankRow,
    Ranks,
    RowLoad,
    StartPoint,
    Status,
)
from mpips.rundir.history import AttemptHead, Checkpointed, Counts, HistoryLine
from mpips.rundir.producers import MemberRecord, ProducersRecord, member_log, producers_file

ROLES = ("scheduler", "server 0", "server 1", "worker 0", "worker 1")
BEGIN = 1_790_000_000.0  # Unix time at which the runs begin


class RunFiles:
    """A run directory that a test fills."""

    def __init__(self, parent: Path, name: str = "job", begin: float = BEGIN) -> None:
        # Whoever lists the folder meanwhile sees the run under its name alone.
        path = parent / name
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".") as staging:
            made = RunFolder.create(Path(staging), "x")
            info = msgspec.structs.replace(made.info(), run_id=name, created_s=begin)
            replace_json(made.info_file, info)
            made.path.rename(path)
        self.run = RunFolder(path)
        self.begin = begin
        self.step = 0
        self._samples = 0

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.path

    def config(self, **values: Any) -> None:
        """Write config.json."""
        replace_json(self.run.config_file, {"task": "fm", **values})

    def state(
        self,
        state: str,
        generation: int = 0,
        released: bool = True,
        loss: float | None = 0.5,
        **more: Any,
    ) -> None:
        """Write status.json and the lease; a run that goes on has one that is not released, of now."""
        now = self.begin + 60.0 if released else time.time()
        progress = Progress(
            epoch=1,
            n_epochs=4,
            share=0.25,
            step=self.step,
            samples=self._samples,
            loss=loss,
            samples_per_s=64.0,
            staleness=0.75,
            push_bytes_per_s=1.5e6,
            pull_bytes_per_s=2.5e6,
            left_s=61.0,
        )
        status = Status(
            state=state,
            generation=generation,
            time_s=now,
            start=StartPoint(),
            progress=progress,
            **more,
        )
        replace_json(self.run.status_file, status)
        lease = Lease(
            generation=generation,
            host=socket.gethostname(),
            pid=os.getpid(),
            time_s=now,
            released=released,
        )
        replace_json(self.run.lease_file, lease)
        places = tuple(
            RankPlace(rank=r, role=role, host="node", pid=9) for r, role in enumerate(ROLES)
        )
        replace_json(self.run.places_file, Places(generation=generation, ranks=places))

    def finish(self) -> None:
        """Write the mark of the end."""
        self.state("done")
        mark = Finished(generation=0, time_s=self.begin + 60.0, step=self.step)
        replace_json(self.run.finished_file, mark)

    def metrics(self, n: int, loss: float = 1.0, generation: int = 0) -> None:
        """Add lines of progress: a second, a step and 64 samples each; the loss falls from `loss`."""
        with self.run.metrics_file.open("a") as file:
            for _ in range(n):
                self.step += 1
                self._samples += 64
                line = {
                    "time_s": self.begin + self.step,
                    "generation": generation,
                    "epoch": 0,
                    "step": self.step,
                    "samples": self._samples,
                    "loss": loss / self.step,
                    "samples_per_s": 64.0,
                    "staleness": 0.75,
                    "push_bytes_per_s": 1.5e6,
                    "pull_bytes_per_s": 2.5e6,
                }
                file.write(json.dumps(line) + "\n")

    def evaluation(self, generation: int = 0, **metrics: float) -> None:
        """Add the metrics of an evaluation at the present step."""
        line = {
            "time_s": self.begin + self.step,
            "generation": generation,
            "epoch": 0,
            "step": self.step,
            "test": metrics,
        }
        with self.run.metrics_file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def history(self, *lines: HistoryLine) -> None:
        """Add lines to history.jsonl."""
        with self.run.history_file.open("ab") as file:
            for line in lines:
                file.write(msgspec.json.encode(line) + b"\n")

    def head(self) -> AttemptHead:
        """Return the head of an attempt of two workers and two servers."""
        return AttemptHead(
            time_s=self.begin,
            generation=0,
            roles=ROLES,
            hosts=("node",) * 5,
            tables=("weight", "factor"),
            transports=(("shm", "rma"), ("shm", "shm")),
            placement=((4096, 2048), (-1, -1)),
        )

    def counts(self, n: int) -> Counts:
        """Return counts after `n` intervals of 2 s, all of them in proportion to `n`."""
        zero = (0, 0, 0)
        return Counts(
            time_s=self.begin + 2.0 * n,
            generation=0,
            step=n,
            clock=(0, 0, 0, n, n),
            samples=(*zero, 64 * n, 64 * n),
            records=(0, 1000 * n, 3000 * n, 10 * n, 10 * n),
            pushed=(*zero, 1_000_000 * n, 2_000_000 * n),
            pulled=(*zero, 500_000 * n, 500_000 * n),
            push_saved=(*zero, 1_000_000 * n, 2_000_000 * n),
            pull_saved=(0,) * 5,
            judged=(*zero, 10 * n, 10 * n),
            staleness=(*zero, 5 * n, 40 * n),
            queue=(0, 7, 9, 0, 0),
            memory=(0, 30_000_000, 20_000_000, 0, 0),
            heap=(0, 11_000_000, 12_000_000, 40_000_000, 50_000_000),
            elapsed=(*zero, 2.0 * n, 2.0 * n),
            wait=(*zero, 0.2 * n, 0.4 * n),
            push=(*zero, 0.1 * n, 0.1 * n),
            pull=(*zero, 0.3 * n, 0.3 * n),
            snapshot=(*zero, 0.0, 0.2 * n),
            updates={0: 20 * n, 1: 50 * n},
            rows={1: ((2**62 + 1, 1500.0, 500.0, 0.25),)},
            shm_used={"node": 2_000_000_000},
            shm_total={"node": 8_000_000_000},
            disk_free=600_000_000_000,
            disk_total=1_000_000_000_000,
        )

    def checkpoint(self, second: float, step: int) -> Checkpointed:
        """Return the line of a checkpoint."""
        return Checkpointed(
            time_s=self.begin + second, generation=0, step=step, name=f"step-{step:012}"
        )

    def ranks(self) -> None:
        """Write ranks.json with the bytes of each link."""
        rows = []
        for rank, role in enumerate(ROLES):
            links = {3: ((700_000, 100_000), (300_000, 400_000)), 4: ((1_500_000, 1), (500_000, 2))}
            rows.append(
                RankRow(
                    rank=rank,
                    role=role,
                    host="node",
                    pid=9,
                    state="serving" if "server" in role else "computing",
                    clock=40 + rank,
                    samples_per_s=32.0,
                    records_per_s=1500.0,
                    queue=rank,
                    links=links.get(rank, ()),
                    heard_s=self.begin + 59.0,
                )
            )
        hot = (
            RowLoad(
                table="factor", key=2**62 + 1, pulls_per_s=1500.0, pushes_per_s=500.0, share=0.25
            ),
            RowLoad(table="factor", key=-3, pulls_per_s=80.0, share=0.01),
        )
        content = Ranks(
            generation=0, time_s=self.begin + 60.0, ranks=tuple(rows), load=Load(rows=hot)
        )
        replace_json(self.run.ranks_file, content)

    def event(self, event: str, second: float, generation: int = 0, **more: Any) -> None:
        """Add an event."""
        self.run.note(Event(time_s=self.begin + second, generation=generation, event=event, **more))

    def log(self, rank: int, text: str, attempt: int = 0) -> Path:
        """Write the log of a rank."""
        folder = self.run.attempt(attempt)
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{rank}.log"
        path.write_text(text)
        return path


def full_run(parent: Path, name: str = "job", loss: float = 1.0, begin: float = BEGIN) -> RunFiles:
    """Return a run that has numbers in every panel and is done."""
    files = RunFiles(parent, name, begin)
    files.config(train={"batch_size": 32, "lr": loss}, table={"consistency": "ssp"})
    files.event("began", 1.0)
    files.event("failed", 20.0, step=9, cause="worker 1 was killed by SIGKILL")
    files.event("began", 22.0, generation=1, step=8, source="memory")
    files.metrics(20, loss)
    files.evaluation(1, accuracy=0.875, log_loss=0.25)
    files.metrics(20, loss)
    files.evaluation(1, accuracy=0.9375, log_loss=0.125)
    files.history(files.head(), *(files.counts(n) for n in range(1, 5)), files.checkpoint(7.0, 4))
    files.history(*(files.counts(n) for n in range(5, 11)))
    files.ranks()
    files.log(3, "the first line\nthe last line of worker 0\n")
    files.log(4, "worker 1 says something\n")
    files.finish()
    return files


def members(files: RunFiles) -> None:
    """Add two programs of [producers], with logs."""
    cause = "member 1 of the producers was killed by SIGKILL on node"
    rows = (
        MemberRecord(
            member=0, state="ended", starts=1, produced=(1000, 200), values={"speed": "0.5"}
        ),
        MemberRecord(
            member=1,
            state="failed",
            starts=3,
            failures=3,
            produced=(7, 0),
            values={"speed": "2.0"},
            cause=f"{cause}; log: {member_log(files.run, 1)}",
        ),
    )
    record = ProducersRecord(host="node", pid=9, time_s=files.begin, members=rows)
    replace_json(producers_file(files.run), record)
    for number, samples in enumerate((1200, 7)):
        log = member_log(files.run, number)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"--- start 1\npushed {samples}\n")
