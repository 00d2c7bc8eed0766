"""`mpips bench data`: every ratio is there, or the reason why not."""

from __future__ import annotations

import pytest

from mpips.bench import reading
from mpips.bench.launching import Options
from mpips.bench.suites import run_suite

RATIOS = {
    "libsvm_vs_sklearn": "sklearn",
    "csv_vs_pandas": "pandas",
    "parquet_vs_pyarrow": "pyarrow",
}
WINDOWS = {"worker_memory", "streamed_vs_in_memory"}


@pytest.mark.long
def test_each_reader_is_compared_or_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pandas may use pyarrow, so only the baseline lacks it.
    def missing() -> None:
        raise ImportError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr(reading, "_pyarrow", missing)
    found = run_suite("data", Options(quick=True, repetitions=2), 1)
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
    found = run_suite("data", Options(quick=True, repetitions=1), 1)
    assert {c.name for c in found.comparisons} >= {"libsvm_vs_sklearn", "parquet_vs_pyarrow"}
