"""The values that a field accepts: read from its annotation, compared with a value, written in words.

A range is a `msgspec.Meta` in the annotation of the field, a choice among names is a `Literal`. Each is
written once. The checks, the messages of errors and the generated reference of options read it from there.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect as inspection
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import inspect

from mpips.errors import ConfigError


def check_fields(owner: object, prefix: str = "") -> None:
    """Compare the annotated fields of a dataclass instance with their annotations.

    Numbers of NumPy count as numbers of Python. A bool is not a number.

    Args:
        owner: Its fields without `Annotated` or `Literal` in the annotation are not checked.
        prefix: Text in front of the name of the field in errors.

    Raises:
        ConfigError: Names the field, its value and what is accepted.
    """
    kind: Any = type(owner)
    for name, hint in _annotated_fields(kind).items():
        value = plain(getattr(owner, name))
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            words = accepted(hint, value)
            raise ConfigError(f"{prefix}{name} = {value!r}: must be {words}") from None


@functools.cache
def _annotated_fields(cls: Any) -> dict[str, Any]:
    hints = field_hints(cls)
    return {name: hint for name, hint in hints.items() if get_origin(hint) in (Annotated, Literal)}


def field_hints(cls: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields by name, evaluated.

    `typing.get_type_hints` of the class does that too, but in Python 3.10 it takes the annotation KW_ONLY,
    which belongs to no field, for an error.
    """
    names = {field.name for field in dataclasses.fields(cls)}
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own = {n: hint for n, hint in inspection.get_annotations(base).items() if n in names}
        holder = type(base.__name__, (), {"__annotations__": own, "__module__": base.__module__})
        hints |= get_type_hints(holder, include_extras=True)
    return hints


def plain(value: Any) -> Any:
    """Return a bool, a number or a text as the built-in type of Python; anything else as it is."""
    for kinds, kind in (
        ((bool, np.bool_), bool),
        ((int, np.integer), int),
        ((float, np.floating), float),
        ((str,), str),
    ):
        if isinstance(value, kinds):
            return kind(value)
    return value


def accepted(hint: Any, value: object) -> str | None:
    """Return what an annotation accepts in place of `value`, to follow "must be".

    Returns:
        For example "from 0 to 65535", or "a whole number from 0 to 65535" if `value` is not a whole
        number.
        None if the annotation has a constraint that this function does not know.
    """
    return _words(inspect.type_info(hint), value)


def _words(kind: inspect.Type, value: object) -> str | None:
    words: str | None = None
    if isinstance(kind, inspect.Metadata):
        words = _words(kind.type, value)
    elif isinstance(kind, inspect.UnionType):
        found = [_words(one, value) for one in kind.types if not isinstance(one, inspect.NoneType)]
        # A suggestion of a name follows all that is accepted.
        parts = [one.partition("; ") for one in found if one]
        rest = "".join(sign + hint for _, sign, hint in parts)
        words = " or ".join(first for first, _, _ in parts) + rest if all(found) else None
    elif isinstance(kind, inspect.LiteralType):
        names = [str(name) for name in kind.values]
        first = f"one of {', '.join(names)}" if len(names) > 1 else repr(names[0])
        words = f"{first}{did_you_mean(value, names)}"
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        words = _number(kind, value)
    elif isinstance(kind, inspect.BoolType):
        words = "true or false"
    elif isinstance(kind, inspect.StrType) and not isinstance(value, str):
        words = "text"
    elif isinstance(kind, inspect.VarTupleType) and not isinstance(value, list | tuple):
        words = "a list"
    elif isinstance(kind, inspect.StructType | inspect.DictType) and not isinstance(value, Mapping):
        words = "a table"
    return words


def _number(kind: inspect.IntType | inspect.FloatType, value: object) -> str | None:
    whole = isinstance(kind, inspect.IntType)
    is_number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    limits = _range(kind)
    if is_number:
        return limits or None
    noun = "a whole number" if whole else "a number"
    comma = "," if limits.endswith("or more") else ""
    return f"{noun}{comma} {limits}".rstrip()


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f"from {_digits(kind.ge)} to {_digits(kind.le)}"
    if kind.ge is not None and kind.lt is None:
        return f"{_digits(kind.ge)} or more"
    limits = {
        "at least": kind.ge,
        "greater than": kind.gt,
        "at most": kind.le,
        "less than": kind.lt,
    }
    return " and ".join(f"{word} {_digits(n)}" for word, n in limits.items() if n is not None)


def _digits(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def did_you_mean(name: object, valid: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean 'NEAREST'?" with `prefix` before the name, or "" if no valid name is near."""
    near = nearest(name, valid)
    return f"; did you mean {prefix + near[0]!r}?" if near else ""


def nearest(name: object, valid: Iterable[str]) -> list[str]:
    """Return the valid name that is nearest to `name`, or no name if none is near."""
    names = list(valid)
    near = difflib.get_close_matches(str(name), names, n=1)
    return near or difflib.get_close_matches(str(name).lower(), names, n=1)


def unknown_name(what: str, name: object, valid: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not among the valid ones. It lists them in the order given."""
    names = list(valid)
    hint = did_you_mean(name, names)
    return ConfigError(f"unknown {what} {name!r}; valid are {', '.join(names)}{hint}")


def is_count(value: object) -> bool:
    """Return True for a whole number of Python or NumPy. A bool is not one."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_value(what: str, value: object, kinds: tuple[type, ...], example: str) -> None:
    """Refuse a value of another type than `kinds`. A class in place of its instance is the usual mistake.

    Raises:
        ConfigError: Names the value and an example of what is accepted.
    """
    if isinstance(value, kinds):
        return
    if isinstance(value, type):
        raise ConfigError(f"{what} = {value.__name__} is a class: give a value, {value.__name__}()")
    raise ConfigError(f"{what} = {value!r}: must be a value such as {example}")
