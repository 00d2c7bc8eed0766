"""The steps of a JAX script in its job.

    start   at the first pull of the script: all ranks start the job together
    pull    before a step: values and rows become arrays of JAX
    push    after the jitted function: gradients go to the servers
    step    the cursor is set and the worker's clock ends

The cursor has the number of steps. A script continues a restart by itself: its loop begins at `steps()`, and
the batch and the random numbers of a step are functions of that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from mpips.errors import ConfigError
from mpips.jax.progress import StepProgress
from mpips.session.script import Script
from mpips.session.script_job import ScriptJob


class JaxJob(ScriptJob):
    """The JAX part of the script's job. Make it by `JaxJob.of_script`.

    Attributes:
        has_pushed: True if gradients were pushed since the newest step.
        rates: Functions that return the learning rates of a pytree, for reports.
        progress: Automatic reports of the script.
    """

    library = "mpips.jax"
    progress: StepProgress

    def __init__(self, script: Script) -> None:
        """Declare nothing yet."""
        super().__init__(script)
        self.has_pushed = False
        self.rates: list[Callable[[], Sequence[float]]] = []
        self.progress = StepProgress(script, lambda: [x for of in self.rates for x in of()])

    def step(self) -> None:
        """Set the cursor and end the worker's clock. Not collective."""
        self.start()
        self.note_step()
        self.progress.note_step()
        self.settle()
        self.has_pushed = False

    def end(self) -> None:
        """Raise ConfigError for a push without a step; let the scheduler compare the steps of all workers."""
        if self.has_pushed:
            raise ConfigError(
                "the script ended after a push without mpips.jax.step(): call it after the pushes of each "
                "step"
            )
        super().end()


def step() -> None:
    """End the step: its pushes are complete. Not collective; blocks only while a ring is full.

    Under BSP the next pull waits until all workers have ended the step. Call it once per step, even if
    this worker had nothing to push, for example because its gradient is not finite: a mean over all workers
    then has zeros in place of its gradients. Without the call its later gradients would be averaged with
    those of other steps, and the job ends with an error.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    JaxJob.of_script("mpips.jax.step").step()


def steps() -> int:
    """Return the number of steps that this worker has made since the beginning of the run.

    After a restart it is that of the restart: a loop over `range(mpips.jax.steps(), n)` continues there. The
    first call starts the job, if no pull has: it is collective over all ranks and blocks then.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    return JaxJob.of_script("mpips.jax.steps").settled_steps()


def key() -> jax.Array:
    """Return the random key of this step: a function of the job's seed, the worker and the step's number.

    A step that a restart repeats has the same key. Split it for more than one use. The first call may start
    the job, as `steps` does.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    job = JaxJob.of_script("mpips.jax.key")
    worker = job.start()
    seeded = jax.random.key(worker.seed & 0x7FFF_FFFF)
    return jax.random.fold_in(jax.random.fold_in(seeded, worker.index), job.steps & 0x7FFF_FFFF)
