"""Write a Slurm batch script for a training job from those in jobs/, and submit it.

The script equals the one in jobs/ except for its #SBATCH lines and its arguments, which are written into it.
So a submitted job runs the code that can be read and tested in jobs/.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import mpips
from mpips.config.launching import SlurmConfig
from mpips.errors import CapabilityError, ConfigError
from mpips.rundir.directory import check_name

TEMPLATES = {
    "mpirun": "train.sbatch",
    "srun": "train_srun.sbatch",
    "restart": "train_restart.sbatch",
}
_TIMEOUT_S = 60.0  # seconds in which a command of Slurm must answer
_DIRECTIVE = "#SBATCH "
_STRICT = "set -euo pipefail"  # the line of every script in jobs/ at which its code begins


def find_root() -> Path:
    """Return the folder that contains jobs/: MPIPS_ROOT, that of the repository, or the installed package.

    Raises:
        CapabilityError: MPIPS_ROOT names a folder without jobs/, or this installation is incomplete.
    """
    package = Path(mpips.__file__).resolve().parent
    named = os.environ.get("MPIPS_ROOT", "")
    folders = [Path(named)] if named else [package.parent, package]
    for root in folders:
        if (root / "jobs/batch.sh").is_file():
            return root
    raise CapabilityError(
        f"{folders[-1]}/jobs/batch.sh does not exist: set MPIPS_ROOT to the repository of mpips or to a "
        "folder of `mpips demo --copy`, whose scripts are submitted"
    )


def examples(root: Path) -> Path:
    """Return the folder of the programs of the pages, of a repository or of an installed package."""
    own = Path(mpips.__file__).resolve().parent / "examples"
    return own if own.is_dir() else root / "docs/examples"


def environment_of(root: Path) -> dict[str, str]:
    """Return the variables by which a batch script finds its scripts and its Python.

    A repository in which jobs/setup.sh has made .venv needs the folder alone. Elsewhere the job uses the
    environment of this process.

    Raises:
        CapabilityError: This Python is of no environment that a job can use: there is no `python` beside it.
    """
    found = {"MPIPS_ROOT": str(root)}
    if (root / ".venv/bin/python").exists():
        return found
    if not Path(sys.prefix, "bin/python").exists():
        raise CapabilityError(
            f"{sys.prefix}/bin/python does not exist: install mpips into a virtual environment, so that jobs "
            "find it"
        )
    return {**found, "MPIPS_VENV": sys.prefix}


def make_folder(parent: Path, name: str) -> Path:
    """Return `parent/<name>-<time>-<random>` for a job, as an absolute path; the folder is not made.

    Raises:
        ConfigError: The name leads out of `parent`, or cannot be part of a path.
    """
    check_name(name)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return parent.absolute() / f"{name}-{stamp}-{secrets.token_hex(2)}"


def directives(options: SlurmConfig, name: str, folder: Path, spares: int) -> list[tuple[str, str]]:
    """Return the options of sbatch for a job, as (option, value); options without a value have ""."""
    found = [
        ("--job-name", name),
        ("--nodes", str(options.nodes + spares)),
        ("--ntasks-per-node", str(options.ranks_per_node)),
        ("--cpus-per-task", "1"),
        ("--time", options.time),
        ("--output", f"{folder}/slurm-%j.out"),
    ]
    for word in options.sbatch:
        key, _, value = word.partition("=")
        found.append((key, value))
    return found


def requeue_directives() -> list[tuple[str, str]]:
    """Return the directive by which Slurm starts a job that has lost a node again before all others.

    Empty where Slurm does not offer that: it is an option of Slurm 25.11 and newer, which sites switch on.
    Blocks until Slurm answers.

    Raises:
        CapabilityError: Slurm does not answer.
    """
    if shutil.which("scontrol") is None:
        return []
    parameters = re.search(
        r"^SchedulerParameters\s*=(.*)$", _slurm("scontrol", "show", "config").stdout, re.MULTILINE
    )
    words = parameters[1].replace(" ", "").split(",") if parameters else []
    return [("--requeue", "expedite")] if "enable_expedited_requeue" in words else []


def make_script(
    template: str,
    asked: Sequence[tuple[str, str]],
    environment: Mapping[str, str],
    arguments: Sequence[str],
    origin: str,
) -> str:
    """Return the batch script of one job.

    Args:
        template: Text of a script of jobs/.
        asked: Directives, as of `directives`; they replace those of the same name in the template.
        environment: Environment variables that the script sets.
        arguments: Arguments of the script.
        origin: The command that made the script, which is written into a comment.

    Raises:
        ConfigError: A directive cannot be written on a line of its own.
    """
    head, strict, body = template.partition(f"{_STRICT}\n")
    assert strict, "every script in jobs/ is strict"
    # Replace the directives of the template by those that are asked for.
    comments = [line for line in head.splitlines() if not line.startswith(_DIRECTIVE)]
    chosen = [
        line.removeprefix(_DIRECTIVE) for line in head.splitlines() if line.startswith(_DIRECTIVE)
    ]
    lines = {line.partition("=")[0]: line for line in chosen}
    for key, value in asked:
        if not re.fullmatch(r"--[a-z][a-z-]*", key) or not (value.isprintable() or not value):
            raise ConfigError(f"{key}={value!r}: write options of sbatch as --name=value")
        lines[key] = f"{key}={shlex.quote(value)}" if value else key
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join(
        [
            comments[0],
            f"# Written by: {_one_line(origin)}",
            "#",
            *comments[1:],
            *(_DIRECTIVE + line for line in lines.values()),
            _STRICT,
            "",
            *exports,
            f"set -- {shlex.join(arguments)}",
            body,
        ]
    )


def _one_line(text: str) -> str:
    """Return the text with line ends and control characters escaped, so that it cannot end a comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def submit(script: Path, options: SlurmConfig, spares: int) -> int:
    """Submit a script to Slurm; return the number of the job. Blocks until Slurm answers.

    Raises:
        CapabilityError: There is no Slurm here, or it does not answer.
        ConfigError: Slurm refuses the job, or could never run it. The message lists the partitions.
    """
    if shutil.which("sbatch") is None:
        raise CapabilityError(
            "there is no sbatch here: submit on a login node of a Slurm cluster, or start the job by "
            "`mpips run`"
        )
    # Ask Slurm first whether the job can run: one that is too large would wait in the queue for ever.
    for arguments in (["--test-only", str(script)], ["--parsable", str(script)]):
        done = _slurm("sbatch", *arguments)
        if done.returncode:
            raise ConfigError(_refusal(done.stderr, options, spares))
    return int(done.stdout.strip().partition(";")[0])


def _refusal(stderr: str, options: SlurmConfig, spares: int) -> str:
    """Return the reason that sbatch printed, what the job asked for, and what the cluster has."""
    reason = (
        stderr.strip().splitlines()[-1].rpartition(": ")[2] if stderr.strip() else "no reason given"
    )
    spare = f" and {spares} spare" if spares else ""
    further = "".join(f", {word}" for word in options.sbatch)
    has = "; ".join(
        "{}: {} nodes of {} CPUs, at most {}".format(*line.split())
        for line in _slurm("sinfo", "--noheader", "--format=%P %D %c %l").stdout.splitlines()
    )
    return (
        f"Slurm refuses the job: {reason}. Asked for: {options.nodes} nodes{spare}, "
        f"{options.ranks_per_node} ranks a node, {options.time}{further}. "
        f"Partitions: {has or 'sinfo lists none'}"
    )


def _slurm(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm.

    Raises:
        CapabilityError: It does not answer.
    """
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CapabilityError(
            f"{argv[0]} has not answered for {_TIMEOUT_S:g} s: check Slurm's controller with scontrol ping, "
            "then submit again"
        ) from None
