"""The worker as programs see it, with its handles of dense and embedding tables and its requests.

Open `worker.py` first, then `dense.py` and `embedding.py`, the handles. All of them use the `Connection` of
`connection.py`: channels, the clock, waits, staging memory. `connection_options.py` is what it starts with,
and `control_plane.py` is the scheduler as it uses it. Its parts do not import it: `data_plane.py` is the
connection as they use it.

Handles: `base.py` checks pushes, `keys.py` keys, and `requests.py` are the operations that do not block.
`noted.py` notes the versions of pulled arrays; `shard_reader.py` reads shards, `row_listing.py` all rows of
a table, and `row_changes.py` the rows that have changed. `by_use.py` and `ordering.py` send updates and
values in the order of their use. `held.py` is what handles of tables in a worker's own memory have in common.
The folder `paths` contains the paths of dense updates to a server.

Sums, copies and caches that tables of several workers need are parts, a folder for each: `groups`,
`replicated` and `local` tables, `feedback` of codecs, `node_rows`. `parts.py` lists them, `start.py` is what
start-up gives them, `table_part.py` what they do at work, and `sharing.py` makes their memory. `ahead`
contains look-aheads, which use `row_access.py`.

Clocks and checkpoints: `ticks.py` ends clocks, `arrivals.py` has the waits in front of the first tick,
`waits.py` those for other ranks, with their errors, `agreed_bound.py` the bound of SSP("auto"), and
`agreed_switch.py` the clock of a Switch that server 0 decides on.
`cut_records.py` and the folder `image` are what the worker writes for checkpoints, `best.py` writes the best
one. `collectives.py` has gathers and reductions, `messages.py` arrays from one worker to another.
`staging.py` is memory that servers read in place, and `buffers.py` divides a node's shared memory among all
buffers. `counts.py`, `spent.py` and `tracing.py` count, time and trace. `recorded.py` notes what pulls have
seen, and repeats it. `whole.py` refuses a worker after an operation that was cut off,
and `forgotten_clock.py` warns of a program that ends no clock.
"""
