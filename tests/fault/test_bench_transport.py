"""`mpips bench transport` on imitated nodes: every ratio and figure comes out."""

from __future__ import annotations

import json
import subprocess
import sys

import launcher
import pytest
from multinode import Nodes

from mpips.bench.transport import BETWEEN_NODES


@pytest.mark.multinode
def test_the_transport_suite_finds_all_ratios_between_nodes(nodes2: Nodes) -> None:
    # The suite makes nodes of its own; `nodes2` is there for its reasons to skip.
    options = ["--quick", "--repetitions", "2", "--nodes", "2", "--json"]
    command = [sys.executable, "-m", "mpips", "bench", "transport", *options]
    done = subprocess.run(
        command,
        env=launcher.site_environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(BETWEEN_NODES) <= set(found["ratios"])
    assert set(found["bars"]) == set(BETWEEN_NODES)
    assert {name for name in found["ratios"] if name.startswith("tcp_p2p_")}
    assert all(ratio > 0 for ratio in found["ratios"].values())
    assert {"tcp_latency", "tcp_bandwidth", "tcp_rma_rows_push", "tcp_p2p_rows_pull"} <= set(
        found["figures"]
    )
    assert found["skipped"] == {}
