"""One job: start-up, roles at work, shutdown.

Open `session.py` (`mpips.run`) or `init.py` (`mpips.init`) first, then `driver.py`, which gives every rank a
role.

`job.py` is a job from its start to its end. `startup.py` makes its parts (`parts.py`) on each rank, with
`placing.py` for what "auto" decides, `buffers.py` for the sizes of buffers, `initial_values.py` and
`links.py`, the connections between workers and servers; `expected_rows.py` checks the memory of declared
rows, and `storage_options.py` what tables larger than memory do not combine with.
`roles.py` are the roles at work, `decision_log.py`
prints what servers decide meanwhile, `shutdown.py` is the end of a job that succeeds, and `ending.py` that of
one that fails; `exits.py` has the ends of a script.

`recording.py` begins a record of the job, or the replay of one; `breaks.py` copies tables in a replay.

A job of one rank has no MPI: `own_link.py` is the connection of its worker with its server, and
`mpips.scheduler.own_worker` that with its scheduler.

Scripts: `script.py` is the job of a process that goes on by itself, `script_job.py` what jobs of torch,
keras, jax and sklearn have in common, `script_program.py` the tables that a script declares,
`chosen_stages.py` the choice of a model's stages before the start, `reporting.py`
its reports of progress, and `library_progress.py` those of Keras, JAX and others. `calling.py` calls a worker
function, and `versions.py` refuses libraries that are too old.

`running.py` is what a program has of a job at work, `observing.py` and `tracing.py` are metrics and
traces, `final_tables.py` reads tables behind the end, `clocks_at_end.py` compares the clocks of all workers.
"""
