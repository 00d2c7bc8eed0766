"""The program of the page on n-grams, with a small text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import EXAMPLES, data_files

pytest.importorskip("torch", reason="mpips.torch needs PyTorch")


def test_perplexity_is_lower_with_the_memory(tmp_path: Path) -> None:
    program = EXAMPLES / "ngrams.py"
    (text,) = data_files(program.read_text())
    if not text.is_file():
        pytest.skip(f"the data set is missing: {text}")
    (tmp_path / text.name).symlink_to(text)
    environment = {**os.environ, "BYTES": "40000", "EPOCHS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = {
        name: float(value) for name, value in re.findall(r"(\w+): perplexity (.+)", done.stdout)
    }
    # Both have learned something: 27 is that of a guess, 17 that of the frequencies of characters.
    assert found["memory"] < 0.7 * found["plain"] < 0.7 * 17, done.stdout
    assert found["memory"] > 4
