"""A trained model without its job: load it from a checkpoint, predict, evaluate. No MPI, no servers.

Open `model.py` first: `load_model` makes the task of the job again, with the scale of the features and the
tables of the checkpoint. `stored_tables.py` stands in for the worker and its tables, `samples.py` turns
arrays, frames and files into samples, and `writing.py` writes predictions. `serving.py` answers requests over
HTTP, with the model that `current.py` holds and the samples that `parsing.py` makes of requests. Files that
make graphs and exports of a model take a `ModelContent` (`content.py`), since the model calls them.
"""
