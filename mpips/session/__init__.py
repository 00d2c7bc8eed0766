"""One job from start-up to its end: over MPI (`job.py`) or with all roles in one process (`local.py`).

Open `session.py` first: `run` is `mpips.run`. `links.py` makes the channels of all ranks, `ending.py` ends
a job that fails or is interrupted, `calling.py` calls a worker's function.
"""
