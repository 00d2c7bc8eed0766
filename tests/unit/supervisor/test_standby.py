"""Standby launches of one rank, and what prevents or ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import processes
import pytest
from supervisor_rig import running

from mpips.config.schema import load_config
from mpips.mpi import started
from mpips.mpi.started import Started
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import RankPlace, Status
from mpips.supervisor import standby, standby_rank
from mpips.supervisor.hosts import Host, HostPool, Layout
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.lease import LeaseHolder
from mpips.supervisor.plan import SupervisionPlan, make_run
from mpips.supervisor.standby import Standbys
from mpips.supervisor.stopping import Signals
from mpips.supervisor.supervise import Supervisor

NOTHING = Started(modules={}, environment={})
LAYOUT = Layout(1, (), ())


def plan_of(folder: Path, script: str, **run: object) -> SupervisionPlan:
    """A plan for a script on one rank, without a launcher."""
    path = folder / "script.py"
    path.write_text(script)
    options = {"script": str(path), "standby_after_s": 0.0, **run}
    config = load_config(None, [(f"run.{key}", value) for key, value in options.items()])
    made = make_run(config, folder, "job")
    return SupervisionPlan(
        made, config, HostPool([], 1, 0, 1, 0), Launcher("none", "openmpi", ""), 3
    )


def at_work() -> Status:
    """The status of an attempt at work, whose only rank is this process."""
    here = os.uname().nodename
    place = RankPlace(rank=0, role="worker 0", host=here, pid=os.getpid())
    return Status(state="running", generation=0, time_s=0.0, ranks=(place,))


class Kept:
    """Standby launches of a plan, with a record of the running attempt."""

    def __init__(self, plan: SupervisionPlan, record: Started = NOTHING) -> None:
        self.plan = plan
        self.said: list[str] = []
        self.may_restart = True
        self.standbys = Standbys(plan, lambda: self.may_restart, self.said.append, False)
        plan.run.attempt(0).mkdir(parents=True)
        replace_json(started.started_file(plan.run, 0, 0), record)
        self.standbys.begin(0, LAYOUT)

    def waits(self) -> bool:
        """Whether a launch is there whose ranks wait, after a while."""
        self.standbys.tick(at_work())
        return processes.until((self.plan.run.path / "standby-1").exists, 20.0)

    def keep(self, layout: Layout = LAYOUT, generation: int = 1) -> bool:
        return self.standbys.keep(generation, layout, lambda: False)


SCRIPT = """
import os, sys
import pathlib
here = pathlib.Path(__file__).parent
(here / "out").write_text(repr([sys.argv, __name__, sys.path[0] == str(here), sys.stdin.read(),
                                open("/proc/self/oom_score_adj").read().strip()]))
os._exit(7)
"""


def test_a_released_launch_runs_the_program_as_any_other_attempt(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SCRIPT, script_args=("--x", "1"))
    kept = Kept(plan, Started(modules={"fractions": fractions_file()}, environment={}))
    assert kept.waits()
    assert not (tmp_path / "out").exists()
    assert kept.keep()
    process = kept.standbys.release()
    assert process is not None
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == 7
    before = Path("/proc/self/oom_score_adj").read_text().strip()
    found = eval((tmp_path / "out").read_text())
    assert found == [[str(tmp_path / "script.py"), "--x", "1"], "__main__", True, "", before]
    assert not list(plan.run.path.glob("standby*"))


def test_a_launch_that_begins_early_is_released_once_and_its_text_is_that_of_the_attempt(
    tmp_path: Path,
) -> None:
    script = "import os, sys; sys.stderr.write(f'read {sys.stdin.read()!r}'); sys.stderr.flush(); os._exit(7)"
    kept = Kept(plan_of(tmp_path, script))
    kept.standbys.tick(at_work())
    assert not kept.standbys.is_ready(1, LAYOUT)
    assert kept.waits()
    assert kept.standbys.is_ready(1, LAYOUT)
    assert not kept.standbys.is_ready(2, LAYOUT)
    assert not kept.standbys.is_ready(1, Layout(2, (), ()))
    kept.standbys.begin_early()
    assert kept.standbys.has_begun
    assert kept.keep()
    inner = kept.standbys._standby
    assert inner is not None
    # It ends by itself, before it is released.
    assert processes.until(inner.has_ended, 20.0)
    inner.drain()
    process = kept.standbys.release()
    assert process is inner._process
    assert process.wait(20) == 7
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b"read ''"


@pytest.mark.parametrize("again", [False, True])
def test_a_launch_that_has_begun_and_ended_leaves_no_start_with_its_number(
    tmp_path: Path, again: bool
) -> None:
    kept = Kept(plan_of(tmp_path, "import os; os._exit(7)"))
    assert kept.waits()
    kept.standbys.begin_early()
    inner = kept.standbys._standby
    assert inner is not None
    assert processes.until(inner.has_ended, 20.0)
    if again:
        # Another one with its number waits.
        kept.standbys.start(kept.plan, 0, LAYOUT, NOTHING)
        assert processes.until((kept.plan.run.path / "standby-1").exists, 20.0)
        assert not kept.standbys.is_ready(1, LAYOUT)
    # Also when the launch itself is forgotten.
    assert not kept.keep()
    assert not kept.standbys.waits
    assert not kept.keep()
    assert kept.keep(generation=2)


def fractions_file() -> str:
    import fractions

    return fractions.__file__


def test_a_launch_is_killed_first_if_memory_runs_out(tmp_path: Path) -> None:
    kept = Kept(plan_of(tmp_path, SCRIPT))
    assert kept.waits()
    [pid] = running(kept.plan.run)
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    kept.standbys.end()


@pytest.mark.parametrize(
    ("layout", "generation"),
    [(Layout(2, (), ()), 1), (Layout(1, (Host("other", 1),), ()), 1), (LAYOUT, 2)],
)
def test_a_launch_for_other_hosts_is_ended(tmp_path: Path, layout: Layout, generation: int) -> None:
    kept = Kept(plan_of(tmp_path, SCRIPT))
    assert kept.waits()
    assert not kept.keep(layout, generation)
    assert not running(kept.plan.run)
    assert kept.keep(layout, generation)
    assert kept.standbys.release() is None
    assert not list(kept.plan.run.path.glob("standby*"))


def test_a_launch_that_has_died_is_not_used(tmp_path: Path) -> None:
    kept = Kept(plan_of(tmp_path, SCRIPT))
    assert kept.waits()
    os.kill(*running(kept.plan.run), signal.SIGKILL)
    inner = kept.standbys._standby
    assert inner is not None
    assert processes.until(inner.has_ended)
    assert not kept.keep()
    assert kept.standbys.release() is None


def test_a_launch_whose_rank_dies_at_its_release_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(plan_of(tmp_path, SCRIPT))
    assert kept.waits()
    [pid] = running(kept.plan.run)
    assert kept.keep()
    os.kill(pid, signal.SIGKILL)
    inner = kept.standbys._standby
    assert inner is not None
    assert processes.until(inner.has_ended)
    assert kept.standbys.release() is None


def test_the_end_of_the_supervisor_ends_a_launch(tmp_path: Path) -> None:
    # The kernel closes the pipe.
    kept = Kept(plan_of(tmp_path, SCRIPT))
    assert kept.waits()
    inner = kept.standbys._standby
    assert inner is not None
    assert inner._process.stdin is not None
    inner._process.stdin.close()
    assert inner._process.wait(20) == 0
    assert not (tmp_path / "out").exists()
    kept.standbys.end()


def test_no_launch_without_a_restart_a_record_memory_or_the_wish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_of(prepare: Callable[[Kept], None], **run: object) -> None:
        kept = Kept(plan_of(tmp_path, SCRIPT, **run))
        prepare(kept)
        kept.standbys.tick(at_work())
        assert kept.standbys._standby is None

    def without_record(kept: Kept) -> None:
        started.started_file(kept.plan.run, 0, 0).unlink()

    def without_restart(kept: Kept) -> None:
        kept.may_restart = False

    none_of(without_record)
    none_of(without_restart)
    none_of(lambda kept: None, standby=False)
    none_of(lambda kept: None, standby_after_s=1e6)
    monkeypatch.setattr(standby, "free_bytes", lambda: (5 << 30, 64 << 30))
    none_of(lambda kept: None)


def test_a_program_that_changes_its_environment_has_none_and_is_told(tmp_path: Path) -> None:
    record = Started(modules={}, environment={"OMP_NUM_THREADS": "7"})
    kept = Kept(plan_of(tmp_path, SCRIPT), record)
    kept.standbys.tick(at_work())
    assert processes.until(lambda: bool(kept.standbys.tick(at_work()) or kept.said), 20.0)
    assert kept.said == [
        "mpips run: a restart will start from nothing, since the program changes OMP_NUM_THREADS in its "
        "environment; set it before `mpips run`"
    ]
    assert kept.standbys._standby is None


def changed() -> dict[str, str | None]:
    return started.changes(started.environment_at_start())


def test_a_variable_of_a_library_is_set_while_modules_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Started(modules={}, environment=changed(), preset={"KERAS_BACKEND": "torch"})
    seen = []
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setattr(
        standby_rank, "_load", lambda record: seen.append(os.environ["KERAS_BACKEND"]) or ""
    )
    assert standby_rank.unfit(record, str(tmp_path)) == ""
    assert seen == ["torch"]
    # The program begins with the variables of any other attempt.
    assert "KERAS_BACKEND" not in os.environ


def test_a_variable_set_to_nothing_is_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = changed()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES_", "")
    record = Started(modules={}, environment=changed())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES_")
    assert "changes CUDA_VISIBLE_DEVICES_ in" in standby_rank.unfit(record, str(tmp_path))
    assert standby_rank.unfit(Started(modules={}, environment=before), str(tmp_path)) == ""


def test_another_file_of_a_module_is_refused(tmp_path: Path) -> None:
    base, folder = changed(), str(tmp_path)

    def unfit(modules: dict[str, str]) -> str:
        return standby_rank.unfit(Started(modules=modules, environment=base), folder)

    assert unfit({"json": "/elsewhere/json.py"}) == f"module json is now {json.__file__}"
    assert unfit({"no_such_module": "/x.py"}) == ""
    record = Started(modules={}, environment={}, own_mpi=True)
    assert "MPI by itself" in standby_rank.unfit(record, folder)


def test_modules_of_the_user_are_neither_loaded_nor_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users_own_too.py").write_text("raise SystemExit")
    record = Started(modules={"users_own_too": "/site-packages/x.py"}, environment=changed())
    assert standby_rank.unfit(record, str(tmp_path)) == ""
    assert sys.path[0] == str(tmp_path)
    # The program would get the loaded module where it imports its own.
    (tmp_path / "processes.py").write_text("")
    found = standby_rank.unfit(record, str(tmp_path))
    assert found == f"{tmp_path}/processes.py has the name of an installed module; rename it"


def test_the_record_has_installed_modules_and_changed_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "users_own.py").write_text("")
    import users_own  # noqa: F401

    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    (tmp_path / "elsewhere.py").write_text("")
    (site / "of_a_user_site.py").symlink_to(tmp_path / "elsewhere.py")
    import of_a_user_site  # noqa: F401

    for name in [name for name in os.environ if name.startswith(("HF_", "TF_CPP_", "TOKENIZERS_"))]:
        monkeypatch.delenv(name)
    values = {"MADE_UP": "1", "KERAS_BACKEND": "jax", "HF_TOKEN": "x", "WANDB_SERVICE": "2-7-tcp"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    run = RunFolder.create(tmp_path, "r")
    run.attempt(3).mkdir()
    supervised = Supervised(run, "r", "t", 3)
    started.note(supervised, "worker 1")
    assert started.joined(run, 3) is None
    started.note(supervised, "scheduler + server 0 + worker 0")
    record = started.joined(run, 3)
    assert record is not None
    # The value may be secret.
    assert record.environment["MADE_UP"] == "6b86b273ff34fce1"
    assert record.preset == {"KERAS_BACKEND": "jax"}
    assert not {"HF_TOKEN", "WANDB_SERVICE", "KERAS_BACKEND"} & record.environment.keys()
    assert record.modules["of_a_user_site"] == str(site / "of_a_user_site.py")
    assert record.modules["msgspec"] == msgspec.__file__
    assert record.modules["mpips.supervisor.standby"] == standby.__file__
    assert record.modules["sys"] == ""
    assert not record.modules.keys() & {"users_own", "made_by_hand", "__main__", "test_standby"}
    assert not record.own_mpi
    assert list(record.modules).index("mpips") < list(record.modules).index("mpips.supervisor")


def test_records_of_several_ranks_are_one(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "r")
    run.attempt(0).mkdir()
    records = [
        Started(
            modules={"a": "1", "b": "2"},
            environment={"X": "1"},
            preset={"HF_HOME": "/0", "KERAS_BACKEND": "jax"},
        ),
        Started(
            modules={"a": "1", "c": "3"}, environment={}, preset={"HF_HOME": "/1"}, own_mpi=True
        ),
    ]
    for rank, record in enumerate(records):
        replace_json(started.started_file(run, 0, rank), record)
    (run.attempt(0) / "started-9.json").write_text("{")
    joined = started.joined(run, 0)
    assert joined == Started(
        modules={"a": "1", "b": "2", "c": "3"},
        environment={"X": "1", "HF_HOME": ""},
        preset={"HF_HOME": "/1", "KERAS_BACKEND": "jax"},
        own_mpi=True,
    )


class Raising:
    @property
    def __spec__(self) -> object:
        raise ImportError


def test_a_record_that_cannot_be_made_harms_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(tmp_path, "r")
    run.attempt(0).mkdir()
    supervised = Supervised(run, "r", "t", 0)
    monkeypatch.setitem(sys.modules, "raising", Raising())  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setenv("TF_CPP_X", "\udcff")
        started.note(supervised, "worker 0")
        assert started.joined(run, 0) is None
    # A changed title covers the environment.
    title = tmp_path / "environ"
    title.write_bytes(b"\0" * 90)
    assert started.environment_at_start(str(title)) == {}
    with monkeypatch.context() as patch:
        patch.setattr(started, "environment_at_start", lambda: {})
        started.note(supervised, "worker 0")
        assert started.joined(run, 0) is None
    started.note(supervised, "worker 0")
    assert started.joined(run, 0) is not None


def test_a_launch_that_cannot_be_started_harms_no_attempt(tmp_path: Path) -> None:
    kept = Kept(plan_of(tmp_path, SCRIPT))
    kept.plan.run.info_file.write_text("{")
    kept.standbys.tick(at_work())
    assert not kept.standbys.waits


def other_process(run: RunFolder, generation: int) -> subprocess.Popen[bytes]:
    """A process of an attempt that another supervisor has started."""
    env = {**os.environ, "MPIPS_RUN_DIR": str(run.path), "MPIPS_GENERATION": str(generation)}
    return subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)


def test_the_attempt_of_the_supervisor_that_took_over_is_left_alone(tmp_path: Path) -> None:
    kept = Kept(plan_of(tmp_path, SCRIPT))
    assert kept.waits()
    with other_process(kept.plan.run, 1) as other:
        try:
            kept.standbys.end(lost=True)
            assert running(kept.plan.run) == [other.pid]
            assert standby.record_file(kept.plan.run).exists()
        finally:
            other.kill()


def test_what_a_killed_supervisor_left_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path, SCRIPT)
    found = []

    def attempts(self: Supervisor, lease: LeaseHolder) -> int:
        found.append(sorted(path.name for path in plan.run.path.glob("standby*")))
        self._prepare(lease)
        found.append(running(plan.run))
        return 0

    monkeypatch.setattr(Supervisor, "_attempts", attempts)
    for name in ("standby.json", "standby-hosts", "standby-7"):
        (plan.run.path / name).touch()
    with other_process(plan.run, 0) as other:
        try:
            with Signals() as signals:
                assert Supervisor(plan, signals, [].append).run() == 0
        finally:
            other.kill()
    assert found == [[], []]
