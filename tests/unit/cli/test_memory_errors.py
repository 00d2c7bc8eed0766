"""Data and tables that do not fit into memory end with one message and an exit code, without a traceback."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import mpips

from mpips import DenseTable
from mpips import run as run_job
from mpips.cli import main
from mpips.data import read, readers
from mpips.errors import CapabilityError, DataError, RegionError
from mpips.transport import region

HUGE = 1 << 40


def huge_npz(folder: Path) -> Path:
    """Write a small file whose headers claim arrays of 16 TiB."""

    def header(shape: tuple[int, ...]) -> bytes:
        out = io.BytesIO()
        about = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, about)
        return out.getvalue()

    path = folder / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header((HUGE, 4)))
        archive.writestr("y.npy", header((HUGE,)))
    return path


def test_data_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = huge_npz(tmp_path)
    with pytest.raises(
        CapabilityError, match=r"huge.npz: does not fit into memory: Unable to allo"
    ):
        read(path)


def test_a_reader_of_the_native_module_that_runs_out_of_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n")

    def fail(*arguments: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr("mpips.data.libsvm.parse_libsvm", fail)
    with pytest.raises(CapabilityError, match=r"a.svm: does not fit into memory: std::bad_alloc;"):
        readers.read(path)


def test_a_job_whose_data_does_not_fit_ends_with_one_line(tmp_path: Path) -> None:
    job = ["mlp", "--train", huge_npz(tmp_path), "--set", "data.memory_mib=1e9"]
    done = mpips("train", *job)
    assert done.returncode == 69
    assert done.stderr.startswith("mpips: error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_header_that_claims_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    done = mpips("train", "mlp", "--train", huge_npz(tmp_path))
    assert done.returncode == DataError.exit_code
    assert "x.npy has fewer bytes than its header says" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_any_other_want_of_memory_in_a_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**options: object) -> None:
        raise MemoryError("Unable to allocate 7 GiB")

    monkeypatch.setattr("mpips.cli.cli.main", fail)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 69
    text = capsys.readouterr().err
    assert text.startswith("mpips: error: out of memory: Unable to allocate 7 GiB; use smaller")
    assert text.count("\n") == 1


def test_a_table_that_does_not_fit_into_this_process_is_refused() -> None:
    table = DenseTable("w", (HUGE,))
    with pytest.raises(
        RegionError, match=r"memory is too small: [\d,]+ MiB are needed, [\d,]+ MiB"
    ):
        run_job(lambda worker: None, [table])


@pytest.mark.parametrize("shared", [True, False])
def test_memory_beyond_what_the_job_is_granted_is_refused(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would kill the process at the first use: pages of /dev/shm count for the job as well."""
    monkeypatch.setattr(region, "group_limit", lambda: 512 << 20)
    monkeypatch.setattr(region, "free_bytes", lambda: (100 << 20, 512 << 20))
    made = region.Regions(region.new_token(), shared=shared)
    try:
        made.create("a", 90 << 20)
        with pytest.raises(
            RegionError,
            match=r"110 MiB are needed, 100 MiB are available of the 512 MiB that the job is granted on this "
            r"node; ask for more \(sbatch --mem=...\), use fewer",
        ):
            made.create("b", 110 << 20)
    finally:
        made.unlink()
