"""Paths without a form in UTF-8 are refused before a job begins, with their bytes and the way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpips import DenseTable, run
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.process.path_text import check_path_text
from mpips.rundir.directory import RunFolder

LATIN = os.fsdecode(b"s\xe4")  # in Latin-1, as older systems write names


@pytest.mark.parametrize("path", ["", "runs", "Läufe/ß", Path("Läufe"), "a b\n"])
def test_paths_in_utf_8_are_accepted(path: str | Path) -> None:
    check_path_text(path, "x")


def test_the_error_shows_the_bytes() -> None:
    with pytest.raises(ConfigError, match=r"^x = 'a/s\\xe4' is not text in UTF-8: rename it$"):
        check_path_text(f"a/{LATIN}", "x")


def test_where_the_locale_is_the_cause_the_error_names_it() -> None:
    program = (
        "from mpips.process.path_text import check_path_text\n"
        "import sys\n"
        "try: check_path_text(sys.argv[1], 'x')\n"
        "except Exception as error: sys.stdout.buffer.write(str(error).encode())"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, "Läufe"],
        env=env,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode() == (
        "x = 'Läufe' is not text in UTF-8: this process reads names as ascii: set LC_ALL=C.UTF-8, or "
        "PYTHONUTF8=1"
    )


@pytest.mark.parametrize("key", ["checkpoint.folder", "data.train", "run.folder"])
def test_a_configuration_names_the_option(key: str) -> None:
    given = {"task": "logistic", "data.train": "a.csv", key: LATIN}
    with pytest.raises(ConfigError, match=rf"^{key} = 's\\xe4' is not text in UTF-8"):
        load_config(None, [*given.items()])


def test_a_list_of_texts_is_read_too() -> None:
    given = [("task", "logistic"), ("data.train", "a"), ("data.missing", ["NA", LATIN])]
    with pytest.raises(ConfigError, match=r"^data\.missing = "):
        load_config(None, given)


def test_a_run_has_no_directory_of_such_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^run\.folder = "):
        RunFolder.create(tmp_path / LATIN, "x")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / LATIN).mkdir()
    monkeypatch.chdir(tmp_path / LATIN)
    with pytest.raises(ConfigError, match=r"^the working directory = "):
        RunFolder.create(Path("runs"), "x")


def test_a_program_is_refused_before_it_trains(tmp_path: Path) -> None:
    called = []
    with pytest.raises(ConfigError, match=r"^save = .*s\\xe4"):
        run(called.append, tables=[DenseTable("w", (1,))], save=tmp_path / LATIN)
    assert called == []
