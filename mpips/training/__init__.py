"""`mpips train`: the loop over epochs, and what a job starts from.

Open `train.py` first. `epochs.py` is a worker's way through its samples, `preflight.py` refuses bad jobs
before MPI starts, `resume.py` chooses the checkpoint.
"""
