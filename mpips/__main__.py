"""`python -m mpips`: the command line, in one process or on every rank of a launch."""

from mpips.cli import main

if __name__ == "__main__":
    main()
