"""`mpips chaos`: times, options that belong together, and refusals that change nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from run_files import RunFiles

from mpips.chaos.disturbing import ChaosOptions, Disturbance
from mpips.cli.chaos import Seconds, _InterruptedError, _interruptible, command
from mpips.errors import ConfigError


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, " ".join([result.output, str(result.exception or "")])


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("0.5m", 30), ("10m", 600), ("2h", 7200)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3", "ten", "3 d", "1e3", "5ms"])
def test_what_is_no_time_is_refused(text: str) -> None:
    code, output = invoke("run", "--every", text)
    assert code == 2
    assert "is no time above 0 such as 30s, 10m or 1.5h" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give RUN, or --launch JOB"),
        (("run", "--", "-n", "4"), "arguments of mpips run need --launch JOB"),
        (("run", "--leave", "10"), "--leave applies only to --fill-disk FOLDER"),
        (("run", "--kill", "mpirun"), "'mpirun' is not one of"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    arguments: tuple[str, ...], message: str
) -> None:
    code, output = invoke(*arguments)
    assert code == 2
    assert message in output


def test_a_run_that_is_not_there_or_has_ended_is_refused(tmp_path: Path) -> None:
    assert "no run 'none'" in invoke("none", "--folder", str(tmp_path))[1]
    files = RunFiles(tmp_path)
    files.state("done", released=True)
    assert "is not running (done)" in invoke("job", "--folder", str(tmp_path))[1]


def options(**more: object) -> ChaosOptions:
    values = {
        "kill": ("any",),
        "others": (),
        "fill_disk": None,
        "leave_mib": 0,
        "every_s": 30.0,
        "for_s": 600.0,
        "longest_s": 5.0,
        "back_s": 120.0,
        "intervals": "exponential",
        "seed": 7,
        **more,
    }
    return ChaosOptions(**values)  # type: ignore[arg-type]


def test_kinds_of_faults_have_the_roles_that_they_hit() -> None:
    found = options(kill=("server", "worker"), others=("pause", "partition", "flip-bits")).choices
    assert [(choice.kind, choice.roles) for choice in found] == [
        ("kill", ("server", "worker")),
        ("pause", ("any",)),
        ("partition", ()),
        ("flip-bits", ("any",)),
    ]


def test_a_schedule_begins_with_undisturbed_seconds() -> None:
    for every_s, for_s, quiet_s in ((30.0, 600.0, 10.0), (4.0, 600.0, 4.0), (4.0, 8.0, 2.0)):
        planned = options(every_s=every_s, for_s=for_s, intervals="fixed").schedule()
        assert planned[0].at_s == quiet_s + every_s / 2


def test_a_time_without_a_fault_is_refused() -> None:
    with pytest.raises(ConfigError, match="no fault happens in this time"):
        Disturbance(options(every_s=10_000.0, for_s=5.0), print)


def test_a_job_that_does_not_start_is_reported_with_its_output(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[train]\nepoch = 3\n")
    result = CliRunner().invoke(command, ["--launch", str(job), "--folder", str(tmp_path / "runs")])
    # The command ends with the exit code of mpips run.
    assert isinstance(result.exception, ConfigError)
    assert "mpips run has not started the job; its output:" in str(result.exception)
    assert "did you mean 'train.epochs'" in str(result.exception)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_command_and_later_ones_do_not_hurry_it(
    number: signal.Signals,
) -> None:
    before = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)
    }
    taken_back = []

    def work() -> None:
        with _interruptible():
            # A fault would last while the command is stopped.
            os.kill(os.getpid(), signal.SIGTSTP)
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
                taken_back.append(number)

    with pytest.raises(_InterruptedError) as raised:
        work()
    assert raised.value.number == number
    assert taken_back == [number]
    assert {each: signal.getsignal(each) for each in before} == before
