"""StreamTable: samples that some workers push while others learn from them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.insitu import counts
from mpips.insitu.layout import PART, FieldSpec, SampleLayout
from mpips.insitu.moments import MomentsLayout, MomentsSpec
from mpips.insitu.slots import Keep, SampleSlots
from mpips.model.consistency import ASP
from mpips.model.optimizer import Replace
from mpips.model.table import EmbeddingTable, Table
from mpips.model.table_group import TableGroup
from mpips.rundir.producers import given_name

if TYPE_CHECKING:
    from mpips.insitu.producer import Producer
    from mpips.insitu.reader import SampleReader
    from mpips.worker.worker import Worker

_MIB = 1 << 20


@dataclass(frozen=True)
class StreamTable(TableGroup):
    """Samples of a simulation, in the memory of the servers. Given to `mpips.run` as a table is.

    A producer pushes samples; readers draw random batches of those that are held. A sample counts once,
    whatever dies, and samples and counts are in the checkpoints of the job. All workers, and each launch,
    must declare a stream in the same way, `invalid` excepted; producers and readers refuse samples of another
    declaration. It stands for two embedding tables, NAME.samples and NAME.counts.

    Attributes:
        name: Name of the stream, unique in the job.
        fields: For each array of a sample its shape, of float32 values, or its shape and type:
            {"x": (64, 64), "step": ((), "int64")}. A type other than float32 takes as much memory as it has
            bytes, times two.
        capacity: Greatest number of samples that are held, over all producers; 0: by `capacity_mib`.
        capacity_mib: Memory for samples in MiB; 0: by `capacity`. One of the two must be given.
        producers: Number of producers. Each has an equal share of the capacity, also one that never comes.
        keep: "reservoir": of each producer all samples so far are held with equal probability. "newest": the
            newest ones are held.
        held_out: Share of the samples, and of the capacity, that is kept for validation: 0 to below 1.
            The choice of these samples depends on `seed`, their producer and their numbers alone.
        invalid: Treatment of a sample that contains NaN or infinity: "error" raises ValueError, "drop" counts
            it and leaves it out; its number is not used again.
        seed: Seed of the choice of samples.
        moments: Mean and standard deviation over the samples for training that were produced: "field", one of
            each over all elements of a field; "element", for each element of a field, which costs 64 bytes
            per element with each sample and suits short vectors; "none"; or one of these by field, as in
            {"parameters": "element"}, where the fields that are not named have "field".
    """

    name: str
    fields: Mapping[str, FieldSpec]
    capacity: int = 0
    capacity_mib: float = 0.0
    producers: int = 1
    keep: Keep = "reservoir"
    held_out: float = 0.0
    invalid: Literal["error", "drop"] = "error"
    seed: int = 0
    moments: MomentsSpec = "field"

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: Names the stream, the value and what is accepted.
        """
        where = f"stream {self.name!r}"
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"{where}: the name must be a text")
        for name, least in (("capacity", 0), ("producers", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"{where}: {name} = {value!r}: must be a whole number of at least {least}"
                )
        if self.producers >= PART:
            raise ConfigError(f"{where}: producers = {self.producers}: must be below {PART}")
        if not _is_number(self.capacity_mib) or self.capacity_mib < 0:
            raise ConfigError(
                f"{where}: capacity_mib = {self.capacity_mib!r}: must be a number of MiB, at least 0"
            )
        if bool(self.capacity) == bool(self.capacity_mib):
            raise ConfigError(f"{where}: give one of capacity (samples) and capacity_mib")
        if self.keep not in ("reservoir", "newest"):
            raise ConfigError(f"{where}: keep = {self.keep!r}: must be 'reservoir' or 'newest'")
        if self.invalid not in ("error", "drop"):
            raise ConfigError(f"{where}: invalid = {self.invalid!r}: must be 'error' or 'drop'")
        if not _is_number(self.held_out) or not 0 <= self.held_out < 1:
            raise ConfigError(
                f"{where}: held_out = {self.held_out!r}: must be a share from 0 to below 1"
            )
        MomentsLayout(self.name, SampleLayout(self.name, self.fields), self.moments)
        needed = 2 if self.held_out else 1
        if self.slots.n < needed:
            raise ConfigError(
                f"{where}: room for {self.slots.n} samples of each of {self.producers} producers, "
                f"{needed} are needed: a sample takes {self.layout.dim * 4} bytes"
            )

    @cached_property
    def layout(self) -> SampleLayout:
        """The form in which a sample is stored."""
        return SampleLayout(self.name, self.fields)

    @cached_property
    def moments_layout(self) -> MomentsLayout:
        """The moments that are taken."""
        return MomentsLayout(self.name, self.layout, self.moments)

    @cached_property
    def slots(self) -> SampleSlots:
        """The slots of each producer."""
        total = self.capacity or int(self.capacity_mib * _MIB) // (self.layout.dim * 4)
        n = total // self.producers
        held_out = min(max(1, round(n * self.held_out)), max(n - 1, 0)) if self.held_out else 0
        return SampleSlots(n - held_out, held_out, float(self.held_out), self.keep, self.seed)

    @cached_property
    def declaration(self) -> int:
        """A checksum of all from which the place and form of a sample follow, 1 to below 2**48."""
        fields = [(field.name, field.shape, field.dtype.str) for field in self.layout.fields]
        text = repr(
            (fields, self.slots, self.producers, sorted(self.moments_layout.chosen.items()))
        )
        digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
        return int.from_bytes(digest, "little") or 1

    @property
    def tables(self) -> Sequence[Table]:
        """Return the two tables of the job for which the stream stands."""

        # A producer checks the values of a sample itself, and all values of a row are finite.
        def table(name: str, dim: int, rows: int) -> EmbeddingTable:
            return EmbeddingTable(
                f"{self.name}.{name}",
                dim,
                Replace(),
                ASP(),
                check_finite=False,
                expected_rows=rows,
            )

        dim = counts.DIM + 2 * self.moments_layout.words
        n_counts = self.producers + 2  # the declaration, and the moments that are agreed
        return (
            table("samples", self.layout.dim, self.producers * self.slots.n),
            table("counts", dim, n_counts),
        )

    def check_declared(self, rows: NDArray[np.float32]) -> None:
        """Refuse rows of NAME.counts, float32, shape (n, DIM or more), that come from another declaration.

        Raises:
            ConfigError: The samples of the job are those of another declaration of this stream.
        """
        found = counts.declarations_of(rows)
        if ((found != 0) & (found != self.declaration)).any():
            raise ConfigError(
                f"stream {self.name!r}: its samples were pushed under another declaration; declare fields, "
                "capacity, producers, keep, held_out, seed and moments as in the launch that began it, alike "
                "on all workers, or start a new run with resume = 'never'"
            )

    def handles(self, worker: Worker) -> tuple[Any, Any]:
        """Return the handles of samples and counts.

        Raises:
            ConfigError: The job does not have this stream.
        """
        try:
            return tuple(worker.table(table.name) for table in self.tables)
        except ConfigError:
            raise ConfigError(
                f"this job has no stream {self.name!r}: give it to mpips.run in the list of tables"
            ) from None

    def producer(self, worker: Worker, number: int = 0) -> Producer:
        """Return the pushing side. Blocks for one pull; not collective.

        Args:
            worker: This worker.
            number: Which producer this is, 0 .. producers-1, for example the index of a member of an
                ensemble. At any time one worker may be it; after `flush` or `close` another one may.

        Raises:
            ConfigError: The number is not that of a producer, the job does not have this stream, or it has
                samples of another declaration.
        """
        from mpips.insitu.producer import Producer

        return Producer(self, worker, number)

    def reader(self, worker: Worker) -> SampleReader:
        """Return the learning side. Not collective.

        Raises:
            ConfigError: The job does not have this stream.
        """
        from mpips.insitu.reader import SampleReader

        return SampleReader(self, worker)

    def serve(
        self,
        worker: Worker,
        name: str = "",
        producers: int | Sequence[int] = 0,
        *,
        slots: int = 8,
        steer: str = "",
        patience_s: float = 600.0,
    ) -> None:
        """Push the samples of programs in C, Fortran or Python, until all of their producers have ended.

        Programs on the worker's node copy samples into queues in /dev/shm (mpips.h, mpips.attach). This
        worker is the producer for each of them. Each sample has a clock of the worker, which takes part in
        checkpoints meanwhile. Not collective; blocks.

        Args:
            worker: This worker.
            name: Name by which programs open the queues: 1 to 64 letters, digits, '-', '_' and '.', unique
                among the jobs of this user on the node. "": under `mpips run` that of the run, which the
                programs of [producers] get; one stream of a job can have it.
            producers: Numbers of the producers, as of `producer`; one number stands for itself.
            slots: Samples that the queue of a producer holds, 1 or more.
            steer: Name of a dense table under ASP that programs can read (mpips_steer); "": none. It is
                pulled at most 20 times a second.
            patience_s: Seconds without a sample of any of these producers after which the wait ends.

        Raises:
            ConfigError: An argument is not accepted.
            RegionError: /dev/shm is too small, or another worker serves one of these queues.
            StallError: No sample has come for `patience_s`; the message names the producers.
        """
        from mpips.insitu.programs import ProgramServer

        name = name or given_name()
        if not name:
            raise ConfigError(
                f"stream {self.name!r}: serve: no name is given, and only `mpips run` gives one: write "
                f"stream.serve(worker, {self.name!r}, ...)"
            )
        numbers = [producers] if isinstance(producers, int) else [*producers]
        ProgramServer(self, worker, name, numbers, slots, steer, patience_s).run()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
