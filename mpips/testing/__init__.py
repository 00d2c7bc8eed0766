"""Runs that are disturbed on purpose: kills, full disks, clocks that jump, imitated nodes.

The suite `kills` of tests/bench and the fault tests use this package; the suites of `mpips bench` use its
nodes. Open `matrix.py` first: it lists the faults and their combinations. `killing.py` makes the faults
happen in a run, `beside.py` adds a full disk or a clock that jumps, `nodes.py` imitates nodes by namespaces,
and `counted.py` is the task that counts its updates.
"""
