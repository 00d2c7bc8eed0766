"""The image of a worker, which survives a restart in memory that outlives a launch, and in checkpoints.

Residuals (feedback) and the state of local training (local) contribute named arrays.

start.py    start-up: find, check, and take or refuse; other numbers of workers
memory.py   the worker's memory: halves that are written in turn, and their tags
files.py    the worker's files for checkpoints
"""
