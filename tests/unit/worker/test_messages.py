"""Arrays from one worker to another: every dtype and shape, order, bounded waits, and nothing left behind."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crowd import Network
from message_rig import Messenger, messengers

from mpips.errors import ConfigError, ProtocolError, StallError
from mpips.mpi import array_mail, contributions, mail
from mpips.mpi.array_mail import (
    FAR_PIECE_BYTES,
    HEAD_TAG,
    INLINE_BYTES,
    VALUE_TAG,
    ArrayHead,
    ArrivedArray,
)
from mpips.worker import messages
from mpips.worker.groups import handover
from mpips.worker.groups import start as groups_start
from mpips.worker.messages import ArrayMessages
from mpips.worker.replicated import start as replicated_start

WHOLE = np.arange(24).reshape(2, 3, 4)
ARRAYS: dict[str, np.ndarray] = {
    "float32": WHOLE.astype(np.float32),
    "float64": WHOLE / 3,
    "float16": WHOLE.astype(np.float16),
    "int8": WHOLE.astype(np.int8),
    "uint64": WHOLE.astype(np.uint64) << np.uint64(40),
    "bool": WHOLE % 2 == 0,
    "complex": WHOLE * 1j,
    "big-endian": WHOLE.astype(">f4"),
    "a number": np.array(5.5),
    "empty": np.zeros((3, 0, 2), np.float32),
    "reversed": WHOLE.astype(np.float32)[:, ::-1, ::2],
    "columns first": np.asfortranarray(WHOLE.astype(np.float64)),
    "inline": np.arange(INLINE_BYTES, dtype=np.uint8),
    "just not inline": np.arange(INLINE_BYTES + 1, dtype=np.uint8),
    "one piece": np.arange(FAR_PIECE_BYTES // 4, dtype=np.float32),
    "a piece and a bit": np.arange(FAR_PIECE_BYTES // 4 + 1, dtype=np.float32),
    "many pieces": np.arange(40 * FAR_PIECE_BYTES // 4 + 3, dtype=np.float32),
}


@pytest.mark.parametrize("nodes", [(0, 0), (0, 1)], ids=["near", "far"])
def test_every_array_arrives_as_it_was_sent(nodes: tuple[int, int]) -> None:
    def work(mine: Messenger) -> dict[str, np.ndarray] | None:
        if mine.part.index == 0:
            for array in ARRAYS.values():
                changed = array.copy()
                mine.send(changed, 1)
                changed[...] = 0  # the message is a copy
            mine.send([1, 2, 3], 1)
            return None
        return {name: mine.recv(0) for name in (*ARRAYS, "a list")}

    found = messengers(2, work, nodes=nodes)[1]
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert (found[name] == array).all(), name
        assert found[name].flags.writeable, name
    assert found["a list"].tolist() == [1, 2, 3]


def test_values_are_put_where_the_receiver_wants_them() -> None:
    rows = np.zeros((4, 6), np.float32)

    def work(mine: Messenger) -> None:
        if mine.part.index == 0:
            mine.send(np.arange(8, dtype=np.float32).reshape(4, 2), 1)
            mine.send(np.float32(7), 1)
        else:
            part, number = rows[:, 1::3], np.zeros((), np.float32)
            assert mine.recv(0, out=part) is part
            assert mine.recv(0, out=number) is number
            assert number == 7

    messengers(2, work)
    assert rows[:, 1::3].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert rows.sum() == 28


WRONG_OUTS = {
    "dtype": (np.zeros(3, np.float64), "out is of float64 and shape (3,)"),
    "shape": (np.zeros((3, 1), np.float32), "the message of float32 and shape (3,)"),
    "length": (np.zeros(4, np.float32), "out is of float32 and shape (4,)"),
    "list": ([0, 0, 0], "out must be a writeable array"),
    "read-only": (np.broadcast_to(np.float32(0), 3), "out must be a writeable array"),
}


@pytest.mark.parametrize("name", WRONG_OUTS)
def test_a_message_that_does_not_fit_is_refused_and_can_still_be_received(name: str) -> None:
    out, text = WRONG_OUTS[name]

    def work(mine: Messenger) -> Any:
        if mine.part.index == 0:
            return mine.send(np.ones(3, np.float32), 1)
        with pytest.raises(ConfigError) as caught:
            mine.recv(0, out=out)
        assert text in str(caught.value)
        return mine.recv(0).tolist()

    assert messengers(2, work)[1] == [1, 1, 1]


@pytest.mark.parametrize("n_workers", [2, 3, 5])
def test_workers_that_all_send_first_do_not_wait_for_each_other(n_workers: int) -> None:
    def work(mine: Messenger) -> None:
        w = mine.part.index
        for step in range(3):
            mine.send(np.full(300_000, w + step, np.float32), (w + 1) % n_workers)
            found = mine.recv((w - 1) % n_workers)
            assert (found == (w - 1) % n_workers + step).all()

    messengers(n_workers, work, nodes=list(range(n_workers)))


@pytest.mark.parametrize("seed", range(8))
def test_random_exchanges_keep_their_order_for_each_sender_and_tag(seed: int) -> None:
    n = 4
    plan = random.Random(seed)
    sizes = (0, 3, 400, INLINE_BYTES // 4 + 1, 20_000)
    sent = [
        (plan.randrange(n), plan.randrange(1, n), plan.randrange(3), plan.choice(sizes))
        for _ in range(120)
    ]
    routes = [(w, (w + by) % n, tag, size) for w, by, tag, size in sent]

    def work(mine: Messenger) -> None:
        w, order = mine.part.index, random.Random(100 * seed + mine.part.index)
        outgoing = [(i, r) for i, r in enumerate(routes) if r[0] == w]
        incoming: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for i, (source, to, tag, size) in enumerate(routes):
            if to == w:
                incoming.setdefault((source, tag), []).append((i, size))
        for i, (_, to, tag, size) in outgoing:
            mine.send(np.full(size, i, np.int32), to, tag)
        while incoming:
            source, tag = key = order.choice(sorted(incoming))
            i, size = incoming[key].pop(0)
            assert mine.recv(source, tag).tolist() == [i] * size
            if not incoming[key]:
                del incoming[key]

    messengers(n, work, seed=seed, nodes=[0, 0, 1, 1])


REFUSED = {
    "itself": (lambda m: m.send([1], 0), r"worker 0: must be the index of another worker, 1 or 2"),
    "from itself": (lambda m: m.recv(0), r"recv: worker 0: must be the index of another worker"),
    "unknown": (lambda m: m.send([1], 3), r"worker 3: must be the index of another worker, 1 or 2"),
    "negative": (lambda m: m.recv(-1), r"worker -1: must be"),
    "no number": (lambda m: m.send([1], "1"), r"worker '1': must be"),
    "a bool": (lambda m: m.send([1], True), r"worker True: must be"),
    "tag": (lambda m: m.send([1], 1, -1), r"send: tag = -1: must be a whole number of 0 or more"),
    "long tag": (lambda m: m.recv(1, 1 << 63), r"recv: tag = 9223372036854775808: must be"),
    "text": (lambda m: m.send(["a"], 1), r"send to worker 1: an array of <U1 with 1 dimensions"),
    "objects": (lambda m: m.send([None], 1), r"an array of object .*: it must contain numbers"),
    "dimensions": (lambda m: m.send(np.ones((1,) * 33), 1), r"with 33 dimensions: .* at most 32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sent_or_received_is_refused_in_one_sentence(name: str) -> None:
    call, text = REFUSED[name]
    network = Network()
    mine = Messenger(0, 3, network)
    with pytest.raises(ConfigError, match=text):
        call(mine)
    assert not any(network.queues.values())


def test_numbers_of_numpy_are_as_good_as_those_of_python() -> None:
    def work(mine: Messenger) -> Any:
        if mine.part.index == 0:
            return mine.send([5], np.int64(1), np.uint8(3))
        return mine.recv(np.int32(0), np.int16(3)).tolist()

    assert messengers(2, work)[1] == [5]


def test_a_job_of_one_worker_refuses_messages() -> None:
    part: Any = Messenger(0, 2, Network()).part
    alone = ArrayMessages(part, None, ["worker 0"], False, lambda: None)
    for call in (lambda: alone.send([1], 0, 0), lambda: alone.recv(None, 1, 0)):
        with pytest.raises(ConfigError, match="the job has one worker, which has no other"):
            call()
    alone.poll()
    alone.end()
    alone.settle()


def test_a_checkpoint_at_clocks_of_their_own_and_messages_exclude_each_other() -> None:
    network = Network()
    mine = Messenger(0, 2, network, cuts_apart=True)
    for call in (lambda: mine.send([1], 1), lambda: mine.recv(1)):
        with pytest.raises(ConfigError, match="all tables are under ASP, so a checkpoint has each"):
            call()
    assert mine.n_refused == 0
    assert not any(network.queues.values())


def test_the_memory_of_the_launch_is_refused_before_the_first_message_and_once() -> None:
    network = Network()
    mine = Messenger(0, 2, network)
    n_sent: list[int] = []
    mine.messages._refuse_memory = lambda: n_sent.append(sum(map(len, network.queues.values())))
    mine.send([1], 1)
    mine.send([2], 1)
    assert n_sent == [0]


def test_a_message_of_another_clock_is_refused_on_both_sides_of_it() -> None:
    def work(mine: Messenger) -> Any:
        if mine.part.index == 0:
            return mine.send([1], 1)
        for step in (2, 4):
            mine.part.step = step
            with pytest.raises(ConfigError, match=f"is at clock {step}, and .* sent at clock 3"):
                mine.recv(0)
        mine.part.step = 3
        return mine.recv(0).tolist()

    assert messengers(2, work)[1] == [1]


class Over(Exception):
    """Ends a wait."""


def test_a_wait_names_the_worker_what_it_does_and_what_that_one_waits_for() -> None:
    over = threading.Event()

    def reading(mine: Messenger) -> None:
        mine.part.state = "reading a file"
        mine.serve(over.is_set)

    def waiting(mine: Messenger) -> None:
        def poll() -> None:
            if over.is_set():
                raise Over

        mine.send([1], 0, 9)
        mine.send([1], 0, 8)
        mine.part.timeout_s = 20.0
        mine.part.poll = poll  # type: ignore[method-assign]
        with pytest.raises(Over):
            mine.recv(2, 4)

    def stalled(mine: Messenger) -> str:
        with pytest.raises(StallError) as caught:
            mine.recv(1, 5)
        over.set()
        mine.recv(1, 9)
        mine.recv(1, 8)
        return str(caught.value)

    def work(mine: Messenger) -> str | None:
        return (stalled, waiting, reading)[mine.part.index](mine)

    # Worker 1 asks worker 2 after a 64th of its own time limit.
    assert messengers(3, work, timeout_s=2.5)[0] == (
        "worker 1 has sent no message with tag 5 (messages with tag 8 and tag 9 wait to be received); "
        "receiving from worker 2 (tag 4) at clock 3; worker 2: reading a file at clock 3"
    )


def test_a_worker_that_answers_nothing_is_named_with_its_silence() -> None:
    mine = Messenger(0, 2, Network(), timeout_s=0.5)
    with pytest.raises(
        StallError, match=r"worker 1 has sent no .* tag 0; it does not answer, for 0"
    ):
        mine.recv(1)
    assert mine.part.states[-2:] == ["receiving from worker 1 (tag 0)", "computing"]
    assert mine.part.cuts.count("check") > 1
    assert mine.part.cuts[-1] == "end"


def test_a_message_whose_values_do_not_come_is_named_as_begun() -> None:
    network = Network(most_delay=0)
    sender, mine = Messenger(1, 2, network), Messenger(0, 2, network, timeout_s=0.3)
    sender.send(np.zeros(5000), 0)
    for key, queue in network.queues.items():
        if key[2] == VALUE_TAG:
            queue.clear()
    with pytest.raises(
        StallError, match="worker 1 has not sent all of a message with tag 0; it does"
    ):
        mine.recv(1)


def test_a_worker_that_has_ended_is_no_longer_waited_for() -> None:
    def work(mine: Messenger) -> float:
        if mine.part.index == 0:
            mine.send([4], 1)
            return 0.0
        began = time.monotonic()
        assert mine.recv(0).tolist() == [4]
        with pytest.raises(ConfigError, match="no message with tag 0; its program has ended"):
            mine.recv(0)
        return time.monotonic() - began

    # It asks after a 64th of its time limit, and does not wait for the end of it.
    assert messengers(2, work, timeout_s=30.0)[1] < 15.0


def test_a_sender_waits_while_too_much_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_BYTES", 1 << 20)
    order: list[str] = []

    def work(mine: Messenger) -> None:
        if mine.part.index == 0:
            for i in range(4):
                mine.send(np.full(100_000, i, np.float64), 1)
                order.append(f"sent {i}")
        else:
            mine.part.state = "reading a file"
            mine.serve(lambda: "sent 1" in order)
            mine.serve(lambda: mine.mail.tags_of(0) == [0, 0])
            time.sleep(0.05)
            assert order == ["sent 0", "sent 1"]
            for i in range(4):
                order.append(f"receiving {i}")
                assert (mine.recv(0) == i).all()

    messengers(2, work)
    assert order.index("receiving 0") < order.index("sent 2") < order.index("sent 3")
    assert order.index("receiving 1") < order.index("sent 3")


def test_a_sender_whose_messages_are_not_received_names_the_receiver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "MOST_BYTES", 1 << 20)
    mine = Messenger(0, 2, Network(), timeout_s=0.3)
    mine.send(np.zeros(300_000), 1)
    with pytest.raises(StallError, match="worker 1 has not received 2 MiB of messages"):
        mine.send(np.zeros(3), 1)
    assert "sending to worker 1 (tag 0)" in mine.part.states


def test_messages_that_an_ended_program_did_not_receive_are_reported(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sent = threading.Event()

    def work(mine: Messenger) -> None:
        if mine.part.index == 0:
            mine.send(np.zeros(50_000), 1)
            mine.send([1], 1)
            sent.set()
            mine.serve(lambda: mine.mail.n_dropped == 2)
            with pytest.raises(ConfigError, match="2 messages of worker 0 were not received: the"):
                mine.send([2], 1)
        else:
            assert sent.wait(60)

    messengers(2, work)
    assert "warning: 2 messages of worker 0 were not received: the program of worker 1 ended" in (
        "".join(capfd.readouterr())
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StallError("late")])
def test_a_receive_that_is_cut_off_may_be_repeated(error: BaseException) -> None:
    ready = threading.Event()

    def work(mine: Messenger) -> Any:
        if mine.part.index == 0:
            assert ready.wait(60)
            return mine.send(np.arange(9000), 1)
        mine.part.interrupt = error
        with pytest.raises(type(error)):
            mine.recv(0)
        assert mine.part.state == "computing"
        assert mine.part.cuts[-1] == "end"
        assert mine.mail.awaited is None
        ready.set()
        return mine.recv(0).tolist()

    assert messengers(2, work)[1] == list(range(9000))


def test_a_message_that_was_lost_is_not_replaced_by_the_next() -> None:
    network = Network(most_delay=0)
    sender, mine = Messenger(1, 2, network), Messenger(0, 2, network)
    sender.send([1], 0)
    network.queues[11, 10, HEAD_TAG].clear()
    sender.send([2], 0)
    with pytest.raises(
        ProtocolError, match="has received message 1 of worker 1, and 0 was expected"
    ):
        mine.recv(1)


def test_a_head_with_the_longest_values_fits_into_a_note() -> None:
    network = Network(most_delay=0)
    sender, mine = Messenger(1, 2, network), Messenger(0, 2, network)
    shape = (2,) * 31 + (0,)
    sender.send(np.zeros(shape, np.float32), 0, (1 << 63) - 1)
    sender.send(np.arange(INLINE_BYTES, dtype=np.uint8).reshape((1,) * 31 + (-1,)), 0)
    assert mine.recv(1, (1 << 63) - 1).shape == shape
    assert mine.recv(1).size == INLINE_BYTES
    assert ArrayHead(0, 0, 0, 0, "<f4", [2, 3], 1).n_bytes == 24


def test_a_worker_is_idle_when_its_messages_and_questions_are_answered() -> None:
    network = Network(most_delay=0)
    sender, mine = Messenger(1, 2, network), Messenger(0, 2, network)
    sender.send([1], 0)
    mine.mail.poll()
    sender.mail.poll()
    # The message has arrived, and nothing is on the network: the program has not received it.
    assert not any(network.queues.values())
    assert not sender.mail.is_idle
    assert not mine.mail.is_idle
    assert sender.mail.late() == [0]
    assert mine.recv(1).tolist() == [1]
    sender.mail.poll()
    assert sender.mail.is_idle
    mine.mail.poll()
    assert mine.mail.is_idle
    mine.mail.ask(1)
    sender.mail.poll()
    assert not mine.mail.is_idle
    assert mine.mail.late() == [1]
    mine.mail.poll()
    assert mine.mail.is_idle
    answer = mine.mail.answer_of(1)
    assert answer is not None
    assert answer.rows == [(1, "computing at clock 3")]


@pytest.mark.parametrize(("nodes", "n_pieces"), [((0, 0), 1), ((0, 1), 4)], ids=["near", "far"])
def test_arrays_travel_in_small_pieces_between_nodes_only(
    nodes: tuple[int, int], n_pieces: int
) -> None:
    network = Network()
    Messenger(0, 2, network, nodes=nodes).send(np.zeros(3 * FAR_PIECE_BYTES + 1, np.uint8), 1)
    assert len(network.queues[10, 11, VALUE_TAG]) == n_pieces


def test_a_wait_does_not_use_the_answer_of_an_earlier_one() -> None:
    network = Network(most_delay=0)
    sender, mine = Messenger(1, 2, network), Messenger(0, 2, network)
    mine.mail.ask(1)
    sender.mail.poll()
    mine.mail.poll()
    assert mine.mail.answer_of(1) is not None
    answers: list[Any] = []

    def poll() -> None:
        answers.append(mine.mail.answer_of(1))
        sender.send([1], 0)

    mine.part.poll = poll  # type: ignore[method-assign]
    assert mine.recv(1).tolist() == [1]
    assert answers[0] is None


def test_a_clock_advances_messages_of_workers_that_exchange_arrays_only() -> None:
    network = Network(most_delay=0)
    sender, mine = Messenger(1, 2, network), Messenger(0, 2, network)
    sender.send([1], 0)
    mine.messages.advance()
    assert mine.mail.tags_of(1) == []
    mine.messages.poll()
    assert mine.mail.tags_of(1) == [0]
    mine.recv(1)
    sender.mail._next_poll = 0.0
    assert not sender.mail.is_idle
    sender.messages.advance()
    assert sender.mail.is_idle


def test_messages_between_workers_have_tags_of_their_own() -> None:
    """All of them travel on one communicator."""
    tags = [
        *(array_mail.HEAD_TAG, array_mail.VALUE_TAG, mail.NOTE_TAG, mail.PIECE_TAG),
        *contributions.TAGS,
        *groups_start._TAGS,
        *groups_start._SUBGROUP_TAGS,
        *(handover._ASK, handover._PARTS, handover._VALUES, replicated_start._TAG),
    ]
    assert len(set(tags)) == len(tags)


def test_an_exchange_without_messages_refuses_memory_once_and_before_them() -> None:
    network = Network()
    mine = Messenger(0, 2, network)
    mine.messages.begin("an exchange")
    mine.messages.begin("an exchange")
    mine.send(np.ones(3), 1)
    assert mine.n_refused == 1
    apart = Messenger(0, 2, network, cuts_apart=True)
    with pytest.raises(ConfigError, match="an exchange: all tables are under ASP"):
        apart.messages.begin("an exchange")
    assert apart.n_refused == 0


class _EnoughError(Exception):
    """Ends a wait from within."""


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_wait_for_a_message_looks_less_often_until_the_message_begins(
    has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, found, began = Network(), [], time.monotonic()
    # The first question to a late worker comes after 4 s.
    mine = Messenger(1, 2, network, timeout_s=256.0)
    if has_begun:
        Messenger(0, 2, network).send(np.zeros(100_000), 1)
        monkeypatch.setattr(ArrivedArray, "complete", lambda _: False)

    def sleep(seconds: float) -> None:
        found.append((seconds, time.monotonic() - began))
        if found[-1][1] > 0.2:
            raise _EnoughError

    monkeypatch.setattr(messages, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(_EnoughError):
        mine.recv(0)
    pauses = [seconds for seconds, _ in found]
    assert pauses[:5] == [0.0] * 5
    assert pauses[5] == min(pauses[5:]) == 0.0002
    assert all(seconds <= max(0.0002, waited_s / 32) for seconds, waited_s in found)
    assert max(pauses) == (0.0002 if has_begun else 0.002)
