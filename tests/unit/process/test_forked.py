"""Forked children give up what is the parent's, may not use the worker, and end by themselves."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from harness import Rig, dense, floats, python, rows
from worker_uses import uses

from mpips.checkpoint.folder import FolderLock
from mpips.errors import ForkError
from mpips.mpi.signals import SignalRequests, signals_unwind
from mpips.mpi.watchdog import watching
from mpips.process import forked
from mpips.rundir import directory
from mpips.rundir.files import Lease
from mpips.transport.region import SHM, Regions, attach, new_token, persistent, unlink_job
from mpips.worker.worker import connection_of

PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def child(work: Callable[[], str]) -> Iterator[tuple[int, str]]:
    """Fork a child that does `work` and waits; yield its pid and what `work` returned."""
    answer, say = os.pipe()
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(release)
            os.write(say, work().encode())
            os.close(say)
            os.read(hold, 1)
        finally:
            os._exit(0)
    del work
    os.close(say)
    os.close(hold)
    with os.fdopen(answer, "rb") as file:
        found = file.read().decode()
    try:
        yield pid, found
    finally:
        os.close(release)


def ended(pid: int) -> int:
    """Wait for a child; return its exit code, or the negative number of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def handlers() -> str:
    wakeup = signal.set_wakeup_fd(-1)
    names = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)]
    return repr((wakeup, names == BEFORE, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


BEFORE = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)]


def test_sigterm_to_a_child_ends_the_child_and_asks_nothing_of_the_parent(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with signals_unwind(), SignalRequests(True, 60.0) as told, watching(told):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with child(handlers) as (pid, found):
            assert found == repr((-1, True, mask))
            os.kill(pid, signal.SIGTERM)
            assert ended(pid) == -signal.SIGTERM
        assert told.take() is None
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
        # The handlers of the parent are unchanged.
        os.kill(os.getpid(), signal.SIGTERM)
        ask = told.take()
        assert ask is not None
        assert ask.reason == "end"


def test_sigusr1_to_a_whole_job_ends_no_helper():
    with signals_unwind(), SignalRequests(True, 60.0), child(lambda: "") as (pid, _):
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGKILL)
        # SIGUSR1 came first, so it did not end the child.
        assert ended(pid) == -signal.SIGKILL


def test_a_pool_can_be_terminated_within_a_job():
    with signals_unwind(), SignalRequests(True, 60.0) as told, watching(told):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2, 3]) == [1, 2, 3]
        assert told.take() is None


def refused(*calls: Callable[[], object]) -> str:
    found = []
    for call in calls:
        try:
            call()
        except ForkError as error:
            found.append("worker 0 was used in process" in str(error))
        except BaseException as error:
            found.append(repr(error))
        else:
            found.append("no error")
    return repr(found)


@pytest.mark.parametrize("local", [True, False])
def test_a_child_is_refused_whatever_it_does_with_the_worker(local):
    rig = Rig(dense(8), rows(2))
    worker = rig.worker(local=local)
    w, e = worker.table("w"), worker.table("e")
    one, key = floats(8), np.array([3])
    own = worker.allocate((8,))
    request = w.push(one)
    prefetched = e.prefetch(key)
    calls = [
        *uses(worker, own),
        lambda: prefetched.wait(),
        lambda: connection_of(worker).finish(),
    ]
    before = (rig.writers[0].next_sequence, rig.values().tolist())
    with child(lambda: refused(*calls)) as (_, found):
        assert found == repr([True] * len(calls))
    rig.drain()
    assert request.test()
    assert rig.writers[0].next_sequence == before[0]
    assert rig.values().tolist() == (-one).tolist()
    # The parent continues.
    w.push(one)
    rig.drain()
    assert rig.values().tolist() == (-2 * one).tolist()


ENDS = """
    import os, sys
    import numpy as np
    import mpips

    def main(worker):
        w = worker.table("w")
        w.push(np.ones(4, np.float32))
        pid = os.fork()
        if pid == 0:
            {ending}
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        w.push(np.ones(4, np.float32))
        return code, w.pull().tolist()

    table = mpips.DenseTable("w", (4,), mpips.SGD(lr=1.0), mpips.ASP())
    print(mpips.run(main, [table], verbose=False).value, os.getpid() == {parent})
"""


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("return", 1, "mpips: error: a forked child returned from main"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no')", 1, "no\n"),
        ("raise KeyError('x')", 1, "KeyError: 'x'"),
        ("w.push(np.ones(4, np.float32))", 1, "mpips: error: worker 0 was used in process"),
    ],
)
def test_a_child_that_leaves_main_ends_alone(ending, code, said):
    done = python(ENDS.format(ending=ending, parent="os.getpid()"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"({code}, [-2.0, -2.0, -2.0, -2.0]) True"]
    assert said in done.stderr
    assert said or not done.stderr


def first_byte(memory) -> str:
    return str(int(memory[0]))


def test_a_child_holds_no_lock_of_a_segment_after_its_parent():
    token = persistent(new_token())
    made = Regions(token, shared=True)
    mine = made.create("s0", PAGE)
    other = attach(token, "s0", 0)
    mine.view(0, 1, True)[0] = 7
    try:
        # The child can still read what its parent has mapped.
        seen = other.view(0, 1, False)
        with child(functools.partial(first_byte, seen)) as (_, found):
            assert found == "7"
            del mine, other, seen
            again = Regions(token, shared=True).reopen("s0")
            assert again.view(0, 1, False)[0] == 7
    finally:
        unlink_job(token)


def test_a_child_can_neither_grow_nor_remove_a_segment():
    token = new_token()
    made = Regions(token, shared=True)
    memory = made.create_sparse("w0", 4 * PAGE)

    def work() -> str:
        try:
            memory.commit(0, PAGE)
        except Exception as error:
            made.leave()
            made.unlink()
            memory.unlink()
            return str(error)
        return "no error"

    try:
        with child(work) as (_, found):
            assert "belongs to the parent of this forked process" in found
            assert (SHM / memory.name).exists()
    finally:
        made.unlink()


def test_a_child_does_not_hold_the_lock_of_a_checkpoint_folder(tmp_path):
    lock = FolderLock(tmp_path)
    with child(lambda: "") as _:
        lock.release()
        FolderLock(tmp_path).release()


def test_a_child_leaves_no_last_words_of_the_rank(tmp_path):
    run = directory.RunFolder.create(tmp_path, "job")
    run.attempt(0).mkdir()
    code = """
        import os
        from mpips.mpi import failure_report
        failure_report.begin()
        pid = os.fork()
        failure_report.write(kind="X", message="child" if pid == 0 else "parent")
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    """
    env = f"os.environ.update({ {directory.RUN_DIR: str(run.path), directory.GENERATION: '0'}!r})"
    done = python(f"import os; {env}\nimport textwrap\nexec(textwrap.dedent({code!r}))")
    assert done.returncode == 0, done.stderr
    words = list(run.attempt(0).glob("words-*.json"))
    assert len(words) == 1
    assert '"parent"' in words[0].read_text()


SPAWNED = """
    import multiprocessing, sys
    import mpips

    def main(worker):
        context = multiprocessing.get_context({method!r})
        helper = context.Process(target=print, args=("never",))
        helper.start()
        helper.join()
        return helper.exitcode

    outcome = mpips.run(main, [mpips.DenseTable("w", (4,))], verbose=False)
    print("code", outcome.value)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_rank_is_not_started_again_by_a_helper_that_imports_its_program(tmp_path, method):
    run = directory.RunFolder.create(tmp_path, "job")
    run.attempt(0).mkdir()
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SPAWNED.format(method=method)))
    lease = Lease(generation=0, host="here", pid=os.getpid(), time_s=0.0)
    directory.replace_json(run.lease_file, lease)
    env = {**os.environ, directory.RUN_DIR: str(run.path), directory.GENERATION: "0"}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    log = run.attempt(0) / "rank-0.log"
    said = done.stderr + (log.read_text() if log.exists() else "")
    assert "ForkError: mpips.run was called in process" in said
    assert "if __name__ == '__main__':" in said
    assert "code 1" in done.stdout, said


def test_register_keeps_no_object_alive_and_forget_undoes_it():
    class Item:
        calls = 0

        def disown(self) -> None:
            Item.calls += 1

    one, two = Item(), Item()
    forked.register(one)
    forked.register(two)
    forked.forget(one)

    def calls() -> str:
        return str(Item.calls)

    with child(calls) as (_, found):
        assert found == "1"
    del two
    with child(calls) as (_, found):
        assert found == "0"
    assert Item.calls == 0
