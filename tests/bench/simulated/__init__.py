"""Measurements of one part of mpips on its own, with as many imitated ranks as wanted, without MPI.

A job of ten thousand workers does not fit into one machine, but the part of one rank does: `scheduler.py`
runs the real scheduler on messages that no rank has sent. Each module has a function `measure`, which returns
figures by name.
"""
