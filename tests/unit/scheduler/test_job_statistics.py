"""Statistics of a job: sums over servers, and what server 0 reports for all of them."""

from __future__ import annotations

import msgspec

from mpips.scheduler.job_statistics import JobStatistics, last_checkpoint


def test_decisions_and_the_last_checkpoint_are_those_of_server_0():
    statistics = JobStatistics()
    bounds = [[12, 2, "worker 0 is fast"], [30, 0, "all are equally fast"]]
    entries = (
        {
            "server": 0,
            "counters": {"records": 5},
            "checkpoint": {"path": "x"},
            "bounds": bounds,
            "backups": [[16, 1, "worker 2 is slow"]],
        },
        {"server": 1, "counters": {"records": 7}, "checkpoint": {"path": "x"}, "backups": []},
    )
    for server, entry in reversed(list(enumerate(entries))):
        statistics.add_server(server, msgspec.json.encode(entry))
    for found in (
        msgspec.json.decode(statistics.brief({})),
        msgspec.json.decode(statistics.complete({})),
    ):
        assert found["totals"]["servers"] == {
            "number": 2,
            "counters": {"records": 12},
            "checkpoint": {"path": "x"},
            "bounds": bounds,
            "backups": [[16, 1, "worker 2 is slow"]],
        }
        assert last_checkpoint(found) == {"path": "x"}


def test_a_job_without_a_checkpoint_or_decisions_has_no_such_entries():
    statistics = JobStatistics()
    statistics.add_server(0, msgspec.json.encode({"server": 0, "records": 5, "checkpoint": None}))
    found = msgspec.json.decode(statistics.brief({}))
    assert found["totals"]["servers"] == {"number": 1, "records": 5}
    assert last_checkpoint(found) == {}
