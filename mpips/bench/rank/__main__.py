"""Run one program on this rank: python -m mpips.bench.rank PROGRAM OPTIONS FOLDER."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec

from mpips.bench.launching import Options
from mpips.bench.rank.ranks import BenchRanks
from mpips.mpi import launch


def main() -> None:
    """Run the chosen program and write its findings to FOLDER/<rank>.json. Only mpirun starts this module."""
    program, chosen, folder = sys.argv[1:]
    options = msgspec.json.decode(chosen, type=Options)
    ranks = BenchRanks(launch.load_mpi())
    ranks.pin()
    found = importlib.import_module(f"mpips.bench.rank.{program}").run(ranks, options)
    if found is not None:
        Path(folder, f"{ranks.rank}.json").write_bytes(msgspec.json.encode(found))


main()
