"""Jobs that cannot be repeated from their record are refused at their start, with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from harness import Rig, dense, rows

import mpips
from mpips.config.monitoring import MonitorConfig
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.errors import ConfigError, DifferenceError
from mpips.model.codec import Int8
from mpips.model.consistency import ASP, BSP, SSP, LocalSGD, Reject, Switch
from mpips.mpi.one_rank import OneRank
from mpips.record.files import NO_STOP, RecordedTable, ReplayOrder
from mpips.recovery.saving import FixedPlan, Saving
from mpips.rundir.directory import RunFolder
from mpips.session.job import Job
from mpips.session.recording import ReplayPlan, _compare, _recorded, refuse

TABLES = [dense(), rows(consistency=SSP(3, Reject(5)))]


def parts(tables: Any = TABLES, **changes: Any) -> Any:
    """The parts of a job, as far as they are read."""
    found: dict[str, Any] = {
        "links": SimpleNamespace(transports={"shm": 4}),
        "has_partners": False,
        "groups": (),
        "declared": tables,
        "tables": list(tables),
        **changes,
    }
    return SimpleNamespace(**found)


REFUSED = {
    "transport rma, shm: only jobs": {"links": SimpleNamespace(transports={"shm": 2, "rma": 2})},
    "redundancy.partner = true": {"has_partners": True},
    "groups of workers": {"groups": ((0, 1),)},
    "replicated tables": {"tables": [dense(placement="replicated", consistency=BSP())]},
    "LocalSGD and DiLoCo": {"tables": [dense(consistency=LocalSGD(4))]},
    "table 'w' has backup workers": {"tables": [dense(consistency=BSP(backup=1))]},
    "table 'v' has backup workers": {"tables": [dense(name="v", consistency=BSP(backup="auto"))]},
    "table 'w' has compression": {"tables": [dense(compression=Int8())]},
    "table 'e' has pull_compression": {"tables": [rows(16, pull_compression=Int8())]},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_job_that_cannot_be_repeated_is_refused_with_the_reason(why):
    job = parts(**REFUSED[why])
    with pytest.raises(ConfigError, match=r"monitor\.record = true: ") as error:
        refuse(job, is_replay=False)
    assert why in str(error.value)
    assert str(error.value).endswith("or set monitor.record = false")
    with pytest.raises(DifferenceError, match="differs from the recorded one"):
        refuse(job, is_replay=True)


def test_jobs_under_asp_ssp_and_bsp_on_one_node_are_accepted():
    refuse(parts([*TABLES, dense(name="b", consistency=BSP())]), is_replay=False)


@pytest.mark.parametrize("at", [5, "plateau", "uneven"])
def test_jobs_that_switch_are_accepted(at):
    refuse(parts([dense(consistency=Switch(BSP(), ASP(), at))]), is_replay=False)


def test_a_job_in_one_process_is_not_recorded():
    with pytest.raises(ConfigError, match=r"monitor\.record = true: needs several ranks"):
        Job(OneRank(), TABLES, SessionOptions(), monitor=MonitorConfig(record=True))


def test_a_record_needs_a_run_directory():
    with pytest.raises(ConfigError, match=r"monitor\.record = true: needs a run directory"):
        mpips.run(lambda worker: None, TABLES, monitor={"record": True})


def test_the_record_names_what_the_history_check_needs_of_a_table():
    assert [_recorded(table) for table in TABLES] == [
        RecordedTable("w", "dense", "asp"),
        RecordedTable("e", "embedding", "ssp", bound=3, max_staleness=5),
    ]


@pytest.mark.parametrize("read", ["view", "views", "n_updates", "optimizer_state"])
def test_reads_that_no_record_has_are_refused_under_asp_and_not_under_bsp(read):
    tables = [dense(consistency=ASP()), dense(name="b", consistency=BSP())]
    worker = Rig(*tables).worker()
    worker._connection.record = object()
    arguments = (0,) if read == "optimizer_state" else ()
    if arguments:
        tables = [
            dense(optimizer=mpips.Momentum(0.1)),
            dense(name="b", optimizer=mpips.Momentum(0.1), consistency=BSP()),
        ]
        worker = Rig(*tables).worker()
        worker._connection.record = object()
    with pytest.raises(ConfigError, match=r"a job with monitor\.record = true cannot repeat it"):
        getattr(worker.table("w"), read)(*arguments)
    assert worker.table("w").ready_views() is None
    getattr(worker.table("b"), read)(*arguments)


def head_of(job: Any, **changes: Any) -> Any:
    from msgspec.structs import replace

    from mpips.session.recording import _head

    return replace(_head(job, "server", 0, "sum"), **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_workers": 9}, "workers: 2, recorded 9"),
        ({"n_servers": 9}, "servers: 1, recorded 9"),
        ({"tables": ()}, "tables: "),
        ({"fingerprint": "x"}, "checksum of tables and options: sum, recorded x"),
        ({"begin": (3, 4)}, r"clocks of the workers at its start: (0, 0), recorded (3, 4)"),
    ],
)
def test_a_job_of_another_shape_is_named(changes, named):
    job = parts(
        cluster=SimpleNamespace(assignment=SimpleNamespace(servers=[0], workers=[1, 2])),
        saving=Saving(None, "id"),
        run=None,
    )
    _compare(job, head_of(job), "sum")
    with pytest.raises(DifferenceError, match="differs from the recorded one in its ") as error:
        _compare(job, head_of(job, **changes), "sum")
    assert named in str(error.value)


# What a replay saves, and from what it begins.


def chosen(tmp_path, saving, **order):
    run = RunFolder(tmp_path)
    plan = ReplayPlan(FixedPlan(saving), ReplayOrder(record="r", **order), run)
    return plan.choose()


def saves(tmp_path, **more):
    return Saving(tmp_path / "checkpoints", "id", triggers=Triggers(every_steps=3), **more)


def test_a_replay_of_a_whole_run_saves_nothing(tmp_path):
    found = chosen(tmp_path, saves(tmp_path))
    assert (found.folder, found.triggers) == (None, Triggers())
    # Without a checkpoint it does not matter where the program would have them.
    assert chosen(tmp_path, Saving(tmp_path / "elsewhere", "id")).folder is None


def test_a_launch_as_far_as_a_checkpoint_saves_it_and_has_no_triggers(tmp_path):
    found = chosen(tmp_path, saves(tmp_path), stops=(3, NO_STOP))
    assert (found.folder, found.triggers) == (tmp_path / "checkpoints", Triggers())


def test_a_launch_that_begins_or_ends_with_a_checkpoint_has_them_in_its_run(tmp_path):
    for order in ({"stops": (3,)}, {"begins": False}):
        saving = Saving(tmp_path / "elsewhere", "id", start=tmp_path / "c")
        if "stops" in order:
            saving = Saving(tmp_path / "elsewhere", "id")
        with pytest.raises(DifferenceError, match="elsewhere, not in the directory of its run"):
            chosen(tmp_path, saving, **order)


def test_a_launch_that_begins_otherwise_than_the_attempt_is_refused(tmp_path):
    with pytest.raises(DifferenceError, match="the recorded run began anew"):
        chosen(tmp_path, saves(tmp_path, start=tmp_path / "step-3"))
    with pytest.raises(DifferenceError, match="the recorded attempt began from a checkpoint"):
        chosen(tmp_path, saves(tmp_path), begins=False)
