"""`mpips ckpt`, which needs neither mpi4py nor h5py."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from checkpoints import Contents, flip, make_newer, names
from command_line import mpips as command

import mpips
from mpips import DenseTable, EmbeddingTable
from mpips.checkpoint import open_checkpoint
from mpips.checkpoint.manifest import MANIFEST, STATE, encode

# Python cannot import a module whose entry in sys.modules is None.
WITHOUT = """
import json, sys
sys.modules["mpi4py"] = sys.modules["h5py"] = None
from mpips.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["mpips", "ckpt", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, arguments
"""


def ckpt(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return command("ckpt", *arguments, folder=folder)


def done(*arguments: object, folder: Path | None = None) -> str:
    result = ckpt(*arguments, folder=folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def refused(code: int, *arguments: object) -> str:
    result = ckpt(*arguments)
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("mpips: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "checkpoints"
    for step in (100, 200):
        Contents(seed=step).write(folder, step)
    # Step 300 has other values and other rows.
    keys = {"users": range(100), "linear": [1, 2], "empty": []}
    Contents(seed=5, keys=keys).write(folder, 300)
    return folder.parent


@pytest.fixture
def run(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def one(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:012d}"


def test_ls_lists_good_and_bad_ones(run: Path) -> None:
    (one(run, 200) / MANIFEST).unlink()
    text = done("ls", run)
    assert [line.split()[0] for line in text.splitlines()] == [
        "checkpoint",
        "step-000000000100",
        "step-000000000300",
        "step-000000000200",
    ]
    assert "REFUSED: " in text.splitlines()[-1]
    rows = json.loads(done("ls", run / "checkpoints", "--json"))
    assert [(row["name"], bool(row["problem"])) for row in rows][-1] == ("step-000000000200", True)
    assert rows[0]["step"] == 100
    assert rows[0]["rows"] == 305
    assert done("ls", folder=run) == text


def test_every_command_works_in_a_process_that_can_import_neither_mpi4py_nor_h5py(
    run: Path, tmp_path: Path
) -> None:
    first = str(one(run, 200))
    commands = [
        ["ls", str(run)],
        ["show", first],
        ["verify", str(run)],
        ["diff", first, first],
        ["export", first, "--out", str(tmp_path / "x.npz")],
        ["export", first, "--format", "csv", "--out", str(tmp_path / "tables")],
        ["prune", str(run), "--keep-last", "1"],
    ]
    call = [sys.executable, "-c", WITHOUT, json.dumps(commands)]
    result = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("step-000000000300") > 1
    assert names(run / "checkpoints") == ["step-000000000300"]
    assert (tmp_path / "x.npz").exists()
    assert (tmp_path / "tables" / "users.csv").exists()


def test_show_prints_the_content(run: Path) -> None:
    text = done("show", one(run, 200))
    for part in ("a-run, generation 1", "7 x 13 x 5", "m, v, steps", "105 rows, keys -9223"):
        assert part in text
    assert '"epochs": 3' in text
    manifest = json.loads(done("show", run, "--json"))
    assert manifest["step"] == 300
    assert manifest["workers"][1]["clock"] == 10
    assert manifest["workers"][1]["cursor"] == {"epoch": 2, "step": 1, "loss": 0.5}


def test_show_prints_how_rows_are_stored_and_limited(tmp_path: Path) -> None:
    limited = [
        EmbeddingTable("users", 3, mpips.Adam(), row_dtype="bf16", hash_buckets=1000),
        EmbeddingTable(
            "recent",
            2,
            mpips.Adagrad(),
            admit=mpips.MinCount(3),
            evict=mpips.MaxRows(640, by="lfu"),
        ),
        EmbeddingTable(
            "empty", 2, mpips.Adagrad(), admit=mpips.Probability(0.5), evict=mpips.Idle(9)
        ),
        DenseTable("weight", (7,), mpips.Adam(0.1)),
    ]
    Contents(tables=limited, keys={"users": range(5)}).write(tmp_path, 100)
    path = tmp_path / f"step-{100:012d}"
    lines = [line.split() for line in done("show", path).splitlines()]
    assert ["users", "bf16", "1,000", "-", "-"] in lines
    counted = ["min_count:", "clocks", "3,", "within", "10000,", "memory_mib", "16"]
    evicted = ["max_rows:", "rows", "640,", "by", "lfu"]
    assert ["recent", "float32", "-", *counted, *evicted] in lines
    assert ["empty", "float32", "-", "probability:", "p", "0.5", "idle:", "clocks", "9"] in lines
    assert not [line for line in lines if line[:2] == ["weight", "float32"]]
    tables = {table["name"]: table for table in json.loads(done("show", path, "--json"))["tables"]}
    assert tables["recent"]["evict"] == {"name": "max_rows", "rows": 640, "by": "lfu"}
    assert tables["weight"]["evict"] is None

    # An earlier version has noted that rows leave, not the limit.
    with open_checkpoint(path) as checkpoint:
        manifest = checkpoint.manifest
    old = [msgspec.structs.replace(table, admit=None, evict=None) for table in manifest.tables]
    manifest = msgspec.structs.replace(manifest, tables=tuple(old))
    (path / MANIFEST).write_bytes(encode(manifest, "1.0"))
    lines = [line.split() for line in done("show", path).splitlines()]
    assert ["recent", "float32", "-", "-", "not", "recorded"] in lines


def test_show_prints_the_position_of_each_worker_and_the_samples_read(run: Path) -> None:
    lines = [line.split() for line in done("show", one(run, 200)).splitlines()]
    assert ["1", "10", "2", "1", "loss", "0.5", "loader"] in lines
    assert ["0", "4", "5", "7", "2:3,", "2:3,", "2:3,", "2:3"] in lines
    assert ["1", "2", "8", "7", "as", "above"] in lines


def test_show_shortens_long_entries_of_a_cursor(run: Path) -> None:
    groups = {str(i): {"lr": 0.5} for i in range(300)}
    with open_checkpoint(one(run, 200)) as checkpoint:
        manifest = checkpoint.manifest
    for worker in manifest.workers:
        worker.cursor["optimizer 0"] = groups
    (one(run, 200) / MANIFEST).write_bytes(encode(manifest, "1.0"))
    text = done("show", one(run, 200))
    assert "optimizer 0 {'0': {'lr': 0.5}, '1': " in text
    assert (
        f"... ({len('optimizer 0 ' + str(groups)):,} characters; all of them with --json)" in text
    )
    assert max(map(len, text.splitlines())) < 300
    found = json.loads(done("show", one(run, 200), "--json"))
    assert found["workers"][1]["cursor"]["optimizer 0"] == groups


def test_verify_reads_all_and_names_the_damage(run: Path) -> None:
    assert done("verify", run).count("good") == 3
    with open_checkpoint(one(run, 200)) as checkpoint:
        place = checkpoint.manifest.table("linear").dataset("values").offset
    flip(one(run, 200) / STATE, place)
    result = ckpt("verify", run)
    assert result.returncode == 1
    assert "values of table 'linear', rows 0 to 200: the checksum does not match" in result.stdout
    assert result.stderr.startswith(
        "mpips: error: 1 of 3 checkpoints are damaged: step-000000000200; remove"
    )
    assert done("verify", one(run, 100)) == "step-000000000100  good\n"
    found = json.loads(ckpt("verify", run, "--json").stdout)
    assert [len(entry["problems"]) for entry in found] == [0, 1, 0]


def test_diff_finds_one_changed_value(run: Path, tmp_path: Path) -> None:
    same = Contents(seed=200).write(tmp_path / "a", 1).path
    changed = Contents(seed=200)
    changed.columns["weight"]["values"][17] += 0.5
    changed.columns["users"]["state/m"][3] *= 2
    other = changed.write(tmp_path / "b", 1).path
    assert all(d["same"] for d in json.loads(done("diff", same, one(run, 200), "--json")).values())
    result = ckpt("diff", same, other, "--json")
    assert result.returncode == 1
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert {name for name, d in found.items() if not d["same"]} == {"weight", "users"}
    assert found["weight"]["changed"] == {"values": 1, "state/m": 0, "state/v": 0}
    assert found["weight"]["greatest"] == pytest.approx(0.5, rel=1e-5)
    assert found["users"]["changed"]["state/m"] == 1
    text = ckpt("diff", same, other).stdout
    assert "state differs: m" in text


def test_diff_counts_rows_that_only_one_has(run: Path) -> None:
    found = json.loads(ckpt("diff", one(run, 200), one(run, 300), "--json").stdout)["users"]
    # 200 has min, max, -1, 0, 1 and 1000 to 1099; 300 has 0 to 99.
    assert (found["only_first"], found["only_second"], found["compared"]) == (103, 98, 2)


def test_export_to_npz_gives_all_arrays(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "all.npz"
    done("export", one(run, 200), "--out", out)
    columns = Contents(seed=200).columns
    with np.load(out, allow_pickle=False) as arrays:
        expected = {f"{t}/{role}" for t, mine in columns.items() for role in mine}
        assert set(arrays.files) == expected
        for name in arrays.files:
            table, _, role = name.partition("/")
            column = columns[table][role]
            assert arrays[name].dtype == column.dtype
            assert np.array_equal(arrays[name].reshape(column.shape), column)
        assert arrays["weight/values"].shape == (7, 13, 5)


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_export_to_csv_gives_every_float_back(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    done("export", run, "--format", "csv", "--out", out, "--table", "users", "--table", "weight")
    assert names(out) == [".mpips-export.json", "users.csv", "weight.csv"]
    keys = {"users": range(100), "linear": [1, 2], "empty": []}
    columns = Contents(seed=5, keys=keys).columns
    rows = read_csv(out / "users.csv")
    assert [int(row["key"]) for row in rows] == list(range(100))
    values = [[np.float32(row[f"value_{j}"]) for j in range(3)] for row in rows]
    assert np.array_equal(np.array(values), columns["users"]["values"])
    assert [int(row["steps"]) for row in rows] == columns["users"]["steps"].tolist()
    rows = read_csv(out / "weight.csv")
    assert [rows[70][f"index_{axis}"] for axis in range(3)] == ["1", "1", "0"]
    assert np.float32(rows[70]["v"]) == columns["weight"]["state/v"][70]


def test_a_damaged_checkpoint_is_not_exported(run: Path, tmp_path: Path) -> None:
    flip(one(run, 300) / STATE, 0)
    text = refused(1, "export", one(run, 300), "--out", tmp_path / "x.npz")
    assert "the checksum does not match" in text
    assert not (tmp_path / "x.npz").exists()


def test_prune_keeps_the_newest_that_verifies(run: Path) -> None:
    flip(one(run, 300) / STATE, 0)
    folder = run / "checkpoints"
    before = names(folder)
    assert "step-000000000100  would be removed" in done(
        "prune", run, "--keep-last", 1, "--dry-run"
    )
    assert names(folder) == before
    result = json.loads(done("prune", run, "--keep-last", 1, "--json"))
    assert set(result) == {"removed", "kept", "damaged"}
    assert result["removed"] == ["step-000000000100"]
    assert names(folder) == ["step-000000000200", "step-000000000300"]


@pytest.mark.parametrize(
    ("code", "arguments", "parts"),
    [
        (2, ["ls", "{run}/none"], ["no folder ", "'checkpoints' folder"]),
        (2, ["ls", "{run}/checkpoints/step-000000000100"], ["no checkpoints in"]),
        (2, ["show", "{run}/checkpoints/step-000000000999"], ["there is no such checkpoint"]),
        (2, ["verify", "{run}/empty"], ["no checkpoints in"]),
        (2, ["prune", "{run}", "--keep-last", "0"], ["keep_last = 0", "must be 1 or more"]),
        (2, ["export", "{run}", "--out", "{run}"], ["already exists", "--force"]),
        (2, ["export", "{run}", "--out", "{run}/no/x.npz"], ["there is no such folder"]),
        (
            1,
            ["export", "{run}", "--out", "{run}/x", "--table", "w"],
            ["no table 'w'", "it has weight"],
        ),
        (2, ["diff", "{run}", "{run}/none"], ["no folder "]),
    ],
)
def test_a_mistake_ends_with_one_message(
    run: Path, code: int, arguments: list[str], parts: list[str]
) -> None:
    (run / "empty").mkdir()
    text = refused(code, *(argument.format(run=run) for argument in arguments))
    for part in parts:
        assert part in text


def test_a_newer_format_is_one_message_in_every_command(run: Path, tmp_path: Path) -> None:
    make_newer(one(run, 300))
    assert "is newer than this mpips" in done("ls", run)
    for arguments in (["show"], ["export", "--out", tmp_path / "x.npz"], ["diff", one(run, 200)]):
        text = refused(1, *arguments, one(run, 300))
        assert "install a newer mpips to use it" in text


@pytest.mark.parametrize("arguments", [["lst"], ["diff"], ["export"], ["ls", "--nosuch"]])
def test_wrong_usage_points_to_the_help(arguments: list[str]) -> None:
    result = ckpt(*arguments)
    assert result.returncode == 2
    assert re.search("(-h|--help).? for help", result.stderr)  # the first with Click 8.1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["ls", "show", "verify", "diff", "export", "prune"])
def test_every_command_has_a_help(name: str) -> None:
    assert done(name, "--help").startswith("Usage: mpips ckpt " + name)
