"""`mpips run` and `mpips submit`: start a job under mpirun, restart it after failures, hand it to Slurm.

Open `supervise.py` first: the loop over attempts. `plan.py` is what it is given, `attempt.py` runs one
mpirun, `stopping.py` passes signals on, `verdict.py` finds the cause of an end, `conclusion.py` records it
and `restarts.py` decides whether another attempt follows. `lease.py` lets one supervisor at a time run a run
directory; `hosts.py` and `launcher.py` choose hosts and build the command. `clearing.py` ends what is left of
earlier attempts on all hosts: `reap.py` is the command that it runs there, `asking.py` decides when which
host is asked and which one is bad, `host_step.py` starts the processes. `left_memory.py` removes shared
memory at the end or leaves it, `cancelled.py` removes it on the nodes of a Slurm job that was cancelled,
`suspended.py` finds suspended ranks. `script.py` runs a user's own script
in a rank; `submit.py` writes batch scripts. `standby.py` starts the next attempt beforehand,
`standby_rank.py` is a rank of it, and `early_start.py` lets it begin while a failed launcher still ends.
`scaling.py` changes the size of a job, and `crowding.py` delays that after the loss of a host until all
clocks have ended. `elastic.py` lets the size follow the hosts: `membership.py` decides, `host_sources.py`
observes them, and `slurm_agent.py` reaches hosts of other Slurm jobs. `hydra.py` reads what the launcher of
MPICH and Intel MPI prints about the end of a rank.

`producers.py` is the supervisor's end of [producers], programs that push samples: `producer_process.py` is
the process that runs them, `producer_states.py` decides, `member_processes.py` finds and ends the processes
of a program, `member_watcher.py` ends them if all else is killed, `member_log.py` bounds their logs, and
`member_queues.py` has their queues.

`record.py` writes the state of a run between attempts, `block.py` and `host_names.py` are texts for people.
`sweep.py` runs one job with different options, each in a `child.py`, and `trial_watch.py` shows the trial.
"""
