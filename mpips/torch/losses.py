"""The loss of a step: the sum of the scalars on which the script calls `backward` for it.

No other call of a script has its loss. So while the job runs, `torch.Tensor.backward` is a function that
calls torch's own one and then notes the tensor. `torch.autograd.backward` and `torch.autograd.grad` are
not noted. The loss of a step is unknown, and is not shown, if

    backward got an argument `gradient` or `inputs`, or a tensor that is not a plain torch.Tensor;
    GradScaler has scaled it and mpips does not find the factor: something else came between `scale` and
    backward;
    another prepared optimizer steps with a loss of its own (a GAN): no loss of this script is shown then.

`zero_grad` drops what was noted, with the gradients. On the CPU a loss is read at once. A loss on a device is
kept, without its graph, and is read with others when a report is due, so that the host does not wait for the
device in each step. Only the first MOST steps behind a report are looked at: in a loop that is so fast that
it makes more of them, these are enough for a mean.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch

MOST = 32  # steps whose losses are in a report

Term = float | torch.Tensor  # a part of a loss; on a device a tensor


class Losses:
    """The losses of the step that the script computes. One for each script.

    Attributes:
        is_wanted: The loss of the step is to be noted.
    """

    def __init__(self) -> None:
        """Note nothing yet; see `begin`."""
        self.is_wanted = True
        self._noted: list[
            tuple[Term, torch.Tensor | None]
        ] = []  # with the factor that may be a scale
        self._is_known = True  # all of the current step
        self._is_running = False  # within a backward pass
        self._plain: Any = None
        self._noting: Any = None

    def begin(self) -> None:
        """Note the tensors of all later calls of `torch.Tensor.backward`, until `end`."""
        self._plain = plain = torch.Tensor.backward
        # A library may keep a reference to this function, which must not keep the job alive.
        noting = weakref.ref(self)

        @torch.compiler.disable(recursive=False)  # type: ignore[misc,untyped-decorator,unused-ignore]
        @functools.wraps(plain)
        def backward(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            own = noting()
            # A backward pass may contain others, as that of a checkpointed layer does.
            if own is None or not own.is_wanted or own._noting is None or own._is_running:
                return plain(tensor, *arguments, **options)
            # The pass frees what the graph has saved.
            factor = _factor(tensor)
            own._is_running = True
            try:
                result = plain(tensor, *arguments, **options)
            finally:
                own._is_running = False
            own._note(tensor, _is_whole(arguments, options), factor)
            return result

        self._noting = backward
        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]

    def end(self) -> None:
        """Note nothing any more, and give torch its function back."""
        if torch.Tensor.backward is self._noting and self._noting is not None:
            torch.Tensor.backward = self._plain  # type: ignore[method-assign]
        # Another library may have wrapped the function: it does nothing from here on.
        self._noting = None
        self.drop()

    def _note(self, loss: torch.Tensor, is_whole: bool, factor: torch.Tensor | None) -> None:
        if not is_whole or type(loss) is not torch.Tensor:
            self._is_known = False
            return
        self._noted.append((_term(loss), factor))

    def drop(self) -> None:
        """Forget what was noted since the last step: its gradients are dropped."""
        self._noted.clear()
        self._is_known = True

    def take(self, is_scaled: bool) -> list[Term] | None:
        """Return the parts whose sum is the loss of the step that is made now, and forget them.

        None: the loss is unknown; an empty list: backward has not run.

        Args:
            is_scaled: GradScaler makes the step.
        """
        noted, is_known = list(self._noted), self._is_known
        self.drop()
        if not is_known or (is_scaled and any(factor is None for _, factor in noted)):
            return None
        if not is_scaled:
            return [term for term, _ in noted]
        # GradScaler changes its scale in place, behind the step.
        return [
            term / factor if isinstance(term, torch.Tensor) else term / float(factor)
            for term, factor in noted
            if factor is not None
        ]


class WaitingLosses:
    """Losses of steps until a report is due."""

    def __init__(self) -> None:
        """Hold none."""
        self.n_steps = 0  # whose losses were added
        self._sum = 0.0
        self._n = 0  # steps in the sum
        self._waiting: list[tuple[list[tuple[torch.Tensor, int]], float]] = []

    def add(self, terms: Iterable[Term]) -> None:
        """Add the loss of a step, the sum of `terms`."""
        self.n_steps += 1
        numbers = [term for term in terms if not isinstance(term, torch.Tensor)]
        tensors = [(term, term._version) for term in terms if isinstance(term, torch.Tensor)]
        if tensors:
            self._waiting.append((tensors, sum(numbers)))
        else:
            self._sum += sum(numbers)
            self._n += 1

    def read(self) -> float | None:
        """Return the mean loss of the steps, None: it is unknown; hold none."""
        total, n = self._sum, self._n
        # A tensor that was changed in place since is not the loss any more.
        waiting = [
            one
            for one in self._waiting
            if all(term._version == version for term, version in one[0])
        ]
        found = iter(_read([term for one in waiting for term, _ in one[0]]))
        for tensors, number in waiting:
            total += number + sum(next(found) for _ in tensors)
            n += 1
        self.clear()
        return total / n if n else None

    def clear(self) -> None:
        """Hold none."""
        self._sum, self._n, self.n_steps = 0.0, 0, 0
        self._waiting.clear()


def _is_whole(arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return True if backward is that of the tensor itself, for all that it depends on."""
    gradient = arguments[0] if arguments else options.get("gradient")
    inputs = arguments[3] if len(arguments) > 3 else options.get("inputs")
    return gradient is None and inputs is None


def _factor(loss: torch.Tensor) -> torch.Tensor | None:
    """Return the factor of a loss that is a product with one, as `GradScaler.scale` makes it; else None.

    The scale of GradScaler is a float32 tensor of one element. A number of the script would be another dtype.
    """
    graph = loss.grad_fn if type(loss) is torch.Tensor else None
    if graph is None or graph.name() != "MulBackward0":
        return None
    try:
        factor = graph._saved_other  # type: ignore[attr-defined]
    except RuntimeError:
        return None  # freed by an earlier pass
    is_scale = (
        isinstance(factor, torch.Tensor)
        and factor.dtype == torch.float32
        and factor.numel() == 1
        and not factor.requires_grad
    )
    return factor if is_scale else None


def _term(loss: torch.Tensor) -> Term:
    """Return a loss as a number, or without its graph where it is on a device."""
    if loss.device.type == "cpu":
        return float(loss.item())
    return loss.detach().reshape(())


def _read(terms: list[torch.Tensor]) -> list[float]:
    """Return the values of scalars on devices. Waits for the first one's device once."""
    if not terms:
        return []
    device = terms[0].device
    found: list[float] = torch.stack([t.to(device, torch.float32) for t in terms]).tolist()
    return found
