"""What others see of a job in one process, and options of [monitor] that a job cannot have."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import mpips
from mpips.config import monitoring
from mpips.config.monitoring import MonitorConfig, monitor_config
from mpips.errors import CapabilityError, ConfigError
from mpips.scheduler import observed
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
    MonitorConfig().check(False)
    monkeypatch.setattr(monitoring, "find_spec", lambda name: None)
    MonitorConfig(log=("csv", "jsonl")).check(True)
    with pytest.raises(CapabilityError, match=r"monitor.port needs prometheus-client.*pip install"):
        MonitorConfig(port=1).check(False)
    with pytest.raises(CapabilityError, match=r"tensorboard.* needs tensorboardX.*pip install"):
        MonitorConfig(log=("tensorboard",)).check(True)
