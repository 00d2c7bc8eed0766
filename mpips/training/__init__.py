"""`mpips train`: from a configuration to a trained model.

Open `train.py` first: it runs a job and the work of each worker. `preflight.py` checks a job before MPI
starts, `prepare.py` reads the data and makes the task, `resume.py` chooses the checkpoint to start from, and
`epochs.py` is the loop of one worker over its epochs.
"""
