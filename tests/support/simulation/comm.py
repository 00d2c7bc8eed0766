"""A communicator of MPI between the ranks of a launch: messages that are late, and collective calls.

Messages of one sender, receiver and tag arrive in their order. A send is complete at once, with a copy of its
buffer, or only when it is received, as large ones in MPI: then the buffer is read late. What a launch has not
delivered when it ends is lost.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np

from simulation.world import World

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Request:
    """A send or receive.

    Attributes:
        buffer: What is sent, or where to.
        is_done: It is complete.
    """

    def __init__(self, way: Way | None, buffer: np.ndarray) -> None:
        self.way, self.buffer, self.is_done = way, buffer, way is None

    def Test(self) -> bool:
        """Return whether it is complete; it may become so."""
        if not self.is_done and self.way is not None:
            self.way.move()
            if not self.is_done:
                # Whoever asks again and again does not keep others from their turns.
                self.way.world.maybe_pause(0.1)
        return self.is_done

    def Wait(self) -> None:
        """Return when it is complete."""
        assert self.way is not None or self.is_done
        while not self.Test():
            self.way.world.wait()  # type: ignore[union-attr]

    def Cancel(self) -> None:
        """Take a receive back."""
        assert self.way is not None
        self.way.receives.remove(self)
        self.is_done = True


class Way:
    """The messages of one tag from one rank to another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sends: deque[tuple[np.ndarray, Request | None]] = deque()
        self.receives: deque[Request] = deque()

    def send(self, buffer: np.ndarray) -> Request:
        """Begin to send."""
        is_eager = self.world.random.random() < 0.5
        request = Request(None if is_eager else self, buffer)
        self.sends.append((buffer.copy(), None) if is_eager else (buffer, request))
        self.world.changed()
        return request

    def receive(self, buffer: np.ndarray) -> Request:
        """Begin to receive."""
        request = Request(self, buffer)
        self.receives.append(request)
        return request

    def move(self) -> None:
        """Let some of the messages arrive for which there are receives."""
        while self.sends and self.receives and self.world.random.random() < 0.6:
            (sent, sender), request = self.sends.popleft(), self.receives.popleft()
            source, room = (a.reshape(-1).view(np.uint8) for a in (sent, request.buffer))
            assert source.size <= room.size, "a message is longer than its receiver's buffer"
            room[: source.size] = source
            request.is_done = True
            if sender is not None:
                sender.is_done = True
            self.world.changed()


class Room:
    """The state that all ranks share of one communicator."""

    def __init__(self, world: World, size: int) -> None:
        self.world, self.size = world, size
        self.ways: dict[tuple[int, int, int], Way] = {}
        self.meetings: list[dict[int, bytes]] = []
        self.duplicates: list[Room] = []

    def way(self, source: int, dest: int, tag: int) -> Way:
        """Return the messages of a tag between two ranks."""
        return self.ways.setdefault((source, dest, tag), Way(self.world))

    def check_end(self) -> None:
        """Check that no message and no receive is left."""
        for (source, dest, tag), way in self.ways.items():
            where = f"from rank {source} to rank {dest} with tag {tag}"
            assert not way.sends, f"a message {where} was not received"
            assert not way.receives, (
                f"a receive of a message {where} was neither completed nor cancelled"
            )
        for duplicate in self.duplicates:
            duplicate.check_end()


class Comm:
    """One rank's end of a communicator, as mpi4py.MPI.Intracomm."""

    def __init__(self, room: Room, rank: int) -> None:
        self.room, self.rank, self.size = room, rank, room.size
        self._n_meetings = self._n_duplicates = 0

    def Get_rank(self) -> int:
        """Return the rank."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def Isend(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        """Begin to send."""
        return self.room.way(self.rank, dest, tag).send(buffer)

    def Irecv(self, buffer: np.ndarray, source: int, tag: int) -> Request:
        """Begin to receive."""
        return self.room.way(source, self.rank, tag).receive(buffer)

    def Iprobe(self, source: int, tag: int) -> bool:
        """Return whether a message is there for which there is no receive yet."""
        way = self.room.way(source, self.rank, tag)
        return len(way.sends) > len(way.receives) and self.room.world.random.random() < 0.6

    def Send(self, buffer: np.ndarray, dest: int, tag: int) -> None:
        """Send."""
        self.Isend(buffer, dest, tag).Wait()

    def Recv(self, buffer: np.ndarray, source: int, tag: int) -> None:
        """Receive."""
        self.Irecv(buffer, source, tag).Wait()

    def send(self, value: Any, dest: int, tag: int) -> None:
        """Send a value."""
        data = np.frombuffer(_encode(value), np.uint8)
        self.Send(np.array([data.size]), dest, tag)
        self.Send(data, dest, tag)

    def recv(self, source: int, tag: int) -> Any:
        """Receive a value."""
        size = np.zeros(1, np.int64)
        self.Recv(size, source, tag)
        data = np.zeros(int(size[0]), np.uint8)
        self.Recv(data, source, tag)
        return _decode(data.tobytes())

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, when all have called it."""
        room, number = self.room, self._n_meetings
        self._n_meetings += 1
        if number == len(room.meetings):
            room.meetings.append({})
        found = room.meetings[number]
        found[self.rank] = _encode(value)
        room.world.changed()
        while len(found) < room.size:
            room.world.wait()
        return [_decode(found[rank], strict=False) for rank in range(room.size)]

    def duplicate(self) -> Comm:
        """Return a duplicate, when all ranks have called it."""
        number = self._n_duplicates
        self._n_duplicates += 1
        if number == len(self.room.duplicates):
            self.room.duplicates.append(Room(self.room.world, self.size))
        self.gathered(None)
        return Comm(self.room.duplicates[number], self.rank)

    def Split(self, color: int, key: int) -> None:
        """Return no communicator: nothing here uses a part of one."""
        self.gathered(None)

    def Free(self) -> None:
        """Do nothing."""
