"""The scheduler: liveness and failures, the table of ranks, the progress of the run, the run recorder.

Open `scheduler.py` first. `recorder.py` writes status and metrics into the run directory, `rank_table.py`
holds the activity of each rank, `run_progress.py` computes the share that is done and the time that is left.
"""
