"""Run one program on this rank: python -m mpips.bench.rank MODULE:FUNCTION OPTIONS FOLDER."""

from __future__ import annotations

import importlib
import sys
import typing
from pathlib import Path

import msgspec

from mpips.bench.rank.ranks import BenchRanks
from mpips.mpi import launch


def main() -> None:
    """Run the chosen program and write its findings to FOLDER/<rank>.json. Only mpirun starts this module."""
    program, chosen, folder = sys.argv[1:]
    module, _, name = program.partition(":")
    ranks = BenchRanks(launch.load_mpi())
    run = getattr(importlib.import_module(module), name)
    # The program says which options it takes.
    options = msgspec.json.decode(chosen, type=typing.get_type_hints(run)["options"])
    ranks.pin(getattr(options, "cores", ()))
    found = run(ranks, options)
    if found is not None:
        Path(folder, f"{ranks.rank}.json").write_bytes(msgspec.json.encode(found))


main()
