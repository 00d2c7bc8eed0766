"""Exactly-once and order over real launches: oversubscribed, every transport, several nodes."""

import json
import sys
from pathlib import Path

import pytest
from launcher import Launch, launch
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


# Each transport has two models. tests/mpi has all pairs on up to five ranks.
@pytest.mark.parametrize(
    ("transport", "model"),
    [
        ("shm", "bsp"),
        ("shm", "asp"),
        ("rma", "ssp"),
        ("rma", "asp"),
        ("p2p", "bsp"),
        ("p2p", "asp"),
    ],
)
def test_six_ranks_on_this_machine_lose_and_double_nothing(transport: str, model: str) -> None:
    ring = {"ring_slots": 4, "slot_kib": 16, "servers": 2}
    found = result(
        launch(
            6, argv("conserve.py", steps=25, model=model, transport=transport, **ring), timeout=90
        )
    )
    assert_conserved(found)
    assert found["transports"].keys() == {transport}


@pytest.mark.parametrize("model", ["bsp", "asp"])
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


def test_bsp_has_the_same_bits_on_any_servers_transports_and_nodes(nodes2: Nodes) -> None:
    # Three workers each time.
    runs = {
        "1 server": launch(5, argv("digest.py", servers=1), timeout=60),
    }
    digests = {name: result(job)["digest"] for name, job in runs.items()}
    for n_servers in (2, 3):
        job = launch(4 + n_servers, argv("digest.py", servers=n_servers), timeout=60)
        digests[f"{n_servers} servers"] = result(job)["digest"]
    for transport in ("rma", "p2p"):
        job = launch(6, argv("digest.py", servers=2, transport=transport), timeout=60)
        digests[transport] = result(job)["digest"]
    job = nodes2.start([3, 3], argv("digest.py", servers=2), timeout=60, env=ENV)
    digests["two nodes"] = result(job)["digest"]
    assert len(set(digests.values())) == 1, digests


def test_groups_have_the_same_bits_on_any_servers_transports_and_nodes(nodes2: Nodes) -> None:
    # Three workers each time. Between nodes the group {0, 2} adds up by messages, or has a node to itself.
    def digest(job: Launch) -> object:
        return result(job)["digest"]

    apart = {
        f"{servers} servers, {transport}": digest(
            launch(
                4 + servers,
                argv("digest.py", servers=servers, transport=transport, topology=[[2, 0]]),
                timeout=60,
            )
        )
        for servers, transport in ((1, "auto"), (2, "rma"), (3, "p2p"))
    }
    spread = argv("digest.py", servers=2, topology=[[0, 2]])
    apart["two nodes"] = digest(nodes2.start([3, 3], spread, timeout=60, env=ENV))
    assert len(set(apart.values())) == 1, apart
    together = {
        "listed": digest(launch(5, argv("digest.py", servers=1, topology=[[1, 2]]), timeout=60)),
        # Server and worker 0 are on the first node.
        "node": digest(
            nodes2.start([3, 2], argv("digest.py", servers=1, topology="node"), timeout=60, env=ENV)
        ),
    }
    assert len(set(together.values())) == 1, together
    flat = digest(launch(5, argv("digest.py", servers=1), timeout=60))
    assert len({flat, *apart.values(), *together.values()}) == 3


def test_subgroups_have_the_same_bits_on_any_servers_transports_and_nodes(nodes2: Nodes) -> None:
    # Four workers, 0 and 2 on the first node: the subgroups span nodes, or each has one.
    def argument(servers: int, transport: str = "auto") -> list[str]:
        return argv("digest.py", servers=servers, transport=transport, topology=[[[0, 3], [2, 1]]])

    found = {
        f"{servers} servers, {transport}": result(
            launch(5 + servers, argument(servers, transport), timeout=60)
        )["digest"]
        for servers, transport in ((1, "auto"), (2, "rma"), (3, "p2p"))
    }
    for ranks in ([4, 3], [3, 4]):
        job = nodes2.start(ranks, argument(2), timeout=60, env=ENV)
        found[f"nodes of {ranks}"] = result(job)["digest"]
    assert len(set(found.values())) == 1, found
    whole = argv("digest.py", servers=1, topology=[[0, 1, 2, 3]])
    assert result(launch(6, whole, timeout=60))["digest"] not in found.values()


def test_one_process_and_one_worker_under_mpirun_have_the_same_bits() -> None:
    digests = {
        "local": result(launch(1, argv("digest.py"), timeout=60))["digest"],
        "two ranks": result(launch(2, argv("digest.py"), timeout=60))["digest"],
        "shm": result(launch(4, argv("digest.py", servers=2, transport="shm"), timeout=60))[
            "digest"
        ],
        "rma": result(launch(3, argv("digest.py", transport="rma"), timeout=60))["digest"],
        "p2p": result(launch(3, argv("digest.py", transport="p2p"), timeout=60))["digest"],
    }
    assert len(set(digests.values())) == 1, digests


def test_shared_memory_between_nodes_is_refused(nodes2: Nodes) -> None:
    job = nodes2.start([2, 2], argv("digest.py", servers=1, transport="shm"), timeout=60, env=ENV)
    with job:
        assert job.wait() == 69
        assert "are on different nodes; use 'auto' or 'rma'" in job.stderr()
