"""Runs that are disturbed on purpose: kills, full disks, clocks that jump, imitated nodes.

Both `mpips bench recovery` and the tests use it. `matrix.py` lists what is combined, `killing.py` does it,
`nodes.py` imitates nodes by network namespaces, `counted.py` is the task whose updates can be counted.
"""
