"""`python -m simulation`: simulated jobs."""

import sys

import mpi4py


def main() -> int:
    """Run histories without MPI: processes are forked."""
    mpi4py.rc.initialize = False
    from simulation.search import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
