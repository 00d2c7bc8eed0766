"""`mpips.init`, and a script's access to its job: rank, world_size, report."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn, cast

from mpips.config.triggers import OnUsr1, Triggers
from mpips.errors import ConfigError
from mpips.mpi import failure_report, launch
from mpips.process import forked
from mpips.session.exits import code_of, exit_now, exited
from mpips.session.script import Script
from mpips.session.script_program import ScriptProgram
from mpips.session.session import check_arguments, one_report, scripts


def init(
    *,
    verbose: bool = True,
    save: str | Path | None = None,
    resume: str = "auto",
    every_steps: int = 0,
    every_s: float = 0.0,
    on_usr1: OnUsr1 = "continue",
    grace_s: float = 25.0,
    incremental: int = 0,
    compact: bool = False,
    monitor: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Begin the job of this script. Collective over all ranks of the launch; call it first, once.

    Servers and the scheduler serve in this call until the job is over, and end their processes in it. On
    workers it returns, and the script goes on. The job starts at the first pull, for example the first
    forward pass of a model that `mpips.torch.prepare` has prepared. It ends with the script: at its last
    line, by sys.exit, or by an exception, which ends all ranks. In one process, without a launcher, the same
    script runs with all roles in this process.

    In a helper process of a worker (a process of `multiprocessing` that imports the script again, such as one
    of a DataLoader) the call does nothing.

    Args:
        verbose: Print the table of roles and the transports at start.
        save: See `mpips.run`.
        resume: See `mpips.run`.
        every_steps: See `mpips.run`.
        every_s: See `mpips.run`.
        on_usr1: See `mpips.run`.
        grace_s: See `mpips.run`.
        incremental: See `mpips.run`.
        compact: See `mpips.run`.
        monitor: See `mpips.run`.
        **options: See `mpips.config.options.SessionOptions`.

    Raises:
        ConfigError: Options are invalid, or `init` has been called before. With several ranks the error is
            printed once and the process exits; see SystemExit.
        CapabilityError: h5py is missing and checkpoints would be written.
        SystemExit: With several ranks: the job could not start (the error has been printed once); or, on
            servers and the scheduler, the job is over.
    """
    if forked.is_helper():
        return
    forked.refuse_children()
    if scripts:
        raise ConfigError("mpips.init was called a second time: a script has one job")
    size = launch.launched_size()
    if size > 1 and sys.flags.interactive:
        _refuse_prompt(size)
    with one_report() if size > 1 else nullcontext():
        failure_report.begin()
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("mpips.init was called in a thread: call it in the main thread")
        triggers = Triggers(every_steps, every_s, on_usr1, grace_s, incremental, compact)
        checked = check_arguments(options, size, save, triggers, monitor)
    with one_report():
        launch.refuse_lonely_tasks()
    script = Script(ScriptProgram(checked, resume, verbose), checked.run, size)
    scripts.append(script)
    script.begin()


def _refuse_prompt(size: int) -> NoReturn:
    """Exit with an error: Python would open a prompt on servers, and ignore SystemExit."""
    try:
        launch.say_and_exit(
            f"python -i opens a prompt on each of {size} ranks: start the script without -i, or without a "
            "launcher",
            ConfigError.exit_code,
        )
    except SystemExit as error:
        exit_now(code_of(error))


def end(exit_code: object = None) -> None:
    """End the job that `init` has begun in this process, if any, before the end of the process. Blocks.

    For `mpips run`, which looks at the finished job.

    Args:
        exit_code: Code of the SystemExit that ended the script. If it is not that of a success, the call only
            stores it: the exit handler ends the job with it.
    """
    if not scripts or forked.is_helper():
        return
    if exited(exit_code) is None:
        scripts[0].end()
    else:
        scripts[0].note_exit(exit_code)


def current(what: str) -> Script:
    """Return the script's job. `what` names the caller in the error.

    Raises:
        ConfigError: `init` has not been called.
    """
    if not scripts:
        raise ConfigError(f"{what} needs a job: call mpips.init() at the beginning of the script")
    return cast(Script, scripts[0])


def rank() -> int:
    """Return the index of this worker, 0 .. world_size()-1. Not collective; needs `init`."""
    return current("mpips.rank").rank


def world_size() -> int:
    """Return the number of workers. Not collective; needs `init`."""
    return current("mpips.world_size").n_workers


def report(
    *,
    loss: float | None = None,
    samples: int | None = None,
    epoch: int | None = None,
    **metrics: float,
) -> None:
    """Report progress, for `mpips top`, metrics.jsonl and the progress line. Not collective; returns at once.

    Scripts of mpips.torch, mpips.keras, mpips.jax and mpips.sklearn report what mpips sees of their loop
    without this call; see the guides. From the first call with a loss on, only the losses of these calls
    count, also beside those that mpips finds on other workers.

    Args:
        loss: Mean loss of the last samples; None: none is reported.
        samples: Number of these samples, of this worker; None: those that mpips counts by itself, or one
            where it counts none. A loss without a number has the weight of one sample.
        epoch: Index of the current epoch, from 0; None: the one that mpips counts by itself, or 0.
        **metrics: Results of an evaluation by name; one worker reports them.

    Raises:
        ConfigError: There has been no pull yet, so that the job has not started.
    """
    script = current("mpips.report")
    if script.worker is None:
        raise ConfigError("mpips.report comes before the first pull: report after a training step")
    worker = script.worker
    if loss is not None:
        script.reports.report(worker, epoch, samples, float(loss))
    if metrics:
        script.reports.evaluated(worker, epoch, {k: float(v) for k, v in metrics.items()})
