"""The page in a headless Chromium: every panel shows the numbers that the files hold, in every state."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser
from msgspec.structs import replace
from page_checks import BROKEN, CONTRASTS
from run_files import RunFiles, full_run, members

from mpips.rundir.directory import replace_json
from mpips.rundir.files import RankRow, Ranks
from mpips.rundir.history import AttemptHead

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from web_rig import Page, page_of

READY = "document.body.dataset.ready"
# The description of the chart of the loss.
LABEL = "return document.querySelector('#panel-loss .uplot').getAttribute('aria-label');"
ESCAPE, TAB, LEFT, HOME = "\ue00c", "\ue004", "\ue012", "\ue011"


@contextmanager
def shown(window: Browser, where: Path, ready: bool = True) -> Iterator[Page]:
    """Serve a page and open it; at the end it must have reported no error on its console."""
    with page_of(where) as page:
        window.open(page.address)
        window.run("localStorage.clear();")
        if ready:
            window.wait(READY)
        yield page
        assert window.messages() == []
        window.open("about:blank")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def show_all(window: Browser, *names: str) -> None:
    """Show these runs side by side."""
    window.run("page.show(arguments[0]);", list(names))
    # As many runs may still be those that were shown before.
    window.wait(f"{READY} && page.runs.size == arguments[0]", len(names))
    window.wait("arguments[0].every(name => page.runs.has(name))", list(names))
    heads = "[...document.querySelectorAll('#heads .head-name')].map(head => head.textContent)"
    window.wait(f"{heads}.sort().join('|') == arguments[0]", "|".join(sorted(names)))


def test_every_panel_shows_the_numbers_of_the_files(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with shown(window, tmp_path):
        head = squeezed(window.text(".head"))
        assert "✓ done" in head
        assert "Done after step 40." in head
        assert "trained fm" in head
        assert "best log loss 0.125 after epoch 1; accuracy 0.9375" in head
        assert "time 59 s" in head
        for fact in ("step 40", "training loss 0.5", "failures 1"):
            assert fact in head
        # Rates of this moment are those of a run at work.
        assert "samples/s 64" not in head
        # The last values of the curves; the loss is 1 / step.
        assert "job 0.025" in window.text("#panel-loss .legend")
        assert "job 64" in window.text("#panel-throughput .legend")
        assert "job 0.9375" in window.text("#panel-test-accuracy .legend")
        assert "job 0.125" in window.text("#panel-test-log_loss .legend")
        assert "1.5 MB/s" in window.text("#panel-push .legend")
        assert "2.5 MB/s" in window.text("#panel-pull .legend")
        assert "0.75" in window.text("#panel-mean-staleness .legend")
        assert "best 0.9375 after epoch 1" in window.text("#panel-test-accuracy .legend")
        # Of 2 s the first worker waits 0.2, pushes 0.1, pulls 0.3; the second 0.4, 0.1, 0.3 and 0.2 for cuts.
        times = squeezed(window.text("#panel-time .legend"))
        assert times == "compute 60 % wait 15 % push 5.0 % pull 15 % snapshot 5.0 %"
        rows = squeezed(window.text("#panel-time table"))
        assert "worker 0 70 % 10 % 5.0 % 15 % 0.0 %" in rows
        assert "worker 1 50 % 20 % 5.0 % 15 % 10 %" in rows
        # 5 and 40 in 10 updates.
        stale = window.text("#panel-staleness")
        assert "mean 0.5" in stale
        assert "mean 4" in stale
        assert squeezed(window.text("#panel-load .legend")) == "server 0 500 server 1 1.5k"
        assert squeezed(window.text("#panel-queue .legend")) == "server 0 7 server 1 9"
        memory = squeezed(window.text("#panel-server-memory .legend"))
        assert memory == "server 0 30 MB server 1 20 MB"
        tables = window.run(
            "return [...document.querySelectorAll('[data-table]')].map((e) => e.innerText);"
        )
        assert [squeezed(text).strip() for text in tables] == ["factor 500 25", "weight 200 10"]
        # A key of 63 bits is exact.
        rows = window.run(
            "return [...document.querySelectorAll('[data-row]')].map((e) => e.innerText);"
        )
        assert [squeezed(text) for text in rows] == [
            "factor 4611686018427387905 1.5k 500 25 %",
            "factor -3 80 0 1.0 %",
        ]
        assert squeezed(window.text("[data-traffic=pushed]")) == "pushed 60 MB 30 MB 2x"
        assert squeezed(window.text("[data-traffic=pulled]")) == "pulled 10 MB 10 MB -"
        assert squeezed(window.text("[data-transport=shm]")) == "shm 3 2.7 MB 100 kB"
        assert squeezed(window.text("[data-transport=rma]")) == "rma 1 300 kB 400 kB"
        link = squeezed(window.text("[data-link='worker 0']"))
        assert link == "worker 0 700 kB / 100 kB 300 kB / 400 kB"
        assert squeezed(window.text("[data-placed=weight]")) == "weight 4.1 kB 2.05 kB"
        assert "rows by key" in window.text("[data-placed=factor]")
        shm = squeezed(window.text("[data-memory='/dev/shm of node']"))
        assert shm == "/dev/shm of node 2 GB 8 GB"
        assert "400 GB 1 TB" in squeezed(window.text("[data-memory='disk of the run directory']"))
        assert "50 MB" in window.text("[data-memory='tables and rings of servers']")
        assert "90 MB" in window.text("[data-memory='heap of workers']")
        assert "23 MB" in window.text("[data-memory='heap of servers']")
        events = squeezed(window.text("#panel-events"))
        assert "│ attempt 2 ◇ checkpoint 1 ✕ failure 1" in events
        assert "0:19 attempt 0 failed at step 9: worker 1 was killed by SIGKILL" in events
        assert "0:21 attempt 1 began at step 8 from memory" in events
        assert "0:06 checkpoint step-000000000004 (step 4)" in events
        assert "0:59 finished" in events
        assert squeezed(window.text("[data-key='train.batch_size']")) == ("train.batch_size 32")
        assert squeezed(window.text("[data-rank='3']")).startswith("3 worker 0 node computing 43")


def test_logs_are_shown_by_click(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with shown(window, tmp_path):
        window.wait("document.querySelector('[data-log=\"3\"]')")
        window.click("[data-log='3']")
        window.wait("document.querySelector('#log-text')")
        assert window.text("#log-text") == "the first line\nthe last line of worker 0"
        window.click("[data-log='4']")
        window.wait("document.querySelector('#log-text').innerText.includes('says something')")


def test_the_programs_beside_a_run_have_a_table_and_logs(window: Browser, tmp_path: Path) -> None:
    members(full_run(tmp_path))
    with shown(window, tmp_path):
        rows = window.run(
            "return [...document.querySelectorAll('[data-member]')].map((e) => e.innerText);"
        )
        assert [squeezed(text) for text in rows] == [
            "0 ended 0 0 1,200 speed = 0.5",
            "1 failed 2 3 7 speed = 2.0 member 1 of the producers was killed by SIGKILL on node",
        ]
        head = squeezed(window.text("#panel-producers"))
        assert "programs beside the job, as of their last state" in head
        window.wait("document.querySelector('[data-log=\"-3\"]')")
        assert window.text("[data-log='-3']").startswith("member 1 (")
        window.click("[data-log='-3']")
        window.wait("document.querySelector('#log-text')")
        assert window.text("#log-text") == "--- start 1\npushed 7"


def test_two_runs_are_overlaid_and_their_differences_shown(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path, "first", loss=1.0)
    full_run(tmp_path, "second", loss=4.0, begin=1_790_000_500.0)
    with shown(window, tmp_path):
        # The newest run is shown at first, the others are listed.
        assert "second" in window.text(".head")
        assert window.run("return document.querySelectorAll('[data-listed]').length;") == 2
        window.click("[data-listed=first] input")
        window.wait(f"{READY} && document.querySelectorAll('#heads [data-run]').length == 2")
        window.wait("charts.get('loss') && charts.get('loss').series.length == 3")
        legend = squeezed(window.text("#panel-loss .legend"))
        assert legend == "second 0.1 first 0.025"
        keys = window.run(
            "return [...document.querySelectorAll('#panel-config [data-key]')].map((e) => e.dataset.key);"
        )
        assert keys == ["train.lr"]
        assert squeezed(window.text("[data-key='train.lr']")) == "train.lr 4.0 1.0"
        window.click("#only-different")
        window.wait("document.querySelector('[data-key=\"train.batch_size\"]')")
        # Details are those of the run whose tab is chosen.
        assert "second" in window.text("[role=tab][aria-selected=true]")
        window.click("[data-tab=first]")
        window.wait("document.querySelector('[data-tab=first]').ariaSelected == 'true'")


def test_a_run_that_grows_is_redrawn(window: Browser, tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.run.finished_file.unlink()
    files.state("running", released=False, loss=0.125)
    with shown(window, tmp_path):
        window.wait("document.querySelector('.head').innerText.includes('● running')")
        head = squeezed(window.text(".head"))
        assert "Running: epoch 2 of 4, step 40; about 1:01 left." in head
        for fact in (
            "epoch 2 / 4",
            "samples/s 64",
            "staleness 0.75",
            "push 1.5 MB/s pull 2.5 MB/s",
        ):
            assert fact in head
        assert "job 0.025" in window.text("#panel-loss .legend")
        files.metrics(60, 2.0)
        files.history(files.counts(11), files.checkpoint(23.0, 11))
        window.wait("document.querySelector('#panel-loss .legend b').innerText == '0.02'")
        window.wait("document.querySelector('#panel-events').innerText.includes('checkpoint 2')")
        files.state("failed", message="worker 1 was killed")
        window.wait("document.querySelector('.head').innerText.includes('✕ failed')")
        assert "worker 1 was killed" in window.text(".head .note.bad")


def test_states_without_numbers_are_shown_as_such(window: Browser, tmp_path: Path) -> None:
    RunFiles(tmp_path, "empty")
    failed = RunFiles(tmp_path, "failed")
    failed.config(train={"lr": 1.0})
    failed.event("failed", 2.0, cause="a configuration error")
    failed.state("failed", message="a configuration error")
    dead = RunFiles(tmp_path, "dead")
    dead.metrics(3)
    dead.state("running", released=True)
    lease = dead.run.lease()
    assert lease is not None
    replace_json(dead.run.lease_file, replace(lease, released=False))
    with shown(window, tmp_path):
        show_all(window, "empty", "failed", "dead")
        window.wait("document.querySelector('[data-run=dead]')")
        assert "… not started" in window.text("[data-run=empty]")
        assert "✕ failed" in window.text("[data-run=failed]")
        assert "a configuration error" in window.text("[data-run=failed] .note.bad")
        assert "✕ dead" in window.text("[data-run=dead]")
        assert "last renewed its lease" in window.text("[data-run=dead] .note.bad")
        show_all(window, "empty")
        window.wait("!document.querySelector('#panel-loss')")
        panels = window.run("return [...document.querySelectorAll('.card')].map((e) => e.id);")
        assert panels == [], "no panel without numbers"
        show_all(window, "dead")
        window.wait("document.querySelector('#no-history')")
        assert not window.has("#panel-time")
        assert not window.has("#panel-memory")


def test_a_folder_without_runs_shows_the_first_one_as_it_begins(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpips.web.runs_data._LIST_S", 0.05)
    with shown(window, tmp_path, ready=False):
        window.wait("document.querySelector('#notice').innerText.includes('No run here yet')")
        full_run(tmp_path)
        window.wait("document.querySelector('#panel-loss')")


@contextmanager
def while_runs_change(
    window: Browser, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Open the page of a folder whose list is read often, and close it in the end."""
    monkeypatch.setattr("mpips.web.runs_data._LIST_S", 0.05)
    with page_of(folder) as page:
        window.open(page.address)
        window.wait(READY)
        yield
        window.open("about:blank")
        window.messages()  # the browser may have asked for the log of a run that is gone


def test_a_run_that_was_renamed_is_shown_under_its_new_name(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(tmp_path, "before")
    with while_runs_change(window, tmp_path, monkeypatch):
        window.wait("document.querySelector('[data-run=before]')")
        (tmp_path / "before").rename(tmp_path / "after")
        window.wait("document.querySelector('[data-run=after]')")
        assert not window.has("[data-run=before]")


def test_a_deleted_run_leaves_the_others_shown(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(tmp_path, "kept")
    full_run(tmp_path, "deleted")
    with while_runs_change(window, tmp_path, monkeypatch):
        show_all(window, "kept", "deleted")
        window.wait("document.querySelectorAll('.head[data-run]').length === 2")
        shutil.rmtree(tmp_path / "deleted")
        window.wait("document.querySelectorAll('.head[data-run]').length === 1")
        assert window.has(".head[data-run=kept]")


def test_a_folder_whose_runs_were_deleted_has_none(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(tmp_path)
    with while_runs_change(window, tmp_path, monkeypatch):
        shutil.rmtree(tmp_path / "job")
        window.wait("document.querySelector('#notice').innerText.includes('No run here yet')")
        assert not window.has(".head[data-run]")


def test_a_lost_server_is_reported(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page:
        window.open(page.address)
        window.wait(READY)
        assert window.text("#link") == "no run is at work"
    window.wait("document.querySelector('#link').innerText.includes('no connection to mpips web')")
    assert window.run("return document.querySelector('#link').className;") == "lost"
    assert "job 0.025" in window.text("#panel-loss .legend"), "what is known stays"
    window.open("about:blank")
    window.messages()  # the browser reports the refused connection


def test_a_stale_run_is_marked(window: Browser, tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.run.finished_file.unlink()
    files.state("running", released=False)
    status = files.run.status()
    assert status is not None
    files.run.write_status(replace(status, time_s=status.time_s - 45.0, ranks=()))
    with shown(window, tmp_path):
        window.wait("document.querySelector('[data-stale]')")
        assert "seconds old" in window.text("[data-stale]") or "s old" in window.text(
            "[data-stale]"
        )
        assert "written nothing for" in window.text(".head")


HOSTILE = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1">\u2028'


def test_hostile_text_is_text(window: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=window.hacked=1>"
    files = full_run(tmp_path, name)
    files.config(note=HOSTILE, **{HOSTILE.replace("/", ""): HOSTILE})
    files.event("failed", 30.0, generation=1, step=9, cause=HOSTILE)
    files.log(3, HOSTILE + "\n")
    files.evaluation(**{HOSTILE: 0.5})
    files.history(
        AttemptHead(time_s=1.0, generation=1, roles=(HOSTILE,), hosts=(HOSTILE,), tables=(HOSTILE,))
    )
    files.state("failed", message=HOSTILE)
    files.run.finished_file.unlink()
    (files.path / "placement.json").write_text('{"reasons": ["<b id=bold>x</b>"]}')
    with shown(window, tmp_path):
        assert name in window.text(".head-name")
        assert "<script>window.hacked=1" in window.text(".head .note.bad")
        assert "<script>window.hacked=1" in window.text("#panel-events")
        assert "<script>window.hacked=1" in window.text("#panel-config")
        window.wait("document.querySelector('[data-log=\"3\"]')")
        window.click("[data-log='3']")
        window.wait("document.querySelector('#log-text')")
        assert window.text("#log-text").startswith("</script><script>window.hacked=1")
        assert not window.run("return window.hacked;")
        assert window.run("return document.querySelectorAll('img, #bold').length;") == 0


def test_an_injected_script_would_not_run(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page:
        window.open(page.address)
        window.wait(READY)
        window.run(
            "const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
            "document.body.append(s);"
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
        )
        window.run("return new Promise((done) => setTimeout(done, 100));")
        assert not window.run("return window.hacked;")
        assert any("Content Security Policy" in text for text in window.messages())
    window.open("about:blank")
    window.messages()


def test_controls_and_keys_work(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with shown(window, tmp_path):
        # Without an epoch that is complete in the status they are counted by evaluations.
        assert window.run("return document.querySelector('#axis').value;") == "epoch"
        assert "over epochs" in window.run(LABEL)
        for axis, label in (("samples", "over samples"), ("step", "over steps"), ("time", "since")):
            window.run(
                "const s = document.querySelector('#axis'); s.value = arguments[0];"
                "s.dispatchEvent(new Event('change'));",
                axis,
            )
            window.wait(f"(() => {{ {LABEL} }})().includes(arguments[0])", label)
        # The mean of the last two of 40 values of 1 / step, with weights 0.5 and less.
        assert window.run("return charts.get('loss').data[1].at(-1);") == 0.025
        window.run(
            "const s = document.querySelector('#smooth'); s.value = 50; s.dispatchEvent(new Event('input'));"
        )
        window.wait("charts.get('loss').series.length == 3")
        smooth = window.run("return charts.get('loss').data[2].at(-1);")
        weights = [0.5 ** (40 - step) for step in range(1, 41)]
        expected = sum(w / (i + 1) for i, w in enumerate(weights)) / sum(weights)
        assert smooth == pytest.approx(expected, rel=1e-12)
        assert window.text("#smooth-value") == "0.50"
        window.click("#log")
        window.wait("charts.get('loss').scales.y.distr == 3")
        window.run("document.querySelector('#panel-loss .uplot').focus();")
        window.key(HOME)
        window.wait("document.querySelector('#panel-loss .readout').innerText.startsWith('0:00')")
        assert "job 1" in window.text("#panel-loss .readout")
        window.run("document.querySelector('#panel-time .uplot').focus();")
        window.key(LEFT)
        window.wait(
            "document.querySelector('#panel-time .readout').innerText.includes('wait 15 %')"
        )
        assert window.text("#panel-time .readout").startswith("0:19")
        # The skip link is the first thing on the page, the controls follow.
        assert (
            window.run("return document.querySelector('a, input, select, button').className;")
            == "skip"
        )
        window.run("document.querySelector('.skip').focus();")
        order = []
        for _ in range(4):
            window.key(TAB)
            order.append(window.run("return document.activeElement.id;"))
        assert order == ["axis", "smooth", "log", "theme"]


def test_panels_without_information_are_left_out(window: Browser, tmp_path: Path) -> None:
    """One server, no codec, no staleness, as many updates of every table."""
    files = RunFiles(tmp_path, "plain")
    files.metrics(4)
    text = files.run.metrics_file.read_text().replace('"staleness": 0.75', '"staleness": 0.0')
    files.run.metrics_file.write_text(text)
    roles = ("scheduler + server 0", "worker 0")
    head = AttemptHead(
        time_s=files.begin,
        generation=0,
        roles=roles,
        hosts=("node",) * 2,
        tables=("weight", "bias"),
        transports=(("shm",),),
        placement=((4096,), (4,)),
    )
    files.history(head)
    for n in range(1, 5):
        row = files.counts(n)
        names = [f for f in row.__struct_fields__ if isinstance(getattr(row, f), tuple)]
        short = {name: (getattr(row, name)[1], getattr(row, name)[3]) for name in names}
        nothing = dict.fromkeys(("push_saved", "pull_saved", "staleness", "queue"), (0, 0))
        files.history(replace(row, **{**short, **nothing}, updates={0: 20 * n, 1: 20 * n}))
    # The one link has what the curves of pushes and pulls show.
    worker = RankRow(
        rank=1, role="worker 0", host="node", pid=9, state="", links=((70_000, 10_000),)
    )
    ranks = Ranks(generation=0, time_s=files.begin + 4.0, ranks=(worker,))
    replace_json(files.run.ranks_file, ranks)
    files.finish()
    with shown(window, tmp_path):
        panels = window.run("return [...document.querySelectorAll('.card')].map((e) => e.id);")
        assert [name.removeprefix("panel-") for name in panels] == [
            "loss", "throughput", "push", "pull", "events", "time", "load", "server-memory", "memory",
            "ranks",
        ]  # fmt: skip
        # The model is known by the placement of its tables.
        assert "model 1,025 values 2 tables, 4.1 kB" in squeezed(window.text(".head"))


def test_a_sweep_shows_its_trials_and_the_best_one(window: Browser, tmp_path: Path) -> None:
    for name, loss in (("worse", 0.5), ("better", 0.25)):
        files = full_run(tmp_path, name)
        result = {"epochs": 2, "seconds": 90.0, "history": [{"log_loss": loss}], "log_loss": loss}
        files.run.result_file.write_text(json.dumps(result))
    RunFiles(tmp_path, "waiting")
    names = ("worse", "better", "waiting")
    trials = [{"run": name, "assignments": [f"train.lr=0.{i}"]} for i, name in enumerate(names)]
    (tmp_path / "sweep.json").write_text(json.dumps({"job": "fm", "trials": trials}))
    with shown(window, tmp_path):
        assert window.text("#heads .head-name") == "better"
        assert "2 of 3 trials done; by log loss, the least first" in window.text("#panel-trials")
        rows = window.run(
            "return [...document.querySelectorAll('[data-trial]')].map((e) => e.innerText);"
        )
        assert [squeezed(row) for row in rows] == [
            "trial 2 best 0.1 0.25 2 2 1:30 done",
            "trial 1 0 0.5 2 2 1:30 done",
            "trial 3 0.2 - - - - not started",
        ]
        assert not window.run("return document.querySelector('#runs').checkVisibility();")
        window.click("[data-trial=worse] button")
        window.wait("document.querySelectorAll('#heads [data-run]').length == 2")
        window.click("[data-trial=better] button")
        window.wait("document.querySelectorAll('#heads [data-run]').length == 1")
        assert window.text("#heads .head-name") == "worse"
        window.click("[data-trial=worse] button")
        window.wait(f"{READY} && document.querySelectorAll('#heads [data-run]').length == 1")


def test_a_run_that_is_done_waits_for_nothing(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with shown(window, tmp_path / "job"):
        window.wait("document.querySelector('#link').innerText == 'complete'")
        assert window.run("return page.waits();") is False
        assert not window.has("progress")
        assert not window.run("return document.querySelector('#notice').checkVisibility();")
    with shown(window, tmp_path):
        assert window.text("#link") == "no run is at work"
        assert window.run("return page.waits();") is True, "another run may begin in the folder"


def test_the_best_is_marked_and_a_zoom_stays(window: Browser, tmp_path: Path) -> None:
    files = full_run(tmp_path)
    files.metrics(20)
    files.evaluation(0, accuracy=0.75, log_loss=0.5)
    # This one is of the first attempt, whose evaluations the second one has repeated.
    files.evaluation(1, accuracy=0.5, log_loss=0.5)
    with shown(window, tmp_path):
        series = "charts.get('test-accuracy').series.map((s) => s.label)"
        assert window.run(f"return {series};")[1:] == ["job", "job best"]
        values = window.run(
            "const [xs, , best] = charts.get('test-accuracy').data;"
            "return xs.map((x, i) => [x, best[i]]).filter(([, y]) => y != null).map(([, y]) => y);"
        )
        assert values == [0.9375]
        window.run(
            "const chart = charts.get('loss'); chart.setSelect({left: 10, width: 50, top: 0, height: 9});"
        )
        low, high = window.run("return zooms.get('loss ' + page.view.axis);")
        window.run("page.view.redraw();")
        window.wait(f"charts.get('loss').scales.x.max == {high!r}")
        assert window.run("return charts.get('loss').scales.x.min;") == low
        window.run(
            "charts.get('loss').over.dispatchEvent(new MouseEvent('dblclick', {bubbles: true}));"
        )
        assert window.run("return zooms.size;") == 0


WIDTHS = [(width, dark) for width in (390, 1280, 1920) for dark in (False, True)]


@pytest.mark.parametrize(("width", "dark"), WIDTHS)
def test_it_fits_and_text_is_readable(
    window: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    full_run(tmp_path)
    full_run(tmp_path, "a-second-run-in-the-list")
    window.dark(dark)
    window.size(width, 900)
    with shown(window, tmp_path):
        # Charts follow the size of the window a moment later.
        window.wait(f"document.documentElement.scrollWidth <= {width}")
        ground = window.run("return getComputedStyle(document.body).backgroundColor;")
        assert (ground == "rgb(16, 20, 27)") == dark
        # Contrast of all text as WCAG defines it: 4.5 for small text.
        contrasts = window.run(CONTRASTS)
        assert len(contrasts) > 15
        assert min(contrasts.values()) >= 4.5, contrasts
        # No word is broken into letters, and no chart is wider or much narrower than its card.
        assert window.run(BROKEN) == []
        widths = window.run(
            "return [...charts.values()].map((c) => c.width - c.root.parentElement.clientWidth);"
        )
        assert len(widths) >= 10
        assert set(widths) == {0}
        if folder := os.environ.get("MPIPS_TEST_PICTURES"):
            window.picture(Path(folder) / f"page-{width}-{'dark' if dark else 'light'}.png")
    window.size(1280, 720)
    window.dark(False)


def test_runs_with_a_comma_in_their_name_can_be_chosen(window: Browser, tmp_path: Path) -> None:
    for name in ("a,b", "a", "b"):
        full_run(tmp_path, name)
    with shown(window, tmp_path):
        for name in ("a,b", "b"):
            show_all(window, name)
            assert window.text("#heads .head-name") == name
        show_all(window, "a,b", "a")
        assert window.run("return page.runs.size;") == 2
