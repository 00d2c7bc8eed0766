"""The errors that mpips raises on purpose; each carries the exit code of its kind."""

from __future__ import annotations


class MpipsError(Exception):
    """Base of all errors that carry a sentence for the user; `exit_code` ends the process."""

    exit_code = 1


class ConfigError(MpipsError):
    """A file, flag or option is wrong: what, where, and what is accepted."""

    exit_code = 2


class DataError(MpipsError):
    """A data file cannot be read or holds something that cannot be trained on."""

    exit_code = 2


class KernelError(ConfigError):
    """An unknown or unavailable instruction set was forced."""


class CapabilityError(MpipsError):
    """The machine, the MPI or a library lacks what the job needs."""

    exit_code = 69


class RegionError(CapabilityError):
    """A shared-memory region cannot be made, attached or grown."""


class TransportError(CapabilityError):
    """Two ranks cannot be connected in the way that was asked for."""


class ProtocolError(MpipsError):
    """A record that no correct peer sends: a gap, a bad checksum, a foreign generation."""


class ForkError(MpipsError):
    """A forked child used what belongs to its parent: the worker, its tables, its job."""


class RecoveryError(MpipsError):
    """What an earlier launch left in shared memory cannot be taken over; a checkpoint must serve."""


class ReplayError(MpipsError):
    """A worker repeats a clock after a warm restart with other pushes than the servers have of it."""


class CheckpointError(MpipsError):
    """A checkpoint cannot be written, or must not be trusted; says which and why."""


class DiskFullError(CheckpointError):
    """A checkpoint cannot be written because its disk, or the user's share of it, is full."""


class NewerFormatError(CheckpointError):
    """A checkpoint of a format that this mpips does not know: whole, but not for this version."""


class LeavingError(Exception):
    """The checkpoint after which the job was to end is durable: end it with `exit_code`."""

    exit_code = 75


class StallError(MpipsError):
    """A wait ran out of time; names the late rank and what it was doing."""

    exit_code = 124
