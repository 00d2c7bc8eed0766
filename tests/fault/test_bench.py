"""The suites of `mpips bench` and of tests/bench that start ranks run, and give the promised figures."""

from __future__ import annotations

import json
import sys

import launcher
import pytest

from mpips.bench import adaptive, gpu, insitu
from mpips.bench.stages import BOUND
from mpips.bench.torch_models import RATIOS
from tests.bench import diloco, monitor
from tests.bench.placement import JOBS
from tests.bench.suites import BARS, OWN

TRAIN = {
    "train_overhead_digits",
    "train_overhead_w6a",
    "idle_cpu",
    "oversubscribed",
    "oversubscribed_digits",
    "ring_scaling",
}
CHECKPOINT = {
    "write_vs_raw",
    "write_rows_vs_raw",
    "posix_vs_mpio",
    "stall_vs_memcpy",
    "delta_vs_full_bytes",
    "delta_vs_full_s",
    "pushes_while_writing",
}
SCALE = {"table_memory_vs_plan", "table_rate_last_vs_first"}


def quick(suite: str) -> dict:
    """The JSON of one quick run."""
    command = ["tests.bench"] if suite in OWN else ["mpips", "bench"]
    argv = [sys.executable, "-m", *command, suite, "--quick", "--repetitions", "1", "--json"]
    environment = launcher.site_environment()
    with launcher.Launch(argv, environment, timeout_s=240.0, cwd=launcher.REPOSITORY) as run:
        assert run.wait() == 0, run.tail()
        found: dict = json.loads(run.stdout().strip().splitlines()[-1])
        return found


def test_train_gives_every_ratio() -> None:
    found = quick("train")
    assert set(found["ratios"]) == TRAIN
    assert set(found["bars"]) == TRAIN & BARS.keys()
    assert all(ratio > 0 for ratio in found["ratios"].values())
    # Idle ranks sleep, on however slow a machine.
    assert found["ratios"]["idle_cpu"] < 0.5
    assert not found["skipped"]


def test_scale_gives_every_figure() -> None:
    found = quick("scale")
    assert set(found["ratios"]) == SCALE
    assert found["ratios"]["table_memory_vs_plan"] == pytest.approx(1.0, abs=0.1)
    figures = {name: figure["median"] for name, figure in found["figures"].items()}
    for n in (1, 2, 4):
        # What a worker sends to a server does not depend on the number of ranks.
        assert figures[f"ranks_{n}_records"] == figures["ranks_1_records"] > 4
        assert figures[f"ranks_{n}_region_bytes"] == figures["ranks_1_region_bytes"]
    assert 0 < figures["ranks_4_messages"] < 100
    assert any("rank_pss" in note for note in found["notes"])


def test_checkpoint_gives_every_ratio() -> None:
    found = quick("checkpoint")
    assert set(found["ratios"]) == CHECKPOINT
    assert set(found["bars"]) == CHECKPOINT & BARS.keys()
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert not found["skipped"]


def test_plan_gives_every_ratio() -> None:
    found = quick("plan")
    assert set(found["ratios"]) == {name for name in BARS if name.startswith("plan_")}
    assert all(ratio > 0 for ratio in found["ratios"].values())


def test_recovery_gives_its_figure() -> None:
    found = quick("recovery")
    figures = {name: figure["median"] for name, figure in found["figures"].items()}
    assert figures["empty_launch_s"] > 0
    # A loaded machine says little, but it came back.
    assert figures["server_kill_beyond_launch_s"] < 60
    # Where there can be nodes, and otherwise the reason why not.
    name = "partner_cost_sync"
    assert name in found["skipped"] or figures[name] < 1


@pytest.mark.timeout(240)
def test_placement_gives_every_ratio() -> None:
    found = quick("placement")
    assert set(found["ratios"]) == {f"placement_vs_best_{job}" for job in JOBS}
    assert set(found["bars"]) == set(found["ratios"])
    assert all(ratio > 0 for ratio in found["ratios"].values())


def test_torch_gives_every_ratio() -> None:
    pytest.importorskip("torch", reason="the suite compares with PyTorch")
    found = quick("torch")
    assert set(found["ratios"]) == set(found["bars"]) == {ratio.name for ratio in RATIOS}
    assert all(ratio > 0 for ratio in found["ratios"].values())


@pytest.mark.timeout(280)
def test_stages_gives_every_ratio() -> None:
    pytest.importorskip("torch", reason="the suite divides a model of PyTorch")
    found = quick("stages")
    names = {"stage_memory", "one_stage_cost", "wide_softmax_step", "wide_softmax_memory", BOUND}
    assert set(found["ratios"]) | set(found["skipped"]) == names
    assert set(found["skipped"]) <= {BOUND}
    assert set(found["bars"]) == set(found["ratios"])
    assert found["ratios"]["stage_memory"] == 0.25
    assert all(ratio > 0 for ratio in found["ratios"].values())


def test_logistic_gives_every_ratio() -> None:
    pytest.importorskip("vowpalwabbit")
    found = quick("logistic")
    names = {f"logistic_{what}{how}" for what in ("auc", "loss", "vs_vw") for how in ("", "_alone")}
    assert set(found["ratios"]) == names
    assert all(ratio > 0 for ratio in found["ratios"].values())


def test_the_checks_of_gpu_pass_on_one_rank_and_on_two_workers_of_the_cpu() -> None:
    pytest.importorskip("torch", reason="the suite trains models of PyTorch")
    found = gpu.check("cpu", ("overlap", "rows"))
    assert len(found.notes) == 4
    assert all(": passed in " in note for note in found.notes)


def test_diloco_gives_all_ratios() -> None:
    pytest.importorskip("torch", reason="the suite trains a model of PyTorch")
    found = quick("diloco")
    assert set(found["ratios"]) == set(diloco.RATIOS)
    assert set(found["bars"]) == {"diloco_bytes", "diloco_loss"}
    # Two outer steps in 26 steps.
    assert 2 / 26 < found["ratios"]["diloco_bytes"] < 3 / 26
    assert all(0.5 < found["ratios"][f"{name}_loss"] < 1.5 for name in diloco.VARIANTS)


def test_word2vec_gives_every_ratio() -> None:
    pytest.importorskip("gensim", reason="word vectors are compared with gensim")
    found = quick("word2vec")
    names = {f"word2vec_{what}_{n}" for what in ("vs_gensim", "loss") for n in (1, 2)}
    assert set(found["ratios"]) == names
    assert all(ratio > 0 for ratio in found["ratios"].values())


def test_monitor_gives_every_ratio() -> None:
    for name in monitor.LIBRARIES:
        pytest.importorskip(name, reason="runs are observed by it")
    found = quick("monitor")
    assert set(found["ratios"]) == set(found["bars"])
    assert set(found["ratios"]) == {"monitor_metrics", "monitor_page", "monitor_trace"}
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert found["figures"]["page_cpu"]["median"] > 0


@pytest.mark.timeout(280)
def test_elastic_gives_every_figure_and_ratio() -> None:
    found = quick("elastic")
    figures = {name: figure["median"] for name, figure in found["figures"].items()}
    gaps = {
        f"{who}_gap{how}_s" for who in ("survivor", "server") for how in ("", "_without_standby")
    }
    changes = [f"scale_{name}" for name in ("workers_up", "workers_down", "servers_up")]
    scales = {
        f"{name}_{what}_s" for name in changes for what in ("gap", "request", "beyond_launch")
    }
    others = {"quiet_step_s", "empty_launch_s", "scale_beyond_launch_s"}
    assert set(figures) == gaps | scales | others
    # A loaded machine says little, but the job came back after every event.
    assert all(figures[name] > 0 for name in gaps | {f"{name}_gap_s" for name in changes})
    assert figures["scale_beyond_launch_s"] == max(
        figures[f"{name}_beyond_launch_s"] for name in changes
    )
    assert set(found["ratios"]) == {"goodput_mtbf_10s", "goodput_mtbf_10s_without_standby"}
    assert all(ratio >= 0 for ratio in found["ratios"].values())
    assert set(found["bars"]) == {"goodput_mtbf_10s"}
    assert sum("bar <=" in note for note in found["notes"]) == 3


def test_insitu_gives_every_ratio() -> None:
    found = quick("insitu")
    assert {*found["ratios"], *found["skipped"]} == set(insitu.RATIOS)
    assert set(found["skipped"]) <= {"sample_push_vs_redis"}
    assert all(ratio > 0 for ratio in found["ratios"].values())


@pytest.mark.long
@pytest.mark.timeout(240)
def test_adaptive_gives_every_ratio() -> None:
    pytest.importorskip("torch", reason="one of the workloads is a network of PyTorch")
    found = quick("adaptive")
    bars = set(adaptive.RATIOS.values())
    assert set(found["bars"]) == bars
    each = {f"{ratio}_{model}" for ratio in bars for model in adaptive.ADAPTIVE}
    assert set(found["ratios"]) == bars | each
    assert all(ratio > 0 for ratio in found["ratios"].values())
