"""`mpips ckpt delta`, `apply` and `export --row-dtype`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from checkpoints import Contents
from command_line import mpips

from mpips.checkpoint.manifest import MANIFEST, STATE


def ckpt(*arguments: object, code: int = 0) -> str:
    result = mpips("ckpt", *arguments)
    assert result.returncode == code, result.stderr
    return result.stderr if code else result.stdout


def test_a_delta_is_written_and_applied(tmp_path: Path) -> None:
    first, second = Contents(), Contents()
    second.columns["users"]["values"][5] += 1
    a = first.write(tmp_path / "a", 100).path
    b = second.write(tmp_path / "b", 200).path
    file, out = tmp_path / "d.h5", tmp_path / "c"
    text = ckpt("delta", a, b, "--out", file)
    assert text.splitlines()[0].split() == ["table", "changed", "removed", "of"]
    assert [line.split() for line in text.splitlines() if line.startswith("users")] == [
        ["users", "1", "105"]
    ]
    assert text.splitlines()[-1].startswith(f"{file}  ")
    assert "of the checkpoint's file" in text.splitlines()[-1]
    assert ckpt("apply", a, file, "--out", out) == f"{out}\n"
    for name in (MANIFEST, STATE):
        assert (out / name).read_bytes() == (b / name).read_bytes()
    assert "already exists; use --force" in ckpt("delta", a, b, "-o", file, code=2)
    found = json.loads(ckpt("delta", a, b, "-o", file, "--force", "--json"))
    assert found["n_bytes"] == file.stat().st_size
    assert {t["table"]: t["changed"] for t in found["tables"]}["users"] == 1
    error = ckpt("apply", b, file, "-o", tmp_path / "d", code=1)
    assert "begins at step 100 of generation 1 of run 'a-run'" in error
    other = tmp_path / "folder"
    other.mkdir()
    assert json.loads(ckpt("apply", a, file, "-o", other, "--json")) == {
        "path": str(other / b.name)
    }


def test_rows_are_exported_as_int8(tmp_path: Path) -> None:
    contents = Contents()
    path = contents.write(tmp_path / "a").path
    ckpt("export", path, "--out", tmp_path / "x.npz", "--row-dtype", "int8", "--table", "users")
    with np.load(tmp_path / "x.npz") as found:
        values, scale = found["users/values"], found["users/scale"]
    assert values.dtype == np.int8
    wide = contents.columns["users"]["values"]
    assert (np.abs(values * scale[:, None] - wide) <= 0.5001 * scale[:, None]).all()
    error = ckpt(
        "export", path, "--out", tmp_path / "x", "--row-dtype", "int8", "--format", "csv", code=2
    )
    assert "row_dtype = 'int8' with CSV" in error
