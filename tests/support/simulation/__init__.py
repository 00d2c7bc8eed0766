"""A simulator of jobs: servers, workers and scheduler in one thread, without MPI and without real time.

`world.py` runs the actors one at a time in an order drawn from a seed, and gives them a clock of its own.
`memory.py` is shared memory of several nodes that outlives a launch, `comm.py` a communicator of MPI,
`cluster.py` the ranks as start-up sees them, `network.py` and `links.py` the channels between workers and
servers, `messages.py` the messages of the scheduler, `disk.py` the checkpoints. `launch.py` starts the ranks
of one launch and plays their roles, `program.py` computes what workers do and what must come out,
`history.py` runs launches one after the other until the job is done, `search.py` many histories, and
`planted.py` has defects that must be found.
docs/design/simulation.md lists what is real and what is imitated.
"""
