"""The suite `kernels`: it reports all ratios and figures, and its baselines compute the right values."""

from __future__ import annotations

import importlib
import json
import os
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from mpips.bench import kernels as suite
from mpips.bench import loops
from mpips.bench.launching import Options
from mpips.bench.measure import BARS, Findings
from mpips.cli import cli
from mpips.errors import CapabilityError

QUICK = Options(repetitions=2, quick=True)
RATIOS = {f"{rule}_vs_stream" for rule in suite.RULES}
FIGURES = {
    *("memory_in_place", "memory_copy", "memory_sum", "memory_triad", "memory_touch_one_state"),
    *(f"{rule}_ns_per_parameter" for rule in suite.RULES),
}
STREAMS = loops.stream_names()
LENGTHS = [0, 1, 3, 15, 63, 64, 65, 257, 1000]


def floats(n: int, seed: int, shift: int = 0) -> np.ndarray:
    """Return small integers, which are exact in any order of sums; `shift` values past a 64-byte boundary."""
    memory = np.empty(n + 32, np.float32)
    start = (-memory.ctypes.data // 4) % 16 + shift
    out = memory[start : start + n]
    out[:] = np.random.default_rng(seed).integers(-50, 50, n)
    return out


def assert_sound(found: Findings) -> None:
    values = [v for c in found.comparisons for v in (*c.ours, *c.baseline)]
    values += [v for f in found.figures for v in f.values]
    assert np.isfinite(values).all()
    assert min(values) > 0
    assert {len(c.ratios) for c in found.comparisons} == {QUICK.repetitions}


def test_every_ratio_is_measured() -> None:
    cores = os.sched_getaffinity(0)
    found = suite.run("kernels", QUICK, 0)
    assert_sound(found)
    assert {c.name for c in found.comparisons} == RATIOS <= set(BARS)
    assert not found.skipped
    assert {f.name for f in found.figures} >= FIGURES
    assert os.sched_getaffinity(0) == cores


def test_the_thread_gets_its_cores_back_when_a_measurement_fails() -> None:
    cores = os.sched_getaffinity(0)

    def fail() -> None:
        with suite.one_core():
            assert len(os.sched_getaffinity(0)) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert os.sched_getaffinity(0) == cores


def test_arrays_have_the_layout_of_a_region() -> None:
    shard = suite.Shard(suite.N_PARAMETERS_QUICK)
    addresses = [a.ctypes.data for a in (shard.values, *shard.states, shard.gradient)]
    assert {address % 4096 for address in addresses} == {0}
    assert set(np.diff(addresses)) == {shard.values.nbytes}
    assert shard.whole.size == 4 * shard.values.size


def test_the_command_prints_ratios_and_bars(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIPS_CALIBRATION", str(tmp_path / "calibration.json"))
    command = ["bench", "kernels", "--quick", "--repetitions", "1", "--json"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    result = json.loads(done.output.splitlines()[-1])
    assert set(result["ratios"]) == RATIOS
    assert result["bars"] == dict.fromkeys(RATIOS, ">= 0.85")
    # The values of a quick run are not written for `mpips plan`.
    assert not (tmp_path / "calibration.json").exists()


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("shift", [0, 5])
def test_streams_compute_their_definition(name: str, shift: int) -> None:
    for n in LENGTHS:
        a, b, c = (floats(n, seed, shift) for seed in range(3))
        expected = a * np.float32(3)
        loops.stream_in_place(a, 3.0, name)
        assert (a == expected).all()
        loops.stream_sum(a, b, name)
        assert (a == expected + b).all()
        loops.stream_triad(a, b, c, 0.5, False, name)
        assert (a == b + np.float32(0.5) * c).all()
        for n_state in range(3):
            arrays = [floats(n, k, shift) for k in range(1 + n_state)]
            expected_sums = [array + c for array in arrays]
            loops.stream_touch(arrays[0], arrays[1:], c, name)
            for got, expected in zip(arrays, expected_sums, strict=True):
                assert (got == expected).all()


@pytest.mark.parametrize("name", loops.stream_names(past_cache=True))
def test_streams_past_the_cache_compute_their_definition(name: str) -> None:
    for n in LENGTHS[1:]:
        a, b, c = (floats(n, seed) for seed in range(3))
        loops.stream_triad(a, b, c, 0.5, True, name)
        assert (a == b + np.float32(0.5) * c).all()
    with pytest.raises(ValueError, match="64-byte line"):
        loops.stream_triad(floats(8, 0, 1), b[:8], c[:8], 0.5, True, name)


def test_streams_leave_memory_around_them_alone() -> None:
    for name in STREAMS:
        memory = np.full(140, 7.0, np.float32)
        loops.stream_touch(memory[20:119], [], np.ones(99, np.float32), name)
        assert (memory[:20] == 7.0).all()
        assert (memory[119:] == 7.0).all()


def test_streams_refuse_wrong_sizes_and_names() -> None:
    a = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match=f"'sse9': must be one of {', '.join(STREAMS)}"):
        loops.stream_in_place(a, 1.0, "sse9")
    with pytest.raises(ValueError, match="src has 7 values, expected 8"):
        loops.stream_copy(a, a[:7])
    with pytest.raises(ValueError, match="a state has 7 values"):
        loops.stream_touch(a, [a[:7]], a, "plain")
    with pytest.raises(TypeError):
        loops.stream_touch(a, [a.astype(np.float64)], a, "plain")


def test_a_build_without_the_loops_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpips.bench._loops", None)
    monkeypatch.delitem(sys.modules, "mpips.bench.loops")
    with pytest.raises(CapabilityError, match="MPIPS_BENCH=ON"):
        importlib.import_module("mpips.bench.loops")
