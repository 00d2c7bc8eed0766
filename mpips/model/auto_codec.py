"""The rule of Auto(...): which codec a table's pushes or pulls have in a job, or none.

The rule estimates the time that a value needs on the link of the busiest node, plus the time to encode and
decode it, from bandwidths and speeds that were measured at the start of the job. Where all ranks share a node
there is no codec. If the estimates of two codecs are nearly equal, the more precise codec is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpips.model.auto_placement import Site, placed
from mpips.model.codec import Auto, Codec
from mpips.model.table import EmbeddingTable, Table

_NEARLY = 1.05  # ratio of two estimates below which they count as equal
_FLOAT_BYTES = 4.0
KINDS = ("compression", "pull_compression")  # attributes of a table that can be Auto


@dataclass(frozen=True)
class CodecSpeed:
    """Speed of a codec on the slowest rank.

    Attributes:
        encode: Values per second that one thread encodes.
        decode: Values per second that one thread decodes.
    """

    encode: float
    decode: float


@dataclass(frozen=True)
class CodecChoice:
    """The result of the rule for a job.

    Attributes:
        codecs: For each table with Auto, by name, the codec of each attribute in KINDS that was Auto.
        reasons: One sentence for each group of tables with the same result, for people.
    """

    codecs: dict[str, dict[str, Codec | None]]
    reasons: tuple[str, ...]


def listed_codecs(tables: Sequence[Table]) -> list[Codec]:
    """Return all codecs that any Auto of these tables lists, each once."""
    autos = [value for table in tables for value in _autos(table).values()]
    return list(dict.fromkeys(codec for auto in autos for codec in auto.codecs))


def _autos(table: Table) -> dict[str, Auto]:
    found = {kind: getattr(table, kind) for kind in KINDS}
    return {kind: value for kind, value in found.items() if isinstance(value, Auto)}


def choose_codecs(
    tables: Sequence[Table], site: Site, speeds: Mapping[Codec, CodecSpeed]
) -> CodecChoice:
    """Decide about all tables with Auto; arithmetic only, equal on all ranks.

    Args:
        tables: All tables of the job.
        site: Its ranks and bandwidths.
        speeds: Speed of each codec that `listed_codecs` returns.
    """
    codecs: dict[str, dict[str, Codec | None]] = {}
    groups: dict[str, list[str]] = {}
    for table in tables:
        for kind, auto in _autos(table).items():
            dim = table.dim if isinstance(table, EmbeddingTable) else None
            codec, why = _best(kind, auto, dim, site, speeds)
            codecs.setdefault(table.name, {})[kind] = codec
            groups.setdefault(f"{kind} = {auto}: {why}", []).append(table.name)
    reasons = [f"{why} ({_named(names)})" for why, names in groups.items()]
    return CodecChoice(codecs, tuple(reasons))


def _best(
    kind: str,
    auto: Auto,
    dim: int | None,
    site: Site,
    speeds: Mapping[Codec, CodecSpeed],
) -> tuple[Codec | None, str]:
    """Return the codec with the least time per value, and why."""
    load = _link_load(site)
    if load == 0:
        return None, "none, since all ranks share a node"
    estimate = _pull_seconds if kind == "pull_compression" else _push_seconds
    times: dict[Codec | None, float] = {None: load * _FLOAT_BYTES / site.network_rate}
    for codec in auto.codecs:
        n_bytes = load * codec.bytes_per_value(dim) / site.network_rate
        times[codec] = n_bytes + estimate(site, speeds[codec])
    # The more precise a codec, the more bytes it has.
    order = sorted(times, key=lambda c: -(_FLOAT_BYTES if c is None else c.bytes_per_value(dim)))
    least = min(times.values())
    best = next(codec for codec in order if times[codec] <= _NEARLY * least)
    shown = ", ".join(
        f"{'float32' if codec is None else codec.name} {1e9 * times[codec]:.3g}" for codec in order
    )
    return best, f"{'none' if best is None else best} (ns per value: {shown})"


def _link_load(site: Site) -> float:
    """Return how often the busiest node sends or receives each value of a table in one step."""
    n_workers, n_servers = len(site.worker_nodes), len(site.server_nodes)
    load = max(max(s * (n_workers - w), w * (n_servers - s)) for w, s in site.per_node)
    return load / n_servers


def _push_seconds(site: Site, speed: CodecSpeed) -> float:
    """Return the time of encoding by all workers at once, and of decoding by the servers."""
    share = len(site.worker_nodes) / len(site.server_nodes)
    return 1 / speed.encode + share / speed.decode


def _pull_seconds(site: Site, speed: CodecSpeed) -> float:
    """Return the time of encoding by the servers once, and of decoding by all workers at once."""
    return 1 / (speed.encode * len(site.server_nodes)) + 1 / speed.decode


def _named(names: Sequence[str]) -> str:
    few = 3
    more = f" and {len(names) - few} more" if len(names) > few else ""
    return ", ".join(map(repr, names[:few])) + more


def encoded(tables: Sequence[Table], choose: Callable[[str, str], Codec | None]) -> list[Table]:
    """Return the tables with each Auto replaced.

    Args:
        tables: All tables of the job.
        choose: Returns the codec of a table by its name and one of KINDS.
    """
    result = []
    for table in tables:
        changes: dict[str, Any] = {kind: choose(table.name, kind) for kind in _autos(table)}
        result.append(replace(table, **changes) if changes else table)
    return result


def without_auto(tables: Sequence[Table]) -> list[Table]:
    """Return the tables without a codec where they have Auto."""
    return encoded(tables, lambda name, kind: None)


def decided_alone(tables: Sequence[Table]) -> list[Table]:
    """Return the tables as a job of one process has them, in which there is nothing to choose."""
    return without_auto(placed(tables, ()))
