"""`epochs`: the loop of a torch script over its epochs, which a restart continues in the epoch where it was.

The cursor has the place of the newest loop: its number in the script, its epoch, and how often each prepared
loader had been iterated when the epoch began. A restart yields from this epoch on, and loaders continue
there (see sampling.py). The place changes when the script requests the next epoch, so code behind the batches
of an epoch is part of it. Between two epochs no clock ends. So a job that ends behind the last step of an
epoch, and before the first one of the next, repeats the code behind its batches.

A loop may have states of the script, which are in the cursor as JSON text. They are restored when the script
makes the loop, and again when all loaders have arrived at their places: code at the beginning of the epoch
has run again by then.
"""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from mpips.errors import ConfigError

_PLAIN = "numbers, text, None, and lists and dicts of them with text as keys"


class SeekingLoader(Protocol):
    """A prepared loader whose next iteration can be another one than the first."""

    @property
    def n_begun(self) -> int:
        """Number of its iterations that have begun."""

    def seek(self, n_begun: int) -> None:
        """Let the next iteration be that behind `n_begun` ones."""


class SettlingJob(Protocol):
    """The script's job."""

    def settle(self) -> None:
        """End the clock of the newest step, if it has not ended."""


class LoopState:
    """A state that a script gives to a loop: a dict, or an object with state_dict and load_state_dict."""

    def __init__(self, given: Any) -> None:
        """Take the state.

        Raises:
            ConfigError: It is of another kind.
        """
        self._given = given
        has_methods = all(
            callable(getattr(given, m, None)) for m in ("state_dict", "load_state_dict")
        )
        if not isinstance(given, dict) and not has_methods:
            raise ConfigError(
                f"mpips.torch.epochs: state is {type(given).__name__}: must be a dict, an object with the "
                "methods state_dict and load_state_dict, or a list of them"
            )

    def value(self) -> Any:
        """Return a copy of the state, of values that JSON has.

        Raises:
            ConfigError: It has other values.
        """
        own = self._given if isinstance(self._given, dict) else self._given.state_dict()
        return _plain(own, "state")

    def load(self, value: dict[str, Any]) -> None:
        """Set the state to one that `value` returned."""
        if isinstance(self._given, dict):
            self._given.clear()
            self._given.update(value)
        else:
            self._given.load_state_dict(value)


def _plain(value: Any, name: str) -> Any:
    """Return a copy of a value that JSON has; `name` names it in errors."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"mpips.torch.epochs: {name} has the key {key!r}: must be text")
        return {key: _plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    raise ConfigError(
        f"mpips.torch.epochs: {name} is {type(value).__name__}: must be {_PLAIN} (tensor.item() is a number; "
        "write larger values into a file)"
    )


class EpochLoops:
    """The loops over epochs of a script, and the place of the newest one in the cursor."""

    def __init__(self) -> None:
        """Know no loop."""
        self._states: list[list[LoopState]] = []  # of each loop that was made
        self._active: weakref.ref[Epochs] | None = None
        # Place of the newest loop that has begun; empty before the first one.
        self._place: dict[str, Any] = {}
        self._resumed: Mapping[str, Any] = {}  # place of the restart
        self._saved = ""  # states in the newest cursor
        self._lengths: list[int] = []  # numbers of epochs of the loops that were made

    def position(self) -> dict[str, Any]:
        """Return the entries of the cursor: none before the first loop. `epoch` is for people."""
        if not self._place:
            return {}
        self._saved = self._text()
        place = {"epochs": {**self._place, "states": self._saved}}
        counted = self.count()
        return {**place, "epoch": counted[0]} if counted is not None else place

    def count(self) -> tuple[int, int, Sequence[int]] | None:
        """Return the place of the newest loop that has begun, counted over all loops before it.

        Epoch from 0, number of epochs of all loops so far, and how often each loader had been iterated when
        the epoch began. None: no loop has begun.
        """
        if not self._place:
            return None
        before = self._lengths[: self._place["loop"]]
        n = sum(self._lengths[: self._place["loop"] + 1])
        return sum(before) + self._place["epoch"], n, self._place["begun"]

    def _text(self) -> str:
        """Return the states of all loops; those of the restart of loops that have not been made yet."""
        made = [[one.value() for one in states] for states in self._states]
        return json.dumps(made + self._resumed_states()[len(made) :])

    def _resumed_states(self) -> list[Any]:
        found: list[Any] = json.loads(self._resumed["states"]) if self._resumed else []
        return found

    def resume(self, position: Mapping[str, Any]) -> None:
        """Continue at the place of a cursor, before the first loop."""
        self._resumed = position
        self._place = {name: position[name] for name in ("loop", "epoch", "begun")}

    def restore(self) -> None:
        """Set the states of the loops that were made to those of the restart."""
        for states, values in zip(self._states, self._resumed_states(), strict=False):
            for one, value in zip(states, values, strict=True):
                one.load(value)

    def warn_if_late(self) -> None:
        """Warn if a state was changed after the clock of the newest step had ended."""
        if self._saved and self._text() != self._saved:
            warnings.warn(
                "the values of the model were read between optimizer.step() and a change of the state of "
                "mpips.torch.epochs: change the state directly after the step, or evaluate before the next "
                "step, or a restart may be without the change",
                stacklevel=5,
            )

    def make(
        self,
        n: int,
        states: list[LoopState],
        loaders: Sequence[SeekingLoader],
        job: SettlingJob,
    ) -> Epochs:
        """Return the next loop of the script, at its place.

        Raises:
            ConfigError: A state has values that a cursor cannot hold, or the checkpoint has other states.
        """
        for one in states:
            one.value()
        number, place = len(self._states), self._resumed
        first = 0
        if place and number <= place["loop"]:
            n_saved = len(self._resumed_states()[number])
            if n_saved != len(states):
                raise ConfigError(
                    f"the checkpoint is of a script with {n_saved} states in mpips.torch.epochs, this one "
                    f"has {len(states)}: use the same script, or resume='never'"
                )
            first = place["epoch"] if number == place["loop"] else n
        self._states.append(states)
        self._lengths.append(n)
        if place and number == place["loop"]:
            for loader, n_begun in zip(loaders, place["begun"], strict=True):
                loader.seek(n_begun)
        if place and number <= place["loop"]:
            self.restore()
        return Epochs(self, number, first, n, loaders, job)

    def check_end(self) -> None:
        """Check at the end of the script that it made the loop in which the checkpoint is.

        Loops are known by their order. A script that leaves out a loop before that one, since a file of it is
        there, would pass over another loop.

        Raises:
            ConfigError: It did not.
        """
        if self._resumed and 0 < len(self._states) <= self._resumed["loop"]:
            raise ConfigError(
                f"the checkpoint is of loop {self._resumed['loop'] + 1} over mpips.torch.epochs, and this "
                f"launch made {len(self._states)}, so it has passed over epochs that it should have trained: "
                "make the same loops after a restart, also those that are complete"
            )

    def begin(self, loop: Epochs, epoch: int, loaders: Sequence[SeekingLoader]) -> None:
        """Note the epoch that a loop begins; its number of epochs at its end.

        Raises:
            ConfigError: A loop before it has not ended.
        """
        active = self._active() if self._active is not None else None
        if active is not None and active is not loop and not active.has_ended:
            raise ConfigError(
                f"mpips.torch.epochs({loop.n}) begins within the loop over mpips.torch.epochs({active.n}), "
                "which has not ended: use range for an inner loop, or delete the iterator of a loop that was "
                "left"
            )
        self._active = weakref.ref(loop)
        # A restart passes over loops that were complete.
        if loop.number >= self._place.get("loop", 0):
            begun = [loader.n_begun for loader in loaders]
            self._place = {"loop": loop.number, "epoch": epoch, "begun": begun}


class Epochs(Iterator[int]):
    """The epochs of one loop that are left; see mpips.torch.epochs.

    Attributes:
        number: Number of the loop in the script.
        n: Number of epochs.
        has_ended: True if the code of the last epoch has run.
    """

    def __init__(
        self,
        loops: EpochLoops,
        number: int,
        first: int,
        n: int,
        loaders: Sequence[SeekingLoader],
        job: SettlingJob,
    ) -> None:
        """Begin at the epoch `first`."""
        self.number, self.n = number, n
        self.has_ended = False
        self._loops = loops
        self._next = first
        self._loaders = loaders
        self._job = job

    def __len__(self) -> int:
        """Return the number of epochs that have not been yielded."""
        return max(self.n - self._next, 0)

    def __next__(self) -> int:
        epoch = self._next
        if not self.has_ended:
            self._loops.begin(self, epoch, self._loaders)
            # If the script has left the newest step open, a restart continues behind it in the new epoch.
            self._job.settle()
        if epoch >= self.n:
            self.has_ended = True
            raise StopIteration
        self._next += 1
        return epoch
