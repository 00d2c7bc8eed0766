"""A job file as plain values: reading it, and assigning single values to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpips.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# A name alone stands for a table with this name.
_NAMED = ("optimizer", "partition")


class Unset:
    """Type of the value of `--set key=`, which removes what the file has for the key."""


UNSET = Unset()


def read_file(path: str) -> dict[str, Any]:
    """Read a TOML file, or JSON if the name ends with ".json".

    Raises:
        ConfigError: The file cannot be read or has a syntax error.
    """
    try:
        text = Path(path).read_bytes()
        if path.endswith(".json"):
            return msgspec.json.decode(text, type=dict[str, Any])
        return tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from None


def parse_value(text: str) -> Any:
    """Return the value that a text has in TOML, or the text itself if it is not valid TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Assign a value to a dotted key, making the tables on the way.

    Raises:
        ConfigError: A name before the last dot has a value that is not a table.
    """
    *path, last = key.split(".")
    at = raw
    for name in path:
        inner = at.setdefault(name, {})
        if isinstance(inner, str) and name in _NAMED:
            inner = at[name] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"--set {key}: {name} is a value, not a table; check the names before the dot"
            )
        at = inner
    at[last] = value


def without_unset(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that have a value, at all depths."""
    return {
        key: without_unset(value) if isinstance(value, Mapping) else value
        for key, value in raw.items()
        if value is not UNSET
    }
