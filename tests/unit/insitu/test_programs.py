"""Programs in C and Fortran push into the stream of a job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import program_rig as rig
import pytest
from program_rig import Program, ProgramError

import mpips
from mpips import ASP, SGD, DenseTable, StreamTable, Worker
from mpips.cli.client import client_folder
from mpips.errors import ConfigError, StallError

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "insitu"
PUSHER = Path(__file__).with_name("pusher.c")


def compiled(source: Path, folder: Path) -> Path:
    """Compile a program in C or Fortran as the documentation says."""
    fortran = source.suffix == ".f90"
    compiler = shutil.which("gfortran" if fortran else "cc")
    if compiler is None:
        pytest.skip(
            f"no compiler for {source.suffix[1:]}: install {'gfortran' if fortran else 'gcc'}"
        )

    def flags(*options: str) -> list[str]:
        command = [sys.executable, "-m", "mpips", "client", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    out = folder / f"{source.stem}-{source.suffix[1:]}"
    if fortran:
        parts = [
            "-J",
            str(folder),
            *flags("--fortran"),
            str(source),
            "-o",
            str(out),
            *flags("--libs"),
        ]
        parts.insert(0, "-Wall")
    else:
        parts = [
            "-std=c99",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            str(source),
            "-o",
            str(out),
            *flags(),
        ]
    done = subprocess.run([compiler, "-O2", *parts], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def run(stream: StreamTable, main: Callable[[Worker], Any], *tables: Any, **options: Any) -> Any:
    return mpips.run(main, [stream, *tables], verbose=False, **options).value


def queue_name(what: str) -> str:
    return f"{what}-{os.getpid()}"


def beside(work: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    """Start a thread beside the job; its errors come into the list."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    return thread, errors


FIELDS: Any = {"x": (7, 5), "y": ((3,), "float64"), "n": ((), "int32")}


def sample(n: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(n)
    return {
        "x": random.standard_normal((7, 5), np.float32),
        "y": random.standard_normal(3) if n % 9 != 4 else np.full(3, np.nan),
        "n": np.array(n, np.int32),
    }


@pytest.mark.parametrize("keep", ["reservoir", "newest"])
def test_a_stream_is_the_same_whether_a_program_or_a_worker_pushes(keep: Any) -> None:
    stream = StreamTable("s", FIELDS, 20, keep=keep, held_out=0.2, invalid="drop")
    n, name = 60, queue_name(f"same-{keep}")

    def push() -> None:
        program = Program(name)
        program.declare_like(**sample(0))
        for i in range(n):
            program.push(*sample(i).values())
        program.close()

    def content(worker: Worker) -> Any:
        keys, rows = worker.table("s.samples").all_rows()
        reader = stream.reader(worker)
        moments = reader.moments()
        return keys.tolist(), rows.tobytes(), reader.counts(), repr(moments.mean), repr(moments.std)

    def by_program(worker: Worker) -> Any:
        stream.serve(worker, name)
        return content(worker)

    def by_worker(worker: Worker) -> Any:
        producer = stream.producer(worker)
        for i in range(n):
            producer.push(sample(i))
        producer.close()
        return content(worker)

    thread, errors = beside(push)
    found = run(stream, by_program)
    thread.join()
    assert not errors
    assert found == run(stream, by_worker)
    assert (found[2].produced, found[2].dropped, found[2].ended) == (n, 7, 1)


def test_a_flush_returns_when_servers_hold_the_samples() -> None:
    stream = StreamTable("s", {"x": ()}, 20)
    name, produced = queue_name("flush"), []

    def push() -> None:
        program = Program(name)
        program.declare("x", "float64", ())
        for i in range(5):
            program.push(np.array(float(i)))
            program.flush()
            produced.append(seen.taken)
        program.close()

    seen: Any = None

    def main(worker: Worker) -> None:
        from mpips.insitu.programs import ProgramServer

        nonlocal seen
        server = ProgramServer(stream, worker, name, [0], 8, "", 60.0)
        seen = server.queues[0].memory
        thread, errors = beside(push)
        server.run()
        thread.join()
        assert not errors

    run(stream, main)
    assert produced == [1, 2, 3, 4, 5]


def test_a_killed_program_leaves_whole_samples_and_the_next_one_goes_on(tmp_path: Path) -> None:
    pusher, name, n, side = compiled(PUSHER, tmp_path), queue_name("killed"), 400, 200
    stream = StreamTable("s", {"x": (side, side), "n": ((), "int64")}, n)
    kills = 8

    def simulate() -> None:
        random = np.random.default_rng(6)
        for kill in range(kills + 1):
            command = [str(pusher), name, str(n), str(side)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                first = int(process.stdout.readline())
                assert first == 0 or kill > 0
                if kill < kills:
                    # Its next lines come between two pushes; the kill comes within some later one.
                    for _ in range(int(random.integers(1, n // kills // 2))):
                        process.stdout.readline()
                    process.send_signal(signal.SIGKILL)
                    assert process.wait() == -signal.SIGKILL
                else:
                    process.stdout.read()
                    assert process.wait() == 0

    def main(worker: Worker) -> Any:
        stream.serve(worker, name, slots=2)
        reader = stream.reader(worker)
        keys, rows = worker.table("s.samples").all_rows()
        return reader.counts(), keys, stream.layout.decode(rows)

    thread, errors = beside(simulate)
    counts, keys, found = run(stream, main)
    thread.join()
    assert not errors, errors
    assert (counts.produced, counts.held, counts.ended) == (n, n, 1)
    assert keys.tolist() == found.numbers.tolist() == found.arrays["n"].tolist() == list(range(n))
    expected = np.broadcast_to(np.arange(n)[:, None, None], (n, side, side))
    np.testing.assert_array_equal(found.arrays["x"], expected)


def test_values_of_a_table_come_back_to_the_program() -> None:
    stream = StreamTable("s", {"x": ()}, 10)
    stop = DenseTable("stop", (2, 2), SGD(1.0), consistency=ASP())
    name = queue_name("steer")
    seen: list[list[float]] = []

    def push() -> None:
        program = Program(name)
        program.declare("x", "float64", ())
        version = 0
        while version == 0:
            version, _ = program.steer(4)
        seen.append(program.steer(4)[1])
        program.close()

    def main(worker: Worker) -> None:
        worker.table("stop").push(np.float32([[-1, 0], [0, 2]])).wait()
        thread, errors = beside(push)
        stream.serve(worker, name, steer="stop")
        thread.join()
        assert not errors

    run(stream, main, stop)
    assert seen == [[1, 0, 0, -2]]


@pytest.mark.parametrize("cursor", [{}, {"of": "main"}])
def test_a_worker_that_serves_has_a_cursor_so_that_memory_is_continued(cursor: Any) -> None:
    stream, name, found = StreamTable("s", {"x": ()}, 10), queue_name("cursor"), []

    def main(worker: Worker) -> None:
        if cursor:
            worker.set_cursor(cursor)
        clock = worker.clock

        def counted() -> None:
            found.append(dict(worker.cursor))
            clock()

        worker.clock = counted  # type: ignore[method-assign]
        thread, errors = beside(lambda: Program(name).close())
        stream.serve(worker, name)
        thread.join()
        assert not errors

    run(stream, main)
    assert found == [cursor or {"serves": "s"}]


def test_what_is_not_accepted_is_a_sentence() -> None:
    stream = StreamTable("s", {"x": ()}, 10, producers=2)
    table = DenseTable("bsp", (2,), SGD(1.0))
    name = queue_name("refused")

    def main(worker: Worker) -> None:
        def serve(**options: Any) -> None:
            stream.serve(worker, name, **options)

        for error, text, call in [
            (ConfigError, r"producers = \[\]: must be numbers", lambda: stream.serve(worker, name, [])),
            (ConfigError, r"producers = \[1, 1\]", lambda: stream.serve(worker, name, [1, 1])),
            (ConfigError, "producer 2: must be", lambda: stream.serve(worker, name, 2)),
            (ConfigError, "slots = 0: must be 1 to", lambda: stream.serve(worker, name, slots=0)),
            (ConfigError, "queue 'a/b': must have 1 to 64", lambda: stream.serve(worker, "a/b")),
            (ConfigError, "steer = 'bsp': must be a dense table", lambda: serve(steer="bsp")),
            (ConfigError, "steer = 's.samples': must be", lambda: serve(steer="s.samples")),
            (
                StallError,
                r"no sample for 0.05 s from the programs of producers 0 \(no program is attached\), 1 \(no",
                lambda: stream.serve(worker, name, [0, 1], patience_s=0.05),
            ),
        ]:  # fmt: skip
            with pytest.raises(error, match=text):
                call()

    run(stream, main, table)
    for path in Path("/dev/shm").glob(f"mpips_queue.*.{name}.*"):
        path.unlink()


def test_a_job_that_starts_anew_asks_the_program_to_go_back() -> None:
    stream = StreamTable("s", {"x": ()}, 10)
    name, gone_back = queue_name("anew"), []

    def push() -> None:
        program = Program(name)
        program.declare("x", "float64", ())
        n = 0
        while n < 6:
            try:
                program.push(np.array(float(n)))
                program.flush()
                n += 1
                if n == 3:
                    flushed.set()
            except ProgramError as error:
                if error.code != rig.REPLACED:
                    raise
                program.detach()
                program = Program(name)
                program.declare("x", "float64", ())
                n = program.produced
                gone_back.append(n)
        program.close()

    flushed = threading.Event()

    class Ended(Exception):
        pass

    def first(worker: Worker) -> None:
        clock = worker.clock

        def ends() -> None:
            clock()
            if flushed.is_set():
                raise Ended

        worker.clock = ends  # type: ignore[method-assign]
        stream.serve(worker, name)

    thread, errors = beside(push)
    with pytest.raises(Ended):
        run(stream, first)

    def second(worker: Worker) -> Any:
        stream.serve(worker, name)
        return stream.reader(worker).counts().produced

    assert run(stream, second) == 6
    thread.join()
    assert not errors, errors
    assert gone_back == [0]


@pytest.mark.parametrize("language", [pytest.param("c", marks=pytest.mark.long), "f90", "py"])
def test_the_heat_equation_is_learned_beside_its_solver(tmp_path: Path, language: str) -> None:
    solver = [sys.executable, str(EXAMPLES / "heat_program.py")]
    if language != "py":
        solver = [str(compiled(EXAMPLES / f"heat.{language}", tmp_path))]
    job = [sys.executable, str(EXAMPLES / "heat.py"), "1"]
    with (
        subprocess.Popen([*solver, "0", "4"], stdout=subprocess.PIPE, text=True) as simulation,
        subprocess.Popen(job, stdout=subprocess.PIPE, text=True) as learner,
    ):
        learned, _ = learner.communicate(timeout=100)
        simulated, _ = simulation.communicate(timeout=20)
    assert (learner.returncode, simulation.returncode) == (0, 0), learned + simulated
    assert learned.splitlines()[-2:] == [
        "samples: 160, producers: 1",
        "error of the learned step: below 10 % of a change",
    ]
    assert simulated.strip() == "heat: producer 0 has pushed 160 samples"


def test_the_library_needs_only_the_c_library() -> None:
    lib = client_folder() / "libmpips_client.so"
    found = subprocess.run(["ldd", str(lib)], capture_output=True, text=True, check=True).stdout
    needed = {line.split()[0].rsplit("/", 1)[-1].split(".so")[0] for line in found.splitlines()}
    assert needed <= {
        "linux-vdso",
        "libc",
        "libm",
        "libpthread",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }
