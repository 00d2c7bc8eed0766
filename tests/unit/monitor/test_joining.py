"""`mpips join`: how long it lends its hosts, and which runs take none."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpips.cli import join
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.monitor import joining
from mpips.monitor.joining import Join, JoinError
from mpips.rundir.directory import STALE_S, RunFolder, replace_json
from mpips.rundir.files import Lease
from mpips.rundir.members import JoinFolder, JoinRecord, MemberRow, Members, members_file
from mpips.supervisor.plan import make_run


def run_with(folder: Path, released: bool, **keys: object) -> RunFolder:
    job = [("task", "mlp"), ("data.train", "digits")]
    config = load_config(None, [*job, *((k.replace("__", "."), v) for k, v in keys.items())])
    run = make_run(config, folder, "job")
    replace_json(
        run.lease_file, Lease(generation=0, host="h", pid=1, time_s=0.0, released=released)
    )
    return run


@pytest.mark.parametrize(
    ("released", "keys", "more", "text"),
    [
        (
            False,
            {},
            [],
            "is not elastic, so it takes no further hosts: start it with mpips run --elastic",
        ),
        (True, {"run__elastic": True}, [], r"is not running \(not started\)"),
        (False, {"run__elastic": True}, ["--time-limit", "9"], "the hosts are there for 9 s more"),
        (False, {"run__elastic": True}, ["--hosts", "a:x"], "'a:x' is not a host"),
        (False, {"run__elastic": True}, ["--hosts", "a:2", "--slots", "2"], "--hosts and --slots"),
    ],
)
def test_a_join_that_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, released: bool, keys: dict[str, Any], more: list[str], text: str
) -> None:
    run = run_with(tmp_path, released, **keys)
    with pytest.raises(ConfigError, match=text):
        join.command.main([str(run.path), *more], standalone_mode=False)
    assert not (run.path / "joins").exists()


def test_a_run_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run 'nothing' in"):
        join.command.main(["nothing", "--folder", str(tmp_path)], standalone_mode=False)


def test_the_time_limit_of_a_join_is_that_of_its_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1600"}
    assert join.limit_s(None, env) == 600.0
    assert join.limit_s(5.0, env) == 5.0
    assert join.limit_s(None, {"SLURM_JOB_END_TIME": "1600"}) is None
    assert join.limit_s(None, {"SLURM_JOB_ID": "7"}) is None


class Lent:
    """A join in this process, whose supervisor is the test. Times are those that the test sets."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, limit_s: float | None = None
    ) -> None:
        self.run, self.now, self.told = run_with(folder, False, run__elastic=True), 0.0, []
        patch.setattr(time, "monotonic", lambda: self.now)
        patch.setattr(joining, "running_s", lambda: self.now)
        patch.setattr(joining, "is_over", lambda since, limit_s: self.now - since >= limit_s)
        patch.setattr(time, "sleep", self.sleep)
        self.story = iter(())
        self.join = Join(self.run, [("b", 2)], "17", limit_s, 180.0, self.told.append)
        self.renewals = 0

    def sleep(self, seconds: float) -> None:
        """Let a fifth of a second pass; the story of the test goes on."""
        self.now += 0.2
        next(self.story)

    def lend(self, story: Iterator[None]) -> None:
        self.story = story
        self.join.lend()

    @property
    def record(self) -> JoinRecord:
        return JoinFolder(self.run).read()[self.join.name]

    def answer(self, state: Any, cause: str = "") -> None:
        row = MemberRow(source=self.join.name, hosts=("b",), slots=2, state=state, cause=cause)
        replace_json(members_file(self.run), Members(rows=(row,)))

    def live(self, released: bool = False) -> None:
        self.renewals += 1
        lease = Lease(
            generation=0, host="h", pid=1, time_s=0.0, released=released, renewals=self.renewals
        )
        replace_json(self.run.lease_file, lease)


def test_a_join_leaves_before_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = Lent(tmp_path, monkeypatch, 190.0)

    def story() -> Iterator[None]:
        first = lent.record
        assert (first.hosts, first.job, first.left_s, first.leaving) == (
            (("b", 2),),
            "17",
            190.0,
            False,
        )
        lent.answer("in use")
        while lent.now < 9.9:
            lent.live()
            yield
            assert not lent.record.leaving
        yield
        yield
        assert lent.record.leaving
        lent.answer("leaving")
        yield
        lent.answer("left")
        yield

    lent.lend(story())
    assert (
        lent.told[1]
        == f"mpips join: the time limit comes in 180 s: waiting until {lent.run.path.name} "
        "has left the hosts"
    )
    assert not (lent.run.path / "joins" / f"{lent.join.name}.json").exists()


def test_a_join_renews_often_until_it_was_seen_and_rarely_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = Lent(tmp_path, monkeypatch)

    def story() -> Iterator[None]:
        for _ in range(20):
            yield
        assert lent.record.renewals >= 9
        lent.answer("checking")
        for _ in range(50):
            lent.live()
            yield
        seen = lent.record.renewals
        for _ in range(50):
            lent.live()
            yield
        assert lent.record.renewals - seen == 5
        lent.live(released=True)
        yield

    lent.lend(story())
    assert lent.told[-1].endswith("has ended (not started)")


def test_a_join_ends_when_the_supervisor_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = Lent(tmp_path, monkeypatch)

    def story() -> Iterator[None]:
        while lent.now < 60.0:
            lent.live()
            yield
        while True:
            assert lent.now < 60.0 + STALE_S + 1.0
            yield

    with pytest.raises(JoinError, match="its supervisor has not renewed its lease for 20 s"):
        lent.lend(story())
    assert lent.now >= 60.0 + STALE_S - 0.5
    assert JoinFolder(lent.run).read() == {}


def test_a_second_signal_ends_a_join_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent = Lent(tmp_path, monkeypatch)

    def story() -> Iterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # launchers send several: they count as one
        yield
        for _ in range(20):
            assert lent.record.leaving
            yield
        os.kill(os.getpid(), signal.SIGINT)
        yield
        yield

    with pytest.raises(SystemExit) as ended:
        lent.lend(story())
    assert ended.value.code == 130
    assert JoinFolder(lent.run).read() == {}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
