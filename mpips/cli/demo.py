"""`mpips demo`: train on a small data set under mpirun, to see that an installation works; copy examples."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mpips.checkpoint.structure import hdf5_kind
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.model.build import described
from mpips.monitor.progress import plural
from mpips.mpi.launch import launched_size
from mpips.supervisor.hosts import Layout
from mpips.supervisor.launcher import build, environment, find_launcher
from mpips.supervisor.submit import examples, find_root
from mpips.terminal.screen import columns, command_text, say

_LIMIT_S = 300.0  # seconds that the training may take; it needs a few on an idle machine
_END_S = 10.0  # seconds that mpirun has to end its ranks
_SHOWN = 20  # last lines of a failed launch that are printed
_TASK = ("mlp", "--train", "digits", "--test", "digits", "--epochs", "15")


@click.command(short_help="Train on a small data set under mpirun, to try the installation.")
@click.option(
    "-n",
    "--ranks",
    type=click.IntRange(3),
    default=4,
    show_default=True,
    help="Number of ranks: a scheduler, servers and workers.",
)
@click.option(
    "--save", type=click.Path(path_type=Path), help="Keep the trained model in this folder."
)
@click.option(
    "--copy",
    type=click.Path(path_type=Path),
    help="Train nothing: copy batch scripts, job files and programs of the pages into this new folder.",
)
def command(ranks: int, save: Path | None, copy: Path | None) -> None:
    """Train a network on 1,797 images of digits under mpirun, save it, load it and evaluate it.

    The images are part of mpips. Nothing is left on the disk, unless --save names a folder. Without h5py
    nothing is saved. The exit code is 0 if all went well, else that of the launch.

    \b
    mpips demo
    mpips demo --save model
    mpips demo --copy examples
    """
    if copy is not None:
        _copy(copy)
        return
    if launched_size() > 1:
        raise ConfigError("mpips demo starts mpirun itself: call it without mpirun")
    if save is not None:
        _try(save, ranks)
        return
    with tempfile.TemporaryDirectory(prefix="mpips-demo-") as folder:
        _try(Path(folder), ranks)


def _try(folder: Path, ranks: int) -> None:
    """Train under mpirun and, if the checkpoint can be written, evaluate what was saved in `folder`.

    Raises:
        CapabilityError: There is no usable mpirun, or the launch takes longer than `_LIMIT_S`.
        MpipsError: The saved model differs from the trained one.
        click.exceptions.Exit: The launch failed; its exit code.
    """
    launcher = find_launcher()
    kind = hdf5_kind()
    program = [sys.executable, "-m", "mpips", "train", *_TASK, "--quiet", "--json"]
    if kind != "none":
        program += ["--save", str(folder)]
    words = build(launcher, Layout(ranks), {}, Path(), [], program)
    say(f"mpips demo: mpips {described()}, {ranks} ranks", err=False)
    say(command_text(["$", *words], columns(sys.stdout)), err=False)
    report = _launch(words, environment(launcher, {}))
    say(
        f"trained    {plural(report['epochs'], 'epoch')} of {report['n_samples']:,} images in "
        f"{report['seconds']:.1f} s; test accuracy {report['accuracy']:.4f}",
        err=False,
    )
    if kind == "none":
        say("saved      nothing, because h5py is not installed: pip install h5py", err=False)
    else:
        _compare(report, kind)
    say("next       mpips train --help; mpips init DATA.csv; mpips demo --copy FOLDER", err=False)


def _launch(words: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Run the training; return its report. Blocks for at most `_LIMIT_S`.

    Raises:
        CapabilityError: It takes longer, or prints no report.
        click.exceptions.Exit: It failed; the end of its output has been printed.
    """
    child = subprocess.Popen(
        words,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        output = child.communicate(timeout=_LIMIT_S)[0]
    except subprocess.TimeoutExpired:
        raise CapabilityError(
            f"the training did not end within {_LIMIT_S:g} s, and was stopped: {_end(child)}"
            "mpips doctor --mpi -n 2 checks MPI"
        ) from None
    except BaseException:
        _end(child)
        raise
    lines = output.splitlines()
    if child.returncode:
        for line in lines[-_SHOWN:]:
            say(line)
        say("mpips demo: the training failed, see above; mpips doctor --mpi -n 2 checks MPI")
        raise click.exceptions.Exit(child.returncode if child.returncode > 0 else 1)
    for line in reversed(lines):
        if line.startswith('{"'):
            report: dict[str, Any] = json.loads(line)
            return report
    raise CapabilityError(
        f"the training printed no report but {lines[-1:] or 'nothing'}; mpips doctor --mpi -n 2 checks MPI"
    )


def _end(child: subprocess.Popen[str]) -> str:
    """End a launch and its ranks; return its last line of output, with a semicolon, or ""."""
    child.send_signal(signal.SIGTERM)
    try:
        output = child.communicate(timeout=_END_S)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        output = child.communicate()[0]
    last = output.strip().splitlines()[-1:]
    return f"{last[0]}; " if last else ""


def _compare(report: Mapping[str, Any], kind: str) -> None:
    """Load the model that the launch saved, evaluate it, and print the result.

    Raises:
        MpipsError: It was not saved, or its test accuracy differs from that of the training.
    """
    from mpips.inference.loading import load

    saved = report["checkpoint"] or {}
    if "path" not in saved:
        raise MpipsError(f"the model was not saved: {saved.get('error', 'no reason was given')}")
    how = "by all servers" + ("" if kind == "parallel" else ", without MPI-IO, as h5py has no MPI")
    found = load(saved["path"]).evaluate("digits")["accuracy"]
    if not math.isclose(found, report["accuracy"], rel_tol=0, abs_tol=1e-9):
        raise MpipsError(
            f"{saved['path']} has a test accuracy of {found:.4f}, and the training {report['accuracy']:.4f}: "
            "they must be equal"
        )
    say(f"saved      {how}; loaded again: test accuracy {found:.4f}", err=False)


def _copy(folder: Path) -> None:
    """Copy jobs/ and docs/examples into a new folder, with the file that depends on the site.

    Raises:
        ConfigError: The folder exists, or cannot be written.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: exists already; name a new folder")
    ignore = shutil.ignore_patterns("__pycache__", "setup*.sh", "quickstart.sh", "mpips.def")
    root = find_root()
    try:
        shutil.copytree(root / "jobs", folder / "jobs", ignore=ignore)
        shutil.copytree(examples(root), folder / "examples", ignore=ignore)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror or error}") from None
    say(
        f"mpips demo: {folder}/examples has programs, {folder}/jobs scripts for Slurm and a README.md about "
        f"them; write the modules of your site into {folder}/jobs/env.sh",
        err=False,
    )
