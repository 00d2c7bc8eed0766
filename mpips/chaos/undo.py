"""The end of lasting faults, and a guard that brings it about if this process is killed.

A fault that lasts (a stopped process, a changed bit, a link that loses packets) comes with an `Undo`, made
before the fault. The guard is a process of its own, which gets a copy of each `Undo` with its descriptor over
a socket. When the socket ends without a message that the fault was taken back, because this process was
killed, the guard takes it back. So a fault outlives this process by some milliseconds at most.

To take a fault back twice has no effect: this process may be killed between the two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal

import msgspec

from mpips.chaos.errors import ChaosError

_MOST_BYTES = 1 << 12  # bytes of a message to the guard
_TOOL_S = 10.0  # seconds that `tc` may take


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a fault is taken back. Its descriptor is passed beside it.

    Attributes:
        kind: "continue": the descriptor is a process, which gets SIGCONT. "terminate": it gets SIGTERM.
            "restore": it is a file, whose byte at `offset` becomes `before` if it is `after`. "link": it is a
            network namespace, whose interface `device` loses the queue that the fault has added.
        offset: Offset in the file, bytes.
        before: Value of the byte, 0 to 255.
        after: Value that the fault has given it.
        device: Name of the interface.
    """

    kind: Literal["continue", "terminate", "restore", "link"]
    offset: int = 0
    before: int = 0
    after: int = 0
    device: str = ""


def take_back(undo: Undo, fd: int) -> None:
    """Take a fault back. Errors are ignored: the process, file or namespace may be gone."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if undo.kind == "continue":
            signal.pidfd_send_signal(fd, signal.SIGCONT)
        elif undo.kind == "terminate":
            signal.pidfd_send_signal(fd, signal.SIGTERM)
        elif undo.kind == "restore":
            if os.pread(fd, 1, undo.offset) == bytes([undo.after]):
                os.pwrite(fd, bytes([undo.before]), undo.offset)
        else:
            in_namespace(fd, ["tc", "qdisc", "del", "dev", undo.device, "root"])


def in_namespace(fd: int, command: Sequence[str]) -> str:
    """Run a command in a network namespace, given by its descriptor; return its stdout. Blocks.

    Raises:
        OSError: The command failed, or does not exist; the message contains its stderr.
        TimeoutExpired: It took longer than 10 s.
    """
    done = subprocess.run(
        ["nsenter", f"--net=/proc/self/fd/{fd}", *command],
        pass_fds=(fd,),
        capture_output=True,
        text=True,
        timeout=_TOOL_S,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class FaultGuard:
    """The lasting faults of this process. Use it in a `with` block, at whose end all are taken back."""

    def __init__(self) -> None:
        """Start the guard. Blocks until it has started.

        Raises:
            ChaosError: It does not start.
        """
        self._faults: dict[int, tuple[Undo, int]] = {}
        self._next = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # A session of its own: Ctrl-C at the terminal does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mpips.chaos.undo", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        if self._socket.recv(_MOST_BYTES) != b"ready":
            self.close()
            raise ChaosError(
                "the process that takes faults back does not start; see the lines above"
            )

    def __enter__(self) -> FaultGuard:
        """Return this object."""
        return self

    def __exit__(self, *error: object) -> None:
        """Take all faults back, the last one first, and end the guard."""
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def add(self, undo: Undo, fd: int) -> int:
        """Note a fault that follows; return a number for `undo`. `fd` is duplicated.

        Raises:
            ChaosError: The guard is gone, so nothing may be changed any more.
        """
        number, self._next = self._next, self._next + 1
        message = msgspec.msgpack.encode((number, undo))
        try:
            socket.send_fds(self._socket, [message], [fd])
        except OSError as error:
            raise ChaosError(f"the process that takes faults back has ended: {error}") from None
        self._faults[number] = undo, os.dup(fd)
        return number

    def undo(self, number: int) -> None:
        """Take a fault back. No effect for one that was taken back."""
        found = self._faults.get(number)
        if found is None:
            return
        # A signal that interrupts this leaves the fault here, so that it is taken back later.
        take_back(*found)
        self.forget(number)

    def undo_faults(self) -> None:
        """Take all faults back, the last one first. A run that ends with this process goes on."""
        for number in sorted(self._faults, reverse=True):
            if self._faults[number][0].kind != "terminate":
                self.undo(number)

    def forget(self, number: int) -> None:
        """Note that a fault needs no undo any more."""
        found = self._faults.pop(number, None)
        if found is not None:
            os.close(found[1])
            with contextlib.suppress(OSError):
                self._socket.send(msgspec.msgpack.encode((number, None)))

    def close(self) -> None:
        """Take all faults back and end the guard. Further calls have no effect."""
        for number in sorted(self._faults, reverse=True):
            self.undo(number)
        self._socket.close()
        self._process.wait()


def main(fd: int) -> None:
    """Be the guard: note faults until the socket ends, then take back those that are left."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    faults: dict[int, tuple[Undo, int]] = {}
    decoder = msgspec.msgpack.Decoder(tuple[int, Undo | None])
    with socket.socket(fileno=fd) as connection:
        connection.send(b"ready")
        while True:
            message, fds, _, _ = socket.recv_fds(connection, _MOST_BYTES, 1)
            if not message:
                break
            number, undo = decoder.decode(message)
            if undo is not None:
                faults[number] = undo, fds[0]
            elif number in faults:
                os.close(faults.pop(number)[1])
    for number in sorted(faults, reverse=True):
        take_back(*faults[number])


if __name__ == "__main__":
    main(int(sys.argv[1]))
