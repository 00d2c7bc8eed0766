"""`mpips doctor`: find what prevents jobs from running on this machine, and the command that fixes it.

A check is a function that takes a `Situation`, its only source of facts, and returns a `Judgement`. Checks
in this process need no MPI. Checks that need MPI judge the reports of ranks that `launches` starts. The file
to open first is `checks`.
"""
