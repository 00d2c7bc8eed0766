"""Names of hosts in messages: many names in the short form of Slurm, and one line for one reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# "node017.cluster": a prefix, a number, and a domain or nothing. Addresses such as 10.0.0.7 do not match.
_NUMBERED = re.compile(r"([^.]*[^.\d])(\d{1,18})((?:\..*)?)")


def compact(names: Iterable[str]) -> str:
    """Return names in the form that Slurm reads and prints, such as "node[001-017,020],login"."""
    groups: dict[tuple[str, str | None], list[str]] = {}
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        key = (match[1], match[3]) if match else (name, None)
        groups.setdefault(key, []).append(match[2] if match else "")
    parts = []
    for (prefix, domain), numbers in groups.items():
        if domain is None:
            parts.append(prefix)
        elif len(numbers) == 1:
            parts.append(f"{prefix}{numbers[0]}{domain}")
        else:
            parts.append(f"{prefix}[{','.join(_runs(numbers))}]{domain}")
    return ",".join(parts)


def _runs(numbers: list[str]) -> list[str]:
    """Return runs of consecutive numbers, such as ["001-017", "020"]; leading zeros must fit."""
    runs: list[list[str]] = []
    for text in sorted(numbers, key=lambda number: (int(number), len(number))):
        before = runs[-1][-1] if runs else ""
        if before and text == str(int(before) + 1).zfill(len(before)):
            runs[-1] = [runs[-1][0], text]
        else:
            runs.append([text])
    return ["-".join(run) for run in runs]


def by_reason(reasons: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Return the hosts of each reason; reasons that differ only in the name of the host count as one.

    Args:
        reasons: A sentence for each host.
    """
    groups: dict[str, list[str]] = {}
    for host, why in reasons.items():
        groups.setdefault(re.sub(rf"\b{re.escape(host)}\b", "HOST", why), []).append(host)
    return [(hosts, reasons[hosts[0]] if len(hosts) == 1 else why) for why, hosts in groups.items()]


def be(hosts: list[str]) -> str:
    """Return the hosts with their verb, such as "node7 is" or "node[1-3] are"."""
    return f"{compact(hosts)} {'is' if len(hosts) == 1 else 'are'}"
