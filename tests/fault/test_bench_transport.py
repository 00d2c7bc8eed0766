"""The suites `transport`, `network` and `links` on imitated nodes: every ratio and figure comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import launcher
import pytest
from multinode import Nodes

from mpips.bench import network
from mpips.bench.transport import BETWEEN_NODES
from tests.bench import links
from tests.bench.suites import OWN


def bench(suite: str, *options: str) -> dict[str, Any]:
    """Run a suite quickly on imitated nodes; return its findings."""
    command = ["tests.bench"] if suite in OWN else ["mpips", "bench"]
    done = subprocess.run(
        [sys.executable, "-m", *command, suite, "--quick", "--nodes", "2", "--json", *options],
        env=launcher.site_environment(),
        cwd=launcher.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert found["skipped"] == {}
    return found


@pytest.mark.long
@pytest.mark.multinode
def test_the_transport_suite_finds_all_ratios_between_nodes(nodes2: Nodes) -> None:
    # The suite makes nodes of its own; `nodes2` is there for its reasons to skip.
    found = bench("transport", "--repetitions", "2")
    assert set(BETWEEN_NODES) <= set(found["ratios"])
    assert set(found["bars"]) == set(BETWEEN_NODES)
    assert {name for name in found["ratios"] if name.startswith("tcp_p2p_")}
    assert {"tcp_latency", "tcp_bandwidth", "tcp_rma_rows_push", "tcp_p2p_rows_pull"} <= set(
        found["figures"]
    )


@pytest.mark.multinode
def test_the_network_suite_limits_links_and_counts_the_bytes_on_them(nodes2: Nodes) -> None:
    ratios = bench("network", "--repetitions", "1")["ratios"]
    assert set(network.BETWEEN_NODES) <= set(ratios)
    # Codes, scales, and a little of the protocol, which is more for whoever waits longer.
    assert 0.47 <= ratios["wire_bytes_bf16"] < 0.54
    assert 0.24 <= ratios["wire_bytes_int8"] < 0.31
    assert 0.028 <= ratios["wire_bytes_onebit"] < 0.06
    assert 0.009 <= ratios["wire_bytes_topk"] < 0.04
    assert 0.009 <= ratios["wire_bytes_randomk"] < 0.04


@pytest.mark.multinode
def test_the_suite_of_links_counts_the_bytes_of_groups(nodes2: Nodes) -> None:
    ratios = bench("links", "--repetitions", "1")["ratios"]
    assert set(ratios) == set(links.RATIOS)
    assert 0.3 < ratios["node_bytes"] < 0.5
    # The different keys of three batches of 8,192 are 0.8 times those of each.
    assert 0.7 < ratios["node_rows_bytes"] < 0.92
