"""[producers] of a job file: programs that `mpips run` starts beside the job, and what each is given."""

from __future__ import annotations

import math
import re
import shlex
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from mpips.errors import ConfigError

MEMBER = "member"  # the name that stands for the number of a member
LEAST_LOG_MIB = 1 / 64  # MiB
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_RANGE = {"low", "high", "log"}


class ProducersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[producers]: programs that push samples into a stream, started and supervised by `mpips run`."""

    command: Annotated[
        str | tuple[str, ...],
        Meta(
            description='Program and arguments of a member: text as for a shell, such as "mpirun -n 4 '
            './solver {member}", of which no shell is started, or a list of words. {member} stands for its '
            "number, {NAME} for the value of a parameter, {{ and }} for braces. Empty: no programs."
        ),
    ] = ""
    members: Annotated[
        int, Meta(ge=1, description="Members of the ensemble: programs to run, counted from 0.")
    ] = 1
    at_once: Annotated[
        int,
        Meta(ge=0, description="Members that run at the same time; 0: all."),
    ] = 0
    queues: Annotated[
        int,
        Meta(
            ge=1,
            description="Producers of a member, as a solver has one on each of its ranks. Member k has the "
            "producers k * queues to (k + 1) * queues - 1 of the stream.",
        ),
    ] = 1
    parameters: Annotated[
        dict[str, Any],
        Meta(
            description="Values of {NAME} by name: a list with a value for each member, or {low = 0.1, high "
            "= 2.0}, with log = true on a logarithmic scale, from which a Latin hypercube is drawn. Whole "
            "numbers stay whole."
        ),
    ] = {}
    seed: Annotated[int, Meta(ge=0, description="Seed of the values that are drawn.")] = 0
    folder: Annotated[
        str,
        Meta(
            description="Working folder of a member, which must exist unless it contains {member} or a "
            "parameter: it is then made. Empty: that of `mpips run`."
        ),
    ] = ""
    environment: Annotated[
        dict[str, str], Meta(description="Environment variables of all members by name.")
    ] = {}
    stream: Annotated[
        str,
        Meta(
            description="Name of the queues, for programs that call mpips_open with a name. Empty: a name "
            "of its own for each run, which programs get by mpips_open(..., NULL, ...)."
        ),
    ] = ""
    on_failure: Annotated[
        Literal["restart", "end", "continue"],
        Meta(
            description="A member has ended with another code than 0. restart: start it again, at most "
            "`max_restarts` times, then end. end: the ranks write a checkpoint, and the run ends with code "
            "1. continue: its producers end with the samples that they have pushed."
        ),
    ] = "restart"
    max_restarts: Annotated[
        int, Meta(ge=0, description="Restarts of each member after failures.")
    ] = 3
    end_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds that members have to end by themselves when the run is done, and after "
            "SIGTERM before SIGKILL.",
        ),
    ] = 30.0

    log_mib: Annotated[
        float,
        Meta(
            ge=0,
            description="Size in MiB above which the log of a member is cut: its first quarter and its last "
            "half are left, with a line between them. 0: no limit.",
        ),
    ] = 64.0

    @property
    def words(self) -> tuple[str, ...]:
        """Program and arguments, before values are put in; empty: there are no programs.

        Raises:
            ConfigError: A quote has no end.
        """
        if not isinstance(self.command, str):
            return self.command
        try:
            return tuple(shlex.split(self.command))
        except ValueError as error:
            raise ConfigError(
                f"producers.command = {self.command!r}: cannot be split into words: {error}"
            ) from None

    @property
    def n_producers(self) -> int:
        """Producers of all members."""
        return self.members * self.queues

    @property
    def n_at_once(self) -> int:
        """Members that run at the same time, at most."""
        return min(self.at_once or self.members, self.members)

    def numbers(self, member: int) -> range:
        """Return the numbers of the producers of a member."""
        return range(member * self.queues, (member + 1) * self.queues)

    def check(self) -> None:
        """Refuse values that no member could be started with.

        Raises:
            ConfigError: Names the option, its value and what is accepted.
        """
        for name, text in self.environment.items():
            if not _NAME.fullmatch(name) or "\0" in text or name.startswith("MPIPS_"):
                raise ConfigError(
                    f"producers.environment: {name} = {text!r}: must be a variable with a name of letters, "
                    "digits and '_' that does not begin with MPIPS_"
                )
        if self.stream and not _QUEUE_NAME.fullmatch(self.stream):
            raise ConfigError(
                f"producers.stream = {self.stream!r}: must have 1 to 64 letters, digits, '-', '_' and '.'"
            )
        for name, values in self.parameters.items():
            self._check_parameter(name, values)
        if not self.words:
            if self != ProducersConfig():
                raise ConfigError(
                    'producers.command is missing; write command = "mpirun -n 4 ./solver {member}"'
                )
            return
        if not self.words[0] or any("\0" in word for word in (*self.words, self.folder)):
            raise ConfigError(
                f"producers.command = {self.command!r}: must begin with a program, without zero bytes"
            )
        if 0 < self.log_mib < LEAST_LOG_MIB:
            raise ConfigError(
                f"producers.log_mib = {self.log_mib:g}: must be 0 or at least {LEAST_LOG_MIB:g}"
            )
        for member in (0, self.members - 1):
            self.member(member)

    def _check_parameter(self, name: str, values: Any) -> None:
        where = f"producers.parameters.{name}"
        if not _NAME.fullmatch(name) or name == MEMBER:
            raise ConfigError(
                f"{where}: the name must have letters, digits and '_', and not be {MEMBER!r}"
            )
        if isinstance(values, list | tuple):
            if len(values) != self.members:
                raise ConfigError(
                    f"{where} has {len(values)} values: must be {self.members}, one for each member"
                )
            if not all(isinstance(value, str | int | float) for value in values):
                raise ConfigError(f"{where} = {values!r}: must be a list of numbers or texts")
            return
        if not isinstance(values, Mapping) or not {"low", "high"} <= set(values) <= _RANGE:
            raise ConfigError(
                f"{where} = {values!r}: must be a list with {self.members} values, or "
                "{low = 0.1, high = 2.0} or {low = 0.1, high = 2.0, log = true}"
            )
        low, high, log = values["low"], values["high"], values.get("log", False)
        numbers = all(_is_number(value) for value in (low, high))
        if not numbers or not isinstance(log, bool) or not low < high or (log and low <= 0):
            raise ConfigError(
                f"{where} = {dict(values)!r}: low and high must be numbers, low less than high, and greater "
                "than 0 with log = true"
            )

    def values(self, member: int) -> dict[str, str]:
        """Return the text of each name that may stand in the command, of one member."""
        found = {MEMBER: str(member)}
        for name, given in self.parameters.items():
            value = (
                given[member]
                if isinstance(given, list | tuple)
                else self._drawn(name, given, member)
            )
            found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def _drawn(self, name: str, ends: Mapping[str, Any], member: int) -> float | int:
        """Return a value of a Latin hypercube: each member has an n-th of the range for itself.

        McKay, Beckman and Conover, "A Comparison of Three Methods for Selecting Values of Input Variables",
        Technometrics 1979.
        """
        generator = np.random.Generator(np.random.PCG64([self.seed, zlib.crc32(name.encode())]))
        places = generator.permutation(self.members) + generator.random(self.members)
        share = float(places[member]) / self.members
        low: float = ends["low"]
        high: float = ends["high"]
        is_whole = isinstance(low, int) and isinstance(high, int)
        if is_whole and not ends.get("log"):
            return low + min(int(share * (high - low + 1)), high - low)
        if ends.get("log"):
            drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            drawn = low + share * (high - low)
        # Six digits are enough, and shorter to read and to repeat.
        return min(max(round(drawn), low), high) if is_whole else float(f"{drawn:.6g}")

    def member(self, member: int) -> tuple[list[str], str]:
        """Return the words of a member's command, and its working folder ("": that of the run).

        Raises:
            ConfigError: A name in braces has no value.
        """
        values = self.values(member)
        command = [_filled("command", word, values) for word in self.words]
        return command, _filled("folder", self.folder, values)

    @property
    def makes_folders(self) -> bool:
        """True if members have working folders of their own, which are made."""
        return _filled("folder", self.folder, self.values(0)) != self.folder


def _filled(option: str, text: str, values: Mapping[str, str]) -> str:
    """Return text with values in place of names in braces.

    Raises:
        ConfigError: A name has no value.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name not in values:
            raise ConfigError(
                f"producers.{option}: {match[0]} has no value; names with values are {', '.join(values)}. "
                "Write {{ and }} for braces"
            )
        return values[name]

    return _PLACE.sub(value, text)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
