"""The directory of a supervised run: its files, and the identity that a rank reads from it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from mpips.errors import CheckpointError, ConfigError
from mpips.rundir.directory import RunFolder, current, read_json, replace_json
from mpips.rundir.files import Finished, Lease, RankPlace, Status


def lease(generation: int) -> Lease:
    return Lease(generation=generation, host="here", pid=os.getpid(), time_s=time.time())


def environment(folder: RunFolder, generation: int) -> dict[str, str]:
    return {"MPIPS_RUN_DIR": str(folder.path), "MPIPS_GENERATION": str(generation)}


def test_a_rank_learns_the_identity_of_its_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "mlp")
    found = current(environment(folder, 3))
    assert found is not None
    assert found.run_id == folder.path.name
    assert found.run_id.startswith("mlp-")
    assert int(found.token, 16) < 1 << 128
    assert len(found.token) == 32
    assert found.generation == 3
    assert found.logs == folder.path / "logs" / "attempt-3"
    again = current(environment(folder, 4))
    assert again is not None
    assert again.token == found.token


def test_only_the_user_can_read_the_token_of_a_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mlp")
    assert folder.info_file.stat().st_mode & 0o777 == 0o600
    replace_json(folder.status_file, Status(state="running", generation=0, time_s=0.0))
    assert folder.status_file.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def test_runs_of_the_same_name_get_folders_of_their_own(tmp_path: Path) -> None:
    made = {RunFolder.create(tmp_path, "mlp").path for _ in range(5)}
    assert len(made) == 5


def test_without_a_supervisor_there_is_nothing_to_learn() -> None:
    assert current({}) is None


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"MPIPS_RUN_DIR": "/nowhere"}, "must both be set"),
        ({"MPIPS_GENERATION": "1"}, "must both be set"),
        ({"MPIPS_RUN_DIR": "/nowhere", "MPIPS_GENERATION": "-1"}, "must both be set"),
        ({"MPIPS_RUN_DIR": "/nowhere", "MPIPS_GENERATION": "1"}, "is no run directory"),
    ],
)
def test_a_wrong_environment_is_refused(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        current(env)


def test_only_the_generation_of_the_lease_may_publish(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "fm")
    old, new = current(environment(folder, 0)), current(environment(folder, 1))
    assert old is not None
    assert new is not None
    with pytest.raises(CheckpointError, match="replaced by a later one"):
        old.check_lease()
    replace_json(folder.lease_file, lease(0))
    old.check_lease()
    replace_json(folder.lease_file, lease(1))
    with pytest.raises(CheckpointError, match=r"attempt 0 of .* replaced by a later one"):
        old.check_lease()
    new.check_lease()
    folder.lease_file.write_text("{")
    with pytest.raises(CheckpointError, match=r"lease.json: is damaged"):
        new.check_lease()


def test_files_come_back_as_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "fm")
    assert folder.status() is None
    assert folder.finished() is None
    status = Status(state="running", generation=2, time_s=1.5, restarts=1)
    replace_json(folder.status_file, status)
    assert folder.status() == status
    finished = Finished(generation=2, time_s=2.5, step=40, checkpoint="step-40")
    replace_json(folder.finished_file, finished, durable=True)
    assert folder.finished() == finished


def test_a_failed_replacement_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    replace_json(path, lease(1))
    with pytest.raises(TypeError):
        replace_json(path, object())
    assert read_json(path, Lease) is not None
    assert [p.name for p in tmp_path.iterdir()] == ["lease.json"]


@pytest.mark.parametrize("content", [b"{", b'{"host": "\xff"}', b"[]", b""])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lease.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"lease\.json: is damaged \("):
        read_json(path, Lease)


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    replace_json(path, lease(0))
    stop = threading.Event()

    def write() -> None:
        generation = 0
        while not stop.is_set():
            generation += 1
            replace_json(path, lease(10 ** (generation % 12)))

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    deadline = time.monotonic() + 20
    while len(seen) < 8 and time.monotonic() < deadline:
        found = read_json(path, Lease)
        assert found is not None
        seen.add(found.generation)
    stop.set()
    writer.join()
    assert len(seen) >= 8


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "a\nb", "x" * 300])
def test_a_run_of_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name of the run = "):
        RunFolder.create(tmp_path, name)
    assert not list(tmp_path.iterdir())


def status_of(generation: int, n_ranks: int, state: str = "running") -> Status:
    ranks = tuple(
        RankPlace(rank=r, role=f"worker {r}", host="a", pid=generation) for r in range(n_ranks)
    )
    return Status(state=state, generation=generation, time_s=1.0, ranks=ranks)


def test_a_status_comes_back_with_the_places_of_its_attempt(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    reader = RunFolder(run.path)
    for generation in range(3):
        starting = Status(state="starting", generation=generation, time_s=0.0)
        run.write_status(starting)
        # Places of an earlier attempt are not those of this one.
        assert reader.status() == starting
        for state in ("running", "done"):
            written = status_of(generation, 4, state)
            run.write_status(written)
            assert reader.status() == written
            assert RunFolder(run.path).status() == written


def test_places_that_are_there_are_not_written_again(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    run.write_status(status_of(0, 4))
    before = run.places_file.stat().st_ino
    run.write_status(status_of(0, 4))
    # Another writer, such as the supervisor after the scheduler.
    RunFolder(run.path).write_status(status_of(0, 4, "restarting"))
    assert run.places_file.stat().st_ino == before
    run.write_status(status_of(1, 4))
    assert run.places_file.stat().st_ino != before


def test_a_run_of_an_earlier_version_has_the_places_in_its_status(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    status = status_of(3, 2, "failed")
    replace_json(run.status_file, status)
    assert run.status() == status


@pytest.mark.parametrize("damage", [b"", b"\0" * 64, b"[]"])
def test_damaged_places_end_nothing_and_are_replaced(tmp_path: Path, damage: bytes) -> None:
    run = RunFolder.create(tmp_path, "job")
    places = (RankPlace(rank=0, role="scheduler", host="h", pid=1),)
    run.write_status(Status(state="running", generation=0, time_s=0.0, ranks=places))
    run.places_file.write_bytes(damage)
    later = RunFolder(run.path)
    found = later.status()
    assert found is not None
    assert (found.state, found.ranks) == ("running", ())
    later.write_status(Status(state="running", generation=1, time_s=1.0, ranks=places))
    again = RunFolder(run.path).status()
    assert again is not None
    assert again.ranks == places


@pytest.mark.parametrize("late", ["a replaced scheduler", "nobody"])
def test_places_that_go_while_an_attempt_is_at_work_are_written_again(
    tmp_path: Path, late: str
) -> None:
    run = RunFolder.create(tmp_path, "job")
    written = status_of(1, 4)
    run.write_status(written)
    if late == "nobody":
        run.places_file.unlink()
    else:
        # It had looked at the lease before the later attempt began.
        RunFolder(run.path).write_status(status_of(0, 3))
    reader = RunFolder(run.path)
    run.write_status(written)
    assert reader.status() == RunFolder(run.path).status() == written
