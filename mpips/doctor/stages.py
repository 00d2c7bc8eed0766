"""What ranks tell the process that started them: a line at the begin of each stage, and one at its end.

Lines go through mpirun's stdout, so they come from any host, and as far as a launch came: a rank that
hangs or dies is known by the last stage that it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MARK = "mpips-doctor: "
# What ranks do, in this order. "start" needs no MPI.
BASIC = ("start", "mpi", "facts", "folder", "fork", "session", "rma", "p2p", "hdf5")
NETWORK = ("start", "mpi", "rma")
FAILING = ("start", "mpi", "failing")


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """One line of one rank.

    Attributes:
        rank: Who.
        host: Where.
        stage: Which.
        done: False at its begin.
        error: Why it failed; empty if it did not.
        data: What it found.
    """

    rank: int
    host: str
    stage: str
    done: bool
    error: str = ""
    data: dict[str, Any] = {}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one launch.

    Attributes:
        n: Ranks that were asked for.
        stages: That they were to go through.
        words: Of all ranks, in the order in which they came.
        code: Exit code of mpirun; 124: it was ended, since it took too long.
        seconds: That it took.
        output: The end of what else was written.
        command: The command line of mpirun, without the program.
    """

    n: int
    stages: Sequence[str]
    words: list[Word]
    code: int
    seconds: float
    output: str
    command: str

    def of(self, stage: str) -> dict[int, Word]:
        """By rank, the last word on a stage."""
        return {word.rank: word for word in self.words if word.stage == stage}

    def last(self) -> dict[int, Word]:
        """By rank, its last word of all."""
        return {word.rank: word for word in self.words}

    def trouble(self, stage: str) -> str:
        """What went wrong in a stage, naming rank and host; empty if all ranks got through it."""
        words = self.of(stage)
        errors = [w for w in words.values() if w.error]
        if errors:
            first = min(errors, key=lambda w: w.rank)
            return f"rank {first.rank} on {first.host}: {first.error}"
        if len(words) == self.n and all(word.done for word in words.values()):
            return ""
        return self._unfinished(stage, words)

    def _unfinished(self, stage: str, words: dict[int, Word]) -> str:
        how = "hung" if self.code == 124 else f"ended (mpirun's code: {self.code})"
        stuck = [f"rank {w.rank} on {w.host}" for w in words.values() if not w.done]
        last = self.last()
        # Who waits for another in a later stage is not to blame.
        missing = [r for r in range(self.n) if r not in words]
        earlier = [
            f"rank {r} on {last[r].host} in stage {last[r].stage!r}" for r in missing if r in last
        ]
        silent = [f"rank {r}" for r in missing if r not in last]
        if silent:
            when = f" within {self.seconds:.0f} s" if self.code == 124 else ""
            return f"{', '.join(silent)} did not start{when}: {self.output}"
        if earlier:
            return f"not reached: {', '.join(earlier)} {how}"
        return f"{', '.join(sorted(stuck))} {how}: {self.output}"


def parse(lines: Iterable[str]) -> tuple[list[Word], list[str]]:
    """Words of ranks, and all other lines."""
    words, others = [], []
    for line in lines:
        before, mark, text = line.partition(MARK)
        if not mark:
            others.append(line)
            continue
        try:
            words.append(msgspec.json.decode(text, type=Word))
        except msgspec.DecodeError:
            others.append(before + text)
    return words, others
