"""Options that a task proposes to vary in `mpips sweep --auto`, each with its values and the reason."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

RATE = "the length of the steps decides most, and suitable ones differ by data"
PENALTY = "how much the data needs depends on its number of samples"
WIDTHS = "capacity: more for many samples"
FACTORS = "length of embeddings: more for many samples of each word"


class Proposal(NamedTuple):
    """An option to vary.

    Attributes:
        name: Name of the option of the task.
        own: The value that the job has without a sweep.
        values: A range or a list, as `mpips sweep --random NAME=VALUES` takes them.
        why: Why the option matters, for people.
    """

    name: str
    own: Any
    values: str
    why: str


def around(name: str, own: float, factor: float, why: str) -> Proposal:
    """Propose numbers from own / factor to own * factor, by uniform logarithms; `own` is above 0."""
    return Proposal(name, own, f"{_text(own / factor)}:{_text(own * factor)}:log", why)


def between(name: str, own: float, low: float, high: float, why: str) -> Proposal:
    """Propose the numbers from `low` to `high`, whole ones if both ends are of type int."""
    return Proposal(name, own, f"{_text(low)}:{_text(high)}", why)


def among(name: str, own: Any, values: list[Any], why: str) -> Proposal:
    """Propose some values, and the own one."""
    plain = list(own) if isinstance(own, tuple) else own
    found = values if plain in values else [*values, plain]
    return Proposal(name, own, ",".join(json.dumps(v, separators=(",", ":")) for v in found), why)


def _text(number: float) -> str:
    """Return a number as text of three digits; one of type float does not look like a whole number."""
    return str(number) if isinstance(number, int) else repr(float(f"{number:.3g}"))
