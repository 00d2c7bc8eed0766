"""Host memory for the copies of one device, registered once, and the devices of a script.

All tables of a device share one piece of the worker's staging memory (`Worker.allocate`). CUDA registers
whole pages, and no page twice, so the piece of each device begins at a page of its own. Servers of the node
read gradients in this memory, so a push copies nothing.
"""

from __future__ import annotations

import mmap
import warnings
from contextlib import nullcontext, suppress

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError, DeviceError
from mpips.session.script import Script
from mpips.torch.device import COPIES, WAIT_S, DeviceCopies, place_of
from mpips.torch.fingerprints import DeviceFingerprints
from mpips.worker.worker import Worker

_LINE_BYTES = 64
_ABANDON_S = 10.0  # limit of the wait for a copy after an error


class DeviceMemory:
    """The copies of one device, and the host memory that they use.

    Attributes:
        device: The device.
        place: Name of the worker and its host in errors.
        copies: Its copies.
        fingerprints: Fingerprints of gradients on it.
    """

    def __init__(self, device: torch.device, place: str, copies: DeviceCopies) -> None:
        """Reserve nothing yet."""
        self.device = device
        self.place = place
        self.copies = copies
        self.fingerprints = DeviceFingerprints()
        self._n_bytes = 0
        self._memory: torch.Tensor | None = None

    def reserve(self, n_bytes: int) -> int:
        """Return the offset of new memory. Only before `open`."""
        offset = self._n_bytes
        self._n_bytes += -(-n_bytes // _LINE_BYTES) * _LINE_BYTES
        return offset

    def open(self, worker: Worker) -> None:
        """Allocate and register all that is reserved, at the first call.

        Raises:
            DeviceError: CUDA cannot register it.
            RegionError: /dev/shm has too little room.
        """
        if self._memory is not None:
            return
        # The job may start within inference_mode. Its tensors cannot be written outside of it.
        with torch.inference_mode(False):
            self._open(worker)

    def _open(self, worker: Worker) -> None:
        n_bytes = -(-self._n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            array = worker.allocate((n_bytes + mmap.PAGESIZE) // 4)
        except ConfigError as error:
            warnings.warn(
                f"the parameters on {self.device} use other pinned memory, so pushes copy gradients once "
                f"more: {error}",
                stacklevel=2,
            )
            self._memory = self.copies.new_host(self._n_bytes)
        else:
            raw = torch.from_numpy(array).view(torch.uint8)
            start = -raw.data_ptr() % mmap.PAGESIZE
            self._memory = raw[start : start + n_bytes]
            self.copies.register(self._memory)

    def tensor(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """Return reserved memory as a contiguous tensor of the shape and dtype of `like`."""
        assert self._memory is not None
        return self._memory[offset : offset + like.nbytes].view(like.dtype).view(like.shape)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the device as one of the host. Blocks."""
        found = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self.copies.to_host(tensor.detach(), found).wait()
        return found

    def bring(self, array: NDArray[np.generic]) -> torch.Tensor:
        """Return an array as a tensor of the device, for kernels that are queued from now on."""
        source = torch.from_numpy(array)
        found = torch.empty(source.shape, dtype=source.dtype, device=self.device)
        copied = self.copies.to_device(source, found)
        copied.order()
        copied.wait()  # the copy has read the array then, which is the caller's
        return found


class Devices:
    """The devices of a script's models, with one DeviceMemory each."""

    def __init__(self, script: Script) -> None:
        """Use no device yet."""
        self._script = script
        self._found: dict[torch.device, DeviceMemory] = {}

    def of(self, device: torch.device) -> DeviceMemory | None:
        """Return the memory of a device; None where torch copies while the host waits, as on the CPU."""
        if device.type not in COPIES:
            return None
        if device not in self._found:
            place = place_of(self._script.rank)
            copies = COPIES[device.type](device, place)
            self._found[device] = DeviceMemory(device, place, copies)
        return self._found[device]

    def close(self, has_failed: bool) -> None:
        """Wait for all copies and release registered memory, before the job unmaps it. Blocks.

        Args:
            has_failed: The script ended with an error. Its process may go on, for example in a notebook, and
                CUDA registers no memory twice. A device that has failed, or that does not end a copy within
                10 s, is left as it is: the script's error counts.

        Raises:
            DeviceError: A device failed, and the script did not.
        """
        for memory in self._found.values():
            with suppress(DeviceError) if has_failed else nullcontext():
                memory.copies.close(_ABANDON_S if has_failed else WAIT_S)


def on_device(
    device: torch.device, memory: DeviceMemory | None, array: NDArray[np.generic]
) -> torch.Tensor:
    """Return an array as a tensor of a device; without a copy on the CPU."""
    return memory.bring(array) if memory is not None else torch.from_numpy(array).to(device)
