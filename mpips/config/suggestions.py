"""Names of options that a user may have meant by an unknown one, from all sections of a job file."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable

import msgspec

from mpips.config.conversion import UnknownKeyError, is_struct, parts_of
from mpips.model.optimizer import OPTIMIZERS

_ALIASES = {"learning_rate": "lr", "rate": "lr", "early_stopping": "patience"}
_NEAR = 0.75  # likeness of two names from which one is suggested in another section
_MOST = 3  # suggestions
_OPTIMIZER = "table.optimizer"


def with_suggestion(
    error: UnknownKeyError, struct: type[msgspec.Struct], options: Iterable[str] = ()
) -> UnknownKeyError:
    """Return the error of an unknown key with the options that may be meant, of any section.

    An option of the same name in another section comes before a similar one of the same section.

    Args:
        error: The error, whose key is unknown.
        struct: The struct of the whole file.
        options: Names of the options of the task.
    """
    section, _, name = error.key.rpartition(".")
    places = _places(struct)
    for option in options:
        places.setdefault(option, []).append(f"options.{option}")
    exact = places.get(name) or places.get(_ALIASES.get(name, ""), [])
    found = [key for key in exact if key.rpartition(".")[0] != section]
    if not found and not error.suggested:
        near = difflib.get_close_matches(name.lower(), places, n=1, cutoff=_NEAR)
        found = places[near[0]] if near else []
    return UnknownKeyError(error.key, error.text, tuple(found[:_MOST]) or error.suggested)


def _places(struct: type[msgspec.Struct]) -> dict[str, list[str]]:
    """Return the dotted keys of all options, also of optimizers, by their last name."""
    found: dict[str, list[str]] = {}

    def walk(kind: type[msgspec.Struct], where: str) -> None:
        for name, inner in parts_of(kind):
            found.setdefault(name, []).append(where + name)
            if is_struct(inner):
                walk(inner, f"{where}{name}.")

    walk(struct, "")
    for rule in OPTIMIZERS.values():
        for field in dataclasses.fields(rule):
            key = f"{_OPTIMIZER}.{field.name}"
            if key not in found.setdefault(field.name, []):
                found[field.name].append(key)
    return found
