"""Embedded mode: scheduler, server and worker in one process, one thread, no MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpips import _native
from mpips.model.table import Table
from mpips.options import SessionOptions
from mpips.placement import place
from mpips.saving import Saver, Saving, restore
from mpips.server import Server
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker import Worker


class LocalControl:
    """The scheduler's part where there is one worker: a gather is what that worker gave."""

    def __init__(self, on_report: Callable[[int, int, int, float], None] | None = None) -> None:
        """`on_report(epoch, step, samples, loss_sum)` shows progress."""
        self.state = "computing"
        self.clock = 0
        self._on_report = on_report
        self._parts: dict[str, bytes] = {}

    def poll(self) -> None:
        """Nothing arrives from anywhere."""

    def contribute(self, name: str, payload: bytes, everyone: bool) -> None:
        """See mpips.worker.ControlPlane."""
        self._parts[name] = payload

    def take_gathered(self, name: str) -> list[bytes] | None:
        """See mpips.worker.ControlPlane."""
        return [self._parts.pop(name)]

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """See mpips.worker.ControlPlane."""
        if self._on_report is not None:
            self._on_report(epoch, step, samples, loss_sum)


def run_local(
    main: Callable[[Worker], Any],
    tables: Sequence[Table],
    options: SessionOptions,
    on_report: Callable[[int, int, int, float], None] | None = None,
    saving: Saving | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run `main` with a worker and a server of this process; returns its value and statistics."""
    placement = place(tables, 1, 1, options.ring_slots, options.slot_kib * 1024)
    regions = Regions(new_token(), shared=False)
    server = Server(0, tables, placement, regions, options.seed, True, None)
    if saving is not None and saving.start is not None:
        restore(server, placement, tables, saving.start)
    layout = placement.layouts[0]
    writer = _native.RingWriter(
        server.region,
        layout.mailbox_offset(0),
        layout.geometry,
        0,
        0,
        options.checksums,
        len(tables),
    )
    staging = regions.create_sparse("w0", options.staging_mib << 20)
    server.core.set_staging(0, staging)
    channel = LocalChannel(server.region, layout, writer, 1, server.drain)
    control = LocalControl(on_report)
    worker = Worker(
        0, ["worker 0"], tables, placement, [channel], control, staging, options.timeout_s
    )
    value = main(worker)
    worker.finish()
    served = server.statistics()
    if saving is not None:
        saver = Saver(saving, server, placement, tables, 1, None, options.timeout_s)
        saver.save(lambda: None)
        if saver.result is not None:
            served["checkpoint"] = saver.result
    statistics = {
        "servers": [served],
        "workers": [{"worker": 0, "pushes": worker.counters()}],
        "scheduler": {"messages": 0, "polls": 0},
    }
    return value, statistics
