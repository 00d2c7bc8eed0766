"""Checkpoints during training if a server has no row of some tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from harness import Rig, dense, rows
from local_job import run_local

from mpips.checkpoint import open_checkpoint
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.model.consistency import BSP
from mpips.model.optimizer import Adam
from mpips.model.partition import LayerPartition, RangePartition
from mpips.model.placement import place
from mpips.recovery.saving import Saving
from mpips.server.server import Server
from mpips.snapshot.copy import ServerCopy, shards_in_place
from mpips.transport.region import Regions, new_token


def arrays(shards):
    """Return the content of shards as plain values, for comparisons."""
    found = {}
    for shard in shards:
        parts = {name: value for name, value in vars(shard).items() if name != "state"}
        parts |= {f"state {name}": value for name, value in shard.state.items()}
        found[shard.table] = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in parts.items()
        }
    return found


@pytest.mark.parametrize("optimizer", [None, Adam(0.1)])
def test_a_copy_of_tables_without_a_row_is_what_the_server_holds(optimizer):
    options = {} if optimizer is None else {"optimizer": optimizer}
    rig = Rig(dense(), rows(name="e", **options), rows(name="f", **options))
    copied_server = ServerCopy(rig.server, rig.placement, rig.tables)

    def check():
        copied = arrays(copied_server.copy())
        assert copied == arrays(shards_in_place(rig.server, rig.placement, rig.tables))

    check()
    worker = rig.worker()
    for step in range(3):
        # One table gets its rows late, and more than the copy has memory for.
        keys = np.arange(step * 6000, dtype=np.int64)
        if step:
            worker.table("f").push(keys, np.ones((keys.size, 4), np.float32)).wait()
        check()
    assert not copied_server.lacks_room()


def test_memory_for_a_table_that_has_nearly_filled_it_is_allocated_before_the_next_cut():
    rig = Rig(rows(name="e"))
    copied_server = ServerCopy(rig.server, rig.placement, rig.tables)
    worker = rig.worker()

    def grow(n):
        worker.table("e").push(np.arange(n, dtype=np.int64), np.ones((n, 4), np.float32)).wait()

    grow(1)
    for _ in copied_server.make_room():
        pass
    room = len(copied_server._memory[0][0])
    grow(int(0.95 * room))
    assert copied_server.lacks_room()
    # The copy itself, for which rings are held, allocates only what it cannot do without.
    copied_server.copy()
    assert len(copied_server._memory[0][0]) == room
    assert copied_server.lacks_room()
    for _ in copied_server.make_room():
        pass
    assert len(copied_server._memory[0][0]) > room
    assert not copied_server.lacks_room()


def test_a_table_without_a_row_never_lacks_memory():
    rig = Rig(dense(), rows())
    copied_server = ServerCopy(rig.server, rig.placement, rig.tables)
    for _ in copied_server.make_room():
        pass
    assert not copied_server.lacks_room()


@pytest.mark.parametrize("server", [0, 1, 2])
def test_a_server_that_holds_nothing_of_some_tables_copies_the_others(server):
    # The first dense table is on one server in one piece, and all rows are on server 1.
    keys = RangePartition(0, 30)
    tables = [dense(8, partition=LayerPartition()), rows(partition=keys), dense(60, "v")]
    placement = place(tables, 3, 1, 4, 1024)
    regions = Regions(new_token(), shared=False)
    made = Server(server, tables, placement, regions, 0, True, None)
    if server == 1:
        made.core.load_rows(1, np.arange(10, 20), np.ones((10, 4), np.float32))
    copied = arrays(ServerCopy(made, placement, tables).copy())
    assert copied == arrays(shards_in_place(made, placement, tables))


def test_checkpoints_are_made_before_a_table_has_its_first_row(tmp_path: Path):
    tables = [dense(8, consistency=BSP()), rows(consistency=BSP())]

    def main(worker):
        for step in range(8):
            worker.table("w").push(np.ones(8, np.float32))
            if step >= 4:
                worker.table("e").push(np.arange(step), np.ones((step, 4), np.float32))
            worker.clock()

    saving = Saving(tmp_path, "run", triggers=Triggers(every_steps=2))
    _, stats = run_local(main, tables, SessionOptions(slot_kib=1), saving=saving)
    found = stats["scheduler"]["checkpoints"]
    assert not found.get("failed"), found
    made = sorted(tmp_path.glob("step-*"))
    assert len(made) > 1
    with open_checkpoint(made[0]) as checkpoint:
        checkpoint.verify()
