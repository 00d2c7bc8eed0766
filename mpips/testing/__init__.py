"""Runs that are disturbed on purpose: kills, full disks, clocks that jump, imitated nodes.

`mpips bench recovery` and the fault tests use this package. Open `matrix.py` first: it lists the faults and
their combinations. `killing.py` makes the faults happen in a run, `beside.py` adds a full disk or a clock
that jumps, `nodes.py` imitates nodes by namespaces, and `counted.py` is the task that counts its updates.
"""
