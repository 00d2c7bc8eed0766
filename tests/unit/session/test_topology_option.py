"""The option `topology` of a job in one process: values that are accepted, and sentences about others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpips
from mpips.config.options import SessionOptions
from mpips.rundir.files import PlacementChoice
from mpips.session import startup
from mpips.session.placing import _fits
from mpips.session.session import check_launch

TABLES = [mpips.DenseTable("t", (10,), mpips.SGD(1.0))]


def main(worker: mpips.Worker) -> float:
    table = worker.table("t")
    table.push(np.ones(10, np.float32))
    worker.clock()
    return float(table.pull()[0])


@pytest.mark.parametrize(
    "topology",
    [
        "flat",
        "node",
        "auto",
        [],
        [[]],
        [[0]],
        ((0,),),
        [[[0]]],
        [[np.int64(0)]],
        [np.array([0])],
        np.array([[0]]),
    ],
)
def test_a_job_of_one_worker_has_no_groups(topology: Any) -> None:
    assert mpips.run(main, TABLES, topology=topology, verbose=False).value == -1.0


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            "NODE",
            "topology = 'NODE': must be one of auto, flat, node or a list; did you mean 'node'?",
        ),
        (3, "topology = 3: must be one of auto, flat, node or a list"),
        ([0, 1], "topology[0] = 0: must be a list"),
        ([["0"]], "topology[0][0] = '0': must be a whole number or a list"),
        ([[0, 1.5]], "topology[0][1] = 1.5: must be a whole number or a list"),
        ([[[0, [1]]]], "topology[0][0][1] = [1]: must be a whole number"),
        ([[0, [1, 2]]], "cluster.topology: there is no worker 1; the job has workers 0 to 0"),
        ([[0, [0]]], "cluster.topology: worker 0 is in two groups, or twice in one"),
        ([[-1]], "cluster.topology: there is no worker -1; the job has workers 0 to 0"),
        ([[0, 1]], "cluster.topology: there is no worker 1; the job has workers 0 to 0"),
        ([[0], [0]], "cluster.topology: worker 0 is in two groups, or twice in one"),
    ],
)
def test_a_wrong_value_is_one_sentence(topology: Any, message: str) -> None:
    with pytest.raises(mpips.ConfigError) as caught:
        mpips.run(main, TABLES, topology=topology, verbose=False)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("groups", "fits"),
    [
        ((), True),
        (((0, 2), (1, 3)), True),
        (((0, 4),), False),  # no such worker
        (((0, 1), (1, 2)), False),
        (((1,),), False),
        (((2, 0),), False),  # not in order
    ],
)
def test_a_stored_decision_with_wrong_groups_is_made_anew(
    groups: tuple[tuple[int, ...], ...], fits: bool
) -> None:
    choice = PlacementChoice(digest="", replicated=(), reasons=(), groups=groups)
    assert _fits(choice, [], 4) is fits


@pytest.mark.parametrize(
    ("subgroups", "fits"),
    [
        ((), True),
        (((0, 2),), True),
        (((0, 2), (1, 3)), True),
        (((1, 3), (0, 2)), False),  # not in order
        (((0, 1, 2, 3),), False),  # the whole group
        (((0, 4),), False),  # not a worker of the group
        (((0, 1), (1, 2)), False),
        (((2,),), False),
    ],
)
def test_a_stored_decision_with_wrong_subgroups_is_made_anew(
    subgroups: tuple[tuple[int, ...], ...], fits: bool
) -> None:
    groups = ((0, 1, 2, 3),)
    choice = PlacementChoice(
        digest="", replicated=(), reasons=(), groups=groups, subgroups=subgroups
    )
    assert _fits(choice, [], 5) is fits


def test_groups_are_compared_with_the_number_of_ranks_before_a_launch() -> None:
    check_launch(SessionOptions(servers=2, topology=((0, 1),)), 5)
    with pytest.raises(mpips.ConfigError, match="no worker 2; the job has workers 0 to 1"):
        check_launch(SessionOptions(servers=2, topology=((0, 2),)), 5)
    with pytest.raises(mpips.ConfigError, match="servers = 7 is too many for 5 ranks"):
        check_launch(SessionOptions(servers=7, topology=((0, 1),)), 5)
    check_launch(SessionOptions(topology=((0, 2),)), 5)


def test_other_groups_are_other_memory() -> None:
    options = SessionOptions(topology="node")
    prints = [
        startup.job_fingerprint(TABLES, options, groups)
        for groups in ((), ((0, 1),), ((0, 1), (2, 3)), ((0, 2), (1, 3)))
    ]
    assert len(set(prints)) == len(prints)
    assert startup.job_fingerprint(TABLES, options) == prints[0]
