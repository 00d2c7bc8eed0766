"""A disk that is full just when a worker ends: the last checkpoint is written when there is room again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mpips
from mpips import BSP, SGD, DenseTable, DiLoCo, Worker
from mpips.checkpoint import find_newest, open_checkpoint, writer
from mpips.checkpoint.residuals import read_residuals
from mpips.session.roles import Roles

N = 40


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the server of a job in this process try again as in a supervised run; count its tries."""
    found: list[int] = []
    make: Callable[..., Any] = Roles._make_server_part

    def made(self: Roles) -> Any:
        part = make(self)
        part._run = SimpleNamespace(generation=0, check_lease=lambda: None)
        save = part._save

        def counted(between: Any) -> Any:
            found.append(1)
            assert len(found) < 20
            return save(between)

        part._save = counted
        return part

    monkeypatch.setattr(Roles, "_make_server_part", made)
    return found


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "other"])
@pytest.mark.parametrize("at", ["worker", "server"])
@pytest.mark.parametrize("kind", ["local", "residuals"])
def test_the_last_checkpoint_follows_a_failure_at_the_end(
    kind: str,
    at: str,
    number: int,
    tmp_path: Path,
    tries: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first write fails: that of the worker's own file, or that of the manifest behind all files."""
    failed: list[str] = []
    replace, manifest = os.replace, writer.write_manifest

    def refused(name: str) -> None:
        failed.append(name)
        raise OSError(number, os.strerror(number), name)

    def replacing(source: Any, target: Any) -> None:
        if not failed and Path(target).name.startswith(".worker-"):
            refused(str(target))
        replace(source, target)

    def writing(*arguments: Any) -> None:
        if not failed:
            refused("manifest")
        manifest(*arguments)

    if at == "worker":
        monkeypatch.setattr(os, "replace", replacing)
    else:
        monkeypatch.setattr(writer, "write_manifest", writing)

    def main(worker: Worker) -> None:
        for step in range(3):
            worker.table("t").push(np.arange(N, dtype=np.float32))
            worker.set_cursor({"step": step + 1})
            worker.clock()

    if kind == "local":
        table = DenseTable("t", (N,), SGD(1.0), DiLoCo(2, SGD(1.0)), init="zeros")
    else:
        codec = mpips.TopK(0.1)
        table = DenseTable("t", (N,), SGD(1.0), BSP("sum"), init="zeros", compression=codec)
    outcome = mpips.run(main, [table], save=tmp_path, verbose=False)
    assert len(failed) == 1
    assert "path" in outcome.statistics["totals"]["servers"]["checkpoint"]
    assert len(tries) >= 2
    found = find_newest(tmp_path).checkpoint
    assert found is not None
    with open_checkpoint(found.path) as checkpoint:
        checkpoint.verify()
        values, (state,) = checkpoint.read_dense("t")[0], checkpoint.manifest.workers
        left = read_residuals(checkpoint.path, checkpoint.manifest, 0).get("t", 0.0)
        assert (values - left == -3 * np.arange(N)).all()
        assert [file.error for file in state.files] == [""]
    assert not list(tmp_path.glob(".worker-*"))
