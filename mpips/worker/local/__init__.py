"""Tables under LocalSGD and DiLoCo: inner steps in the worker, outer steps at the servers.

handle.py   what a program uses
tables.py   the part of one worker while the job is at work: open it first
state.py    the image that survives a restart, in memory and in files
pace.py     how many inner steps a slower worker makes
start.py    start-up: where a worker starts from
"""
