"""What other programs see of a real run: Prometheus and the Grafana dashboard's queries."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browsing
from chrome_trace import check_trace, sums
from supervised import Run, made_data, start
from trace_viewer import check_viewed, missing

pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

DASHBOARD = Path(__file__).parents[2] / "docs/grafana.json"
PROMETHEUS = shutil.which("prometheus")


def expressions(found: Any) -> Iterator[str]:
    """All queries of a dashboard."""
    if isinstance(found, dict):
        if isinstance(found.get("expr"), str):
            yield found["expr"]
        for inner in found.values():
            yield from expressions(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from expressions(inner)


class Prometheus:
    """A Prometheus that scrapes one address ten times a second."""

    def __init__(self, folder: Path, target: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = folder / "prometheus.yml"
        scrape = {"job_name": "mpips", "static_configs": [{"targets": [target]}]}
        times = {"scrape_interval": "100ms", "scrape_timeout": "100ms"}
        config.write_text(json.dumps({"global": times, "scrape_configs": [scrape]}))  # JSON is YAML
        self.api = f"http://127.0.0.1:{port}/api/v1/"
        assert PROMETHEUS is not None
        self.process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=error",
            ],
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of the API."""
        address = f"{self.api}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of a query now."""
        found: list[dict[str, Any]] = self.get("query", query=text)["result"]
        return found

    def until(self, text: str) -> list[dict[str, Any]]:
        """The series of a query, once there are any."""
        deadline = time.monotonic() + 60
        while True:
            try:
                found = self.query(text)
            except OSError:  # not ready
                found = []
            if found:
                return found
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(30)


def metrics_address(run: Run) -> str:
    status = run.until(lambda s: bool(s.get("metrics")) and s["progress"]["samples"] > 0)
    address: str = status["metrics"]
    return address


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
def test_prometheus_reads_a_run_and_every_query_of_the_dashboard_has_an_answer(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = (
        "train.epochs=4000",  # SIGTERM ends it: no request of a slow machine comes too late
        "options.pause_s=0.02",
        f"monitor.port={port}",
        "monitor.log=csv,tensorboard",
        "monitor.trace_steps=20",
        "checkpoint.every_steps=20",
        "train.eval_every=1",
    )
    sets = [word for text in settings for word in ("--set", text)]
    data = str(made_data(tmp_path))
    job = ["faulty_task:Faulty", "--train", data, "--test", data, *sets]
    run = start(tmp_path, "-n", "5", "--servers", "2", *job)
    with run.launched:
        address = metrics_address(run)
        assert address == f"http://127.0.0.1:{port}/metrics"
        prometheus = Prometheus(tmp_path, address.removeprefix("http://").partition("/")[0])
        try:
            prometheus.until("mpips_run_test_score")
            prometheus.until("mpips_run_checkpoints_total > 0")
            prometheus.until("rate(mpips_run_samples_total[3s]) > 0")
            prometheus.until("rate(mpips_link_pushed_bytes_total[3s]) > 0")
            texts = list(expressions(json.loads(DASHBOARD.read_text())))
            assert len(texts) > 20
            empty = []
            for text in texts:
                filled = text.replace("$run", ".*").replace("$__rate_interval", "5s")
                assert "$" not in filled, text
                # An annotation is at a new launch, which this run has none of.
                if not prometheus.query(filled) and "changes(" not in text:
                    empty.append(text)
            assert empty == []
            # Panels name labels that their series have.
            for panel in json.loads(DASHBOARD.read_text())["panels"]:
                for target in panel["targets"]:
                    filled = target["expr"].replace("$run", ".*").replace("$__rate_interval", "5s")
                    labels = set(prometheus.query(filled)[0]["metric"])
                    named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                    assert named <= labels, (target["expr"], named - labels)
            # All numbers of one moment agree with the run directory.
            workers = prometheus.query("sum by (run) (mpips_worker_samples_total)")
            assert [w["metric"]["run"] for w in workers] == [run.path.name]
            hosts = prometheus.query("mpips_link_pushed_bytes_total")
            assert len(hosts) == 1
            check_traces(run, tmp_path)
            # The next attempt answers at the same port; counters begin again, steps go on.
            os.kill(run.pid_of("worker 1"), signal.SIGKILL)
            prometheus.until("mpips_run_attempt == 1")
            assert prometheus.until("mpips_run_failures_total == 1")
            step = run.until(lambda s: s["generation"] == 1)["start"]["step"]
            prometheus.until(f"mpips_run_step > {step} and mpips_run_samples_total > 0")
        finally:
            prometheus.close()
        run.launched.send_signal(signal.SIGTERM)
        assert run.launched.wait() == 75, run.launched.tail(60)
    check_logs(run.path)


def check_traces(run: Run, folder: Path) -> None:
    """Twenty steps of a run, on request, and those of its begin."""
    for options in (("--steps", "20"), ()):
        path = folder / "trace.json"
        command = [sys.executable, "-m", "mpips", "trace", str(run.path), "-o", str(path), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        events = check_trace(path)
        if not missing():
            with browsing(folder) as window:
                check_viewed(window, folder, path, events)
        spent = sums(events)
        workers, servers = (0, 1), (0, 1)
        roles = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "thread_name"}
        for worker in workers:
            rank = roles[f"worker {worker}"]
            assert min(spent[rank, kind] for kind in ("push", "pull", "compute", "tick")) > 0
            ticks = [e for e in events if (e["pid"], e.get("cat")) == (rank, "tick")]
            assert len(ticks) == 20
        for server in servers:
            rank = roles[f"server {server}"]
            assert spent[rank, "apply"] > 0
            assert spent[rank, "clock"] > 0
        # Each worker pushes to both servers in each step.
        flows = {(e["pid"], f["pid"]) for e, f in pairs_of(events)}
        assert len(flows) == 4
        assert sum(e["ph"] == "s" for e in events) >= 4 * 18
        # Asked for without steps, the last trace is written again.
        run_traces = sorted(p.parent.name for p in run.path.glob("traces/*/index.json"))
        assert len(run_traces) == 2
        assert "begin-0" in run_traces


def pairs_of(events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Begin and end of each flow."""
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    return [(e, ends[e["id"]]) for e in events if e["ph"] == "s"]


def check_logs(folder: Path) -> None:
    """CSV and event files of a run that was restarted: one series, nothing doubled, the same numbers."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows]
    assert {row["generation"] for row in rows} == {"0", "1"}
    assert steps == sorted(set(steps))
    module = "tensorboard.backend.event_processing.event_accumulator"
    found = pytest.importorskip(module, reason="tensorboard is not installed")
    accumulator = found.EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    points = [(e.step, e.value) for e in accumulator.Scalars("train/loss")]
    assert points == [
        (s, pytest.approx(float(r["loss"]))) for s, r in zip(steps, rows, strict=True)
    ]
    assert accumulator.Scalars("test/accuracy")
    assert sum(e.histogram_value.num for e in accumulator.Histograms("work/staleness")) > 0


def test_a_job_without_a_run_directory_is_seen_too_and_a_taken_port_stops_nothing(
    tmp_path: Path,
) -> None:
    """One process with all roles; its port belongs to this test at first."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [
            *(sys.executable, "-m", "mpips", "train", "softmax", "--train", "digits"),
            *("--set", f"monitor.port={port}", "--set", "train.epochs=1"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"monitor.port = {port} cannot be opened on 127.0.0.1") == 1
    assert "Address already in use; training continues without /metrics" in done.stderr
