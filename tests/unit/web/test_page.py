"""The page in a headless Chromium: every panel shows the numbers that the files hold, in every state."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser
from msgspec.structs import replace
from run_files import RunFiles, full_run

from mpips.rundir.directory import replace_json
from mpips.rundir.history import AttemptHead

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from web_rig import Page, page_of

READY = "document.body.dataset.ready"
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
        for fact in ("epoch 2 / 4", "step 40", "loss 0.5", "samples/s 64", "staleness 0.75"):
            assert fact in head
        assert "push 1.5 MB/s pull 2.5 MB/s" in head
        assert "failures 1" in head
        # The last values of the curves; the loss is 1 / step.
        assert "job 0.025" in window.text("#panel-loss .legend")
        assert "job 64" in window.text("#panel-throughput .legend")
        assert "job 0.9375" in window.text("#panel-test-accuracy .legend")
        assert "job 0.125" in window.text("#panel-test-log_loss .legend")
        assert "1.5 MB/s" in window.text("#panel-push .legend")
        assert "2.5 MB/s" in window.text("#panel-pull .legend")
        assert "0.75" in window.text("#panel-mean-staleness .legend")
        # Of 2 s the first worker waits 0.2, pushes 0.1, pulls 0.3; the second 0.4, 0.1, 0.3 and 0.2 for cuts.
        times = squeezed(window.text("#panel-time .legend"))
        assert times == "compute 60 % wait 15 % push 5.0 % pull 15 % snapshot 5.0 %"
        sides = window.text("#panel-time")
        assert "compute 70 %" in sides
        assert "compute 50 %" in sides
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
        assert "0:20 attempt 0 failed at step 9: worker 1 was killed by SIGKILL" in events
        assert "0:22 attempt 1 began at step 8 from memory" in events
        assert "0:07 checkpoint step-000000000004 (step 4)" in events
        assert "1:00 finished" in events
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


def test_two_runs_are_overlaid_and_their_differences_shown(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path, "first", loss=1.0)
    full_run(tmp_path, "second", loss=4.0, begin=1_790_000_500.0)
    with shown(window, tmp_path):
        # The newest run is shown at first, the others are listed.
        assert "second" in window.text(".head")
        assert window.run("return document.querySelectorAll('[data-listed]').length;") == 2
        window.click("[data-listed=first] input")
        window.wait(f"{READY} && document.querySelectorAll('#heads [data-run]').length == 2")
        window.wait("document.querySelectorAll('#panel-loss path.curve').length == 2")
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
        assert "left 1:01" in squeezed(window.text(".head"))
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
        assert window.text("#link") == "live"
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
        assert "over samples" in window.text("#panel-loss")
        window.run(
            "const s = document.querySelector('#axis'); s.value = 'time';"
            "s.dispatchEvent(new Event('change'));"
        )
        window.wait("document.querySelector('#panel-loss').innerText.includes('over time')")
        window.run(
            "const s = document.querySelector('#smooth'); s.value = 50; s.dispatchEvent(new Event('input'));"
        )
        window.wait("document.querySelector('#panel-loss path.raw')")
        assert window.text("#smooth-value") == "0.50"
        window.click("#log")
        window.wait("document.querySelector('#log').checked")
        window.run("document.querySelector('#panel-loss svg').focus();")
        window.key(HOME)
        window.wait("document.querySelector('#panel-loss .readout').innerText.startsWith('0:01')")
        assert "job 1" in window.text("#panel-loss .readout")
        window.run("document.querySelector('#panel-time canvas').focus();")
        window.key(LEFT)
        window.wait(
            "document.querySelector('#panel-time .readout').innerText.includes('wait 10 %')"
        )
        assert window.text("#panel-time .readout").startswith("worker 0")
        window.key("\ue015")
        window.wait(
            "document.querySelector('#panel-time .readout').innerText.includes('wait 20 %')"
        )
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


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_1280_pixels_and_text_is_readable(
    window: Browser, tmp_path: Path, dark: bool
) -> None:
    full_run(tmp_path)
    window.dark(dark)
    with shown(window, tmp_path):
        assert window.run("return document.documentElement.scrollWidth;") <= 1280
        ground = window.run("return getComputedStyle(document.body).backgroundColor;")
        assert (ground == "rgb(16, 20, 27)") == dark
        # Contrast of text on cards as WCAG defines it: 4.5 for small text.
        contrasts = window.run(CONTRASTS)
        assert min(contrasts.values()) >= 4.5, contrasts
        if folder := os.environ.get("MPIPS_TEST_PICTURES"):
            window.picture(Path(folder) / f"page-{'dark' if dark else 'light'}.png")
    window.dark(False)


CONTRASTS = """
const light = (text) => {
  const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = {};
const selectors = ['h3', '.unit', '.facts dt', '.facts dd', '.badge', 'td', 'th', '.legend',
  '.row-labels', '#link'];
for (const selector of selectors) {
  let e = document.querySelector(selector), at = e;
  while (at && getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') at = at.parentElement;
  const a = light(getComputedStyle(e).color), b = light(getComputedStyle(at).backgroundColor);
  found[selector] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
return found;
"""


def test_runs_with_a_comma_in_their_name_can_be_chosen(window: Browser, tmp_path: Path) -> None:
    for name in ("a,b", "a", "b"):
        full_run(tmp_path, name)
    with shown(window, tmp_path):
        for name in ("a,b", "b"):
            show_all(window, name)
            assert window.text("#heads .head-name") == name
        show_all(window, "a,b", "a")
        assert window.run("return page.runs.size;") == 2
