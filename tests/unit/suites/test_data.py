"""The suite `data`: every ratio is there, or the reason why not."""

from __future__ import annotations

import pytest

from mpips.bench.measure import Findings
from mpips.bench.suites import run_suite
from tests.bench import data
from tests.bench.options import SuiteOptions
from tests.bench.suites import BARS, SUITES

RATIOS = {
    "libsvm_vs_sklearn": "sklearn",
    "csv_vs_pandas": "pandas",
    "parquet_vs_pyarrow": "pyarrow",
}
WINDOWS = {"worker_memory", "streamed_vs_in_memory"}


def run(repetitions: int) -> Findings:
    options = SuiteOptions(quick=True, repetitions=repetitions)
    return run_suite("data", options, 1, SUITES, BARS)


@pytest.mark.long
def test_each_reader_is_compared_or_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pandas may use pyarrow, so only the baseline lacks it.
    def missing() -> None:
        raise ImportError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(data, "_pyarrow", missing)
    found = run(2)
    compared = {comparison.name: comparison for comparison in found.comparisons}
    assert compared.keys() | found.skipped.keys() == RATIOS.keys() | WINDOWS
    assert "pyarrow" in found.skipped["parquet_vs_pyarrow"]
    for name, comparison in compared.items():
        assert len(comparison.ratios) == 2
        assert comparison.bar is not None
        assert comparison.ratio > 0, name


def test_all_readers_read_what_was_written() -> None:
    for module in RATIOS.values():
        if module != "pandas":
            pytest.importorskip(module)
    found = run(1)
    assert {c.name for c in found.comparisons} >= {"libsvm_vs_sklearn", "parquet_vs_pyarrow"}
