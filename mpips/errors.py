"""The errors that mpips raises on purpose, each with the exit code of its kind."""

from __future__ import annotations


class MpipsError(Exception):
    """Base of all errors with a message for the user.

    Attributes:
        exit_code: Exit code of a process that this error ends.
    """

    exit_code = 1


class ConfigError(MpipsError):
    """A file, flag or option is wrong; the message names it, its place and what is accepted."""

    exit_code = 2


class DataError(MpipsError):
    """A data file cannot be read, or contains data that cannot be trained on."""

    exit_code = 2


class KernelError(ConfigError):
    """MPIPS_KERNELS names an instruction set that is unknown or that this machine does not have."""


class CapabilityError(MpipsError):
    """The machine, the MPI or a library lacks what the job needs."""

    exit_code = 69


class RegionError(CapabilityError):
    """A shared-memory region cannot be made, attached or grown, or a table's file of rows cannot be used."""


class StreamError(MpipsError):
    """No sample of a stream can be drawn: none is held yet, or all producers have ended without one."""


class QueueReplacedError(MpipsError):
    """The job has gone back to fewer samples of a producer than its program had pushed: attach it again."""


class TransportError(CapabilityError):
    """Two ranks cannot be connected by the requested transport."""


class DeviceError(MpipsError):
    """An accelerator of a worker failed or hangs; the message names the worker, its host and the device."""


class CallbackError(MpipsError):
    """A function of the user that mpips calls (train.on_epoch_end) raised an exception."""


class ProtocolError(MpipsError):
    """A record was received that no correct peer sends: a gap, a bad checksum, another generation."""


class ForkError(MpipsError):
    """A forked child used an object that belongs to its parent: the worker, a table or the job."""


class EndedError(MpipsError):
    """The worker or a table was used after the end of its job."""


class RecoveryError(MpipsError):
    """Shared memory of an earlier launch cannot be taken over; the job must start from a checkpoint."""


class ReplayError(MpipsError):
    """A worker repeats a clock after a warm restart with other pushes than the servers have."""


class DifferenceError(MpipsError):
    """A replay of a recorded run differs from it; the message names the first difference that was found."""


class DivergenceError(MpipsError):
    """Two nodes have different values of a replicated table."""


class CheckpointError(MpipsError):
    """A checkpoint cannot be written, or must not be trusted; the message names it and the reason."""


class DiskFullError(CheckpointError):
    """A checkpoint or a table's file of rows cannot be written because the disk or the quota is full."""


class NewerFormatError(CheckpointError):
    """A checkpoint is undamaged, but has a newer format than this version of mpips can read."""


class VersionError(MpipsError):
    """The changes of a table since a version are not known; all rows must be read again."""


class LeavingError(Exception):
    """Request to end the process with `exit_code`: the checkpoint before the requested end is durable.

    Attributes:
        in_memory: The checkpoint is the run's exchange, in shared memory, so the next launch must start from
            that memory (mpips.recovery.exchange).
    """

    exit_code = 75

    def __init__(self, why: str, in_memory: bool = False) -> None:
        """`why`: the reason, for people; `in_memory`: see the class."""
        super().__init__(why)
        self.in_memory = in_memory


class StallError(MpipsError):
    """A wait exceeded its time limit; the message names the late rank and its state."""

    exit_code = 124


class ServingError(MpipsError):
    """A server of `mpips serve` refuses a request, or cannot be reached.

    Attributes:
        status: HTTP status; 0: there was no answer.
    """

    def __init__(self, status: int, text: str) -> None:
        """Set both."""
        super().__init__(text)
        self.status = status
