"""The metrics of runs for Prometheus: names, units, labels and values, from run directories."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from prometheus_client.parser import text_string_to_metric_families

from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.exposition import MOST_RANKS, exposition, run_metrics
from mpips.rundir.files import (
    Event,
    Finished,
    Lease,
    LinkLoad,
    Load,
    Progress,
    RankRow,
    Ranks,
    RowLoad,
    Status,
    TableLoad,
)
from mpips.rundir.view import STATES, RunView, view_of

Key = tuple[str, tuple[tuple[str, str], ...]]
ROWS = (
    RankRow(rank=0, role="scheduler", host="a", pid=1, heard_s=90.5),
    RankRow(
        rank=1,
        role="server 0",
        host="a",
        pid=2,
        records=70,
        pushed_bytes=4096,
        pulled_bytes=512,
        memory_bytes=1 << 20,
        queue=3,
        staleness_sum=14,
    ),
    RankRow(
        rank=2, role="worker 0", host="a", pid=3, clock=7, samples=64, pushed_bytes=1000, queue=2
    ),
    RankRow(rank=3, role="worker 1", host="b", pid=4, clock=9, samples=32, pushed_bytes=3000),
)
LOAD = Load(
    tables=(TableLoad(name='odd "name"\n', updates=12, updates_per_s=3.0),),
    links=(LinkLoad(worker_host="a", server_host="b", pushed_bytes=10, pulled_bytes=20),),
    staleness=(5, 4, 3, *[0] * 61, 2),
    bound=3,
)
RANKS = Ranks(generation=2, time_s=100.0, ranks=ROWS, load=LOAD)
PROGRESS = Progress(
    epoch=3, step=50, samples=96, updates=16, loss=0.25, n_epochs=4, share=0.5, left_s=8.0
)
STATUS = Status(
    state="running",
    generation=2,
    time_s=100.0,
    progress=PROGRESS,
    checkpoints={"written": 3, "failed": 1},
    test={"accuracy": 0.75, "auc": None},
)
VIEW = RunView(name="one", state="running", status=STATUS, ranks=RANKS, failures=1)


def values(text: bytes) -> dict[Key, float]:
    """All samples of an exposition by name and labels, read by Prometheus' own client."""
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def of(found: dict[Key, float], name: str, **labels: str) -> float:
    return found[name, tuple(sorted({"run": "one", **labels}.items()))]


def test_the_hottest_row_of_a_table_has_no_label_of_its_key() -> None:
    rows = [RowLoad(table="e", key=k, pulls_per_s=1.0, share=1 / k) for k in range(2, 10)]
    rows.append(RowLoad(table="f", key=1, share=0.75))
    ranks = msgspec.structs.replace(RANKS, load=Load(rows=tuple(rows)))
    found = values(exposition([msgspec.structs.replace(VIEW, ranks=ranks)]))
    name = "mpips_table_hottest_row_ratio"
    assert {key for key in found if key[0] == name} == {
        (name, (("run", "one"), ("table", "e"))),
        (name, (("run", "one"), ("table", "f"))),
    }
    assert of(found, name, table="e") == 0.5


def test_labels_that_utf8_cannot_encode_are_escaped() -> None:
    link = LinkLoad(worker_host="w\udcff", server_host="ü", pushed_bytes=10, pulled_bytes=0)
    load = Load(tables=(TableLoad(name="t\udc80", updates=12),), links=(link,))
    ranks = msgspec.structs.replace(RANKS, load=load)
    found = values(exposition([msgspec.structs.replace(VIEW, ranks=ranks)]))
    assert of(found, "mpips_table_updates_total", table="t\\udc80") == 12
    hosts = {"worker_host": "w\\udcff", "server_host": "ü"}
    assert of(found, "mpips_link_pushed_bytes_total", **hosts) == 10


def test_every_number_of_a_run_has_its_name_and_unit() -> None:
    found = values(exposition([VIEW]))
    assert [of(found, "mpips_run_state", state=s) for s in STATES] == [
        s == "running" for s in STATES
    ]
    expected = {
        "run_updated_timestamp_seconds": 100.0,
        "run_step": 50,
        "run_epoch": 3,
        "run_epochs": 4,
        "run_done_ratio": 0.5,
        "run_remaining_seconds": 8.0,
        "run_loss": 0.25,
        "run_attempt": 2,
        "run_ranks": 4,
        "run_failures_total": 1,
        "run_samples_total": 96,
        "run_clocks_total": 16,
        "run_pushed_bytes_total": 4000,
        "run_pulled_bytes_total": 0,
    }
    assert {name: of(found, f"mpips_{name}") for name in expected} == expected
    assert of(found, "mpips_run_checkpoints_total", result="written") == 3
    assert of(found, "mpips_run_checkpoints_total", result="failed") == 1
    assert of(found, "mpips_run_test_score", metric="accuracy") == 0.75
    # A metric that is not a number has no series.
    assert sum(name == "mpips_run_test_score" for name, _ in found) == 1


def test_ranks_tables_and_links_have_series_with_their_numbers() -> None:
    found = values(exposition([VIEW]))
    assert [of(found, "mpips_worker_clock", worker=w) for w in "01"] == [7, 9]
    assert [of(found, "mpips_worker_samples_total", worker=w) for w in "01"] == [64, 32]
    assert of(found, "mpips_worker_queue_records", worker="0") == 2
    assert of(found, "mpips_server_records_total", server="0") == 70
    assert of(found, "mpips_server_received_bytes_total", server="0") == 4096
    assert of(found, "mpips_server_sent_bytes_total", server="0") == 512
    assert of(found, "mpips_server_memory_bytes", server="0") == 1 << 20
    assert of(found, "mpips_table_updates_total", table='odd "name"\n') == 12
    assert of(found, "mpips_link_pushed_bytes_total", worker_host="a", server_host="b") == 10
    assert of(found, "mpips_link_pulled_bytes_total", worker_host="a", server_host="b") == 20
    assert of(found, "mpips_rank_heartbeat_timestamp_seconds", rank="0") == 90.5
    assert ("mpips_rank_heartbeat_timestamp_seconds", (("rank", "1"), ("run", "one"))) not in found


def test_the_bound_of_ssp_is_a_gauge_of_runs_that_have_one() -> None:
    found = values(exposition([VIEW]))
    assert of(found, "mpips_ssp_bound_clocks") == 3
    ranks = msgspec.structs.replace(RANKS, load=msgspec.structs.replace(LOAD, bound=None))
    found = values(exposition([msgspec.structs.replace(VIEW, ranks=ranks)]))
    assert "mpips_ssp_bound_clocks" not in {name for name, _ in found}


def test_backup_workers_are_a_gauge_of_runs_whose_number_changes() -> None:
    for backup in (0, 2):
        ranks = msgspec.structs.replace(RANKS, load=msgspec.structs.replace(LOAD, backup=backup))
        found = values(exposition([msgspec.structs.replace(VIEW, ranks=ranks)]))
        assert of(found, "mpips_backup_workers") == backup
    assert "mpips_backup_workers" not in {name for name, _ in values(exposition([VIEW]))}


def test_the_switch_is_a_gauge_of_runs_that_have_one() -> None:
    for switched, expected in ((False, 0), (True, 1)):
        ranks = msgspec.structs.replace(
            RANKS, load=msgspec.structs.replace(LOAD, switched=switched)
        )
        found = values(exposition([msgspec.structs.replace(VIEW, ranks=ranks)]))
        assert of(found, "mpips_switched") == expected
    assert "mpips_switched" not in {name for name, _ in values(exposition([VIEW]))}


def test_staleness_is_a_histogram_whose_last_bucket_has_all() -> None:
    found = values(exposition([VIEW]))
    bounds = ("0.0", "1.0", "2.0", "4.0", "8.0", "16.0", "32.0", "63.0", "+Inf")
    counts = [of(found, "mpips_update_staleness_bucket", le=bound) for bound in bounds]
    assert counts == [5, 9, 12, 12, 12, 12, 12, 12, 14]
    assert of(found, "mpips_update_staleness_count") == 14
    assert of(found, "mpips_update_staleness_sum") == 14


def test_one_process_with_all_roles_counts_nothing_twice() -> None:
    row = msgspec.structs.replace(
        ROWS[2], rank=0, role="scheduler + server 0 + worker 0", memory_bytes=5
    )
    found = values(
        exposition(
            [
                RunView(
                    name="one",
                    state="running",
                    status=STATUS,
                    ranks=Ranks(generation=2, time_s=1, ranks=(row,)),
                )
            ]
        )
    )
    assert of(found, "mpips_worker_pushed_bytes_total", worker="0") == 1000
    assert of(found, "mpips_server_memory_bytes", server="0") == 5
    assert not any(name == "mpips_server_received_bytes_total" for name, _ in found)


def test_a_large_job_has_sums_but_no_series_for_single_ranks() -> None:
    def shown(n: int) -> dict[Key, float]:
        rows = tuple(
            RankRow(rank=r, role=f"worker {r}", host="a", pid=r, pushed_bytes=2) for r in range(n)
        )
        ranks = Ranks(generation=2, time_s=1, ranks=rows)
        return values(
            exposition([RunView(name="one", state="running", status=STATUS, ranks=ranks)])
        )

    most, more = shown(MOST_RANKS), shown(MOST_RANKS + 1)
    assert sum(name == "mpips_worker_clock" for name, _ in most) == MOST_RANKS
    assert of(more, "mpips_run_pushed_bytes_total") == 2 * (MOST_RANKS + 1)
    assert of(more, "mpips_run_ranks") == MOST_RANKS + 1
    assert not any("worker" in dict(labels) for _, labels in more)


def test_promtool_finds_nothing_to_criticise() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition([VIEW]), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def made(
    parent: Path, name: str, status: Status | None = STATUS, released: bool = False
) -> RunFolder:
    run = RunFolder.create(parent, name)
    replace_json(
        run.lease_file, Lease(generation=2, host="h", pid=1, time_s=99.0, released=released)
    )
    if status is not None:
        run.write_status(status)
        replace_json(run.ranks_file, RANKS)
    return run


def test_run_directories_give_the_text_of_their_scheduler(tmp_path: Path) -> None:
    runs = [made(tmp_path, "a"), made(tmp_path, "b"), made(tmp_path, "not started", None)]
    runs[0].note(Event(time_s=1.0, generation=0, event="failed"))
    runs[0].note(Event(time_s=2.0, generation=1, event="began"))
    views = [
        RunView(name=run.path.name, state="running", status=STATUS, ranks=RANKS) for run in runs[:2]
    ]
    views[0] = msgspec.structs.replace(views[0], failures=1)
    views.append(RunView(name=runs[2].path.name, state="not started"))
    assert run_metrics(runs, 100.0) == exposition(views)
    # Each name has one HELP line for all runs.
    assert run_metrics(runs).count(b"# HELP mpips_run_step ") == 1


def test_a_finished_run_is_done_and_ranks_of_an_earlier_attempt_are_not_shown(
    tmp_path: Path,
) -> None:
    run = made(tmp_path, "a", released=True)
    replace_json(run.finished_file, Finished(generation=2, time_s=1.0, step=50))
    replace_json(run.ranks_file, msgspec.structs.replace(RANKS, generation=1))
    view = view_of(run)
    assert (view.state, view.ranks) == ("done", None)
