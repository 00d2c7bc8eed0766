"""Copies between an accelerator and host memory, ordered by events, without a wait of the host.

    compute   the stream on which the script's kernels run: torch's current stream
    out       a side stream that brings gradients to the host
    in        a side stream that brings values to the device

A copy begins when the kernels that were queued on the compute stream before it have ended, and it ends with
an event. `Copied.order` makes the compute stream wait for this event, `Copied.wait` the host. Between the
request of a copy and its event no other code may write its source or access its target:

- A gradient is written by backward, before the copy is requested. The out stream holds its memory
  (`record_stream`), so torch's allocator does not reuse it. A script that writes it in place before `step()`
  is refused by a fingerprint (see fingerprints.py), whatever bytes the copy has read.
- A parameter is read by kernels that were queued before the copy, which waits for them, and by kernels that
  are queued after `order`, which wait for it.
- Host memory is used by the worker alone, which calls `wait` before it reads what a copy has written, and
  before it writes what a copy reads.

With CUDA autograd calls the hooks of gradients in a thread of its own for each device, and those of tensors
of the CPU in the thread that called backward, which else waits in it. Hooks of parameters on several devices
take turns by a lock (overlap.py), so one thread at a time uses the worker and these objects. The current
stream belongs to a thread: autograd sets that of the forward pass in its own.

A script may look at new values on one stream and train on another one. So each use of a model orders the
stream that is current then behind the newest copies (`follow`), not only that of the pull.

COPIES has an implementation for each type of device. Tensors of other devices, and of the CPU, are copied by
torch while the host waits. Tests replace the entry "cpu" by an implementation that makes each copy as late
as its event allows, so the code runs there that runs with CUDA.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from mpips.errors import CapabilityError, ConfigError, DeviceError
from mpips.process.patience import Patience
from mpips.session.init import current

WAIT_S = 1800.0  # limit of a wait for a device, which first ends the kernels of a whole step
_SPINS = 200  # queries without a pause in between
_PORTABLE = 1  # cudaHostRegisterPortable: registered for all contexts of the process

# torch does not annotate all of these functions.
_cuda: Any = torch.cuda


class Copied(Protocol):
    """The event at the end of one copy."""

    def is_done(self) -> bool:
        """Return True if the copy has ended. Does not block."""

    def wait(self) -> None:
        """Block until the copy has ended.

        Raises:
            DeviceError: The device failed, or the copy has not ended within WAIT_S.
        """

    def order(self) -> None:
        """Let the compute stream wait for the copy. Does not block the host."""

    def follow(self) -> None:
        """Do as `order` if the compute stream of this moment does not wait for the copy yet."""


class DeviceCopies(Protocol):
    """Copies from and to one device. Not thread-safe; see the top of this module."""

    def __init__(self, device: torch.device, place: str) -> None:
        """Make the side streams. `place` names the worker and its host in errors."""

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> Copied:
        """Request a copy of a tensor of the device into one of the host, of the same shape and dtype."""

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> Copied:
        """Request a copy of a tensor of the host into one of the device, of the same shape and dtype."""

    def new_host(self, n_bytes: int) -> torch.Tensor:
        """Return new host memory that copies reach directly, uint8, shape (n_bytes,)."""

    def register(self, memory: torch.Tensor) -> None:
        """Let copies reach host memory directly until `close`; see cudaHostRegister."""

    def close(self, limit_s: float = WAIT_S) -> None:
        """Wait for all copies and release what `register` took. Blocks, at most `limit_s` seconds for a copy.

        Raises:
            DeviceError: The device failed, or copies have not ended. The memory stays registered then, so
                its pages cannot be used for anything else while a copy writes to them.
        """


@contextmanager
def device_errors(device: torch.device, place: str, what: str) -> Iterator[None]:
    """Raise errors of a device in the block as DeviceError. `what` describes the work of mpips in the block.

    torch raises RuntimeError, or a subclass (AcceleratorError, OutOfMemoryError). CUDA reports errors of
    kernels late, so the cause may be a kernel of the script.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise DeviceError(
            f"{place}: the device {device} failed while mpips {what}: {reason} (set CUDA_LAUNCH_BLOCKING=1 "
            "to find the kernel)"
        ) from error


class CudaCopied:
    """The event of one copy of CudaCopies."""

    def __init__(self, copies: CudaCopies, stream: Any, what: str) -> None:
        """Record an event on a stream."""
        self._copies = copies
        self._what = what
        self._event = _cuda.Event()
        self._event.record(stream)
        self._ordered: set[Any] = set()  # streams that wait for the copy

    def is_done(self) -> bool:
        """Return True if the copy has ended; see Copied."""
        with self._copies.errors(self._what):
            return bool(self._event.query())

    def wait(self, limit_s: float = WAIT_S) -> None:
        """Block until the copy has ended, at most `limit_s` seconds; see Copied."""
        # cudaEventSynchronize has no limit.
        for _ in range(_SPINS):
            if self.is_done():
                return
        wait = Patience(limit_s)
        while not self.is_done():
            if wait.is_over:
                raise DeviceError(
                    f"{self._copies.place}: the device {self._copies.device} has not ended a copy within "
                    f"{limit_s:g} s ({self._what}): it hangs, or a kernel of the script takes longer"
                )
            time.sleep(20e-6)

    def order(self) -> None:
        """Let the compute stream wait for the copy; see Copied."""
        with self._copies.errors(self._what):
            stream = _cuda.current_stream(self._copies.device)
            stream.wait_event(self._event)
            self._ordered.add(stream)

    def follow(self) -> None:
        """Let the compute stream wait for the copy if it does not yet; see Copied."""
        if _cuda.current_stream(self._copies.device) not in self._ordered:
            self.order()


class CudaCopies:
    """Copies from and to one CUDA device; see DeviceCopies.

    Attributes:
        device: The device.
        place: Name of the worker and its host in errors.
    """

    def __init__(self, device: torch.device, place: str) -> None:
        """Make the side streams; see DeviceCopies."""
        self.device = device
        self.place = place
        self._registered: list[torch.Tensor] = []
        with self.errors("made its streams"):
            self._out = _cuda.Stream(device)
            self._in = _cuda.Stream(device)

    def errors(self, what: str) -> Any:
        """Return a block whose errors are those of the device."""
        return device_errors(self.device, self.place, what)

    def to_host(self, source: torch.Tensor, target: torch.Tensor) -> CudaCopied:
        """Request a copy to the host; see DeviceCopies."""
        return self._copy(self._out, source, target, source, "copied gradients to the host")

    def to_device(self, source: torch.Tensor, target: torch.Tensor) -> CudaCopied:
        """Request a copy to the device; see DeviceCopies."""
        return self._copy(self._in, source, target, target, "copied values to the device")

    def _copy(
        self,
        stream: Any,
        source: torch.Tensor,
        target: torch.Tensor,
        on_device: torch.Tensor,
        what: str,
    ) -> CudaCopied:
        with self.errors(what), torch.no_grad():
            stream.wait_stream(_cuda.current_stream(self.device))
            with _cuda.stream(stream):
                target.copy_(source, non_blocking=True)
            on_device.record_stream(stream)
            return CudaCopied(self, stream, what)

    def new_host(self, n_bytes: int) -> torch.Tensor:
        """Return new host memory; see DeviceCopies."""
        with self.errors("allocated pinned memory"):
            return torch.empty(n_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def register(self, memory: torch.Tensor) -> None:
        """Register host memory with CUDA; see DeviceCopies."""
        with (
            self.errors(f"registered {memory.nbytes} bytes of staging memory"),
            _cuda.device(self.device),
        ):
            code = int(_cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE))
            if code:
                raise RuntimeError(f"cudaHostRegister returned error {code}")
        self._registered.append(memory)

    def close(self, limit_s: float = WAIT_S) -> None:
        """Wait for all copies and release memory; see DeviceCopies."""
        # A copy under way could write memory that is unmapped next.
        for copied in (
            CudaCopied(self, stream, "ended its copies") for stream in (self._out, self._in)
        ):
            copied.wait(limit_s)
        while self._registered:
            memory = self._registered.pop()
            with self.errors("released its staging memory"), _cuda.device(self.device):
                _cuda.cudart().cudaHostUnregister(memory.data_ptr())


COPIES: dict[str, type[DeviceCopies]] = {"cuda": CudaCopies}


def place_of(worker: int) -> str:
    """Return the name of a worker and its host for errors."""
    return f"worker {worker} on {socket.gethostname()}"


def device() -> torch.device:
    """Return the device of this worker: a CUDA device of its node, by its place there, or the CPU.

    Workers of one node take its devices in turn, so several share one if there are more workers than devices.
    Nodes may have different numbers of devices, or none. Not collective.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    local = current("mpips.torch.device").local_worker
    if not _cuda.is_available() or not _cuda.device_count():
        return torch.device("cpu")
    return torch.device("cuda", local % _cuda.device_count())


def checked_device(given: torch.device | str) -> torch.device:
    """Return the argument `device` of prepare, if this process has such a device.

    Raises:
        ConfigError: It names no device, or a number that this node does not have.
        CapabilityError: torch or this node has no CUDA.
    """
    try:
        found = torch.device(given)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"prepare: device = {given!r}: must be 'cpu', 'cuda', 'cuda:N', or mpips.torch.device()"
        ) from None
    if found.type == "meta":
        raise ConfigError(
            f"prepare: device = {given!r}: has no memory; use 'cpu', 'cuda', or mpips.torch.device()"
        )
    if found.type != "cuda":
        return found
    if not _cuda.is_available():
        reason = (
            f"torch {torch.__version__} is built without it"
            if torch.version.cuda is None
            else "torch finds no driver or no device"
        )
        raise CapabilityError(
            f"prepare: device = {given!r} needs CUDA on {socket.gethostname()}, but {reason}: use "
            "mpips.torch.device(), which is the CPU there"
        )
    if found.index is None:
        return device()
    if found.index >= _cuda.device_count():
        raise ConfigError(
            f"prepare: device = {given!r}: {socket.gethostname()} has {_cuda.device_count()} CUDA devices, "
            "numbered from 0; mpips.torch.device() chooses one for each worker"
        )
    return found


def move(model: torch.nn.Module, given: torch.device | str, worker: int) -> None:
    """Move a model to a device, for `prepare`. Parameters stay the same objects, which its optimizer has.

    A CUDA device becomes torch's current one, which "cuda" means in the rest of the script, and in which the
    thread of a loader pins memory.

    Raises:
        CapabilityError, ConfigError: See checked_device.
        DeviceError: The device failed; it may have too little memory.
    """
    found = checked_device(given)
    # Parameters of the meta device have no values to move; the check of their table names them.
    if not any(p.device.type == "meta" for p in model.parameters()):
        with device_errors(found, place_of(worker), "moved the model there"):
            if found.type == "cuda":
                _cuda.set_device(found)
            model.to(found)
