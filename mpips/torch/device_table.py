"""The table of a parameter on an accelerator.

    pull     values come from the servers into registered host memory, and from there to the device on a side
             stream; the compute stream waits for the copy, the host does not
    begin    the hook of a gradient requests its copy into one of two host buffers, while backward goes on
    push     later hooks push gradients whose copies have ended, in the fixed order; `step` waits for the rest

Buffers take turns. A push reads its buffer until servers have applied it, which they may do clocks later
under SSP and ASP. So a buffer is written again only when the push from it is complete, which is the push
before the last one.
Parameters in bfloat16 and float16 cross the bus as they are, and become float32 on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from mpips.errors import ConfigError
from mpips.model.optimizer import Optimizer
from mpips.torch.device import Copied, device_errors
from mpips.torch.device_memory import DeviceMemory, Devices
from mpips.torch.fingerprints import Fingerprint
from mpips.torch.parameters import Float32, ParameterTable
from mpips.worker.requests import PushResult, Request
from mpips.worker.worker import Worker


class GradientBuffer:
    """Host memory of one gradient.

    Attributes:
        tensor: The memory, with shape and dtype of the parameter.
        request: The newest push from it; None: none.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        """Take the memory."""
        self.tensor = tensor
        self.request: Request[PushResult] | None = None

    def release(self) -> None:
        """Wait until the newest push from it is complete."""
        if self.request is not None:
            self.request.wait()
            self.request = None


class DeviceTable(ParameterTable):
    """One parameter on a device, and its table."""

    def __init__(
        self,
        name: str,
        parameter: torch.nn.Parameter,
        rule: Optimizer | None,
        memory: DeviceMemory,
    ) -> None:
        """Check the parameter and reserve its host memory.

        Raises:
            ConfigError: The parameter cannot be a table.
        """
        super().__init__(name, parameter, rule)
        self._memory_of_device = memory
        self._copies = memory.copies
        n_buffers = 1 if rule is None else 3
        self._n_bytes = parameter.nbytes
        self._offsets = [memory.reserve(parameter.nbytes) for _ in range(n_buffers)]
        self._host: torch.Tensor | None = None  # values on their way to the device
        self._buffers: list[GradientBuffer] = []  # the next one to fill first
        self._coming: Copied | None = None  # the newest copy of values
        self._leaving: Copied | None = None  # the copy of a gradient that has not been pushed
        self._wide: Float32 | None = None  # float32 values of a parameter of another dtype

    def initial_values(self) -> Float32:
        """See ParameterTable. Waits for the device."""
        memory = self._memory_of_device
        with device_errors(memory.device, memory.place, f"copied {self.name!r} to the host"):
            return super().initial_values()

    def _bring(self, values: Float32, target: torch.Tensor) -> None:
        """See ParameterTable."""
        target.copy_(self._memory_of_device.bring(values).view(target.shape))

    def open(self, worker: Worker) -> None:
        """Take the table's handle and the host memory at the start of the job."""
        super().open(worker)
        self._memory_of_device.open(worker)
        self._view_memory()

    # A pull may come within inference_mode. Its tensors cannot be written outside of it.
    @torch.inference_mode(False)
    def _view_memory(self) -> None:
        """View the reserved memory with the parameter's present dtype.

        Raises:
            ConfigError: The script has moved the parameter since `prepare`, or has converted it to a longer
                dtype.
        """
        memory, parameter = self._memory_of_device, self.parameter
        if parameter.device != memory.device:
            raise ConfigError(
                f"the parameter {self.name!r} was moved from {memory.device} to {parameter.device} after "
                "prepare: move the model before it, or use prepare(..., device=...)"
            )
        if parameter.nbytes > self._n_bytes:
            raise ConfigError(
                f"the parameter {self.name!r} on {memory.device} was converted to {parameter.dtype} after "
                "prepare, which is longer: convert the model before prepare"
            )
        tensors = [memory.tensor(offset, parameter) for offset in self._offsets]
        self._host, self._buffers = tensors[0], [GradientBuffer(t) for t in tensors[1:]]

    def _target(self) -> Float32:
        """See ParameterTable: host memory. Waits for the newest copy from it."""
        if self._coming is not None:
            self._coming.wait()  # it has read `_host`; usually a step ago
        self._follow_conversions()
        assert self._host is not None
        if self._host.dtype == torch.float32:
            array: Float32 = self._host.numpy().reshape(self._shape)
            return array
        return self._floats()

    def _receive(self, values: Float32) -> None:
        """See ParameterTable. The compute stream waits for the copy to the device, the host does not."""
        assert self._host is not None
        if self._host.dtype != torch.float32:
            self._host.copy_(torch.from_numpy(values).view(self._host.shape))
        self._coming = self._copies.to_device(self._host, self.parameter.data)
        self._coming.order()

    def follow_stream(self) -> None:
        """Let the compute stream wait for the newest values, if it is another one than that of the pull."""
        if self._coming is not None:
            self._coming.follow()

    def order(self, place: int) -> None:
        """Push as `push` does: host memory of a gradient is used again after the push."""
        self.push()

    def _floats(self) -> Float32:
        if self._wide is None:
            self._wide = np.empty(self._shape, np.float32)
        return self._wide

    def fingerprint(self) -> Fingerprint:
        """See ParameterTable. The host does not wait for the device."""
        memory = self._memory_of_device
        with device_errors(memory.device, memory.place, f"read the gradient of {self.name!r}"):
            return memory.fingerprints.of(self.parameter.grad)

    @property
    def is_watched_whole(self) -> bool:
        """See Watched. The host waits for the device where bits are compared."""
        return True

    def _bits(self, start: int, stop: int) -> Fingerprint:
        """See ParameterTable. The host does not wait for the device."""
        memory = self._memory_of_device
        with device_errors(memory.device, memory.place, f"read {self.name!r}"):
            return memory.fingerprints.of(self.parameter.detach().reshape(-1)[start:stop])

    def _newest(self) -> torch.Tensor | None:
        """See ParameterTable: the values that were copied to the device."""
        return self._host

    def begin_push(self) -> bool:
        """Request the copy of the gradient to the host; a copy that was requested before does not count.

        Blocks only while servers have not applied the push before the last one.

        Returns:
            True if the gradient is on its way.
        """
        gradient = self.parameter.grad
        self._leaving = None
        if gradient is None or self.rule is None or gradient.layout != torch.strided:
            return False
        self._follow_conversions()
        buffer = self._buffers[0]
        buffer.release()
        self._leaving = self._copies.to_host(gradient.detach(), buffer.tensor)
        return True

    def is_ready(self) -> bool:
        """Return True if a push would not wait for the device. Does not block."""
        return self._leaving is None or self._leaving.is_done()

    def _gradient(self, gradient: torch.Tensor) -> Float32:
        """Return the gradient in host memory. Waits for its copy."""
        if self._leaving is None:
            self.begin_push()
        assert self._leaving is not None
        self._leaving.wait()
        self._leaving = None
        found = self._buffers[0].tensor
        if found.dtype != torch.float32:
            wide = self._floats()
            torch.from_numpy(wide).view(found.shape).copy_(found)
            return wide
        array: Float32 = found.numpy().reshape(self._shape)
        return array

    def push(self) -> None:
        """See ParameterTable. Waits for the copy of the gradient."""
        request = self._push()
        if request is None:
            self._leaving = None
            return
        self._buffers[0].request = request
        self._buffers.reverse()

    def _follow_conversions(self) -> None:
        """View the memory again if the script has converted or moved the parameter; see _view_memory."""
        assert self._host is not None
        parameter = self.parameter
        if parameter.dtype != self._host.dtype or parameter.device != self._memory_of_device.device:
            for buffer in self._buffers:
                buffer.release()
            self._view_memory()


def table_maker(devices: Devices) -> Callable[..., ParameterTable]:
    """Return a function that makes the table of a parameter (name, parameter, rule), by its device."""

    def make(name: str, parameter: torch.nn.Parameter, rule: Optimizer | None) -> ParameterTable:
        memory = devices.of(parameter.device)
        if memory is None:
            return ParameterTable(name, parameter, rule)
        return DeviceTable(name, parameter, rule, memory)

    return make
