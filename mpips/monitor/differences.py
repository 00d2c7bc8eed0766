"""`mpips diff`: what differs between two runs, in their configuration and in their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.reading import DAMAGED, read_regular

ABSENT = "-"
# Keys of summary.json that differ between any two runs, or repeat the configuration or other files.
_NOT_RESULTS = (
    "name",
    "run_dir",
    "ended",
    "history",
    "options",
    "data.",
    "checkpoint.path",
    "best.path",
    "checkpoint.notes",
)


class Difference(msgspec.Struct, frozen=True):
    """A value that two runs have differently.

    Attributes:
        section: "configuration" or "result".
        key: Name of the value with dots, as for --set.
        first, second: The value of each run as text; ABSENT: the run has none.
    """

    section: str
    key: str
    first: str
    second: str


def differences(first: RunFolder, second: RunFolder) -> list[Difference]:
    """Return the values of `config.json` and `summary.json` that differ, sorted by section and key.

    A run that is not finished has no summary; then only the configurations are compared.

    Raises:
        ConfigError: A file is damaged, or a run has no configuration.
    """
    found = _compare(
        "configuration", *(_read(r.config_file, required=True) for r in (first, second))
    )
    results = [_read(run.path / "summary.json", required=False) for run in (first, second)]
    if all(results):
        found += _compare("result", *results)
    return found


def _read(path: Path, required: bool) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(read_regular(path), type=dict[str, Any])
        return dict(_flat(content))
    except FileNotFoundError:
        if required:
            raise ConfigError(
                f"{path}: does not exist; give two run directories of `mpips run`"
            ) from None
        return {}
    except (OSError, *DAMAGED) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def values_of(run: RunFolder) -> tuple[dict[str, str], dict[str, str]]:
    """Return the configuration of a run and, if it has finished, its result: text by dotted key.

    Raises:
        ConfigError: A file is damaged.
    """
    config = _read(run.config_file, required=False)
    result = _read(run.path / "summary.json", required=False)
    return (
        {key: _text(config, key) for key in sorted(config)},
        {key: _text(result, key) for key in sorted(result) if not key.startswith(_NOT_RESULTS)},
    )


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested mappings with its keys joined by dots."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _compare(section: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    keys = sorted(first.keys() | second.keys())
    return [
        Difference(section, key, _text(first, key), _text(second, key))
        for key in keys
        if not (section == "result" and key.startswith(_NOT_RESULTS))
        and ((key in first) != (key in second) or first.get(key) != second.get(key))
    ]


def _text(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return ABSENT
    value = values[key]
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
