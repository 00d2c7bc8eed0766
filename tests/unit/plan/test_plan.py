"""`mpips plan`: counts and sizes equal those of the job; times follow the model, where there is one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from planning_rig import BIG, DEFAULTS, job, planned

from mpips.bench.measure import Comparison
from mpips.checkpoint.structure import hdf5_kind
from mpips.errors import ConfigError
from mpips.model.consistency import ASP
from mpips.model.table import DenseTable
from mpips.plan import planning
from mpips.plan.needs import (
    ServerNeeds,
    node_needs,
    replicated_bytes,
    staging_bytes,
    steps_per_epoch,
)
from mpips.plan.planning import Hardware, read_inputs, roles
from mpips.plan.predict import FIGURES, Costs, load_costs, predict, why_no_time
from mpips.plan.rehearsal import Rehearsal, rehearse
from mpips.plan.report import as_json, as_text, per_step
from mpips.plan.stage import Tally
from mpips.training.train import train

LEAVING = 2  # last records of a worker at each server: no more checkpoints, no more pushes


@pytest.fixture
def svm(tmp_path: Path) -> Path:
    """160 sparse samples of two classes over 90 keys."""
    rng = np.random.default_rng(4)
    lines = []
    for i in range(160):
        keys = sorted(rng.choice(90, 6, replace=False) + 1)
        lines.append(f"{1 if i % 3 else -1} " + " ".join(f"{k}:1" for k in keys))
    path = tmp_path / "a.svm"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_rehearsal_writes_the_records_of_a_run(svm: Path) -> None:
    for task in ("logistic", "fm"):
        config = job(task, svm, ("train.epochs", 2), ("train.batch_size", 16))
        inputs = read_inputs(config, 1)
        found = rehearse(inputs, config.cluster, 1, 20)
        served = train(config, "none", verbose=False).statistics["servers"][0]
        assert len(found.steps) == 20 == 2 * steps_per_epoch(160, 1, 16)
        assert sum(found.records) + LEAVING == served["counters"]["records"]


def test_a_rehearsal_of_a_dense_task_writes_the_records_of_a_run() -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    config = job("mlp", "digits", ("train.epochs", 1), ("options.hidden", [1500]))
    found = rehearse(read_inputs(config, 1), config.cluster, 1, 45)
    served = train(config, "none", verbose=False).statistics["servers"][0]
    assert len(found.steps) == 45
    # In one process large updates go through the ring; in a job on one node through staging memory.
    unstaged = rehearse(read_inputs(config, 1), config.cluster, 1, 45, staged=False)
    assert sum(unstaged.records) + LEAVING == served["counters"]["records"]
    assert sum(found.records) < sum(unstaged.records)


def test_planned_rows_are_those_that_a_run_makes(svm: Path) -> None:
    config = job("fm", svm, ("train.epochs", 1))
    served = train(config, "none", verbose=False).statistics["servers"][0]["tables"]
    rows = planned(config, 1, n_steps=1).needs.rows
    assert {name: r.total for name, r in rows.items()} == {n: t["rows"] for n, t in served.items()}
    assert rows["weight"].total == rows["factor"].total + 1  # the bias
    assert rows["weight"].source == "keys of the training data"


def test_planned_memory_of_rows_is_near_what_a_run_takes(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "many.svm"
    lines = [
        f"{i % 2} " + " ".join(f"{k}:1" for k in sorted(rng.choice(60_000, 60, replace=False) + 1))
        for i in range(3000)
    ]
    path.write_text("\n".join(lines) + "\n")
    config = job("logistic", path, ("train.epochs", 1), ("train.batch_size", 500))
    served = train(config, "none", verbose=False).statistics["servers"][0]["tables"]["weight"]
    server = planned(config, 1, n_steps=1).needs.servers[0]
    assert server.rows == served["rows"] > 50_000
    # A server reserves memory for further rows, in steps of a MiB.
    assert server.embedding + server.maps == pytest.approx(served["memory_bytes"], rel=0.5)


@pytest.mark.skipif(hdf5_kind() == "none", reason="checkpoints need h5py")
@pytest.mark.parametrize("task", ["logistic", "fm"])
def test_a_checkpoint_has_the_planned_size(svm: Path, tmp_path: Path, task: str) -> None:
    folder = tmp_path / "checkpoints"
    config = job(task, svm, ("train.epochs", 1), ("checkpoint.folder", str(folder)))
    train(config, "none", verbose=False)
    written = (folder / "latest" / "state.h5").stat().st_size
    assert planned(config, 1).needs.checkpoint == written


def test_the_regions_are_those_of_the_placement(svm: Path) -> None:
    plan = planned(job("logistic", svm), 8)
    for server, layout in zip(plan.needs.servers, plan.placement.layouts, strict=True):
        assert server.mailboxes + server.dense == layout.total_bytes
    node = plan.needs.nodes[0]
    assert node.shared == sum(s.shared for s in plan.needs.servers)
    assert node.memory > node.shared + 8 * plan.needs.program
    assert len(plan.needs.nodes) == 1


def test_checkpoints_while_training_goes_on_take_a_copy(svm: Path) -> None:
    plain = planned(job("logistic", svm), 3).needs
    needs = planned(job("logistic", svm, ("checkpoint.every_steps", 5)), 3).needs
    for server, without in zip(needs.servers, plain.servers, strict=True):
        assert server.copy == server.dense + int(1.25 * server.embedding)
        assert (without.copy, without.shared) == (0, server.shared)
    assert needs.nodes[0].memory - plain.nodes[0].memory == sum(s.copy for s in needs.servers)


def test_partners_hold_each_others_servers(svm: Path) -> None:
    config = job("softmax", svm, ("cluster.servers", 2), ("redundancy.partner", True))
    found = planned(config, 6, per_node=3).needs
    both = sum(server.shared for server in found.servers)
    assert [node.shared for node in found.nodes] == [both, both]
    assert found.worker_staging == 0


def test_sums_lie_in_shared_memory_where_there_is_a_journal() -> None:
    def server(warm: bool, *settings: tuple[str, object]) -> ServerNeeds:
        config = job("mlp", "digits", ("redundancy.warm", warm), *settings)
        return planned(config, 4, n_steps=1).needs.servers[0]

    warm, cold = server(True), server(False)
    n = 64 * 128 + 128 + 128 * 10 + 10
    assert warm.sums == cold.sums == 4 * n
    assert warm.shared == cold.shared + warm.sums + warm.journal
    assert cold.private == warm.private + cold.sums
    asp = server(True, ("table.consistency", "asp"))
    assert (asp.sums, asp.journal) == (0, warm.journal)


def test_replicated_tables_lie_on_each_node_with_workers() -> None:
    bsp = ("table.consistency", "bsp")
    found = planned(job("mlp", "digits", bsp, ("table.placement", "replicated")), 6, 3)
    assert {tuple(paths) for paths in as_json(found)["paths"].values()} == {("replicated",)}
    assert "replicated" in as_text(found)
    needs, a = found.needs, found.assignment
    assert [s.journal > 0 for s in needs.servers] == [True] * len(needs.servers)
    assert needs.worker_staging == 0
    # Values, one state of Adagrad, and the pushes of all workers.
    n_floats = sum(math.prod(t.shape) for t in found.inputs.tables if isinstance(t, DenseTable))
    once = replicated_bytes(found.inputs.tables, len(a.workers), False)
    assert 0 < once - 4 * n_floats * (2 + len(a.workers)) < 64 << 10
    # Two versions of values and state; after a failure also the memory of the attempt before.
    added = replicated_bytes(found.inputs.tables, len(a.workers), True)
    assert 0 < added - 2 * 4 * n_floats * (4 + len(a.workers)) < 128 << 10
    without = node_needs(a, needs.servers, needs.worker_data, 0, needs.program)
    assert [n.shared - b.shared for n, b in zip(needs.nodes, without, strict=True)] == [added] * 2


@pytest.mark.parametrize(
    ("changes", "n", "per_node", "path", "line"),
    [
        ({}, 5, 5, "replicated", "assumes that 4 of 4 are replicated; the"),
        ({}, 1, 1, "direct", "with one process all are on the server"),
        ({"redundancy.warm": False}, 5, 5, "replicated", "assumes that 4 of 4 are replicated; the"),
        ({"redundancy.warm": False}, 6, 2, "", "are replicated, with 1.2 GB/s between nodes; the"),
    ],
)
def test_a_plan_says_which_placement_it_assumes(
    changes: dict[str, Any], n: int, per_node: int, path: str, line: str
) -> None:
    codec = {"name": "auto", "codecs": ["bf16"]}
    options = [("table.placement", "auto"), ("cluster.servers", 1), *changes.items()]
    coded = planned(job("mlp", "digits", ("table.pull_compression", codec)), n, per_node)
    assert "codecs that are Auto: the plan assumes none" in as_text(coded)
    found = planned(job("mlp", "digits", *options), n, per_node)
    if path:
        assert {tuple(paths) for paths in as_json(found)["paths"].values()} == {(path,)}
    assert "placement = 'auto': " in as_text(found)
    assert line in as_text(found)
    assert not any(t.placement == "auto" for t in found.inputs.tables if isinstance(t, DenseTable))


def test_keys_of_a_partition_lie_on_their_owners(svm: Path) -> None:
    plan = planned(job("logistic", svm, ("cluster.servers", 3)), 6)
    rows = plan.needs.rows["weight"]
    assert plan.inputs.train is not None
    keys = np.union1d(plan.inputs.train.indices, [-1])  # type: ignore[union-attr]
    owners = plan.placement.partitioners["weight"].owners(keys)
    assert rows.per_server == tuple(np.bincount(owners, minlength=3).tolist())
    assert rows.total == 91


def test_given_rows_take_the_place_of_keys(svm: Path) -> None:
    config = job("fm", svm, ("cluster.servers", 2))
    plan = planned(config, 4, rows={"factor": 10_000_001})
    assert plan.needs.rows["factor"].per_server == (5_000_001, 5_000_000)
    dim = 8
    assert plan.needs.servers[0].embedding >= 5_000_001 * (8 + 4 * dim)
    with pytest.raises(ConfigError, match="no such embedding table; there are: weight, factor"):
        planned(config, 4, rows={"nosuch": 5})


def test_keys_that_are_not_in_the_data_are_reported_as_a_lower_bound(
    tmp_path: Path, svm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crossed.py").write_text(
        "import numpy as np\n"
        "from mpips import EmbeddingTable\n"
        "from mpips.tasks import StepResult, Task\n"
        "class Crossed(Task):\n"
        "    name = 'crossed'\n"
        "    def __init__(self, info, options, seed): pass\n"
        "    def tables(self): return [EmbeddingTable('pairs', 2), EmbeddingTable('idle', 2)]\n"
        "    def step(self, worker, batch):\n"
        "        keys = np.unique(batch.keys * 1000 + 500_000)\n"
        "        worker.table('pairs').push(keys, np.zeros((len(keys), 2), np.float32))\n"
        "        return StepResult(0.0, batch.n)\n"
        "    def predict(self, worker, batch): return np.zeros(batch.n, np.float32)\n"
    )
    monkeypatch.chdir(tmp_path)
    rows = planned(job("crossed:Crossed", svm), 3).needs.rows
    assert rows["pairs"].total > 0
    assert "--rows pairs=N" in rows["pairs"].source
    assert (rows["idle"].total, "--rows idle=N" in rows["idle"].source) == (0, True)


@pytest.mark.parametrize(("what", "word"), [("shm", "/dev/shm"), ("memory", "memory needs")])
def test_a_node_that_is_too_small_is_a_problem(svm: Path, what: str, word: str) -> None:
    plan = planned(job("logistic", svm), 6, hardware=replace(BIG, **{what: 1 << 20}))
    assert len(plan.problems) == 1
    assert word in plan.problems[0]
    assert as_text(plan).splitlines()[-1].startswith("cannot run: node0")
    assert not as_json(plan)["fits"]


def test_staging_holds_two_of_each_large_update() -> None:
    options = job("mlp", "x").cluster
    tables = [DenseTable("small", (1000,)), DenseTable("large", (1000, 1000))]
    assert staging_bytes(tables, options) == 2 * 4_000_000
    assert staging_bytes([DenseTable("huge", (1 << 28,))], options) == options.staging_mib << 19


def tally(compute_s: float, servers: list[float], n_bytes: int = 0) -> Tally:
    n = len(servers)
    return Tally(
        {"w": 1},
        {"w": 1},
        [n_bytes] * n,
        [n_bytes] * n,
        servers,
        step_s=compute_s + sum(servers),
    )


def rehearsal(compute_s: float, servers: list[float], n_bytes: int = 0) -> Rehearsal:
    steps = [tally(compute_s, servers, n_bytes) for _ in range(10)]
    return Rehearsal(len(servers), [30] * len(servers), steps, {}, set(), {})


BSP_TABLE = [DenseTable("w", (10,))]
ASP_TABLE = [DenseTable("w", (10,), consistency=ASP())]


def step(found: Rehearsal, n_workers: int, tables: Any = None) -> Any:
    n = 1 + found.n_servers + n_workers
    return predict(found, tables or BSP_TABLE, roles(n, n, found.n_servers), DEFAULTS)


def test_under_bsp_workers_and_servers_follow_each_other() -> None:
    found = step(rehearsal(1.0, [0.1]), 4)
    assert found.worker_s == pytest.approx(1.0)
    assert found.serve_s == pytest.approx(0.4)
    assert found.step_s == pytest.approx(1.4)
    assert found.bottleneck == "computing, on the workers"


def test_under_asp_the_slower_side_decides() -> None:
    assert step(rehearsal(1.0, [0.1]), 4, ASP_TABLE).step_s == pytest.approx(1.1)
    slow = step(rehearsal(1.0, [0.5]), 4, ASP_TABLE)
    assert slow.step_s == pytest.approx(2.0)
    assert slow.bottleneck == "applying updates, on the servers"


def test_a_job_of_one_rank_does_one_after_the_other() -> None:
    found = predict(rehearsal(1.0, [0.5]), ASP_TABLE, roles(1, 1, None), DEFAULTS)
    assert found.step_s == pytest.approx(1.5)
    assert why_no_time(roles(1, 1, None), cores=1) == ""


def test_more_servers_serve_faster() -> None:
    one, two = step(rehearsal(0.1, [0.4]), 4), step(rehearsal(0.1, [0.2, 0.2]), 4)
    assert two.serve_s == pytest.approx(one.serve_s / 2)


def test_calls_of_dense_tables_take_what_the_costs_give() -> None:
    found = rehearsal(1.0, [0.0])
    found.steps[-1].dense += [(True, 10**9), (False, 4 * 10**9)]
    costs = Costs({"push_us": 1e6, "pull_us": 2e6, "push_gb_s": 2.0, "pull_gb_s": 4.0}, (), "")
    a = roles(3, 3, 1)
    assert predict(found, BSP_TABLE, a, costs).worker_s == pytest.approx(1 + 1 + 2 + 0.5 + 1.0)


def test_no_time_is_predicted_where_ranks_share_cores_or_nodes(svm: Path) -> None:
    assert why_no_time(roles(6, 6, 2), cores=5) == ""
    assert why_no_time(roles(6, 6, 2), cores=4) == "5 workers and servers share 4 cores"
    assert "spans 2 nodes" in why_no_time(roles(6, 3, 2), cores=8)
    for n, per_node in ((9, 9), (4, 2)):
        plan = planned(job("logistic", svm), n, per_node, with_range=True)
        text, report = as_text(plan), as_json(plan)
        assert (plan.prediction, plan.cells) == (None, [])
        assert f"no time is predicted: {plan.no_time}" in text
        assert report["no_prediction"] == plan.no_time != ""
        assert not {"prediction", "range"} & report.keys()
        # The measured times are shown in any case.
        assert report["measured"]["compute_s"] > 0
        assert len(report["measured"]["serve_s"]) == len(plan.needs.servers)
        assert "messages to servers" in text


def test_the_range_has_a_core_for_each_worker_and_server(svm: Path) -> None:
    plan = planned(job("logistic", svm), 3, with_range=True)
    sizes = {(cell.servers, cell.workers) for cell in plan.cells}
    assert sizes == {(1, 1), (1, 2), (2, 1), (2, 2)}
    own = next(cell for cell in plan.cells if (cell.servers, cell.workers) == (1, 1))
    assert own.samples_per_s == pytest.approx(plan.samples_per_s)
    assert all(math.isfinite(cell.samples_per_s) for cell in plan.cells)
    wide = planned(job("logistic", svm), 3, hardware=replace(BIG, cores=5), with_range=True)
    assert len(wide.cells) == 6
    assert "-" in as_text(wide).partition("samples/s  ")[2]


def test_slow_outliers_do_not_count() -> None:
    found = rehearsal(1.0, [0.0])
    found.steps[-1].step_s = 1000.0
    assert found.seconds(lambda t: t.compute_s) == pytest.approx(1.0)


def calibration(path: Path, **figures: tuple[float, str]) -> Path:
    rows = {name: {"ours": value, "unit": unit} for name, (value, unit) in figures.items()}
    path.write_text(json.dumps({"format": 1, "figures": rows}))
    return path


def test_costs_come_from_the_calibration_file_and_defaults_are_named(tmp_path: Path) -> None:
    figures = {"pull_4k_vs_two_sided": (7.5, "us"), "pull_64m_vs_memcpy": (3.0, "Mb/s")}
    path = calibration(tmp_path / "c.json", **figures)
    costs = load_costs(path, True)
    assert costs.values["pull_us"] == 7.5
    assert "pull_us" not in costs.defaults
    # A figure in another unit is not used.
    assert "pull_gb_s" in costs.defaults
    assert costs.values["pull_gb_s"] == FIGURES["pull_gb_s"][2]
    assert costs.source == str(path)
    assert load_costs(tmp_path / "no.json", False) == DEFAULTS
    with pytest.raises(ConfigError, match="mpips bench all"):
        load_costs(tmp_path / "no.json", True)
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ConfigError, match="no calibration file"):
        load_costs(tmp_path / "bad.json", False)


def test_the_figures_are_those_that_bench_writes() -> None:
    """A figure that no suite writes would always be a default."""
    text = "".join(p.read_text() for p in Path(planning.__file__).parents[1].glob("bench/**/*.py"))
    for key, _, _ in FIGURES.values():
        assert f'"{key}"' in text, key


@pytest.mark.parametrize(("n", "per_node"), [(200, 8), (40, 40)])
def test_text_fits_a_hundred_columns_and_contains_everything(
    svm: Path, n: int, per_node: int
) -> None:
    plan = planned(
        job("fm", svm), n, per_node, hardware=replace(BIG, cores=64), with_range=n == per_node
    )
    text = as_text(plan)
    assert max(map(len, text.splitlines()[1:])) <= 100  # the first line has the name of the data
    for words in ("messages to servers", "measured here", "a checkpoint has", "it fits"):
        assert words in text
    assert per_step(plan)["messages"] > 0
    report = as_json(plan)
    assert json.loads(json.dumps(report)) == report
    assert len(report["roles"]) == n
    if n == per_node:
        assert len(plan.cells) > 10
        assert "bottleneck: " in text
        assert "samples/s" in text
        assert report["prediction"]["step_s"] > 0


def test_without_steps_no_time_is_predicted(svm: Path) -> None:
    plan = planned(job("logistic", svm), 4, n_steps=0)
    assert (plan.rehearsal, plan.prediction, plan.cells) == (None, None, [])
    assert "no steps were made here" in as_text(plan)
    assert "prediction" not in as_json(plan)


def test_tables_larger_than_this_machine_are_planned_without_making_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.npz"
    np.savez(path, x=np.zeros((20, 60), np.float32), y=np.arange(20) % 2)
    plan = planned(
        job("mlp", path, ("options.hidden", [400_000_000])), 4, hardware=Hardware(4, 1, 1)
    )
    assert plan.rehearsal is None
    assert plan.needs.servers[0].dense > 4 * 60 * 400_000_000
    assert len(plan.problems) == 2


def mpips(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpips", "plan", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_exit_code_is_2_if_the_job_cannot_fit(svm: Path) -> None:
    fits = mpips("logistic", "--train", str(svm), "-n", "4", "--json")
    assert fits.returncode == 0, fits.stderr
    assert json.loads(fits.stdout)["fits"] is True
    tight = mpips("logistic", "--train", str(svm), "-n", "4", "--shm", "0.001")
    assert tight.returncode == 2
    assert "cannot run: node0: /dev/shm needs" in tight.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "4", "--rows", "weight"], "--rows 'weight': expected TABLE=N"),
        (["-n", "4", "--rows", "w=5"], "no such embedding table; there are: weight"),
        (["-n", "4", "--servers", "3"], "servers = 3 is too many for 4 ranks: use 1 or 2"),
        (["-n", "1", "--servers", "2"], "servers = 2 is too many for 1 rank"),
        (["-n", "4", "--calibration", "no.json"], "no such calibration file"),
        (["-n", "4", "--set", "cluster.slot_kib=0"], "slot_kib = 0"),
    ],
)
def test_a_mistake_is_answered_by_one_sentence(svm: Path, arguments: list[str], words: str) -> None:
    done = mpips("logistic", "--train", str(svm), *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_plan_leaves_no_folder_for_checkpoints(svm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = mpips("logistic", "--train", str(svm), "-n", "3", "--set", f"checkpoint.folder={folder}")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


def test_a_plot_is_written(svm: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    wanted = ("logistic", "--train", str(svm), "-n", "3", "--plot", str(path), "--cores")
    done = mpips(*wanted, "2")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    done = mpips(*wanted, "1")
    assert done.returncode == 69
    assert "nothing to draw, because no time is predicted: 2 workers and servers" in done.stderr


@pytest.mark.parametrize(("ours", "met"), [(1.4, True), (0.7, True), (1.6, False), (0.6, False)])
def test_a_prediction_must_be_near_from_both_sides(ours: float, met: bool) -> None:
    found = Comparison(
        name="plan_digits_mlp_3",
        what="",
        unit="us",
        ours=[ours],
        baseline=[1.0],
        baseline_name="the job",
    )
    assert found.met is met


def test_a_plan_has_shared_scales_and_their_residuals() -> None:
    found, plain = (
        planned(job("mlp", "digits", *options), 4, n_steps=5)
        for options in ((("table.compression", "shared_int8"),), ())
    )
    assert {tuple(paths) for paths in as_json(found)["paths"].values()} == {("shared scales",)}
    assert found.rehearsal is not None
    assert plain.rehearsal is not None
    n = 64 * 128 + 128 + 128 * 10 + 10
    scales = 4 * sum(-(-size // 128) for size in (64 * 128, 128, 128 * 10, 10))
    assert found.needs.checkpoint - plain.needs.checkpoint >= scales
    assert found.needs.worker_residuals >= 2 * 4 * n


def test_tables_under_diloco_are_planned_by_their_outer_steps() -> None:
    local = (("table.consistency", "diloco"), ("table.steps", 8), ("table.compression", "int8"))
    found, plain = planned(job("mlp", "digits", *local), 4), planned(job("mlp", "digits"), 4)
    n = 64 * 128 + 128 + 128 * 10 + 10
    assert found.rehearsal is None
    text = as_text(found)
    pushed = n * (1 + 4 / 128)
    assert (
        f"outer steps: 1 in 8 steps of a worker, in which it pushes {pushed / 1024:.1f} KiB" in text
    )
    assert f"and pulls {4 * n / 1024:.1f} KiB of dense tables" in text
    # Values, a state, the servers' values and a gradient of each of two workers, and two images in shared
    # memory. Servers have the momentum of the outer rule in place of Adagrad's state.
    more = found.needs.nodes[0].memory - plain.needs.nodes[0].memory
    assert 0 <= more - 2 * (4 * 4 * n + 2 * 2 * 4 * n) < 64 << 10
