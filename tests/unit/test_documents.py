"""Every code block of README and docs is tested; those that need mpirun in tests/fault/test_documents.py."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click
import pytest
from _pytest.mark import ParameterSet
from chaos_rig import example
from documents import DOCUMENTS, ROOT, Block, blocks, lacking, same_output, started
from long_runs import in_turn
from training import made_data

from mpips.chaos.report import report_lines
from mpips.cli import cli
from mpips.config.schema import load_config
from mpips.config.site import VARIABLE, load_site
from mpips.data import DataInfo
from mpips.doctor.checks import CHECKS
from mpips.doctor.finding import Finding, as_line
from mpips.monitor import summary_text
from mpips.monitor.progress import Snapshot, fields, fit
from mpips.monitor.top import HEADINGS
from mpips.rundir.directory import RunFolder
from mpips.supervisor.attempt import Ended
from mpips.supervisor.block import Newest, failure_block
from mpips.supervisor.verdict import Death, Verdict
from mpips.training.preflight import preflight

BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]


RUNNABLE = ("", "file", "example", "with")


def of_language(language: str) -> list[Block]:
    """Return the blocks of a language that run by themselves: no command of the page starts them."""
    return [
        block
        for block in BLOCKS
        if block.language == language
        and block.kind in RUNNABLE
        and not (block.file and Path(block.file).stem in started(block.path))
    ]


def of_kind(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


@pytest.mark.parametrize(
    ("got", "same"),
    [
        ("role\nscheduler 0  vm\nserver\naccuracy 0.911", True),
        ("role\nscheduler 0  vm\nserver\naccuracy 0.871", False),
        ("role\nscheduler 1  vm\nserver\naccuracy 0.904", False),
        ("role\nscheduler 0  vm\nserver\naccuracy 0.904\nmore", False),
    ],
)
def test_outputs_are_compared(got: str, same: bool) -> None:
    assert same_output("role\nscheduler   0 ...\naccuracy 0.904\n", got) == same


def name_of(block: Block) -> str:
    return block.name


@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_every_block_says_how_it_is_tested(block: Block) -> None:
    if block.kind in RUNNABLE:
        assert block.language in ("python", "toml", "console")
        assert "--8<--" not in block.text
    elif block.kind == "shows":
        assert block.argument in SHOWN
    elif block.kind == "not":
        assert block.argument.startswith("run: ")
    else:
        assert block.kind in ("usage", "paths")


def in_checkpoints(folder: Path) -> None:
    """The values that a fragment of a worker's function needs, around it."""
    text = (folder / "block.py").read_text().replace("        ...\n", "")
    (folder / "block.py").write_text(
        "import mpips, numpy as np\nn_steps, mine = 5, np.arange(100)\n"
        + text
        + "mpips.run(main, [mpips.DenseTable('w', (1,))], save='out')\n"
        + "mpips.run(main, [mpips.DenseTable('w', (1,))], save='out')\n"
    )


def trained_model(folder: Path) -> None:
    """A checkpoint of the model of the block."""
    program = """
import mpips
mpips.init(save="checkpoints", verbose=False)
import torch
import mpips.torch
model = torch.nn.Sequential(mpips.torch.EmbeddingBag(8, mode="sum"), torch.nn.Linear(8, 1))
model, optimizer = mpips.torch.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
model(torch.tensor([[3, 2**60, -7]])).sum().backward()
optimizer.step()
"""
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=60)


def run_directory(folder: Path) -> None:
    """Make a run directory without an attempt, whose path the block has as `path`."""
    made = RunFolder.create(folder / "runs", "job")
    code = folder / "block.py"
    code.write_text(f"path = __import__('pathlib').Path({str(made.path)!r})\n{code.read_text()}")


SETTINGS: dict[str, Callable[[Path], None]] = {
    "run_directory": run_directory,
    "in_checkpoints": in_checkpoints,
    "trained_model": trained_model,
}


def _in_turn(blocks: list[Block]) -> list[ParameterSet]:
    """The blocks of README, index and tutorial run each day, those of other pages every fourth one."""
    first = ("README.md", "docs/index.md", "docs/tutorial.md")
    return [
        pytest.param(
            block,
            id=name_of(block),
            marks=[] if name_of(block).startswith(first) else [in_turn(i, 6)],
        )
        for i, block in enumerate(blocks)
    ]


@pytest.mark.parametrize("block", _in_turn(of_language("python")))
def test_python_runs(block: Block, tmp_path: Path) -> None:
    if name := lacking(block.text):
        pytest.skip(f"{name} is not installed")
    (tmp_path / "block.py").write_text(block.text)
    if block.kind == "with":
        SETTINGS[block.argument](tmp_path)
    # Trainers of other libraries warn of many things, such as a Slurm that is not used.
    strict = [] if "trainers.md" in block.name else ["-W", "error"]
    done = subprocess.run(
        [sys.executable, *strict, "block.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of_language("toml"), ids=name_of)
def test_a_job_loads(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(block.text)
    for name in ("train.svm", "test.svm"):
        made_data(tmp_path).rename(tmp_path / name)
    rest = [] if "task" in block.text else [("task", "fm"), ("data.train", "train.svm")]
    config = load_config("job.toml", rest)
    task = preflight(config, 6)
    # The tables that it names are the task's.
    tables = task(info("sparse"), task.Options(**config.options), 0).tables()
    assert {table.name for table in tables} >= set(config.tables)


def info(kind: Literal["sparse", "dense"]) -> DataInfo:
    return DataInfo(100, 100, 5, (0.0, 1.0), kind)


def options_of(command: click.Command) -> set[str]:
    return {name for p in command.params for name in [*p.opts, *p.secondary_opts]} | {"--help"}


@pytest.mark.parametrize("block", of_kind("usage"), ids=name_of)
def test_a_usage_names_commands_and_options_that_exist(block: Block) -> None:
    command: click.Command | None = None
    for line in block.text.splitlines():
        line = line.removeprefix("$ ").partition(" #")[0]
        words = re.findall(r"[^\s\[\]|(){}]+", line)
        if words[:1] == ["mpips"]:
            command = cli.get_command(click.Context(cli), words[1])
            assert command is not None, line
            if isinstance(command, click.Group):
                command = command.commands[words[2]]
        elif not line.startswith(" "):
            command = None
            for word in words:
                assert not word.startswith("jobs/") or (ROOT / word).is_file(), line
        if command is None:
            continue
        before, _, _ = line.partition(" -- ")
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", before):
            assert option in options_of(command), f"{command.name} {option}"


@pytest.mark.parametrize("block", of_kind("paths"), ids=name_of)
def test_a_list_of_paths_names_what_exists(block: Block) -> None:
    for folder, rest in re.findall(
        r"(?:^|\s{2,})((?:mpips|native|jobs|tests)/\S+)([^/\n]*)", block.text
    ):
        assert (ROOT / folder).exists(), folder
        for other in re.findall(r"\b\w+\.py\b", rest):
            assert (ROOT / folder).parent.joinpath(other).exists(), other


def progress_line(text: str) -> None:
    now = Snapshot(0.42, 9, 20, 12345, 98765.4, 0.1235, 1.2, 2.5e9, 1.25e8, 3723.0)
    assert text == fit(fields(now), 200) + "\n"


def labels(text: str, start: int, end: int) -> list[str]:
    """What stands in the first column, without the lines that go on."""
    found = [line[start:end].strip() for line in text.splitlines() if line.startswith(" " * start)]
    return [label for label in found if label]


def summary_block(text: str) -> None:
    shown = labels(text, 2, 16)
    known = ["run", "where", "versions", "options", "data", "trained", *METRICS]
    known += ["by epoch", "updates", "staleness", "traffic", "restarts", "checkpoint"]
    assert [label for label in known if label in shown] == shown
    assert len(shown) >= 12
    assert max(map(len, text.splitlines())) <= summary_text._WIDTH


def failure(text: str) -> None:
    run = RunFolder(Path("runs/job"))
    verdict = Verdict("crashed", 1, Death("killed by SIGKILL (signal 9)", 4, "worker 1"))
    real = failure_block(run, 0, verdict, Ended(1, 1, 71.3, ""), Newest(), "restart 1 of 3", 0.0)
    assert labels(text, 2, 18) == labels(real, 2, 18)
    assert text.splitlines()[0] == real.splitlines()[0]


def top(text: str) -> None:
    heading = next(line for line in text.splitlines() if line.startswith("rank "))
    assert tuple(heading.split()) == HEADINGS


def doctor(text: str) -> None:
    lines = text.splitlines()
    names = [line.split()[1] for line in lines if line[:4] in ("PASS", "WARN", "FAIL")]
    assert len(names) == 3
    assert set(names) <= set(CHECKS)
    width = lines[2].index("h5py at") - 8
    real = as_line(Finding(name="shm", status="FAIL", reason="", fix="mount it"), width)
    remedies = [line for line in lines if line.startswith(" ")]
    assert len(remedies) == 1
    for line in remedies:
        assert line.startswith(real.splitlines()[1].removesuffix("mount it"))


METRICS = [*map(summary_text.metric_label, summary_text.METRICS)]


def site(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        found = load_site({VARIABLE: file.name})
    assert found.defaults or found.environment


def chaos(text: str) -> None:
    assert text.splitlines() == report_lines(example(), 0)


SHOWN: dict[str, Callable[[str], None]] = {
    "progress": progress_line,
    "summary": summary_block,
    "failure": failure,
    "top": top,
    "doctor": doctor,
    "site": site,
    "chaos": chaos,
}


@pytest.mark.parametrize("block", of_kind("shows"), ids=name_of)
def test_an_example_of_an_output_has_its_form(block: Block) -> None:
    SHOWN[block.argument](block.text)
