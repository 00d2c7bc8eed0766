"""The scheduler: liveness and failures, the table of ranks, the progress of the run, the run recorder.

Open `scheduler.py` first. `recorder.py` writes status and metrics into the run directory, `rank_table.py`
holds what each rank does, `run_progress.py` the share done and the time left.
"""
