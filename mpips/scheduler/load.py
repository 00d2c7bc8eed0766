"""The load of a job by table and by link, summed over the heartbeats of all ranks.

Servers count updates by table and by staleness, workers count bytes by server. A link is a pair of hosts: the
workers of one host and the servers of one host. Only the tables and links with most load are returned, so the
result has a bounded size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nlargest

from mpips.mpi.messages import Figures
from mpips.rundir.files import LinkLoad, Load, RankPlace, TableLoad

MOST_TABLES = 16  # tables in a Load
MOST_LINKS = 64  # links in a Load

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

    def summed(self, counts: Iterable[tuple[Figures, Figures, float]]) -> Load:
        """Return the load of the job.

        Args:
            counts: For each rank, by rank: its counts at the begin and at the end of the window over which
                rates are measured, and its length in seconds; 0.0: too short for rates.
        """
        updates: Counter[int] = Counter()
        update_rates: defaultdict[int, float] = defaultdict(float)
        links: dict[_Link, list[float]] = {}
        staleness: list[int] = []
        for host, (first, last, seconds) in zip(self._hosts, counts, strict=True):
            for table, n in last.tables.items():
                updates[table] += n
                # A table that was not among those with most updates before has no rate yet.
                if seconds and table in first.tables:
                    update_rates[table] += (n - first.tables[table]) / seconds
            self._add_links(links, host, first, last, seconds)
            if len(last.staleness) > len(staleness):
                staleness += [0] * (len(last.staleness) - len(staleness))
            for i, n in enumerate(last.staleness):
                staleness[i] += n
        hottest = nlargest(MOST_TABLES, updates, key=lambda i: (update_rates[i], updates[i], -i))
        busiest = nlargest(MOST_LINKS, links, key=lambda link: (sum(links[link][2:]), link))
        return Load(
            tables=tuple(
                TableLoad(
                    name=self._tables[i],
                    updates=updates[i],
                    updates_per_s=round(update_rates[i], 3),
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


def _server_of(place: RankPlace) -> tuple[int, str] | None:
    """Return index and host of the server on a rank; None if it has none."""
    for role in place.role.split(" + "):
        name, _, index = role.partition(" ")
        if name == "server":
            return int(index), place.host
    return None
