"""A CSV file as people have them becomes a served prediction by five commands, without an edit."""

import json
import os
import sys
from pathlib import Path

import launcher
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

DATA = Path(os.environ.get("MPIPS_TEST_DATA", launcher.REPOSITORY.parent / "shared" / "data"))


@pytest.mark.timeout(500)
@pytest.mark.skipif(not (DATA / "messy.csv").is_file(), reason=f"messy.csv is missing from {DATA}")
def test_a_messy_csv_is_drafted_trained_and_served_and_predicts_better_than_one_hot_words() -> None:
    """The AUC of scikit-learn with columns that were prepared by hand is reported only."""
    command = [sys.executable, "-m", "tests.bench.messy", str(DATA / "messy.csv")]
    environment = launcher.site_environment()
    with launcher.Launch(command, environment, 400.0, launcher.REPOSITORY) as job:
        assert job.wait() == 0, job.tail()
        text = job.stdout()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("$ mpips ")]
    assert names == ["init", "run", "evaluate", "predict", "serve"]
    found = json.loads(text.splitlines()[-1])
    print(found)
    # A model that learned nothing has 0.5, and so has the baseline if its columns are lost.
    assert 0.6 < found["words"] <= found["evaluated"], found
    assert found["predicted"] == pytest.approx(found["evaluated"], abs=5e-5)
    assert found["served"] == pytest.approx(found["first"], abs=1e-5)
