"""Call a function of the user after each epoch: `train.on_epoch_end`, or `on_epoch_end` of `mpips.fit`.

Worker 0 calls it, with the mean loss over the samples of all workers and the metrics of the evaluation, if
there was one. All workers come to the end of the epoch, and wait there for the decision of worker 0 whether
training goes on. So no worker begins the next epoch before the function has returned, and under BSP the
tables have the values of the epoch that it was called for.

A worker records its position before a clock, so a position at the beginning of an epoch was recorded before
the call for the epoch before it. A restart from there makes this call, perhaps again; a restart from inside
an epoch does not, because a worker steps into an epoch only when the call for the one before it has returned.
So there is a second call for an epoch in two cases only: a failure between the end of the epoch and the next
step, and a restart from a checkpoint from before the end of an epoch, which is trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpips.config.sections import TrainConfig
from mpips.errors import CallbackError, ConfigError
from mpips.tasks.registry import load_named
from mpips.worker.worker import Worker, connection_of

OnEpochEnd: TypeAlias = Callable[[dict[str, float]], object]


@dataclass
class EpochCallback:
    """The function of a job.

    Attributes:
        function: Called with a row of `Result.history`; True ends training.
        name: `module:function`, as in the option; "": a function of this process, whose exceptions except
            SystemExit are raised as they are.
    """

    function: OnEpochEnd
    name: str = ""

    @classmethod
    def of(cls, config: TrainConfig, function: OnEpochEnd | None = None) -> EpochCallback | None:
        """Return the function of a job; None: it has none.

        Args:
            config: Options of the training.
            function: A function that the caller of the training has given.

        Raises:
            ConfigError: There is no such function, or there are two.
        """
        name = config.on_epoch_end
        if not name:
            return cls(function) if function is not None else None
        option = f"train.on_epoch_end = {name!r}"
        if function is not None:
            raise ConfigError(f"{option}, and a function was given, too: leave one of them out")
        found = load_named(option, name)
        if not callable(found):
            raise ConfigError(f"{option}: is {found!r:.60}, and no function")
        return cls(found, name)

    def ends(
        self,
        worker: Worker,
        epochs: int,
        losses: tuple[float, int],
        metrics: Mapping[str, float] | None,
    ) -> bool:
        """Call the function on worker 0; return True on all workers if training ends. Collective; blocks.

        Args:
            worker: This worker.
            epochs: Number of complete epochs.
            losses: Summed loss and samples of this worker's epoch.
            metrics: Metrics of the epoch on worker 0; {} or None: it was not evaluated.

        Raises:
            CallbackError: The function raised an exception, on worker 0.
            StallError: It did not return within the job's timeout.
        """
        sums = worker.reduce(f"losses of epoch {epochs}", np.array(losses, np.float64))
        assert sums is not None
        row = {"epoch": epochs}
        loss = {"loss": float(sums[0] / sums[1])} if sums[1] else {}
        stops = False
        if worker.index == 0:
            control = connection_of(worker).control
            # The function may last longer than the job's timeout: then the error says what was called.
            control.state = f"calling on_epoch_end after epoch {epochs}"
            control.beat()
            stops = self.call({**row, **loss, **(metrics or {})})
            control.state = "computing"
        # The others wait here for the end of the call; if it raises, the job ends.
        decision = worker.reduce(f"on_epoch_end of epoch {epochs}", np.array([int(stops)]), "max")
        assert decision is not None
        return bool(decision[0])

    def call(self, row: dict[str, Any]) -> bool:
        """Call the function with a row in this process; return True if it requests the end of the training.

        Raises:
            CallbackError: The function raised an exception. One without a name has exited.
        """
        try:
            found = self.function(row)
        except (Exception, SystemExit) as error:
            # SystemExit must not end the training as if that were complete: a program may return with it.
            if not self.name and not isinstance(error, SystemExit):
                raise
            what = f"train.on_epoch_end = '{self.name}'" if self.name else "on_epoch_end"
            raise CallbackError(
                f"{what} raised {type(error).__name__} after epoch {row['epoch']}: {error}"
            ) from error
        # A comparison of NumPy's numbers is no bool of Python.
        return found is True or (isinstance(found, np.bool_) and bool(found))
