"""How the ranks of benchmarks start MPI: as ranks of jobs do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpips.testing import nodes

YIELDS = ["-x", "OMPI_MCA_mpi_yield_when_idle=1"]


def test_nothing_starts_mpi_before_its_settings_are_made() -> None:
    # An import of mpi4py.MPI starts MPI, with waits that keep the core from other ranks.
    code = "import sys, mpips.bench.rank.ranks; sys.exit('mpi4py.MPI' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(("ranks_per_node", "yields"), [((1, 1), False), ((1, 2), True)])
def test_ranks_of_imitated_nodes_yield_when_together_they_have_more_than_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks_per_node: tuple[int, int], yields: bool
) -> None:
    monkeypatch.setattr(nodes.os, "cpu_count", lambda: 2)
    imitated = nodes.Nodes.__new__(nodes.Nodes)  # its flags only: no namespaces, no root
    imitated.hosts, imitated._folder = ["node0", "node1"], tmp_path
    flags = imitated.mpirun_flags(ranks_per_node)
    assert (flags[-2:] == YIELDS) == yields
