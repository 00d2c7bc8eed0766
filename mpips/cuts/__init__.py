"""Checkpoints while training goes on: when, where in each worker's program, and who writes.

A cut is the state of all servers after the same part of every worker's program. The `Conductor`, on the
scheduler, decides that there is one and where; workers put a cut record into all their rings there;
each server's `Keeper` copies its shards once it has come to the records of all workers, lets the rings go on,
and writes the copy behind the training. native/src/server/server_cuts.cpp says why this is consistent
and cannot deadlock.

    trigger      Conductor            workers            servers
    ----------------------------------------------------------------------------------------------
    BSP, SSP     Propose(id, C)  -->
                                 <--  Agreed(ok, now)    ok: now < C; who reaches C waits
                 Commit(id, C)   -->                -->  expect the records of cut id
    ASP          Commit(id, 0)   -->                -->  the same, at each worker's next tick
                                      cut record    -->  hold the ring; all held: copy, let go
                 <----------------------------- Taken    or, held for too long: Taken(not ok)
                 Write(id) ---------------------------->  all write together, between drains
                 <----------------------------- Saved    path or error

Before `Write` the conductor may send `Abandon` instead, which every server answers with `Saved`, too:
so servers only begin to write together when all of them have their copies. A cut that was given up
leaves records behind that hold nothing. The next cut begins after the last `Saved`: checkpoints never
overlap, and triggers in between are skipped and counted.
"""
