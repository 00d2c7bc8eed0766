"""Fill a server's shards from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpips.checkpoint import Checkpoint, open_checkpoint
from mpips.checkpoint.plan import BACKUP, IN_FORCE, SWITCH, THRESHOLD
from mpips.checkpoint.start import absent_scales, check_start
from mpips.errors import ConfigError
from mpips.model.common_copy import COMMON, has_common
from mpips.model.placement import Placement
from mpips.model.table import EmbeddingTable, Table
from mpips.server.server import Server


def restore(server: Server, placement: Placement, tables: Sequence[Table], start: Path) -> None:
    """Fill a server's shards from a checkpoint. Not collective; blocking.

    The job that wrote the checkpoint may have had other numbers of servers and workers, and other partitions.

    Args:
        server: The server, with empty shards.
        placement: Shards of all servers in this job.
        tables: Tables of this job.
        start: Folder of the checkpoint.

    Raises:
        CheckpointError: The checkpoint cannot be read.
        ConfigError: The checkpoint does not fit these tables.
        RegionError: /dev/shm is too small for the rows.
    """
    with open_checkpoint(start) as checkpoint:
        check_start(checkpoint, tables)
        absent = absent_scales(checkpoint, tables)
        for i, table in enumerate(tables):
            if i in absent:
                continue
            entry = checkpoint.manifest.table(table.name)
            server.core.set_steps_before(i, entry.version)
            if server.bound_control is not None and IN_FORCE in entry.consistency:
                server.bound_control.begin(int(entry.consistency[IN_FORCE]))
            if server.backup_control is not None and BACKUP in entry.consistency:
                server.backup_control.begin(int(entry.consistency[BACKUP]))
            if server.switch_control is not None and SWITCH in entry.consistency:
                server.switch_control.set(int(entry.consistency[SWITCH]))
            if server.threshold_control is not None and THRESHOLD in entry.consistency:
                server.threshold_control.begin({table.name: int(entry.consistency[THRESHOLD])})
            if isinstance(table, EmbeddingTable):
                _restore_rows(server, checkpoint, i, table, placement)
                continue
            part = next((p for p in placement.dense[table.name] if p.server == server.index), None)
            if part is None:
                continue
            values, state = checkpoint.read_dense(table.name, part.start, part.stop)
            server.core.set_dense(i, values)
            for slot, name in enumerate(table.optimizer.state_names):
                server.core.set_dense_state(i, slot, state[name])
            # Without a copy in the checkpoint, workers begin with the values.
            if has_common(table) and COMMON in state:
                server.core.set_dense_state(i, table.optimizer.n_state, state[COMMON])


def _restore_rows(
    server: Server, checkpoint: Checkpoint, i: int, table: EmbeddingTable, placement: Placement
) -> None:
    partitioner = placement.partitioners[table.name]
    blocks = checkpoint.iter_rows(table.name, partitioner, server.index)
    while True:
        try:
            block = next(blocks, None)
        except KeyError as error:
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r}: {error.args[0]}; choose a partition that "
                "takes all keys of the checkpoint, such as HashPartition"
            ) from None
        if block is None:
            return
        # Join the parts of a server's row: values, the optimizer's state, the count of updates as float bits.
        rule, n = table.optimizer, len(block.keys)
        columns = [block.values, *(block.state[name] for name in rule.state_names)]
        columns += [block.state[name].reshape(n, 1) for name in rule.row_state_names]
        if table.counts_updates:
            # Rows of another dtype may have none: their random numbers begin.
            steps = block.steps if block.steps is not None else np.zeros(n, np.uint32)
            columns.append(steps.view(np.float32).reshape(n, 1))
        server.core.load_rows(i, block.keys, np.ascontiguousarray(np.hstack(columns)))
        if table.evict is not None and block.uses is not None:
            last, count = np.ascontiguousarray(block.uses.T)
            server.core.set_uses(i, block.keys, last, count)
