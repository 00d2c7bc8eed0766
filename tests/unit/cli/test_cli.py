"""The command line: results, exit codes, and one message for each mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import mpips

QUICK = ("mlp", "--train", "digits", "--set", "train.epochs=1")


def refused(*arguments: str, folder: Path | None = None) -> str:
    """Run a command that must be refused: exit code 2, one line on stderr, no output. Return the message."""
    done = mpips("train", *arguments, folder=folder)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("mpips: error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("mpips: error: ").rstrip()


def test_the_last_line_of_json_output_parses() -> None:
    done = mpips("train", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["epochs"] == 1
    assert report["samples"] == 1438
    assert report["updates_pushed"] == report["updates_applied"] > 0
    assert report["transports"] == {"local": 1}
    assert 0.0 < report["accuracy"] <= 1.0
    assert len(done.stdout.splitlines()) > 1


def test_quiet_json_output_is_one_line_and_nothing_else() -> None:
    done = mpips("train", *QUICK, "--json", "--quiet", process=True)
    assert json.loads(done.stdout)["epochs"] == 1
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_evaluations_are_shown_in_the_progress_the_summary_and_the_result() -> None:
    job = ["mlp", "--train", "digits", "--epochs", "3", "--set", "train.eval_every=1"]
    done = mpips("train", *job, "--json", "--progress", "none")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("epoch ")]
    assert [line.partition(": accuracy ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3"]
    assert all(line.endswith(" (test)") for line in lines)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["epoch"] for row in found["history"]] == [1, 2, 3]
    assert found["history"][-1]["accuracy"] == found["accuracy"]
    assert found["history"][0]["loss"] > found["history"][-1]["loss"] == found["loss"]
    assert "  by epoch      epoch  accuracy  cross entropy  training loss\n" in done.stdout
    first = found["history"][0]
    shown = f"{first['accuracy']:8.4f}  {first['cross_entropy']:13.4f}  {first['loss']:13.4f}"
    assert f"    1  {shown}\n" in done.stdout


def test_a_dry_run_prints_the_resolved_configuration_and_trains_nothing(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('task = "mlp"\n[data]\ntrain = "digits"\n[train]\nepochs = 7\n')
    done = mpips("train", str(job), "--set", "cluster.seed=5", "--dry-run")
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)
    assert (config["task"], config["train"]["epochs"], config["cluster"]["seed"]) == ("mlp", 7, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml"]


def test_a_dry_run_accepts_what_the_job_decides_at_its_start() -> None:
    auto = "{name='auto',codecs=['bf16','int8']}"
    codecs = ["--set", f"table.compression={auto}", "--set", f"table.pull_compression={auto}"]
    options = ["--train", "digits", *codecs, "--set", "table.placement=auto", "--dry-run"]
    done = mpips("train", "mlp", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["table"]["compression"]["codecs"] == ["bf16", "int8"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["nosuch", "--train", "digits"],
            ["'nosuch': there is no such", "softmax, mlp, logistic, fm"],
        ),
        (["logstic", "--train", "digits"], ["did you mean logistic?"]),
        (["mlp"], ["no training data is given"]),
        (["no.toml"], ["no.toml: cannot be read: No such file"]),
        (["mlp", "--train", "no.svm"], ["no.svm: no such file (working folder: "]),
        (["mlp", "--train", "."], [".: is a folder: name its files, such as '*.csv'"]),
        (["mlp", "--train", "digits", "--test", "no.svm"], ["no.svm: no such file"]),
        (["no_such_module:Class", "--train", "digits"], ["no module no_such_module"]),
        ([*QUICK, "--set", "trail.epochs=1"], ["unknown key 'trail'", "did you mean 'train'?"]),
        (
            [*QUICK, "--set", "train.epochs=x"],
            ["train.epochs = 'x': must be a whole number, 0 or more"],
        ),
        ([*QUICK, "--set", "train.epochs"], ["write key=value"]),
        ([*QUICK, "--set", "options.hiddens=[5]"], ["hiddens", "valid in [options] are hidden"]),
        (
            [*QUICK, "--set", "table.bound=3"],
            ["bound = 3 applies only to SSP and asynchronous diloco: remove it"],
        ),
        ([*QUICK, "--set", "tables.w.init=zeros"], ["unknown table 'w'; valid are "]),
        ([*QUICK, "--set", "table.partition=hash"], ["partition 'hash' does not split dense"]),
        ([*QUICK, "--servers", "2"], ["servers = 2 is too many for 1 rank: use 1"]),
        ([*QUICK, "--servers", "-1"], ["servers = -1: must be from 0 to 65535"]),
        (["fm", "--train", "digits"], ["takes LIBSVM", "use task 'logistic', 'softmax' or 'mlp'"]),
    ],
)
def test_a_mistake_ends_with_one_message_and_exit_code_2(
    arguments: list[str], parts: list[str], tmp_path: Path
) -> None:
    text = refused(*arguments, folder=tmp_path)
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    "arguments",
    [
        [*QUICK, "--set", "tables.w.init=zeros"],
        [*QUICK, "--set", "table.bound=3"],
        [*QUICK, "--set", "table.partition=hash"],
        ["fm", "--train", "digits"],
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(arguments: list[str], tmp_path: Path) -> None:
    text = refused(*arguments, folder=tmp_path)
    assert refused(*arguments, "--dry-run", folder=tmp_path) == text


@pytest.mark.parametrize("command", ["train", "run"])
def test_a_dry_run_refuses_what_only_the_data_shows(command: str, tmp_path: Path) -> None:
    (tmp_path / "bad.svm").write_text("1 1:1\n0 2:x\n")
    job = ["logistic", "--train", "bad.svm", "--save", "folder", "--dry-run"]
    done = mpips(command, *job, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("mpips: error: bad.svm")
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.svm"]


def test_a_dry_run_on_several_ranks_prints_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        env = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": str(rank)}
        done = mpips("train", *QUICK, "--dry-run", folder=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        assert (done.stdout != "") == (rank == 0)


def test_the_most_wanted_options_have_flags_of_their_own() -> None:
    more = ["--epochs", "3", "--lr", "0.125", "--batch-size", "100", "--dry-run"]
    config = json.loads(mpips("train", "mlp", "--train", "digits", *more).stdout)
    assert config["train"]["epochs"] == 3
    assert config["train"]["batch_size"] == 100
    assert config["table"]["optimizer"] == {"lr": 0.125}


def test_a_data_file_that_cannot_be_read_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.svm").write_text("1 1:1\n0 2:x\n")
    text = refused("logistic", "--train", "bad.svm", folder=tmp_path)
    assert "bad.svm" in text
    assert "2" in text


def test_a_transport_that_one_rank_cannot_have_is_a_wrong_configuration() -> None:
    done = mpips("train", *QUICK, "--set", "cluster.transport=shm", process=True)
    assert done.returncode == 2
    assert "needs several ranks, this job has 1" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["trail"], ["train"], ["train", "mlp", "--servers", "x"]])
def test_wrong_usage_ends_with_2_and_points_to_the_help(arguments: list[str]) -> None:
    done = mpips(*arguments)
    assert done.returncode == 2
    assert re.search("(-h|--help).? for help", done.stderr)  # the first with Click 8.1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_and_version_end_with_0(arguments: list[str]) -> None:
    done = mpips(*arguments)
    assert done.returncode == 0
    assert done.stdout.startswith(("Usage: mpips", "mpips, version "))
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["ls", "--folder", "."], ["--version"]])
def test_an_output_that_is_full_is_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mpips", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    text = "mpips: error: the output cannot be written: No space left on device\n"
    assert done.stderr == text


def test_a_task_of_the_user_is_found_in_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from mpips.tasks.softmax import Softmax\n"
        "class Mine(Softmax):\n"
        "    name = 'mine'\n"
        "    default_epochs = 1\n"
    )
    job = ["mine:Mine", "--train", "digits", "--quiet", "--json"]
    done = mpips("train", *job, folder=tmp_path, process=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 1
    assert "no class Other" in refused("mine:Other", "--train", "digits", folder=tmp_path)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("step", "Mine.step returned None: must be StepResult(loss_sum, n)"),
        (
            "predict",
            "Mine.predict returned None: must be an array of shape (359,) or (359, classes)",
        ),
    ],
)
def test_a_wrong_return_value_of_a_task_is_one_message(
    method: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from mpips.tasks.softmax import Softmax\n"
        "class Mine(Softmax):\n"
        "    default_epochs = 1\n"
        f"    def {method}(self, worker, batch):\n"
        "        return None\n"
    )
    job = ["mine:Mine", "--train", "digits", "--test", "digits", "--quiet"]
    assert refused(*job, folder=tmp_path).startswith(text)


def test_a_rank_whose_error_no_other_rank_has_prints_it(monkeypatch, capsys):
    from mpips.mpi import launch

    slept = []
    monkeypatch.setattr(launch.time, "sleep", slept.append)
    monkeypatch.setattr(launch, "mpi_is_up", lambda: False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    with pytest.raises(SystemExit) as end:
        launch.say_and_exit("no such file", 2)
    assert end.value.code == 2
    assert slept == [2.0]  # Rank 0, if it has the same error, prints it first and ends all ranks.
    assert capsys.readouterr().err == "mpips: error: rank 3: no such file\n"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(SystemExit):
        launch.say_and_exit("no such file", 2)
    assert slept == [2.0]
    assert capsys.readouterr().err == "mpips: error: no such file\n"


def test_rank_0_alone_prints_an_error_that_all_ranks_have(monkeypatch, capsys):
    from mpips.mpi import launch

    monkeypatch.setattr(launch, "mpi_is_up", lambda: True)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    with pytest.raises(SystemExit) as end:
        launch.say_and_exit("no such file", 2)
    assert end.value.code == 2
    assert capsys.readouterr().err == ""


def test_an_interrupt_without_a_folder_tells_that_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mpips.training.train.train", interrupted)
    done = mpips("train", *QUICK)
    assert done.returncode == 130
    assert done.stderr.startswith("mpips: interrupted: nothing is kept without a folder for ")
    assert "with --save FOLDER, Ctrl-C writes one" in done.stderr
    # With a folder the job itself tells what it has saved.
    done = mpips("train", *QUICK, "--save", tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "")
