"""Find the terminal at which stderr ends: ranks write into a pipe of the launcher, it writes to the terminal.

Rank 0 may draw on the terminal that the launcher, one of its ancestors on this host, writes to. The
launcher's entry in /proc names the device of that terminal.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

# Names, up to the 15 characters that the kernel keeps, of the processes between a rank and the terminal.
_LAUNCHERS = (
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "prte",
    "prted",
    "orted",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "srun",
)
_MOST_ANCESTORS = 6  # ancestors that are examined


class Terminal(msgspec.Struct, frozen=True):
    """A terminal.

    Attributes:
        device: Path of the device, such as /dev/pts/3; "": stderr of this process.
        pid: Process that the terminal's shell started, which is this one or the launcher; 0: unknown.
    """

    device: str
    pid: int = 0

    def open(self) -> int:
        """Return a new file descriptor to write to, non-blocking if `device` is set.

        Raises:
            OSError: This user may not open the device.
        """
        if not self.device:
            return os.dup(sys.stderr.fileno())
        return os.open(self.device, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)

    def is_foreground(self, proc: Path = Path("/proc")) -> bool:
        """Return False while the shell has the job in the background."""
        if not self.pid:
            return True
        try:
            text = (proc / str(self.pid) / "stat").read_text()
        except OSError:
            return True
        group, _, _, foreground = text.rpartition(")")[2].split()[2:6]
        return foreground in (group, "-1")

    def width(self) -> int:
        """Return the current number of columns; 80 if it is unknown."""
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit() and int(columns) > 0:
            return int(columns)
        try:
            fd = os.open(self.device, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            return 80
        try:
            return os.get_terminal_size(fd).columns or 80
        except OSError:
            return 80
        finally:
            os.close(fd)


def find_terminal(
    env: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> Terminal | None:
    """Return the terminal at which stderr ends; None for a file, another pipe, or a dumb terminal."""
    if env.get("TERM", "") in ("", "dumb"):
        return None
    # A stream may end at a terminal by way of the supervisor, and its descriptor in a log.
    if sys.stderr.isatty() and os.isatty(sys.stderr.fileno()):
        return Terminal(os.ttyname(sys.stderr.fileno()), os.getpid())
    return launcher_terminal(2, env, proc)


def launcher_terminal(
    number: int, env: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> Terminal | None:
    """Return the terminal to which the launcher of this rank forwards its output.

    Args:
        number: File descriptor of the launcher: 1 for stdout, 2 for stderr.
        env: Environment of this process.
        proc: Folder of the processes of this host.

    Returns:
        None if no launcher is an ancestor of this process, if the launcher writes to something else, or if
        the terminal is a dumb one.
    """
    if env.get("TERM", "") in ("", "dumb"):
        return None
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        name, parent = _ancestor(proc, pid)
        if name not in _LAUNCHERS:
            return None
        device = _device_of(proc, pid, number)
        if device is not None:
            return Terminal(device, pid)
        pid = parent
    return None


def _ancestor(proc: Path, pid: int) -> tuple[str, int]:
    """Return the name and the parent of a process; ("", 0) if it cannot be read."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return "", 0
    name = text[text.index("(") + 1 : text.rindex(")")]
    return name, int(text.rpartition(")")[2].split()[1])


def _device_of(proc: Path, pid: int, number: int) -> str | None:
    """Return the device of the terminal that a file descriptor of another process is, or None."""
    try:
        device = os.readlink(proc / str(pid) / "fd" / str(number))
        is_terminal = device.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
        return device if is_terminal and stat.S_ISCHR(os.stat(device).st_mode) else None
    except OSError:
        return None
