"""Exactly-once and order over real launches on several nodes; tests/mpi has those of one."""

import json
import sys
from pathlib import Path

import pytest
from launcher import Launch, launch
from long_runs import LONG
from multinode import Nodes

PROGRAMS = Path(__file__).with_name("programs")
ENV = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def result(job: Launch) -> dict:
    """The line of JSON that the program printed."""
    with job:
        assert job.wait() == 0, job.tail()
        return json.loads(job.stdout().strip().splitlines()[-1])


def argv(program: str, **options: object) -> list[str]:
    """A program of this folder with options."""
    return [sys.executable, str(PROGRAMS / program), json.dumps({"timeout_s": 60, **options})]


def assert_conserved(found: dict) -> None:
    """Every push arrived once and was applied once."""
    assert found["exact"] == [True, True, True]
    assert all(found["nonzero"])
    assert found["sent"] == found["pushed"] == found["applied"] > 0


@pytest.mark.parametrize("model", ["asp", pytest.param("bsp", marks=pytest.mark.long)])
def test_two_nodes_lose_and_double_nothing(nodes2: Nodes, model: str) -> None:
    job = nodes2.start(
        [3, 3], argv("conserve.py", steps=15, model=model, servers=2), timeout=90, env=ENV
    )
    found = result(job)
    assert_conserved(found)
    # Every worker shares a node with one of the servers.
    assert found["transports"] == {"rma": 3, "shm": 3}


def test_three_nodes_lose_and_double_nothing_by_messages(nodes3: Nodes) -> None:
    options = {"steps": 10, "model": "ssp", "servers": 2, "transport": "p2p"}
    found = result(nodes3.start([2, 2, 2], argv("conserve.py", **options), timeout=90, env=ENV))
    assert_conserved(found)


def digest(job: Launch) -> object:
    return result(job)["digest"]


def on_ranks(n: int, **options: object) -> Launch:
    """digest.py on ranks of this machine."""
    return launch(n, argv("digest.py", **options), timeout=60)


def on_nodes(nodes: Nodes, ranks: list[int], **options: object) -> Launch:
    """digest.py on two nodes."""
    return nodes.start(ranks, argv("digest.py", **options), timeout=60, env=ENV)


# Servers and transport of jobs of this machine; by day two that differ in both.
SHAPES = [(1, "auto"), (3, "p2p"), *([(2, "auto"), (3, "auto"), (2, "rma"), (2, "p2p")] * LONG)]
OF_GROUPS = [(3, "p2p"), *([(1, "auto"), (2, "rma")] * LONG)]


def test_bsp_has_the_same_bits_on_any_servers_transports_and_nodes(nodes2: Nodes) -> None:
    # Three workers each time.
    found = {
        f"{servers} servers, {transport}": digest(
            on_ranks(4 + servers, servers=servers, transport=transport)
        )
        for servers, transport in SHAPES
    }
    found["two nodes"] = digest(on_nodes(nodes2, [3, 3], servers=2))
    assert len(set(found.values())) == 1, found


def test_groups_have_the_same_bits_on_any_servers_transports_and_nodes(nodes2: Nodes) -> None:
    # Three workers each time. Between nodes the group {0, 2} adds up by messages, or has a node to itself.
    apart = {
        f"{servers} servers, {transport}": digest(
            on_ranks(4 + servers, servers=servers, transport=transport, topology=[[2, 0]])
        )
        for servers, transport in OF_GROUPS
    }
    apart["two nodes"] = digest(on_nodes(nodes2, [3, 3], servers=2, topology=[[0, 2]]))
    assert len(set(apart.values())) == 1, apart
    together = {
        "listed": digest(on_ranks(5, servers=1, topology=[[1, 2]])),
        # Server and worker 0 are on the first node.
        "node": digest(on_nodes(nodes2, [3, 2], servers=1, topology="node")),
    }
    assert len(set(together.values())) == 1, together
    assert not set(apart.values()) & set(together.values())
    if LONG:
        flat = digest(on_ranks(5, servers=1))
        assert len({flat, *apart.values(), *together.values()}) == 3


def test_subgroups_have_the_same_bits_on_any_servers_transports_and_nodes(nodes2: Nodes) -> None:
    # Four workers, 0 and 2 on the first node: the subgroups span nodes, or each has one.
    groups = [[[0, 3], [2, 1]]]
    found = {
        f"{servers} servers, {transport}": digest(
            on_ranks(5 + servers, servers=servers, transport=transport, topology=groups)
        )
        for servers, transport in OF_GROUPS
    }
    for ranks in ([4, 3], *([[3, 4]] * LONG)):
        found[f"nodes of {ranks}"] = digest(on_nodes(nodes2, ranks, servers=2, topology=groups))
    assert len(set(found.values())) == 1, found
    if LONG:
        assert digest(on_ranks(6, servers=1, topology=[[0, 1, 2, 3]])) not in found.values()


def test_one_process_and_one_worker_under_mpirun_have_the_same_bits() -> None:
    digests = {"local": digest(on_ranks(1)), "rma": digest(on_ranks(3, transport="rma"))}
    if LONG:
        digests |= {
            "two ranks": digest(on_ranks(2)),
            "shm": digest(on_ranks(4, servers=2, transport="shm")),
            "p2p": digest(on_ranks(3, transport="p2p")),
        }
    assert len(set(digests.values())) == 1, digests


def test_shared_memory_between_nodes_is_refused(nodes2: Nodes) -> None:
    job = nodes2.start([2, 2], argv("digest.py", servers=1, transport="shm"), timeout=60, env=ENV)
    with job:
        assert job.wait() == 69
        assert "are on different nodes; use 'auto' or 'rma'" in job.stderr()
