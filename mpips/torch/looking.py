"""`lookahead` for torch scripts: rows of the next batch travel while a step computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from mpips.torch.job import TorchJob
from mpips.torch.prepare import StartingLoader
from mpips.torch.sampling import PreparedLoader
from mpips.torch.skips import BatchClocks
from mpips.worker.lookahead import Keys
from mpips.worker.lookahead import lookahead as rows_ahead

Batch = TypeVar("Batch")


def lookahead(loader: Iterable[Batch], *, keys: Keys, depth: int = 8) -> Iterator[Batch]:
    """Yield the batches of a loader; fetch the rows of the next one meanwhile. See mpips.lookahead.

    Use it in place of the loader: `for x, y in mpips.torch.lookahead(loader, keys=lambda batch: batch[0])`.
    Layers mpips.torch.Embedding then find their rows in this process. Under BSP training has the same bits.
    The first call is collective over all ranks and blocks: it starts the job. A restart continues behind the
    last batch that was used, not behind the last one that was read.

    Args:
        loader: The prepared loader, or any iterable of batches.
        keys: Called once with each batch, when it is read. Returns a dict from names of embedding tables to
            int64 ids of any shape, or these ids if the job has one embedding table. Ids on a device are
            copied to the host, for which the call waits.
        depth: Batches that are known in advance, 1 or more.

    Raises:
        ConfigError: As mpips.lookahead, or `mpips.init` has not been called.
    """
    job = TorchJob.of_script("mpips.torch.lookahead")
    worker = job.start()

    def counted() -> Iterator[tuple[int, Batch]]:
        read = loader.reading() if isinstance(loader, StartingLoader) else loader
        for batch in read:
            yield (loader.batch if isinstance(loader, PreparedLoader) else 0), batch

    ahead: Any = rows_ahead(
        counted(), keys=lambda numbered: _on_host(keys(numbered[1])), worker=worker, depth=depth
    )
    return _settled(job, loader, ahead)


def _on_host(keys: Any) -> Any:
    """Return keys, or a dict of keys, with those that are tensors on the CPU."""
    if isinstance(keys, Mapping):
        return {name: _on_host(part) for name, part in keys.items()}
    return keys.cpu() if isinstance(keys, torch.Tensor) else keys


def _settled(job: Any, loader: Any, ahead: Iterator[tuple[int, Batch]]) -> Iterator[Batch]:
    """Yield batches; end the clock of each step before its successor's rows are asked for."""
    clocks = BatchClocks(job.skips) if isinstance(loader, PreparedLoader) else None
    while True:
        if clocks is not None and clocks.next():
            job.warn_of_late_schedulers()
        job.settle()
        numbered = next(ahead, None)
        if numbered is None:
            return
        if isinstance(loader, PreparedLoader):
            # The cursor of the next clock has the batches that were used, not those that were read.
            loader.count_used(numbered[0])
        yield numbered[1]
