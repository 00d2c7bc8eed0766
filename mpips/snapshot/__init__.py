"""The consistent cut of all servers while training continues, and the checkpoint that is written from it.

Open `coordinator.py` first: it runs on the scheduler and decides when there is a cut and at which clock.
`worker_part.py` writes the cut records of one worker, `server_part.py` does the work of one server, and
`copy.py` copies a server's shards.

Protocol. A cut is the state of all servers after the same part of every worker's program. The `Coordinator`
decides that there is a cut and at which clock. At that place of its program each worker puts a cut record
into its rings at all servers. A server consumes nothing behind a cut record: it holds that ring. When the
rings of all workers that have not finished are held, the server's `ServerPart` copies its shards and
releases the rings. It writes the copy later, in short steps between its drains, while training continues.
native/src/server/server_snapshot.cpp shows why the cut is consistent and cannot deadlock.

    consistency  Coordinator            workers            servers
    ----------------------------------------------------------------------------------------------
    BSP, SSP *   Propose(id, C)  -->
                                 <--  Agreed(ok, now)    ok: now < C **; a worker that reaches C waits
                 Commit(id, C)   -->                -->  expect the records of cut id
    ASP          Commit(id, 0)   -->                -->  the same, at each worker's next tick
                                      cut record    -->  hold the ring; all held: copy, release
                 <----------------------------- Taken    or, held for too long: Taken(not ok)
                 Write(id) ---------------------------->  all write together, between drains
                 <----------------------------- Saved    path or error

    *  and all jobs with groups of workers (mpips.worker.connection_options.needs_common_clock)
    ** and the worker does not repeat C after a restart in memory: some server has records of C then

Before `Write` the coordinator may give the cut up. It then sends `Abandon` instead: to the workers, and to
the servers if they have a `Commit`. Every server also answers an `Abandon` with `Saved`. No cut gets both
`Write` and `Abandon`, so servers begin to write together only when all of them have their copies. The
records of a cut that was given up hold no ring: servers consume them without effect, also those that arrive
later.

Only one cut is under way at a time. The next one begins after the last `Saved` of the one before, so
checkpoints never overlap. Triggers in between are skipped and counted.

Gathers, which here include reductions, barriers, and waits for the samples of a stream. A worker that waits
for other workers in a gather can write its cut record there only if the cut has no common clock, the worker
has pushed nothing since its tick, and its position is known. Otherwise (it has pushed since then, or it is at
a clock before the common one) it must leave the gather first, so the other workers must come to the gather.
They cannot come if they wait for an answer to a record behind their own cut records: servers hold those rings
until the first worker comes to the cut. Such a cut would last until the servers give it up. Three messages
prevent this. Each worker sends them about itself, in its program's order, to the scheduler over one
communicator and tag, so MPI delivers them in that order. Only the coordinator reads them:

    Waits(id, "before")   a gather has begun in which the worker cannot write its record of cut id
    Waits(id, "over")     that gather has ended
    Waits(id, "behind")   the worker has waited for a server that has not consumed its record of cut id

The worker itself withdraws "before" by "over", so the coordinator's set of workers in such a gather is
exact, except for messages under way. "behind" holds until the cut ends, because only the end of the cut
releases the ring. When both are present, the coordinator gives the cut up without a warning and begins it
again when no worker is in such a gather. Without a common clock it alternates: the next attempt is at one
clock, and the one after a further such failure is at each worker's next tick again. It needs both: workers
that meet in a gather at every clock can only be cut at the same clock, workers whose clocks are far apart
only at different ones. A message that is under way while its gather ends costs one more attempt and nothing
else, because a cut that is given up has no effect.

A change of the size of a job (`mpips scale`) is such a cut, requested by Ask("end") with the reason
`SCALE_IN_MEMORY`. Its Commit has the folder of the run's exchange, in shared memory: workers write their
images there and servers the checkpoint (mpips.recovery.exchange). If the servers cannot write it, the
coordinator begins another cut at once, whose checkpoint is a file.

Best values (`mpips.training.best`): all workers wait at one place of their programs for a cut there. Worker 0
sends Ask("best"). The coordinator gives up a cut that is not copied yet, because the workers do not come to
its place, sends Commit(id, HERE), and sends BestProgress until the checkpoint is durable.

Sequence of one checkpoint, from its trigger to the renamed folder. Each line names a file and a function;
files without a folder are in this one.

Triggers:

    coordinator.py          Coordinator.poll: the interval `every_s` is over
    coordinator.py          Coordinator._begin: the next multiple of `every_steps` (BSP, SSP)
    worker_part.py          WorkerPart.note_tick: the same under ASP, at the worker's tick; sends Ask("steps")
    worker/worker.py        Worker.checkpoint: a call of the program; WorkerPart.ask sends Ask("call")
    mpi/early_signals.py    note: SIGUSR1 before the job is at work; its time is stored
    mpi/signals.py          SignalRequests._note: SIGUSR1, of which `take` makes Ask("signal")
    mpi/signals.py          SignalRequests._end: SIGTERM or SIGINT, of which `take` makes Ask("end")
    supervisor/attempt.py   Attempt.ask_to_leave: writes leave.json and sends SIGUSR1, of which
                            SignalRequests.take makes Ask("end"); for signals to `mpips run`
    jobs/*.sbatch           #SBATCH --signal: Slurm warns by SIGUSR1 before the allocation's time limit
    jobs/batch.sh           launch: passes the warning on to mpirun or `mpips run`; with on_usr1 = "exit"
                            the job ends after the checkpoint

SIGUSR2 triggers no checkpoint: it writes the stacks of all threads. The checkpoint at the end of training
needs no cut: every ring is empty then, and stays empty (`ServerPart.save`).

From the trigger to the decision:

    mpi/control.py          Client.poll: reads requests of signals; Client.tell sends any Ask to the scheduler
    scheduler/scheduler.py  Scheduler._advance: reads requests of signals to the scheduler's own process
    scheduler/scheduler.py  Scheduler._take: passes a received Ask to the coordinator
    coordinator.py          Coordinator.ask: drops repeated requests; _request stores the others
    coordinator.py          Coordinator.poll: _begin and _propose choose the cut's number and clock
    scheduler/scheduler.py  Scheduler.send_to_worker: sends Propose
    mpi/control.py          Client._take_cut: receives it
    mpi/pending.py          PendingCut.take: stores the proposal and returns Agreed
    coordinator.py          Coordinator.agreed: _decide, then _commit when all workers have agreed
    scheduler/scheduler.py  Scheduler.send_to_servers, Scheduler.send_to_worker: send Commit

From the decision to the copies:

    mpi/control.py          Client._take_cut: calls PendingCut.take on a worker, ServerPart.take on a server
    server_part.py          ServerPart.take: makes the server's core expect the cut
    worker/ticks.py         Ticks.tick: calls WorkerPart.at_tick after the tick
    worker/collectives.py   Collectives._wait: calls WorkerPart.check_in_gather while it waits
    worker/messages.py      ArrayMessages._wait: the same in a send or receive
    worker/connection.py    Connection.keep_pace: calls WorkerPart.while_waiting while it waits
    worker_part.py          WorkerPart.at_tick, WorkerPart.while_waiting: _put_tick at the place of the cut
    checkpoint/position.py  Position.part: makes the payload of clock, cursor and random state at the tick
    worker/cut_records.py   CutRecords.write: writes one record into the ring of every server
    ring_control.cpp        RingWriter::write_cut: writes it (native/src/ring)
    server_snapshot.cpp     ServerCore::handle_cut: holds the ring at the record (native/src/server)
    session/roles.py        Roles._serve: calls ServerPart.poll between two drains of Server.serve
    server_part.py          ServerPart.poll: _come_to_cut calls _copy when all rings are held
    copy.py                 ServerCopy.copy: copies the shards
    server_part.py          ServerPart._copy: releases the rings and sends Taken
    scheduler/scheduler.py  Scheduler.take_cut: passes it to the coordinator
    coordinator.py          Coordinator.taken: sends Write when all servers have their copies

From the copies to the name:

    server_part.py          ServerPart.take: begins _write, of which `poll` does one step at a time
    checkpoint/writer.py    CheckpointWriter.steps: all steps; server 0 alone does those marked "0:"
    checkpoint/plan.py      plan_tables: all servers make the same plan
    checkpoint/folder.py    0: FolderLock, sweep, make_temporary: make a temporary folder
    checkpoint/structure.py 0: create_file: makes the HDF5 file with its structure
    checkpoint/sinks.py     ParallelSink.open or PosixSink.open
    checkpoint/sorting.py   RowExchange.move: brings rows of embedding tables into the order of the file
    checkpoint/sinks.py     `write`, once for each block; `finish` brings the data to the disk; `close`
    checkpoint/record.py    0: make_manifest, check_file, write_manifest
    rundir/directory.py     0: Supervised.check_lease: refuses if a later attempt has the run
    checkpoint/folder.py    0: publish: renames the folder, which makes it a checkpoint
    checkpoint/folder.py    0: point_latest: replaces the link `latest`

After it:

    checkpoint/retention.py 0: retain: removes old checkpoints
    server_part.py          ServerPart._write: sends Saved
    coordinator.py          Coordinator.saved: _end counts, warns, or raises LeavingError if the job ends here
    session/ending.py       Ending.fail: on LeavingError every rank leaves with exit code 75

In a job of one process the same parts call each other (scheduler/own_worker.py). In a job of two ranks
one rank is scheduler and server: `Scheduler.on_cut` and `Scheduler.take_cut` connect its two parts without
messages.
"""
