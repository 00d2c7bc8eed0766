"""Examples in C, compiled as their documentation says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import launcher
import pytest

EXAMPLES = launcher.REPOSITORY / "docs/examples/insitu"


def compile_example(name: str, compiler: str, folder: Path) -> None:
    """Compile an example of docs/examples/insitu into a folder; skip the test without the compiler."""
    found = shutil.which(compiler, path=launcher.site_environment()["PATH"])
    if found is None:
        pytest.skip(f"there is no {compiler}")
    flags = _output(sys.executable, "-m", "mpips", "client").split()
    strict = ("-O2", "-Wall", "-Wextra", "-Werror")
    _output(found, *strict, str(EXAMPLES / f"{name}.c"), "-o", str(folder / name), *flags)


def _output(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, env=launcher.site_environment())
    assert done.returncode == 0, done.stderr
    return done.stdout
