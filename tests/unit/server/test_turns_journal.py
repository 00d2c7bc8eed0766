"""Turns survive kills of servers: with a journal and with a copy the bits are those of worker order."""

from __future__ import annotations

import crash_rig
import pytest
import turns_rig
from crash_life import Life_
from turns_rig import crash

from mpips.transport.region import new_token, persistent, unlink_job

LOADS = turns_rig.loads()
PAIRS = [name for name, load in LOADS.items() if load.partner]
KILLED = [name for name in LOADS if not name.startswith("all")]


@pytest.fixture
def token():
    token = persistent(new_token())
    yield token
    unlink_job(token)


@pytest.mark.parametrize("name", LOADS)
def test_sums_have_the_bits_of_workers_that_push_one_after_the_other(token, name):
    launch = turns_rig.ClosingLife(token, LOADS[name], 0)
    launch.run()
    found = launch.result()
    plain = Life_(persistent(new_token()), turns_rig.in_turn(LOADS[name]), 0)
    try:
        plain.run()
        crash_rig.compare(found, plain.result(), "with turns")
    finally:
        unlink_job(plain.server.token)
    if name in PAIRS:
        launch.core = launch.pair.copy.core
        crash_rig.compare(launch.result(), found, "the copy")


@pytest.mark.sampled
@pytest.mark.parametrize("name", KILLED)
def test_killed_at_many_points_the_bits_are_those_of_an_undisturbed_run(name):
    stride = 17 if name == "small" else 307
    _, tried, kills = crash(name, "everywhere", stride)
    assert kills > tried


@pytest.mark.parametrize("name", ["some-queued", "some-pair"])
def test_many_short_lives(name):
    (lives,) = crash(name, "shortly", 300)
    assert lives > 3
