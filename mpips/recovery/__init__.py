"""The memory that survives a failed launch, and how the next one continues in it.

Open `memory.py` first: it says what servers leave in shared memory. `takeover.py` decides which memory a
launch works in; `restore.py` fills shards from a checkpoint; `saving.py` is what a job saves and starts
from. `replica.py` and the files beside it keep a copy of each server on another node.
"""
