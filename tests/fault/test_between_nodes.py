"""Bytes between nodes, as runs show them, against the sizes of the tables and the bytes on the network."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import supervised
from multinode import Nodes
from supervised import Run

WIDTHS = (64, 128, 128, 10)  # of the layers of the model
STEP_BYTES = 4 * sum(a * b + b for a, b in itertools.pairwise(WIDTHS))
SIZES = ("train.epochs=100", "train.batch_size=64", "options.hidden=[128,128]")
NUMBERS = re.compile(r"push (\S+) pull (\S+) GB/s  between nodes (\S+) GB/s")


def bytes_on(nodes: Nodes, node: int) -> int:
    """Bytes that the interface of a node has sent and received."""
    for line in nodes.run(node, ["cat", "/proc/self/net/dev"]).splitlines():
        name, _, counts = line.strip().partition(":")
        if name == "eth0":
            return int(counts.split()[0]) + int(counts.split()[8])
    raise AssertionError("a node has no eth0")


def trained(nodes: Nodes, folder: Path, *more: str) -> tuple[Run, str]:
    """Train on two nodes: worker 1 is alone on the second one. Returns the run, and its progress."""
    hosts = f"{nodes.hosts[0]}:3,{nodes.hosts[1]}:1"
    where = ("--hosts", hosts, "-n", "4", "--servers", "1", "--progress", "plain")
    sets = [word for text in (*SIZES, *more) for word in ("--set", text)]
    command = supervised.command(*where, "mlp", "--train", "digits", *sets)
    launched = nodes.start_on_head(command, supervised.ENVIRONMENT, 100.0, folder)
    with launched:
        assert launched.wait() == 0, launched.tail(80)
    return Run(folder, launched), launched.stderr()


@pytest.mark.multinode
def test_bytes_between_nodes_are_those_of_the_worker_that_is_alone(
    nodes2: Nodes, tmp_path: Path
) -> None:
    before = bytes_on(nodes2, 1)
    run, said = trained(nodes2, tmp_path)
    moved = bytes_on(nodes2, 1) - before
    ranks: Any = run.read("ranks.json")
    worker = next(row for row in ranks["ranks"] if row["role"] == "worker 1")
    assert worker["host"] == nodes2.hosts[1]
    # Each step pushes every table once. The last heartbeat may be from some steps before the end.
    steps = json.loads((run.path / "result.json").read_text())["steps"]
    pushed, pulled = worker["pushed_bytes"], worker["pulled_bytes"]
    assert pushed % STEP_BYTES == 0
    assert steps // 2 <= pushed // STEP_BYTES <= steps
    assert pulled >= pushed
    assert worker["links"] == [[pushed, pulled]]
    links = {(k["worker_host"], k["server_host"]): k for k in ranks["load"]["links"]}
    first, second = nodes2.hosts
    assert set(links) == {(first, first), (second, first)}
    between = links[second, first]
    assert (between["pushed_bytes"], between["pulled_bytes"]) == (pushed, pulled)
    # The network has carried all of them, and the messages and looks around them.
    assert moved >= pushed + pulled
    # Under BSP both workers move as much; the windows of their rates differ a little.
    rates = [
        tuple(map(float, found)) for found in NUMBERS.findall(said) if "<" not in "".join(found)
    ]
    close = [abs(b - (push + pull) / 2) <= 0.3 * b for push, pull, b in rates if b]
    assert sum(close) > len(close) / 2, rates


@pytest.mark.multinode
def test_bytes_of_replicated_tables_are_not_counted_as_none_between_nodes(
    nodes2: Nodes, tmp_path: Path
) -> None:
    before = bytes_on(nodes2, 1)
    run, said = trained(nodes2, tmp_path, "table.placement=replicated")
    ranks: Any = run.read("ranks.json")
    assert bytes_on(nodes2, 1) - before > STEP_BYTES
    assert sum(row["pushed_bytes"] for row in ranks["ranks"]) > STEP_BYTES
    # Workers exchange them, and nothing counts by host what they send each other.
    assert "GB/s" in said
    assert "between nodes" not in said
