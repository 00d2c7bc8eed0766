"""One operating-system process and its forked children. `forked.py` is all of it; it needs no MPI."""
