"""A torch script on several ranks: as one process with the joined batch, and with equal bits in each run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest
from launcher import results
from long_runs import LONG

torch = pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = Path(__file__).with_name("programs") / "torch_script.py"
Launch = Callable[..., launcher.Launch]


def ranks(launch: Launch, n: int, *arguments: str, env: dict[str, str] | None = None) -> list[Any]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return results(launch(n, command, env=env, timeout=100.0))


def alone(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), *arguments]
    with launcher.Launch(command, launcher.site_environment(), 60.0, folder) as launched:
        (found,) = results(launched)
    return found


def supervised(folder: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "mpips", "run", "-n", "5", "--max-restarts", "20"]
    command += [str(SCRIPT), "--servers", "2", *arguments]
    with launcher.Launch(command, launcher.site_environment(), 200.0, folder) as launched:
        return results(launched), launched.stderr()


@pytest.mark.parametrize(
    ("optimizer", "tolerance"), [("SGD", 1e-5), pytest.param("Adam", 1e-2, marks=pytest.mark.long)]
)
def test_workers_do_what_one_process_does_with_the_joined_batch(
    launch: Launch, tmp_path: Path, optimizer: str, tolerance: float
) -> None:
    whole = alone(tmp_path, "--batch", "36", "--optimizer", optimizer, "--epochs", "5")
    parts = ranks(launch, 6, "--servers", "2", "--optimizer", optimizer, "--epochs", "5")
    assert len(parts) == 3
    assert len(whole["losses"]) == len(parts[0]["losses"]) == 20
    assert len({found["digest"] for found in parts}) == 1
    for name, values in whole["values"].items():
        got, wanted = np.array(parts[0]["values"][name]), np.array(values)
        if optimizer == "SGD":
            assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max(), name
    losses = np.mean([found["losses"] for found in parts], axis=0)
    assert np.abs(losses - whole["losses"]).max() <= tolerance * max(whole["losses"])


def test_bits_are_the_same_on_every_transport_and_servers_take_the_values_of_worker_0(
    launch: Launch,
) -> None:
    arguments = ("--noise", "--unseeded", "--optimizer", "Adam")
    first = ranks(launch, 4, *arguments)
    tcp = {"OMPI_MCA_btl": "tcp,self"}
    others = [
        ranks(launch, 5, *arguments, "--servers", "2", "--transport", "rma", env=tcp),
        ranks(launch, 4, *arguments, "--placement", "replicated"),
    ]
    if LONG:
        others.append(ranks(launch, 4, *arguments, "--transport", "p2p", env=tcp))
        others.append(ranks(launch, 4, *arguments, "--placement", "auto"))
    assert len({found["digest"] for run in [first, *others] for found in run}) == 1
    assert [len(run) for run in [first, *others]] == [2] * (5 if LONG else 3)


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_has_the_bits_and_the_rates_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    """After a death at an even clock the rate is that of the declaration, but servers have another."""
    arguments = ("--noise", "--alternate", "--report", "--optimizer", "Adam", "--epochs", "4")
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    calm, said = supervised(tmp_path / "calm", *arguments, "--batch", "8")
    assert "killed by" not in said
    # In forward and backward, one rank and all, twice at one place, and at the last step.
    deaths = "1,1,9b:all,12:server 0,28b,35"
    killed, said = supervised(tmp_path / "killed", *arguments, "--batch", "8", "--kill", deaths)
    assert said.count("killed by SIGKILL") == 6, said
    assert {found["digest"] for found in killed} == {calm[0]["digest"]}
    assert killed[0]["lr"] == calm[0]["lr"]
    # The last launch made only the steps behind the last death.
    assert len(calm[0]["losses"]) == 36
    assert killed[0]["losses"] == calm[0]["losses"][-1:]
    for name in ("calm", "killed"):
        (metrics,) = (tmp_path / name).glob("runs/*/metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        accuracies = {line["epoch"]: line["test"]["accuracy"] for line in lines if "test" in line}
        assert accuracies == {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0}
        assert next(line["epoch"] for line in reversed(lines) if "loss" in line) == 3


@pytest.mark.parametrize(
    ("n_workers", "servers", "more"),
    [
        pytest.param(1, 1, ("--consistency", "ssp"), marks=pytest.mark.long),
        (2, 1, ("--accumulate",)),
        pytest.param(3, 2, (), marks=pytest.mark.long),
    ],
)
def test_on_a_device_with_late_copies_the_bits_are_those_of_the_cpu(
    launch: Launch, n_workers: int, servers: int, more: tuple[str, ...]
) -> None:
    n = 1 + servers + n_workers
    arguments = ("--servers", str(servers), "--noise", "--momentum", "0.9", *more)
    plain = ranks(launch, n, *arguments)
    late = ranks(launch, n, *arguments, "--late")
    assert len(late) == n_workers
    assert len({found["digest"] for found in [*plain, *late]}) == 1


@pytest.mark.timeout(300)
def test_runs_that_are_killed_on_a_device_and_between_nodes_have_the_bits_of_a_calm_one(
    tmp_path: Path,
) -> None:
    """Values come to a device on side streams, and from other nodes in the order of their use."""
    arguments = ("--noise", "--report", "--optimizer", "Adam", "--epochs", "2")
    for name in ("calm", "device", "nodes"):
        (tmp_path / name).mkdir()
    calm, _ = supervised(tmp_path / "calm", *arguments)
    for name, more, deaths in (
        ("device", ("--late",), "1,5:all"),
        ("nodes", ("--transport", "p2p"), "3b:server 1,6b"),
    ):
        killed, said = supervised(tmp_path / name, *arguments, *more, "--kill", deaths)
        assert said.count("killed by SIGKILL") == 2, said
        assert {found["digest"] for found in killed} == {calm[0]["digest"]}


@pytest.mark.parametrize(
    ("consistency", "late"),
    [
        pytest.param("ssp", (), marks=pytest.mark.long),
        ("asp", ()),
        pytest.param("ssp", ("--late",), marks=pytest.mark.long),
    ],
)
def test_asynchronous_workers_train(
    launch: Launch, consistency: str, late: tuple[str, ...]
) -> None:
    arguments = ("--servers", "2", "--consistency", consistency, "--epochs", "20", *late)
    found = ranks(launch, 5, *arguments)
    for worker in found:
        assert np.mean(worker["losses"][-6:]) < 0.8 * np.mean(worker["losses"][:6])


def test_gradients_that_were_refused_never_count(tmp_path: Path) -> None:
    """The journal has the pushes of the step that was refused: a restart must not take them for its own."""
    program = Path(__file__).with_name("programs") / "clipping_script.py"
    overlap = tmp_path / "overlap"

    def run(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "mpips", "run", *arguments]
        with launcher.Launch(command, launcher.site_environment(), 60.0, tmp_path) as launched:
            return launched.wait(), launched.stdout(), launched.stderr()

    overlap.write_text("None")
    code, _, text = run("-n", "3", str(program), str(overlap))
    assert code == 2, text
    assert "was changed between backward" in text
    (directory,) = (tmp_path / "runs").iterdir()
    for wanted, reason in (
        ("False", "whose gradients backward had sent"),
        ("None", "was changed between backward"),
    ):
        overlap.write_text(wanted)
        code, _, text = run(str(directory))
        assert code == 2, text
        assert reason in text
    overlap.write_text("False")
    assert run("--discard-memory", str(directory))[0] == 0
    digests = []
    for arguments in ([str(directory)], ["-n", "3", str(program), str(overlap)]):
        code, found, text = run(*arguments)
        assert code == 0, text
        digests.append([line for line in found.splitlines() if line.startswith("digest")])
    assert len(digests[0]) == 1
    assert digests[0] == digests[1]


def test_a_worker_that_skips_steps_stays_at_the_clock_of_the_others(
    launch: Launch, tmp_path: Path
) -> None:
    """Its batches count as zeros; an epoch that it leaves early ends the job, with the numbers of steps."""
    program = Path(__file__).with_name("programs") / "skipping_script.py"
    launched = launch(4, [sys.executable, str(program), str(tmp_path)], timeout=60.0)
    assert launched.wait() == 2, launched.tail(60)
    text = launched.stderr()
    assert (
        "different numbers of steps at the beginning of epoch 4: worker 0: 16; worker 1: 15;"
        in text
    )
    expected, value = [], 0
    skipped = {(0, 1), (1, 2), (2, 3)}
    for step in [(epoch, k) for epoch in range(4) for k in range(4)][:15]:
        expected.append(value)
        value -= (step[1] + 1) * (1 if step in skipped else 11)
    found = [(tmp_path / f"{w}.txt").read_text().split() for w in range(2)]
    assert [[int(v) for v in worker[:15]] for worker in found] == [expected, expected]


@pytest.mark.parametrize(
    ("loader", "code", "place"),
    [
        (
            "prepared",
            2,
            r"mpips: error: scheduler \(rank 0 on .*\): .* up to the beginning of epoch 3",
        ),
        pytest.param(
            "none", 0, "mpips: warning: .* up to the end of the script", marks=pytest.mark.long
        ),
    ],
)
def test_a_rate_that_one_worker_alone_has_changed_is_found(
    launch: Launch, loader: str, code: int, place: str
) -> None:
    program = Path(__file__).with_name("programs") / "plateau_script.py"
    launched = launch(4, [sys.executable, str(program), loader], timeout=60.0)
    assert launched.wait() == code, launched.tail(60)
    rates = r"worker 0: lr = 0\.25, [^;]*; worker 1: lr = 0\.125, [^;]*; under BSP"
    assert re.search(f"{place}: {rates}", launched.stderr())


@pytest.mark.timeout(300)
def test_a_script_that_is_killed_logs_each_epoch_as_an_undisturbed_one(tmp_path: Path) -> None:
    arguments = ("--noise", "--log", "--epochs", "3", "--batch", "8")
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    calm, _ = supervised(tmp_path / "calm", *arguments)
    killed, said = supervised(tmp_path / "killed", *arguments, "--kill", "4,13")
    assert said.count("killed by SIGKILL") == 2, said
    for found, expected in zip(killed, calm, strict=True):
        assert [line[:2] for line in found["log"]] == [[0, 9], [1, 18], [2, 27]]
        assert (found["worker"], found["log"]) == (expected["worker"], expected["log"])
        assert found["lr"] == expected["lr"]
        assert found["digest"] == expected["digest"]
    # The best model that the script stores is the same, with its rows.
    best, expected_best = (
        torch.load(tmp_path / name / "best.pt", weights_only=True) for name in ("killed", "calm")
    )
    assert "bag.rows.values" in best
    assert list(best) == list(expected_best)
    assert all(torch.equal(value, expected_best[name]) for name, value in best.items())
    # The script reports nothing by itself.
    started = re.findall(r"after the failure, (from memory: step \d+, \d+ epochs? done)", said)
    assert started == [
        "from memory: step 4, 0 epochs done",
        "from memory: step 13, 1 epoch done",
    ]
    for name, found in (("calm", calm), ("killed", killed)):
        (status,) = (tmp_path / name).glob("runs/*/status.json")
        progress = json.loads(status.read_text())["progress"]
        assert (progress["epoch"], progress["n_epochs"], progress["share"]) == (2, 3, 1.0)
        assert progress["step"] == 27
        losses = [loss for worker in found for loss in worker["losses"]]
        assert min(losses) < progress["loss"] < max(losses)
        if name == "calm":
            assert progress["samples"] == 3 * 144


@pytest.mark.parametrize(
    ("n_ranks", "consistency"), [pytest.param(3, "ssp", marks=pytest.mark.long), (6, "bsp")]
)
def test_a_convolutional_network_reads_digits(
    n_ranks: int, consistency: str, launch: Launch, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    program = launcher.REPOSITORY / "docs/examples/digits_torch.py"
    text = program.read_text()
    if consistency == "ssp":
        # Each worker's gradient is a step of its own.
        rate = 0.006 / (n_ranks - 2)
        text = text.replace("lr=0.006", f"lr={rate}").replace(
            "optimizer, 0.006", f"optimizer, {rate}"
        )
        text = text.replace("scheduler=scheduler\n", "scheduler=scheduler, consistency='ssp'\n")
        assert "'ssp'" in text
    (tmp_path / "digits.py").write_text(text)
    launched = launch(n_ranks, [sys.executable, str(tmp_path / "digits.py")], timeout=100.0)
    assert launched.wait() == 0, launched.tail(60)
    (line,) = [line for line in launched.stdout().splitlines() if "accuracy" in line]
    assert float(line.rpartition(" ")[2]) >= 0.985


@pytest.mark.parametrize(
    ("n", "transport"), [pytest.param(4, "auto", marks=pytest.mark.long), (5, "p2p")]
)
def test_ddp_trains_with_the_hook_as_without_it(
    launch: Launch, tmp_path: Path, n: int, transport: str
) -> None:
    script = SCRIPT.with_name("ddp_script.py")
    command = [sys.executable, str(script), str(tmp_path / "store"), transport]
    found = results(launch(n, command, timeout=100.0))
    assert [one["world"] for one in found] == [n - 2] * (n - 2)
    # Two gradients and their mean are the same however they are added.
    assert all(one["same"] for one in found)
    assert max(one["error"] for one in found) <= (0.0 if n == 4 else 1e-5)
