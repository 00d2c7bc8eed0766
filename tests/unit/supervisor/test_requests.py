"""Requests to a run through its directory: `mpips stop` and `mpips checkpoint`."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from supervisor_rig import Background, Case, running, wait_for

from mpips.cli.checkpoint import command as checkpoint
from mpips.cli.stop import command as stop
from mpips.errors import ConfigError
from mpips.monitor.requesting import RequestError, request_checkpoint, request_stop
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Lease, Progress, Status
from mpips.rundir.requests import RequestFolder

HERE = socket.gethostname(), os.getpid()


def alive(folder: Path, pid: int | None = None) -> RunFolder:
    """Make a run directory whose lease this process (or `pid`) has just renewed."""
    run = RunFolder.create(folder, "job")
    lease = Lease(generation=0, host=HERE[0], pid=pid or HERE[1], time_s=time.time() + 3600)
    replace_json(run.lease_file, lease)
    write_status(run, "")
    return run


def write_status(run: RunFolder, checkpoint: str) -> None:
    status = Status(
        state="running",
        generation=0,
        time_s=time.time() + 3600,
        progress=Progress(step=7),
        checkpoint=checkpoint,
    )
    replace_json(run.status_file, status)


def test_stop_ends_a_run_as_sigterm_does(case: Case) -> None:
    with Background(case) as other:
        told: list[str] = []
        view = request_stop(case.run_folder, False, 20.0, told.append)
        assert other.process.wait(20) == 128 + signal.SIGTERM, other.text()
        assert view.state == "interrupted"
        assert told == [f"mpips stop: {case.run_folder.path.name} has the request"]
        assert "interrupted by SIGTERM: the ranks ended before they had saved" in other.text()
        assert not running(case.run_folder)
        assert not list(RequestFolder(case.run_folder).path.iterdir())


def test_stop_now_does_not_wait_for_a_checkpoint(case: Case) -> None:
    with Background(case, ignore=[signal.SIGUSR1], grace_s=60.0) as other:
        result = CliRunner().invoke(stop, [str(case.run_folder.path), "--now", "--timeout", "20"])
        assert result.exit_code == 0, result.output
        assert (
            f"{case.run_folder.path.name} has ended (interrupted); continue with: mpips run"
            in result.output
        )
        assert "stopped at once by a second SIGTERM" in other.text()


def test_a_request_for_a_checkpoint_reaches_the_ranks_as_sigusr1(case: Case) -> None:
    with Background(case) as other:
        RequestFolder(case.run_folder).make("checkpoint")
        # The default action of SIGUSR1 ends the fake launcher, which handles none.
        other.process.wait(20)
        assert "SIGUSR1" in other.text()


def test_a_request_to_an_earlier_supervisor_has_no_effect(case: Case) -> None:
    run = case.run_folder
    replace_json(run.lease_file, Lease(generation=-1, host=HERE[0], pid=1, time_s=0.0))
    path = RequestFolder(run).make("stop")
    assert case.run({"sleep": 0.7, "finish": True}) == 0, case.text
    assert not path.exists()


def test_requests_are_taken_once_in_their_order_and_files_that_are_none_removed(
    tmp_path: Path,
) -> None:
    run = alive(tmp_path)
    requests = RequestFolder(run)
    assert requests.take(*HERE) == []
    requests.make("checkpoint")
    requests.make("stop")
    (requests.path / "0.json").write_text("{")
    (requests.path / "1.json").write_text('{"kind": "burn", "host": "", "pid": 1, "time_s": 0}')
    assert [request.kind for request in requests.take(*HERE)] == ["checkpoint", "stop"]
    assert requests.take(*HERE) == []
    assert not list(requests.path.iterdir())


def taking(run: RunFolder, then: str) -> threading.Thread:
    """Stand in for the supervisor of `run`: take one request, then write a status with a checkpoint."""
    requests = RequestFolder(run)

    def work() -> None:
        wait_for(requests.path)
        while not requests.take(*HERE):
            pass
        write_status(run, then)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_checkpoint_prints_the_path_of_the_new_checkpoint(tmp_path: Path) -> None:
    run = alive(tmp_path)
    thread = taking(run, "/x/checkpoints/step-000000000007")
    result = CliRunner().invoke(checkpoint, [str(run.path)])
    thread.join()
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "/x/checkpoints/step-000000000007"


def test_a_checkpoint_that_does_not_come_is_an_error_that_names_the_time(tmp_path: Path) -> None:
    run = alive(tmp_path)
    thread = taking(run, "")
    with pytest.raises(RequestError, match=r"no new checkpoint within 1 s; the request stands"):
        request_checkpoint(run, 1.0, lambda text: None)
    thread.join()


def test_a_request_that_no_supervisor_takes_is_withdrawn(tmp_path: Path) -> None:
    run = alive(tmp_path)
    with pytest.raises(RequestError, match="its supervisor has not taken the request"):
        request_stop(run, False, 0.0, lambda text: None)
    assert not list(RequestFolder(run).path.iterdir())


def test_nothing_is_requested_of_a_run_that_is_not_running(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    with pytest.raises(ConfigError, match=r"is not running \(not started\)"):
        request_stop(run, False, 1.0, lambda text: None)
    replace_json(run.lease_file, Lease(generation=0, host="h", pid=1, time_s=0.0, released=True))
    write_status(run, "")
    with pytest.raises(ConfigError, match="is not running"):
        request_checkpoint(run, 1.0, lambda text: None)
    with pytest.raises(ConfigError, match="nothing takes a request"):
        RequestFolder(run).make("stop")


def test_a_run_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    run = alive(tmp_path)
    RequestFolder(run).path.write_text("a file where the folder would be")
    with pytest.raises(ConfigError, match="make the request as the owner of the run"):
        RequestFolder(run).make("stop")
