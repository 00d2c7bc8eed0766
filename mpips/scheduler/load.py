"""The load of a job by table and by link, summed over the heartbeats of all ranks.

Servers count updates by table and by staleness and find the hottest rows, workers count bytes by server. A
link is a pair of hosts: the workers of one host and the servers of one host. Only the tables, rows and links
with most load are returned, so the result has a bounded size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nlargest

from mpips.mpi.messages import Figures
from mpips.rundir.files import LinkLoad, Load, RankPlace, RowLoad, TableLoad

MOST_TABLES = 16  # tables in a Load
MOST_LINKS = 64  # links in a Load
_MOST_SERVERS = 64  # servers up to which heartbeats have bytes by server
_MOST_ROW_TABLES = 4  # embedding tables whose rows are shown,
_MOST_ROWS = 8  # and number of rows of each

_LIMITS = ("rows_made", "rows_refused", "rows_evicted", "rows_returned")  # in the order of Figures

_STORED = ("rows_cold", "rows_promoted", "rows_demoted")  # in the order of Figures

HotRow = tuple[int, float, float, float]  # key, pulls and pushes per second, share of its table
_Link = tuple[str, str]  # host of workers, host of servers


class LoadTable:
    """Sums the load of all ranks. One per job, on the scheduler's rank."""

    def __init__(self, places: Sequence[RankPlace], tables: Sequence[str]) -> None:
        """Begin without counts.

        Args:
            places: Role, host and process of every rank, by rank.
            tables: Names of all tables, by index.
        """
        self._hosts = [place.host for place in places]
        self._tables = list(tables)
        found = (_server_of(place) for place in places)
        # Hosts of the servers, by index of the server.
        self._servers = [host for _, host in sorted(pair for pair in found if pair is not None)]

    def servers_off(self, host: str) -> tuple[int, ...]:
        """Return the indices of the servers on other hosts; none in a job of too many for bytes by link."""
        if len(self._servers) > _MOST_SERVERS:
            return ()
        return tuple(i for i, other in enumerate(self._servers) if other != host)

    def summed(self, counts: Iterable[tuple[Figures, Figures, float]]) -> Load:
        """Return the load of the job.

        Args:
            counts: For each rank, by rank: its counts at the beginning and at the end of the window over
                which rates are measured, and its length in seconds; 0.0: too short for rates.
        """
        updates: Counter[int] = Counter()
        update_rates: defaultdict[int, float] = defaultdict(float)
        links: dict[_Link, list[float]] = {}
        staleness: list[int] = []
        limits: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 4)
        stored: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 3)
        counts = list(counts)
        for host, (first, last, seconds) in zip(self._hosts, counts, strict=True):
            for table, n in last.tables.items():
                updates[table] += n
                # A table that was not among those with most updates before has no rate yet.
                if seconds and table in first.tables:
                    update_rates[table] += (n - first.tables[table]) / seconds
            self._add_links(links, host, first, last, seconds)
            for table, found in last.limits.items():
                limits[table] = [a + b for a, b in zip(limits[table], found, strict=True)]
            for table, moved in last.stored.items():
                stored[table] = [a + b for a, b in zip(stored[table], moved, strict=True)]
            if len(last.staleness) > len(staleness):
                staleness += [0] * (len(last.staleness) - len(staleness))
            for i, n in enumerate(last.staleness):
                staleness[i] += n
        hottest = nlargest(MOST_TABLES, updates, key=lambda i: (update_rates[i], updates[i], -i))
        busiest = nlargest(MOST_LINKS, links, key=lambda link: (sum(links[link][2:]), link))
        bound = max((last.bound for _, last, _ in counts), default=-1)
        backup = max((last.backup for _, last, _ in counts), default=-1)
        switched = [last.switched > 0 for _, last, _ in counts if last.switched >= 0]
        return Load(
            switched=all(switched) if switched else None,
            bound=bound if bound >= 0 else None,
            backup=backup if backup >= 0 else None,
            tables=tuple(
                TableLoad(
                    name=self._tables[i],
                    updates=updates[i],
                    updates_per_s=round(update_rates[i], 3),
                    **dict(zip(_LIMITS, limits[i], strict=True)),
                    **dict(zip(_STORED, stored[i], strict=True)),
                )
                for i in hottest
                if i < len(self._tables)
            ),
            links=tuple(
                LinkLoad(
                    worker_host=link[0],
                    server_host=link[1],
                    pushed_bytes=int(links[link][0]),
                    pulled_bytes=int(links[link][1]),
                    push_bytes_per_s=round(links[link][2], 1),
                    pull_bytes_per_s=round(links[link][3], 1),
                )
                for link in busiest
            ),
            staleness=tuple(staleness),
            rows=tuple(
                RowLoad(
                    table=self._tables[i],
                    key=key,
                    pulls_per_s=pulls,
                    pushes_per_s=pushes,
                    share=share,
                )
                for i, rows in hottest_rows(last for _, last, _ in counts).items()
                if i < len(self._tables)
                for key, pulls, pushes, share in rows
            ),
        )

    def _add_links(
        self,
        links: dict[_Link, list[float]],
        host: str,
        first: Figures,
        last: Figures,
        seconds: float,
    ) -> None:
        """Add the bytes of one worker: pushed, pulled, pushed per second, pulled per second."""
        if len(last.links) > len(self._servers):
            return
        for server, (pushed, pulled) in enumerate(last.links):
            sums = links.setdefault((host, self._servers[server]), [0, 0, 0.0, 0.0])
            sums[0] += pushed
            sums[1] += pulled
            if seconds and server < len(first.links):
                sums[2] += (pushed - first.links[server][0]) / seconds
                sums[3] += (pulled - first.links[server][1]) / seconds


def hottest_rows(figures: Iterable[Figures]) -> dict[int, list[HotRow]]:
    """Return the hottest rows of the embedding tables with most accesses, by the index of their table.

    A row lies on one server, so the rows of a table are the hottest ones of all servers.

    Args:
        figures: Last counts of each rank.
    """
    found: defaultdict[int, list[tuple[int, float, float]]] = defaultdict(list)
    totals: defaultdict[int, float] = defaultdict(float)
    for f in figures:
        for table, part in f.rows.items():
            totals[table] += part.pulls_per_s + part.pushes_per_s
            found[table] += part.rows
    busiest = nlargest(_MOST_ROW_TABLES, totals, key=lambda i: (totals[i], -i))
    return {
        i: [
            (key, pulls, pushes, round(min((pulls + pushes) / totals[i], 1.0), 5))
            for key, pulls, pushes in nlargest(
                _MOST_ROWS, found[i], key=lambda row: (row[1] + row[2], -row[0])
            )
        ]
        for i in busiest
        if totals[i] > 0
    }


def _server_of(place: RankPlace) -> tuple[int, str] | None:
    """Return index and host of the server on a rank; None if it has none."""
    for role in place.role.split(" + "):
        name, _, index = role.partition(" ")
        if name == "server":
            return int(index), place.host
    return None
