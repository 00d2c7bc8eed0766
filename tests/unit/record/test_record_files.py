"""Files of a record: damage is found by checksums, and a full record ends clearly."""

from __future__ import annotations

import resource

import pytest
from record_rig import content

from mpips.errors import ConfigError
from mpips.model.consistency import NEVER
from mpips.record.files import (
    End,
    RecordedSwitch,
    RecordedTable,
    read_all,
    read_record,
    why_not_whole,
)
from mpips.record.writer import RecordFile

TABLES = [RecordedTable("w", "dense", "asp")]


def head(role="server", index=0, **changes):
    return content(role, index, b"", TABLES, **changes).head


def write(path, blocks, end=End(), **changes):  # noqa: B008 (frozen)
    file = RecordFile(path, head(**changes), 1)
    kept = [file.put(data) for data in blocks]
    if end is not None:
        assert file.close(end) == ""
    return kept


def test_entries_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "record/attempt-0/server-0.rec"
    assert write(path, [b"one", b"two"], End(digests={"w": "5"})) == [True, True]
    found = read_record(path)
    assert (found.data, found.end, found.head) == (b"onetwo", End(digests={"w": "5"}), head())
    assert why_not_whole([found]) == ""


def test_a_record_ends_before_its_limit_and_the_file_says_where(tmp_path):
    path = tmp_path / "server-0.rec"
    kept = write(path, [b"a" * (1 << 19)] * 3 + [b"b"], End(limited_at=12))
    assert kept == [True, True, False, False]
    found = read_record(path)
    assert found.data == b"a" * (1 << 20)
    assert "ends at record 12 because of monitor.record_mib" in why_not_whole([found])


def test_the_decision_on_a_switch_is_in_the_heads_of_all_files(tmp_path):
    tables = [RecordedTable("w", "dense", "switch", switch_at=NEVER), *TABLES]
    switch = RecordedSwitch(50, 20)
    for role, index in (("server", 0), ("server", 1), ("worker", 0)):
        of = content(role, index, b"", tables, n_workers=1, n_servers=2).head
        file = RecordFile(tmp_path / f"{role}-{index}.rec", of, 1)
        file.put(b"one")
        if (role, index) == ("server", 0):
            file.put_switch(switch)
        file.put(b"two")
        assert file.close(End()) == ""
    servers, workers = read_all(tmp_path)
    assert [file.switch for file in (*servers, *workers)] == [switch, None, None]
    for file in (*servers, *workers):
        assert [table.switch_at for table in file.head.tables] == [20, -1]
        assert file.data == b"onetwo"


def test_without_a_decision_the_switch_never_comes(tmp_path):
    tables = [RecordedTable("w", "dense", "switch", switch_at=NEVER)]
    for role in ("server", "worker"):
        head_of = content(role, 0, b"", tables, n_workers=1, n_servers=1).head
        assert RecordFile(tmp_path / f"{role}-0.rec", head_of, 1).close(End()) == ""
    assert read_all(tmp_path)[1][0].head.tables[0].switch_at == NEVER


def test_every_flipped_byte_is_found(tmp_path):
    path = tmp_path / "server-0.rec"
    write(path, [b"first", b"second"])
    raw = path.read_bytes()
    n_head = raw.index(b"data")
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        if at < n_head:
            with pytest.raises(ConfigError, match="is damaged"):
                read_record(path)
            continue
        found = read_record(path)
        assert found.end is None
        assert b"firstsecond".startswith(found.data)
        assert "has no end" in why_not_whole([found])


@pytest.mark.parametrize("lost", [1, 10, 20, 40])
def test_a_cut_off_file_has_no_end(lost, tmp_path):
    path = tmp_path / "server-0.rec"
    write(path, [b"first", b"second"])
    path.write_bytes(path.read_bytes()[:-lost])
    assert read_record(path).end is None


def test_an_existing_file_is_not_replaced(tmp_path):
    path = tmp_path / "server-0.rec"
    write(path, [])
    with pytest.raises(ConfigError, match="cannot be made: File exists"):
        write(path, [])


def test_a_folder_without_a_record_and_files_of_two_jobs_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"contains no record; set monitor\.record = true"):
        read_all(tmp_path)
    write(tmp_path / "server-0.rec", [])
    with pytest.raises(ConfigError, match=r"worker-0\.rec: cannot be read"):
        read_all(tmp_path)
    write(tmp_path / "worker-0.rec", [], role="worker", n_workers=2)
    with pytest.raises(ConfigError, match=r"worker-0\.rec: belongs to another job"):
        read_all(tmp_path)


def test_a_disk_that_fails_does_not_stop_the_job_and_is_reported_at_the_end(tmp_path):
    path = tmp_path / "server-0.rec"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        file = RecordFile(path, head(), 1)
        assert [file.put(b"a" * (1 << 15)) for _ in range(4)] == [True] * 4
        failure = file.close(End())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failure == f"{path}: cannot be written: File too large"
    assert read_record(path).end is None
