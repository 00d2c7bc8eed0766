"""All that show a run agree on its state: top, ls, sweep, the page, its report, and /metrics."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from run_files import RunFiles

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from prometheus_client.parser import text_string_to_metric_families

from mpips.monitor.runs import summaries
from mpips.monitor.top import as_dict, look, page
from mpips.monitor.trials import SweepFile, Trial
from mpips.rundir.directory import STALE_S, Supervised, replace_json
from mpips.rundir.exposition import exposition, run_metrics
from mpips.rundir.files import Finished, RankPlace, StartPoint
from mpips.rundir.view import STATES, RunView, StateName, view_or_damage
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import RunRecorder
from mpips.supervisor.sweep import Sweep
from mpips.terminal.screen import state_style
from mpips.web.files import page_file
from mpips.web.run_data import RunData
from mpips.web.runs_data import RunsData


def stale(files: RunFiles, state: str) -> None:
    """Let the supervisor of a run die in this state."""
    files.state(state, released=False)
    lease = files.run.lease()
    assert lease is not None
    old = msgspec.structs.replace(lease, time_s=time.time() - STALE_S - 1)
    replace_json(files.run.lease_file, old)


def damage(files: RunFiles) -> None:
    files.state("running", released=False)
    files.run.status_file.write_text("{")


def begun(files: RunFiles) -> None:
    """Let the supervisor take the run, and write no status yet."""
    files.state("starting", released=False)
    files.run.status_file.unlink()


def lost_at_once(files: RunFiles) -> None:
    stale(files, "starting")
    files.run.status_file.unlink()


def lost_when_done(files: RunFiles) -> None:
    stale(files, "running")
    replace_json(files.run.finished_file, Finished(generation=0, time_s=files.begin, step=1))


def under(state: str) -> Callable[[RunFiles], None]:
    return lambda files: files.state(state, released=False)


def after(state: str) -> Callable[[RunFiles], None]:
    return lambda files: files.state(state)


CASES: list[tuple[StateName, bool, Callable[[RunFiles], None]]] = [
    ("not started", False, lambda files: None),
    ("not started", True, begun),
    ("starting", True, under("starting")),
    ("running", True, under("running")),
    ("restarting", True, under("restarting")),
    ("done", False, RunFiles.finish),
    ("done", False, lost_when_done),
    *((state, False, after(state)) for state in get_args(StateName)[5:9]),
    ("ended", False, after("running")),
    ("dead", False, lambda files: stale(files, "running")),
    ("dead", False, lambda files: stale(files, "restarting")),
    ("dead", False, lost_at_once),
    ("damaged", False, damage),
]


def test_every_state_has_a_case() -> None:
    assert {state for state, _, _ in CASES} == set(STATES)


def in_metrics(text: bytes) -> dict[str, str]:
    """Return the state of each run in /metrics."""
    samples = [
        sample
        for family in text_string_to_metric_families(text.decode())
        if family.name == "mpips_run_state"
        for sample in family.samples
    ]
    found = {s.labels["run"]: s.labels["state"] for s in samples if s.value == 1.0}
    assert len(samples) == len(STATES) * len(found)  # one state of each run
    return found


@pytest.mark.parametrize(("state", "alive", "make"), CASES)
def test_all_views_show_the_same_state(
    tmp_path: Path, state: StateName, alive: bool, make: Callable[[RunFiles], None]
) -> None:
    files = RunFiles(tmp_path)
    files.config()
    make(files)
    replace_json(files.run.result_file, {"epochs": 1, "seconds": 1.0})
    replace_json(tmp_path / "sweep.json", SweepFile("job", "", (Trial(files.path.name, ()),)))

    # Lists and tables.
    seen = view_or_damage(files.run)
    (listed,) = summaries(tmp_path)
    runs = RunsData(tmp_path)
    (row,) = runs.listed()
    sweep = runs.sweep()
    assert sweep is not None
    states = [seen.state, listed.state, row["state"], sweep["trials"][0]["state"]]
    states.append(Sweep.open(tmp_path).result(1).state)

    # The page of the run, its report, and /metrics.
    data = RunData(files.path)
    data.read_all()
    states.append(data._state["state"])
    states += in_metrics(RunsData(files.path).metrics()).values()
    assert states == [state] * 7
    assert [seen.alive, row["alive"], data._state["alive"]] == [alive] * 3
    assert len({seen.note, listed.note, row["note"], data._state["note"]}) == 1
    # In a folder of runs, those are shown that work or that somebody must look after.
    shown = {"job": state} if alive or state in ("dead", "damaged") else {}
    assert in_metrics(runs.metrics()) == shown

    # Views that refuse damaged files.
    if state != "damaged":
        view = look(files.run)
        assert (view.state, view.alive, as_dict(view)["state"]) == (state, alive, state)
        assert page(view, 80)[0].startswith(f"job  {state}")
        assert in_metrics(run_metrics([files.run])) == {"job": state}


def test_the_job_itself_tells_of_the_end_of_its_supervisor(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.state("running", released=False)
    seen: list[RunView] = []

    class Watching:
        address = ""
        name = ""

        def observe(self, view: RunView) -> None:
            seen.append(view)

    def begin() -> str:
        ranks = RankTable([RankPlace(rank=0, role="scheduler", host="here", pid=1)])
        run = Supervised(files.run, "job", files.run.info().token, 0)
        RunRecorder(run, ranks, StartPoint(), observer=Watching())
        return in_metrics(exposition(seen[-1:]))["job"]

    assert begin() == "running"
    stale(files, "running")
    assert begin() == look(files.run).state == "dead"


def test_terminal_and_page_have_a_colour_for_every_state_and_agree_on_the_bad_ones() -> None:
    def listed(file: str, name: str) -> set[str]:
        text = page_file(file)
        assert text is not None
        found = re.search(rf"\b{name} = (\[[^]]*\])", text)
        assert found is not None
        return set(json.loads(found[1]))

    bad = {state for state in STATES if state_style(state) == "red"}
    good, warn = listed("format.js", "GOOD"), listed("format.js", "WARN")
    assert listed("head.js", "OVER_BADLY") == bad == set(STATES) - good - warn
    assert good | warn < set(STATES)


@pytest.mark.parametrize("folds", [0, 2])
@pytest.mark.parametrize("metric", ["", "accuracy", "loss"])
def test_the_page_ranks_trials_as_the_sweep_does(tmp_path: Path, metric: str, folds: int) -> None:
    # Values after epochs 1 to 3. The trial with the best epoch has the worst end.
    losses = ((0.75, 0.25, 1.0), (0.75, 0.5, 0.5), (1.0, 0.75, 0.625), (1.25, 1.0, 0.75))
    trials = []
    for i, values in enumerate(losses):
        files = RunFiles(tmp_path, f"run-{i}")
        files.finish()
        rows = [
            {"epoch": n + 1, "loss": 2.0 / (n + i + 1), "log_loss": v, "accuracy": 1 - v / 2}
            for n, v in enumerate(values)
        ]
        result = {**rows[-1], "epochs": 3, "seconds": 1.0 + i, "evaluated_data": "validation"}
        replace_json(files.run.result_file, {**result, "history": rows})
        number = i // max(folds, 1)
        trials.append(Trial(files.path.name, (f"x={number}",), i % folds + 1 if folds else 0))
    replace_json(tmp_path / "sweep.json", SweepFile("job", metric, tuple(trials), folds=folds))

    runs, sweep = RunsData(tmp_path), Sweep.open(tmp_path)
    runs.listed()
    page = runs.sweep()
    assert page is not None
    assert page["metric"] == sweep.metric(sweep.results()) == (metric or "log_loss")
    found = [
        (row["number"], row["metrics"][page["metric"]], row["epoch"], row["spread"])
        for row in page["trials"]
    ]
    ranked = sweep.ranked()
    assert found == [
        (r.number, r.best.value, r.best.epoch, r.spread) for r in ranked if r.best is not None
    ]
    assert len(found) == len(losses) // max(folds, 1)
    if metric != "loss" and not folds:
        assert found[0][:3] == (1, 0.875 if metric else 0.25, 2)
        assert page["trials"][0]["metrics"]["accuracy"] == 0.875
