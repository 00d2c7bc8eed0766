"""The part of MPI that ranks need: launch, roles, topology, messages, watchdog, signals, failure reports.

mpi4py is imported here, in `mpips.transport` and where a job is wired (`mpips.session`). Open `launch.py`
first: it finds out how this process was launched, and loads MPI. `cluster.py` makes the communicator
and the roles of a job; `tree.py` has the gathers and reductions of workers, `array_mail.py` their arrays to
each other.
"""
