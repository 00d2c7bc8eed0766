"""Faults that are injected into a running run on purpose, and a report on how the run survived them.

Open `loop.py` first: it injects the faults of a schedule (`schedule.py`) one after the other and observes the
run after each (`observing.py`). `processes.py` finds and signals processes of a run; the tests and
`mpips bench` kill ranks through it. `faults.py`, `links.py` and `storage.py` have the kinds of faults,
`mounts.py` refuses disks that others use, `undo.py` takes back what lasts, `report.py` judges the promises,
and `launching.py` starts a run of its own.
"""
