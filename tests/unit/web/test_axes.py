"""The x axis of each chart of the page has its name, as it is drawn in a headless Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser
from run_files import full_run

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from web_rig import page_of

# Texts that each chart draws on its canvas from now on, by the chart.
DRAWN = """
window.drawn = {};
const own = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  for (const [id, chart] of charts) {
    if (chart.ctx.canvas === this.canvas) (window.drawn[id] ||= []).push(text);
  }
  return own.call(this, text, ...place);
};
"""


def test_each_chart_draws_the_name_of_its_x_axis(window: Browser, tmp_path: Path) -> None:
    full_run(tmp_path)
    with page_of(tmp_path) as page:
        window.open(page.address)
        window.wait("document.body.dataset.ready")
        assert window.run("return charts.size;") >= 10
        window.run(DRAWN)
        names = {"samples": "samples", "epoch": "epochs", "step": "steps"}
        for axis, name in {**names, "time": "time since the start"}.items():
            window.run("page.view.chosen = page.view.axis = arguments[0];", axis)
            window.run("window.drawn = {}; page.view.redraw();")
            # Each chart draws the values of its axes, whether or not these have a name.
            window.wait("[...charts.keys()].every((id) => window.drawn[id])")
            drawn = window.run("return window.drawn;")
            # Load, memory and shares of time are over time, whatever the reader chooses.
            over = window.run(
                "return Object.fromEntries([...charts].map(([id, chart]) =>"
                "[id, chart.root.ariaLabel.match(/ over (.*?)[.] /)[1]]));"
            )
            assert (over["loss"], over["test-accuracy"]) == (name, name)
            assert set(over.values()) <= {name, "time since the start"}
            assert [chart for chart, texts in drawn.items() if over[chart] not in texts] == []
        assert window.messages() == []
        window.open("about:blank")
