"""Writes one rank's file of a record from a thread of its own, which makes no MPI call."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec

from mpips.errors import ConfigError
from mpips.record.files import DATA, END, HEAD, SWITCH, End, RecordedSwitch, RecordHead, block

BLOCK_BYTES = 128 << 10  # bytes of entries after which a rank hands them to the thread
_END_S = 60.0  # s that the last blocks may take


class RecordFile:
    """A file of a record while it is written. Only its rank's main thread calls the methods.

    The thread takes blocks from a queue and writes them. A disk that is full or slow does not delay the job:
    the file then has no end, which `close` reports.
    """

    def __init__(self, path: Path, head: RecordHead, record_mib: int) -> None:
        """Make the file and begin the thread.

        Args:
            path: The file, which must not exist.
            head: Its first block.
            record_mib: MiB of entries after which the record ends.

        Raises:
            ConfigError: The file cannot be made.
        """
        self._path = path
        self._left = record_mib << 20  # bytes of entries that may follow
        self._failure = ""  # the thread sets it once; the main thread reads it after `join`
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be made: {error.strerror}") from None
        self._queue.put(block(HEAD, msgspec.json.encode(head)))
        self._thread = threading.Thread(target=self._write, args=(file,), daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> bool:
        """Write entries later; return False if the record is full and these are left out."""
        if len(data) > self._left:
            self._left = 0
            return False
        self._left -= len(data)
        self._queue.put(block(DATA, data))
        return True

    def put_switch(self, switch: RecordedSwitch) -> None:
        """Write the decision on the clock of a Switch later."""
        self._queue.put(block(SWITCH, msgspec.json.encode(switch)))

    def flush(self) -> None:
        """Wait until the entries so far are in the file, so that they outlive the process.

        Blocks while the thread writes; not after a failure, and for at most a minute.
        """
        written = threading.Event()
        self._queue.put(written)
        written.wait(_END_S)

    def close(self, end: End) -> str:
        """Write the last block; return why that failed, or "". Blocks for at most a minute."""
        self._queue.put(block(END, msgspec.json.encode(end)))
        self._queue.put(None)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            return f"{self._path}: was not written within {_END_S:g} s"
        return self._failure

    def _write(self, file: BinaryIO) -> None:
        with file:
            while (data := self._queue.get()) is not None:
                if isinstance(data, threading.Event):
                    data.set()
                    continue
                try:
                    while data and not self._failure:
                        data = data[file.write(data) :]
                except OSError as error:
                    self._failure = f"{self._path}: cannot be written: {error.strerror}"
