"""Checkpoints while training goes on: when, where in each worker's program, and who writes.

A cut is the state of all servers after the same part of every worker's program. The `Coordinator`, on the
scheduler, decides that there is one and where; workers put a cut record into all their rings there;
each server's `ServerPart` copies its shards once it has come to the records of all workers, lets the rings
go on, and writes the copy behind the training. native/src/server/server_snapshot.cpp says why this is
consistent and cannot deadlock.

    trigger      Coordinator            workers            servers
    ----------------------------------------------------------------------------------------------
    BSP, SSP     Propose(id, C)  -->
                                 <--  Agreed(ok, now)    ok: now < C; who reaches C waits
                 Commit(id, C)   -->                -->  expect the records of cut id
    ASP          Commit(id, 0)   -->                -->  the same, at each worker's next tick
                                      cut record    -->  hold the ring; all held: copy, let go
                 <----------------------------- Taken    or, held for too long: Taken(not ok)
                 Write(id) ---------------------------->  all write together, between drains
                 <----------------------------- Saved    path or error

Before `Write` the coordinator may send `Abandon` instead, which every server answers with `Saved`, too:
so servers only begin to write together when all of them have their copies. A cut that was given up
leaves records behind that hold nothing.

A worker that waits for other workers in a gather can write its cut record there only under ASP and with
nothing pushed since its tick. Elsewhere (pushes since then; a clock before the common one) the others have
to come to the gather first, and cannot if they wait for an answer behind their own cut records, whose rings
are held until the first worker comes to the cut. Such a cut would stand until servers give it up. Three
messages prevent that. Each worker writes them about itself, in its program's order, to the scheduler over
one communicator and tag, so MPI delivers them in that order; the coordinator alone reads them:

    Waits(id, "before")   a gather began in which the worker cannot come to cut id
    Waits(id, "over")     that gather has ended
    Waits(id, "behind")   the worker has waited for a server with its cut record of id not consumed

"before" is withdrawn by the same worker, so the coordinator knows it exactly, but for messages under way.
"behind" holds until the cut ends, because only its end lets the ring go on. When both are there the cut is
given up, without a warning, and begun again when no worker is in such a gather. Without a common clock it is
then tried at one clock, and after that as before, by turns: workers that meet in a gather at every clock
can only be cut at the same one, workers whose clocks are far apart only at different ones. A message
under way while its gather ends costs one more try and no more: a cut that is given up has no effect.

The next cut begins after the last `Saved`: checkpoints never
overlap, and triggers in between are skipped and counted.
"""
