"""Conversion of plain values, as from a file, to structs, with errors that name the accepted values.

All functions read the annotations of the struct (see `mpips.model.accepted`) and know no option by name.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from mpips.errors import ConfigError
from mpips.model.accepted import accepted, nearest, plain

Struct = TypeVar("Struct", bound=msgspec.Struct)


class UnknownKeyError(ConfigError):
    """A key of a file or of --set that does not exist.

    Attributes:
        key: The key, with dots.
        text: The error, and the valid keys of its section.
        suggested: Keys that may be meant, each with a note behind a space or without.
    """

    def __init__(self, key: str, text: str, suggested: tuple[str, ...] = ()) -> None:
        """Make the message from these."""
        self.key = key
        self.text = text
        self.suggested = suggested
        names = (name.partition(" ") for name in suggested)
        meant = " or ".join(f"{name!r}{space}{note}" for name, space, note in names)
        super().__init__(f"{text}; did you mean {meant}?" if meant else text)


def convert(raw: Any, kind: type[Struct], where: str) -> Struct:
    """Return plain values as a struct of this kind.

    Args:
        raw: A mapping, as from TOML.
        kind: The struct.
        where: Name of the struct in errors ("tables.weight"), or "".

    Raises:
        ConfigError: Names the innermost option that is wrong, its value and what is accepted.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, raw, kind, where)) from None


def checked(options: Struct, where: str = "") -> Struct:
    """Return options that a program has constructed, compared with the annotations of their struct.

    Constructors of structs check nothing. A float that is whole counts as a whole number.

    Raises:
        ConfigError: Names the option, its value and what is accepted.
    """
    kind = type(options)
    values = {name: _plain(getattr(options, name)) for name in kind.__struct_fields__}
    return convert(fitted(values, kind), kind, where)


def _plain(value: Any) -> Any:
    """Return a value, or a list or array of values within each other, with the built-in types of Python."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return plain(value)


def _explain(error: msgspec.ValidationError, value: Any, hint: Any, name: str) -> str:
    for inner_name, inner, inner_hint in _parts(value, hint, name):
        try:
            msgspec.convert(inner, inner_hint)
        except msgspec.ValidationError as inner_error:
            return _explain(inner_error, inner, inner_hint, inner_name)
    words = accepted(hint, value)
    # Constraints without words of their own are explained by msgspec.
    what = str(error).partition(" - at `$")[0].replace("`", "")
    reason = f"must be {words}" if words else what[0].lower() + what[1:]
    return f"{name or 'the configuration'} = {value!r}: {reason}"


def _parts(value: Any, hint: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and annotation of each part of a struct, a dict or a list."""
    for kind in _alternatives(hint):
        if isinstance(value, Mapping):
            for key, inner in value.items():
                inner_hint = _inner(kind, key)
                if inner_hint is not None:
                    yield f"{name}.{key}".lstrip("."), inner, inner_hint
        elif isinstance(value, list) and get_origin(kind) in (tuple, list):
            for index, inner in enumerate(value):
                yield f"{name}[{index}]", inner, get_args(kind)[0]


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union without None, or the one type, each without its metadata."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(hint) not in (Union, types.UnionType):
        return (hint,)
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return tuple(inner for kind in kinds for inner in _alternatives(kind))


def _inner(kind: Any, key: str) -> Any:
    """Return the annotation of a struct's field or of a dict's values, else None."""
    if is_struct(kind):
        return _hints(kind).get(key)
    return get_args(kind)[1] if get_origin(kind) is dict else None


@functools.cache
def _hints(struct: type) -> dict[str, Any]:
    """Return the annotations of a struct's fields, evaluated: that takes about a millisecond."""
    return get_type_hints(struct, include_extras=True)


def parts_of(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each field of a struct, and its first type without metadata."""
    for name, hint in _hints(struct).items():
        if name in struct.__struct_fields__:
            yield name, _alternatives(hint)[0]


def is_struct(kind: Any) -> bool:
    """Return True for the class of a struct."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def takes_text(hint: Any, path: Sequence[str]) -> bool:
    """Return True if the option at `path` below a struct takes text and no number."""
    for name in path:
        found = [_inner(kind, name) for kind in _alternatives(hint)]
        hint = next((inner for inner in found if inner is not None), None)
    kinds: set[Any] = set()
    for kind in _alternatives(hint):
        kinds |= set(map(type, get_args(kind))) if get_origin(kind) is Literal else {kind}
    return str in kinds and not {int, float, bool} & kinds


def fitted(value: Any, hint: Any) -> Any:
    """Return a value in the form that an annotation needs, if the meaning is clear; else unchanged.

    1e3 becomes a whole number where only whole numbers are accepted. One value becomes a list of one; text
    with commas becomes a list of several.
    """
    kinds = _alternatives(hint)
    if len(kinds) > 1:
        is_whole = isinstance(value, float) and value.is_integer()
        return int(value) if is_whole and int in kinds and float not in kinds else value
    kind = kinds[0]
    if (is_struct(kind) or get_origin(kind) is dict) and isinstance(value, Mapping):
        return {key: fitted(inner, _inner(kind, key)) for key, inner in value.items()}
    if get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        many = value if isinstance(value, list | tuple) else [value]
        return [fitted(inner, get_args(kind)[0]) for inner in many]
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def check_known(raw: Mapping[str, Any], struct: type[msgspec.Struct], where: str) -> None:
    """Refuse keys that the struct, or a struct in it, does not have.

    A struct may have a ClassVar `REMOVED`: keys that it had once, each with what to write now.

    Args:
        raw: As from TOML.
        struct: The struct.
        where: Name of the struct in errors with a dot at its end ("options."), or "".

    Raises:
        UnknownKeyError: Names the key, the valid ones and the nearest of them.
        ConfigError: A key was removed; tells what to write now.
    """
    known = [f.name for f in msgspec.structs.fields(struct)]
    removed: Mapping[str, str] = getattr(struct, "REMOVED", {})
    for key in raw:
        if key in removed:
            raise ConfigError(f"{where}{key} was removed: {removed[key]}")
        if key not in known:
            near = nearest(key, known)
            place = f"in [{where[:-1]}]" if where else "at the top"
            raise UnknownKeyError(
                where + key,
                f"unknown key {where + key!r}; valid {place} are {', '.join(known)}",
                tuple(where + name for name in near),
            )
    for name, value, hint in _parts(raw, struct, where[:-1]):
        _check_inside(value, hint, name)


def without_removed(raw: Mapping[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return values of a file that mpips wrote, without the keys in `REMOVED` of the struct or one in it."""
    removed = getattr(struct, "REMOVED", {})
    found = {key: value for key, value in raw.items() if key not in removed}
    for key, value in found.items():
        inner = _inner(struct, key)
        if isinstance(value, Mapping) and is_struct(inner):
            found[key] = without_removed(value, inner)
    return found


def _check_inside(value: Any, hint: Any, name: str) -> None:
    for kind in _alternatives(hint):
        if isinstance(value, Mapping) and is_struct(kind):
            check_known(value, kind, f"{name}.")
        elif isinstance(value, Mapping) and get_origin(kind) is dict:
            for inner_name, inner, inner_hint in _parts(value, kind, name):
                _check_inside(inner, inner_hint, inner_name)
