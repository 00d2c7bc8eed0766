"""The run directory: its files, the writer of each file, and the identity of a run.

Open `directory.py` first: `RunFolder` names every file. `files.py` has the records in them,
`requests.py` what `mpips stop` and `mpips checkpoint` ask of the supervisor, `members.py` the hosts that
are lent to a run, and `producers.py` the programs beside it.
"""
