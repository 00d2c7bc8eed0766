"""The shared memory that survives a failed launch, and how the next launch continues in it.

Open `memory.py` first: it describes what servers leave in shared memory. `takeover.py` decides which memory a
launch uses. `restore.py` fills shards from a checkpoint. `saving.py` describes what a job saves and from what
it starts. `replica.py` and the files `replica_*.py` and `mirror.py` maintain a copy of each server on another
node. `node_tables.py` does the same for replicated tables, which the workers of each node share.
"""
