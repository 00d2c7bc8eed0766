"""`mpips plan`: what a job will need and how fast it will be, before it is started and without MPI.

Open `planning.py` first. Everything that can be known is computed by the functions that a job uses: roles,
shards and regions by `assign` and `place`, memory by those of `needs.py`, rows from the keys of the data
(`rows.py`), the size of a checkpoint from its empty file (`checkpoint_size.py`). The task makes some steps on
servers in this process (`rehearsal.py`, `stage.py`, `watching.py`): they show what a step sends, and the
seconds of computing. Only the time of a step is a model (`predict.py`), and it is used only where it was
measured to be right. `report.py` writes text, JSON and a plot.
"""
