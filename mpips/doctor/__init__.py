"""`mpips doctor`: what of this machine would keep a job from running, and the command that mends it.

A check is a function of a `Situation`, which is all that it may look at, and returns one `Finding`.
Checks in this process need no MPI; those that do start ranks of their own (`launches`).
"""
