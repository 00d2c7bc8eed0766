"""What others see of a job in one process, and options of [monitor] that a job cannot have."""

from __future__ import annotations

import socket
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from chrome_trace import check_trace

import mpips
from mpips.config import monitoring
from mpips.config.monitoring import MonitorConfig, monitor_config
from mpips.config.options import SessionOptions
from mpips.errors import CapabilityError, ConfigError
from mpips.monitor.trace import read_trace, write_chrome
from mpips.mpi.one_rank import OneRank
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease
from mpips.rundir.tracing import TraceFolder
from mpips.scheduler import observed
from mpips.session.job import Job
from mpips.worker.worker import Worker


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_the_metrics_of_a_job_in_one_process_are_there_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    monkeypatch.setattr(observed, "INTERVAL_S", 0.0)
    port = free_port()
    address = f"http://127.0.0.1:{port}/metrics"

    def main(worker: Worker) -> bytes:
        table = worker.table("w")
        for step in range(5):
            table.push(np.ones(8, np.float32)).wait()
            worker.clock()
            worker.report(0, step, 10, 5.0)
        worker.clock()
        with urllib.request.urlopen(address, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def failing(worker: Worker) -> None:
        raise ValueError("mine")

    tables = [mpips.DenseTable("w", (8,))]
    text = mpips.run(main, tables, monitor={"port": port}).value.decode()
    assert 'mpips_run_step{run="mpips"} 6.0' in text
    assert 'mpips_run_samples_total{run="mpips"} 50.0' in text
    assert 'mpips_run_loss{run="mpips"} 0.5' in text
    assert 'mpips_run_state{run="mpips",state="running"} 1.0' in text
    # The port is free again, also after an error.
    with pytest.raises(ValueError, match="mine"):
        mpips.run(failing, tables, monitor={"port": port})
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("fails", [False, True])
def test_one_process_traces_all_roles(tmp_path: Path, fails: bool) -> None:
    folder = RunFolder.create(tmp_path, "job")
    replace_json(folder.lease_file, Lease(generation=0, host="h", pid=1, time_s=1.0))
    info = folder.info()
    run = Supervised(folder, info.run_id, info.token, 0)

    def main(worker: Worker) -> None:
        table = worker.table("w")
        for _ in range(12):
            table.push(np.ones(8, np.float32)).wait()
            table.pull()
            worker.clock()
        if fails:
            raise ValueError("mine")

    job = Job(
        OneRank(),
        [mpips.DenseTable("w", (8,))],
        SessionOptions(),
        run=run,
        monitor=MonitorConfig(trace_steps=5),
    )
    if fails:
        # The trace was complete before.
        with pytest.raises(ValueError, match="mine"):
            job.run(main)
        assert TraceFolder(folder, "begin-0").read(0)[0].dropped == 0
        return
    job.run(main)
    ranks = read_trace(TraceFolder(folder, "begin-0"))
    with (tmp_path / "trace.json").open("wb") as file:
        write_chrome(file, ranks)
    events = check_trace(tmp_path / "trace.json")
    names = Counter(event["name"] for event in events)
    # The order comes at the end of the first clock, so that lies before its part.
    assert names["end of clock"] == 5
    assert names["push w"] == names["pull w"] == names["apply w"] == 5
    assert names["update"] == 2 * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, r"monitor.port = 70000: must be .*65535"),
        ({"host": ""}, "monitor.host = ''"),
        ({"log": ["cvs"]}, "monitor.log.*cvs"),
        ({"prot": 1}, "monitor.prot.*did you mean 'monitor.port'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        monitor_config(options)


def test_one_form_of_logs_may_be_text_and_jsonl_is_always_there() -> None:
    assert monitor_config({"log": "csv"}).log == ("csv",)
    assert monitor_config({"log": ["csv", "jsonl", "csv"]}).extra_logs == ("csv",)


def test_logs_without_a_run_directory_and_missing_libraries_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"monitor.log = \['csv'\]: needs a run directory.*mpips run"
    ):
        mpips.run(lambda worker: None, [mpips.DenseTable("w", (1,))], monitor={"log": ["csv"]})
    with pytest.raises(ConfigError, match=r"monitor.trace_steps = 3: needs a run directory"):
        MonitorConfig(trace_steps=3).check(False)
    MonitorConfig().check(False)
    monkeypatch.setattr(monitoring, "find_spec", lambda name: None)
    MonitorConfig(log=("csv", "jsonl")).check(True)
    with pytest.raises(CapabilityError, match=r"monitor.port needs prometheus-client.*pip install"):
        MonitorConfig(port=1).check(False)
    with pytest.raises(CapabilityError, match=r"tensorboard.* needs tensorboardX.*pip install"):
        MonitorConfig(log=("tensorboard",)).check(True)
