"""The loss of a step: the sum of the scalars on which the script calls `backward` for it.

No other call of a script has its loss. So while the job runs, `torch.Tensor.backward` is a function that
calls torch's own one and then notes the tensor. `torch.autograd.backward` and `torch.autograd.grad` are
not noted. The loss of a step is unknown, and is not shown, if

    backward got an argument `gradient` or `inputs`, or a tensor that is not a plain torch.Tensor;
    GradScaler has scaled it and mpips does not find the factor: something else came between `scale` and
    backward;
    it is a product with a tensor of one element, which may be a scale of the script's own, without
    GradScaler;
    backward ran MOST_PASSES times without a step or `zero_grad`: these are passes of another kind;
    another prepared optimizer steps with a loss of its own (a GAN): no loss of this script is shown then.

`zero_grad` drops what was noted, with the gradients. On the CPU a loss is read at once. A loss on a device is
copied there, since a compiled function may write the next one to the same memory, and is read with others
when a report is due, so that the host does not wait for the device in each step.
Only the first MOST steps behind a report are looked at: in a loop that is so fast that it makes more of them,
these are enough for a mean.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

MOST = 32  # steps whose losses are in a report
MOST_PASSES = 1024  # of a step, whose losses are added up

Term = float | torch.Tensor  # a part of a loss; on a device a tensor


class Factor(NamedTuple):
    """A factor of a loss.

    Attributes:
        scale: The tensor that may be the scale of GradScaler; None: not found.
        is_product: The loss is a product with a tensor that may be a scale.
    """

    scale: torch.Tensor | None = None
    is_product: bool = False


class Losses:
    """The losses of the step that the script computes. One for each script.

    Attributes:
        is_wanted: The loss of the step is to be noted.
    """

    def __init__(self) -> None:
        """Note nothing yet; see `begin`."""
        self.is_wanted = True
        self._noted: list[tuple[Term, Factor]] = []
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
            factor = _factor_of(tensor)
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

    def _note(self, loss: torch.Tensor, is_whole: bool, factor: Factor) -> None:
        is_known = is_whole and type(loss) is torch.Tensor and len(self._noted) < MOST_PASSES
        if not self._is_known or not is_known:
            self._is_known = False
            self._noted.clear()
            return
        self._noted.append((term_of(loss), factor))

    def add(self, loss: torch.Tensor) -> None:
        """Note a loss whose backward pass was not that of `torch.Tensor.backward`."""
        if self.is_wanted and self._noting is not None:
            self._note(loss, True, Factor())

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
        if not is_known:
            return None
        if not is_scaled:
            return None if any(f.is_product for _, f in noted) else [term for term, _ in noted]
        found: list[Term] = []
        for term, factor in noted:
            if factor.scale is None:
                return None
            # GradScaler changes its scale in place, behind the step.
            by_device = isinstance(term, torch.Tensor)
            found.append(term / (factor.scale if by_device else float(factor.scale)))
        return found


class WaitingLosses:
    """Losses of steps until a report is due."""

    def __init__(self) -> None:
        """Hold none."""
        self.n_steps = 0  # whose losses were added
        self._sum = 0.0
        self._n = 0  # steps in the sum
        self._waiting: list[tuple[list[torch.Tensor], float]] = []

    def add(self, terms: Iterable[Term]) -> None:
        """Add the loss of a step, the sum of `terms`, as `term_of` makes them."""
        self.n_steps += 1
        numbers = [term for term in terms if not isinstance(term, torch.Tensor)]
        tensors = [term for term in terms if isinstance(term, torch.Tensor)]
        if tensors:
            self._waiting.append((tensors, sum(numbers)))
        else:
            self._sum += sum(numbers)
            self._n += 1

    def read(self) -> float | None:
        """Return the mean loss of the steps, None: it is unknown; hold none."""
        total, n = self._sum, self._n
        found = iter(_read([term for tensors, _ in self._waiting for term in tensors]))
        for tensors, number in self._waiting:
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


def _factor_of(loss: torch.Tensor) -> Factor:
    """Return how a loss was multiplied by a tensor of one element.

    The scale of GradScaler is a float32 tensor behind the loss. A number of the script would be a tensor of
    float64 or of integers in the graph, so a scale of these dtypes is not found.
    """
    graph = loss.grad_fn if type(loss) is torch.Tensor else None
    if graph is None or graph.name() != "MulBackward0":
        return Factor()
    try:
        before, behind = graph._saved_self, graph._saved_other  # type: ignore[attr-defined]
    except RuntimeError:
        return Factor()  # freed by an earlier pass
    is_scale = _is_scale(behind) and behind.dtype == torch.float32
    return Factor(behind if is_scale else None, _is_scale(behind) or _is_scale(before))


def _is_scale(factor: Any) -> bool:
    return (
        isinstance(factor, torch.Tensor)
        and factor.is_floating_point()
        and factor.dtype != torch.float64
        and factor.numel() == 1
        and not factor.requires_grad
    )


def term_of(loss: torch.Tensor) -> Term:
    """Return a loss as a number, or a copy without its graph where it is on a device."""
    if loss.device.type == "cpu":
        return float(loss.item())
    return loss.detach().reshape(()).clone()


def _read(terms: list[torch.Tensor]) -> list[float]:
    """Return the values of scalars on devices. Waits for the first one's device once."""
    if not terms:
        return []
    device = terms[0].device
    found: list[float] = torch.stack([t.to(device, torch.float32) for t in terms]).tolist()
    return found
