"""`mpips serve` beside a run that trains, is killed and continues."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from launcher import site_environment
from supervised import ENVIRONMENT, SHAPE, counting, start

from mpips.inference.client import ModelClient, ServedValues

WAIT_S = 60.0
KEYS = np.arange(400)


@contextmanager
def serving(name: str, folder: Path) -> Iterator[str]:
    """Run `mpips serve` for a run; gives its address."""
    command = [sys.executable, "-m", "mpips", "serve", name, "--folder", str(folder)]
    command += ["--port", "0", "--no-token", "--follow", "0.2"]
    log = folder.parent / "serve.log"
    with open(log, "wb") as file:
        env = {**site_environment(), **ENVIRONMENT}
        process = subprocess.Popen(command, env=env, stderr=file, stdout=file, cwd=folder.parent)
    try:
        end = time.monotonic() + WAIT_S
        while not (found := re.search(r"http://[0-9.]+:[0-9]+", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        yield found[0]
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)


class Looking:
    """A thread that looks rows up, and checks every answer."""

    def __init__(self, url: str) -> None:
        self._client = ModelClient(url)
        self.answers: list[ServedValues] = []
        self.errors: list[BaseException] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        try:
            with self._client as client:
                while not self._done.is_set():
                    found = client.rows("rows", KEYS)
                    # All values of a row are pushed together, so they differ only in a torn row.
                    assert (found.values == found.values[:, :1]).all()
                    assert (found.values >= 0).all()
                    self.answers.append(found)
        except BaseException as error:
            self.errors.append(error)

    def until(self, condition: Callable[[ServedValues], bool]) -> ServedValues:
        """Wait for an answer, from now on, that fits."""
        end, first = time.monotonic() + WAIT_S, len(self.answers)
        while True:
            for answer in self.answers[first:]:
                if condition(answer):
                    return answer
            assert not self.errors, self.errors
            assert time.monotonic() < end, self.answers[-1:]
            time.sleep(0.01)

    def end(self) -> None:
        """End the thread."""
        self._done.set()
        self._thread.join(WAIT_S)
        assert not self.errors, self.errors


@pytest.mark.timeout(240)
def test_look_ups_go_on_while_a_run_trains_is_killed_and_ends(tmp_path: Path) -> None:
    settings = ["table.consistency=asp", "checkpoint.every_steps=20", "train.epochs=100000"]
    run = start(tmp_path, *SHAPE, *counting(tmp_path, *settings), timeout=200.0)
    with run.launched:
        pid = run.pid_of("server 1")
        # The name is that of `mpips ls`; its beginning is enough.
        with serving(run.path.name[:-3], run.folder) as url:
            looking = Looking(url)
            first = looking.until(lambda found: found.source == "live")
            later = looking.until(lambda found: found.source == "live" and found.step > first.step)
            assert (later.values >= first.values).all()
            assert later.values.sum() > first.values.sum()
            with ModelClient(url) as client:
                seen = client.dense("seen")
                assert (seen.source, seen.values.shape) == ("live", (200, 400))
                assert (seen.values >= 0).all()
                assert seen.values.sum() > 0

            os.kill(pid, signal.SIGKILL)
            away = looking.until(lambda found: found.source == "checkpoint")
            back = looking.until(lambda found: found.source == "live")
            # The next attempt goes on with the memory, so nothing is lost that anybody has seen.
            assert back.step >= later.step
            assert (back.values >= np.maximum(later.values, away.values)).all()

            os.kill(run.launched.pid, signal.SIGTERM)
            run.launched.wait()
            newest = os.readlink(run.path / "checkpoints/latest")
            final = int(newest.split("-")[1].split(".")[0])
            last = looking.until(lambda found: found.source == "checkpoint" and found.step == final)
            looking.end()
            assert (last.values >= back.values).all()
    sources = [answer.source for answer in looking.answers]
    assert {*sources} == {"live", "checkpoint"}
    assert run.attempts == 2
