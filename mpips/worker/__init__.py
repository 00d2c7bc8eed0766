"""The worker as programs see it, with its handles of dense and embedding tables and its requests.

Open `worker.py` first, then `dense.py` and `embedding.py`. All of them use the `Connection` of
`connection.py`: channels, the clock, waits, staging memory. The folder `paths` contains the paths of dense
updates to a server.

Sums, copies and caches that tables of several workers need are parts (`parts.py`), a folder for each: groups,
replicated and local tables, feedback of codecs, rows of a node. `ahead` contains look-aheads.

`ticks.py` ends clocks, `waits.py` has the waits with their errors, `cut_records.py` and the folder `image`
what the worker writes for checkpoints, `collectives.py` gathers and reductions, `by_use.py` `push_pull`.
`whole.py` refuses a worker after an operation that was cut off.
"""
