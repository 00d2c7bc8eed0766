"""`mpips plan`: what a job will need and how fast it will be, before it is started and without MPI.

Nothing is estimated that can be known: roles, shards and regions come from the functions that a job uses
(`assign`, `place`), keys from the data, the size of a checkpoint from its empty file. What a step sends is
found by letting the task make some steps on servers in this process (`rehearsal`), which also gives the
seconds of computing. Only the time of a step on other hardware is a model (`predict`), and says so.
"""
