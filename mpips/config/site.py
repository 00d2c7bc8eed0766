"""The site file: what all jobs of one cluster have in common, so that no job file needs it.

It is TOML and has three sections, all optional:

    [site]     modules and environment of the batch scripts that `mpips submit` writes; `mpips run` takes the
               environment as well
    [slurm]    defaults of [slurm] of a job: launcher, ranks per node, options of sbatch
    [run]      defaults of [run] of a job: folder, arguments of mpirun

A job file and the command line precede it. Lists of options (`slurm.sbatch`, `run.mpirun_args`) are put
before those of the job, so that an option of the job holds where both have it. In values of the environment
and in `run.folder`, $NAME stands for an environment variable, such as $USER.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mpips.config.conversion import check_known, convert
from mpips.config.launching import RunConfig, SlurmConfig
from mpips.config.reading import read_file
from mpips.errors import ConfigError

VARIABLE = "MPIPS_SITE"  # environment variable with the path of the file; empty: there is none
_FILES = ("/etc/mpips.toml", "~/.config/mpips.toml")
_SECTIONS = {"slurm": SlurmConfig, "run": RunConfig}
_JOINED = (("slurm", "sbatch"), ("run", "mpirun_args"))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODULE = re.compile(r"[\w.+/@:][\w.+/@:-]*")


class SiteSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[site] of a site file.

    Attributes:
        modules: Modules that a batch script loads, in this order, in place of all others.
        environment: Environment variables by name. One that is set already keeps its value.
    """

    modules: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class SiteSettings(msgspec.Struct, frozen=True):
    """The content of the site files.

    Attributes:
        modules: See `SiteSection`.
        environment: See `SiteSection`.
        defaults: Values of [slurm] and [run], by section and key, of a job that has none of its own.
    """

    modules: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    defaults: Mapping[str, Mapping[str, Any]] = {}

    def added(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of `environment` that `env` does not have."""
        return {name: value for name, value in self.environment.items() if name not in env}

    def under(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a job file, with the defaults of the site where it has none.

        A section that is a single value is returned unchanged.
        """
        found = dict(raw)
        for section, defaults in self.defaults.items():
            mine = raw.get(section, {})
            if not isinstance(mine, Mapping):
                continue
            both = {**defaults, **mine}
            for key in (key for name, key in _JOINED if name == section and key in mine):
                if isinstance(mine[key], list | tuple):
                    both[key] = [*defaults.get(key, ()), *mine[key]]
            found[section] = both
        return found


def load_site(env: Mapping[str, str] = os.environ) -> SiteSettings:
    """Read the site file that MPIPS_SITE names, else /etc/mpips.toml and then ~/.config/mpips.toml.

    Values of the second file precede those of the first one, key by key.

    Raises:
        ConfigError: A file cannot be read, or has a key or a value that is not accepted.
    """
    if VARIABLE in env:
        files = [env[VARIABLE]] if env[VARIABLE] else []
    else:
        files = [path for path in map(os.path.expanduser, _FILES) if Path(path).is_file()]
    site = SiteSettings()
    for path in files:
        site = _over(site, path)
    return site


def _over(site: SiteSettings, path: str) -> SiteSettings:
    """Return the values of a site file, and those of `site` where it has none."""
    raw = read_file(path)
    try:
        for section, value in raw.items():
            kind: Any = {**_SECTIONS, "site": SiteSection}.get(section)
            if kind is None or not isinstance(value, dict):
                raise ConfigError(
                    f"{section}: must be one of the sections [site], [slurm] and [run]"
                )
            check_known(value, kind, f"{section}.")
            convert(value, kind, section)
        mine: SiteSection = convert(raw.get("site", {}), SiteSection, "site")
        _check(mine)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    given = {name: raw[name] for name in _SECTIONS if name in raw}
    if "folder" in given.get("run", {}):
        given["run"] = {**given["run"], "folder": os.path.expandvars(given["run"]["folder"])}
    values = {name: os.path.expandvars(text) for name, text in mine.environment.items()}
    return SiteSettings(
        mine.modules or site.modules,
        {**site.environment, **values},
        {**site.defaults, **site.under(given)},
    )


def _check(mine: SiteSection) -> None:
    """Raise ConfigError for texts that a batch script could take for commands or options."""
    for name, text in mine.environment.items():
        if not _NAME.fullmatch(name) or not text.isprintable():
            raise ConfigError(
                f"site.environment: {name} = {text!r} must be a variable with a value of one line"
            )
    for module in mine.modules:
        if not _MODULE.fullmatch(module):
            raise ConfigError(f"site.modules: {module!r} must be the name of a module")
