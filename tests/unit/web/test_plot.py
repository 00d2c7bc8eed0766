"""`mpips plot`: what is drawn of runs, in which form, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from run_files import RunFiles, full_run

from mpips.cli import plot as command
from mpips.errors import CapabilityError, ConfigError
from mpips.rundir.directory import replace_json
from mpips.web import plot
from mpips.web.plot import PlottedRun
from mpips.web.run_data import RunData


class Axes:
    """Records what is drawn: calls by name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("xaxis", "yaxis"):
            return self
        return lambda *given, **named: self.calls.append((name, given, named)) or self

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(given, named) for called, given, named in self.calls if called == name]


def drawn(found: list[plot.Draw]) -> list[Axes]:
    """Return what each chart draws."""
    made = [Axes() for _ in found]
    for draw, axes in zip(found, made, strict=True):
        draw(axes)
    return made


def run_of(files: RunFiles) -> PlottedRun:
    return PlottedRun(RunData(files.path))


def test_curves_have_the_numbers_of_the_files_over_every_axis(tmp_path: Path) -> None:
    run = run_of(full_run(tmp_path))
    loss = [1 / step for step in range(1, 41)]
    assert run.points("loss", "step") == list(zip(range(1, 41), loss, strict=True))
    assert run.points("loss", "samples")[:2] == [(64.0, 1.0), (128.0, 0.5)]
    # The first attempt began a second after the run was made.
    assert run.points("loss", "time")[:2] == [(0.0, 1.0), (1.0, 0.5)]
    # The evaluation at step 20 ended the first epoch.
    assert run.points("loss", "epoch")[9] == (0.5, 0.1)
    assert run.evaluations("accuracy", "step") == [(20.0, 0.875), (40.0, 0.9375)]
    assert run.best("accuracy", "step") == (40.0, 0.9375, 1)
    assert run.best("log_loss", "step") == (40.0, 0.125, 1)
    assert run.best("missing", "step") is None


def test_an_attempt_is_not_joined_and_what_it_repeats_is_left_out(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.event("began", 0.0)
    files.metrics(4)
    files.event("began", 10.0, generation=1, step=2)
    files.step, files._samples = 2, 0
    files.metrics(3, generation=1)
    files.state("failed")
    run = run_of(files)
    places = [x for x, _ in run.points("loss", "step")]
    assert places == [1, 2, 3, 3, 4, 5]
    assert [math.isnan(y) for _, y in run.points("loss", "step")].index(True) == 2
    assert sum(math.isnan(y) for _, y in run.points("loss", "time")) == 1
    assert len(run.points("loss", "time")) == 8


def test_the_loss_of_a_short_run_is_that_of_its_epochs(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.run.metrics_file.write_text("")
    files.evaluation(accuracy=0.5)
    rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25, "accuracy": 0.5}]
    files.run.result_file.write_text(json.dumps({"history": rows}))
    assert run_of(files).points("loss", "epoch") == [(1.0, 0.5), (2.0, 0.25)]


def test_the_best_evaluation_is_marked(tmp_path: Path) -> None:
    runs = [run_of(full_run(tmp_path))]
    accuracy, log_loss = drawn(plot._metrics(runs, "step"))
    (line, ring) = accuracy.of("plot")
    assert line[0][:2] == ([20.0, 40.0], [0.875, 0.9375])
    assert ring[0][:2] == ([40.0], [0.9375])
    assert accuracy.of("annotate")[0][0][0] == "0.9375, epoch 1"
    assert log_loss.of("set_title")[0][0] == ("Log loss",)
    assert log_loss.of("set_xlabel")[0][0] == ("steps",)


def test_the_best_value_of_a_metric_of_the_task_is_that_of_the_best_checkpoint(
    tmp_path: Path,
) -> None:
    files = full_run(tmp_path)
    files.evaluation(1, own=2.0)
    assert run_of(files).best("own", "step") is None, "its better values are not known"
    best = {"metric": "own", "value": 2.0, "epoch": 1, "path": "checkpoints/a"}
    files.run.result_file.write_text(json.dumps({"best": best}))
    assert run_of(files).best("own", "step") == (40.0, 2.0, 1)
    assert run_of(files).best("accuracy", "step") == (40.0, 0.9375, 1)


def test_staleness_is_a_histogram_unless_no_update_was_stale(tmp_path: Path) -> None:
    stale, fresh = full_run(tmp_path, "stale"), full_run(tmp_path, "fresh")
    stale.run.result_file.write_text('{"staleness": [6, 3, 0, 1]}')
    fresh.run.result_file.write_text('{"staleness": [9]}')
    (axes,) = drawn(plot._staleness([run_of(fresh), run_of(stale)], always=False))
    bars = axes.of("bar")
    assert [named["label"] for _, named in bars] == ["fresh", "stale"]
    assert [given[1] for given, _ in bars] == [[1.0], [0.6, 0.3, 0.0, 0.1]]
    # Bars of runs stand beside each other around the value.
    assert [given[0][0] for given, _ in bars] == pytest.approx([-0.2, 0.2])
    assert plot._staleness([run_of(fresh)], always=False) == []
    assert len(plot._staleness([run_of(fresh)], always=True)) == 1


def test_the_time_of_workers_is_stacked(tmp_path: Path) -> None:
    (axes,) = drawn(plot._workers([run_of(full_run(tmp_path))]))
    parts = {named["label"]: given[1] for given, named in axes.of("barh")}
    assert parts["compute"] == pytest.approx([0.7, 0.5])
    assert parts["wait"] == pytest.approx([0.1, 0.2])
    assert parts["snapshot"] == pytest.approx([0.0, 0.1])
    assert axes.of("set_yticks")[0][0][1] == ["worker 0", "worker 1"]


def test_the_time_of_workers_is_that_of_the_newest_attempt_with_counts(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    path = files.path / "history.jsonl"
    head = json.loads(path.read_text().splitlines()[0])
    # A later attempt has other ranks, and no counts yet.
    later = {**head, "generation": 7, "roles": ["scheduler", "worker 0", "worker 1", "worker 2"]}
    with path.open("a") as file:
        file.write(json.dumps(later) + "\n")
    assert dict(run_of(files).worker_shares())["worker 0"][0] == pytest.approx(0.7)
    # Its counts are of two ranks alone.
    counts = {"type": "counts", "generation": 7, "time_s": head["time_s"] + 99}
    times = {name: [0.0, 4.0] for name in ("wait", "push", "pull", "snapshot")}
    with path.open("a") as file:
        file.write(json.dumps({**counts, **times, "elapsed": [0.0, 16.0, 16.0, 16.0]}) + "\n")
    assert run_of(files).worker_shares() == [("worker 0", [0.0, 0.25, 0.25, 0.25, 0.25])]


def test_many_workers_are_one_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "_MOST_BARS", 3)
    runs = [run_of(full_run(tmp_path, name)) for name in ("a-20261129-080053-c1bf", "b")]
    (axes,) = drawn(plot._workers(runs))
    assert axes.of("set_yticks")[0][0][1] == ["a, mean", "b, mean"]
    assert axes.of("barh")[0][0][1] == pytest.approx([0.6, 0.6])


def test_the_axis_is_epochs_where_all_runs_have_them(tmp_path: Path) -> None:
    counted, other = run_of(full_run(tmp_path, "counted")), run_of(RunFiles(tmp_path, "empty"))
    assert plot.axis_of([counted], "") == "epoch"
    assert plot.axis_of([counted, other], "") == "samples"
    assert plot.axis_of([counted, other], "time") == "time"
    # A script may count neither epochs nor samples.
    other._rows = [{"step": 4, "samples": 0}]
    assert plot.axis_of([other], "") == "step"
    assert plot.axis_of([counted, other], "") == "samples"
    with pytest.raises(ConfigError, match="--x epoch: empty does not count epochs; use samples"):
        plot.axis_of([counted, other], "epoch")


def call(*arguments: str) -> None:
    done = CliRunner().invoke(command.command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_a_picture_of_two_runs_is_written(tmp_path: Path, name: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    # A name that matplotlib would take for a wrong formula, or hide, and that XML cannot have.
    hostile = "_$\\frac$ \x01--<b>"
    full_run(tmp_path, hostile)
    full_run(tmp_path, "second", loss=2.0)
    out = tmp_path / name
    call(hostile, "second", "--folder", str(tmp_path), "-o", str(out))
    assert out.read_bytes().startswith(begin)
    if name.endswith(".svg"):
        assert ElementTree.parse(out).getroot().tag.endswith("svg")
        assert "_$\\frac$ ?" in out.read_text()


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_run(tmp_path)
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        CapabilityError, match="mpips plot needs matplotlib, which is not installed"
    ):
        call("job", "--folder", str(tmp_path), "-o", str(tmp_path / "a.png"))


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    RunFiles(tmp_path, "empty")
    out = str(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="empty: nothing to draw yet"):
        call("empty", "--folder", str(tmp_path), "-o", out)
    full_run(tmp_path)
    folder = str(tmp_path)
    with pytest.raises(ConfigError, match="--chart staleness: the run directory of job has no"):
        call("job", "--folder", folder, "-o", out, "--chart", "staleness")
    for ending in (".xyz", ""):
        with pytest.raises(ConfigError, match=f"ending '{ending}' of the file names no format"):
            call("job", "--folder", folder, "-o", str(tmp_path / f"a{ending}"))
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        call("job", "--folder", folder, "-o", str(tmp_path / "missing/a.png"))


def test_runs_are_read_from_old_directories(tmp_path: Path) -> None:
    files = full_run(tmp_path)
    (files.path / "history.jsonl").unlink()
    # Lines of an earlier version have no epoch.
    lines = [json.loads(line) for line in files.run.metrics_file.read_text().splitlines()]
    for line in lines:
        del line["epoch"]
    files.run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = run_of(files)
    assert len(run.points("loss", "samples")) == 40
    assert run.worker_shares() == []
    replace_json(files.path / "result.json", {"loss": 1.0})
    assert plot._staleness([run], always=True) == []
