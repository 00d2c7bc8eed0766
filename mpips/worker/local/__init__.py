"""Tables under LocalSGD and DiLoCo: inner steps in the worker, outer steps at the servers.

handle.py   what a program uses
tables.py   the part of one worker while the job is at work: open it first
part.py     what start-up makes
state.py    what survives a restart, as a part of the worker's image (mpips.worker.image)
pace.py     how many inner steps a slower worker makes
"""
