"""Text of quantities with their units."""

from __future__ import annotations

_DECIMAL = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def decimal_size(n_bytes: float) -> str:
    """Return a number of bytes in decimal units and three digits: "512 B", "4.2 kB", "38 MB"."""
    for unit, scale in _DECIMAL:
        if n_bytes >= scale:
            return f"{n_bytes / scale:.3g} {unit}"
    return f"{n_bytes:.0f} B"


def binary_size(n_bytes: float) -> str:
    """Return a number of bytes in binary units, as memory is measured: "512 B", "1.5 MiB"."""
    for unit, scale in _BINARY:
        if n_bytes >= scale:
            return f"{n_bytes / scale:,.1f} {unit}"
    return f"{n_bytes:,.0f} B"


def age_text(seconds: float) -> str:
    """Return a time span of at least 0 in one unit: "90 s", "45 min", "3.2 h", "12 days"."""
    if seconds < 120:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
