"""The values of a sweep: all combinations of listed values, and random draws.

Random search finds good values of several options in fewer trials than a grid (Bergstra and Bengio, "Random
Search for Hyper-Parameter Optimization", JMLR 2012).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from mpips.config.reading import parse_value
from mpips.config.schema import parse_assignment
from mpips.errors import ConfigError

MAX_TRIALS = 10_000
_FORMS = "KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=VALUE,VALUE,..."

Assignments = tuple[str, ...]  # of one trial, each as for --set


class Range(msgspec.Struct, frozen=True):
    """Numbers from `low` to `high`; whole ones if both ends are. `log`: their logarithms are uniform."""

    low: float
    high: float
    log: bool = False

    def draw(self, generator: np.random.Generator) -> float | int:
        """Return a number."""
        low, high = self.low, self.high
        if isinstance(low, int) and isinstance(high, int):
            if not self.log:
                return int(generator.integers(low, high, endpoint=True))
            # Each whole number has the share of its interval, rounding included.
            drawn = math.exp(generator.uniform(math.log(low - 0.5), math.log(high + 0.5)))
            return min(max(round(drawn), low), high)
        ends = (math.log(low), math.log(high)) if self.log else (low, high)
        drawn = generator.uniform(*ends)
        # Four digits are enough, and shorter to read and to repeat.
        return float(f"{math.exp(drawn) if self.log else drawn:.4g}")


def parse_list(option: str, text: str) -> tuple[str, list[str]]:
    """Return key and values of KEY=VALUE,VALUE,... A value is as for --set; lists are in brackets.

    Raises:
        ConfigError: There is no key, or there are no values.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise ConfigError(
            f"{option} {text!r}: write KEY=VALUE,VALUE, such as train.batch_size=32,64"
        )
    texts = [value.strip() for value in _split(values)]
    for value in texts:
        if not value:
            raise ConfigError(f"{option} {text!r}: a value is empty; remove the comma")
        parse_assignment(f"{key}={value}")
    return key, texts


def _split(values: str) -> list[str]:
    """Split a text at the commas that are not in brackets or quotes."""
    found, depth, quote = [""], 0, ""
    for character in values:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "[{") - (character in "]}") if not quote else 0
        if character == "," and not depth and not quote:
            found.append("")
        else:
            found[-1] += character
    return found


def parse_random(text: str) -> tuple[str, Range | list[str]]:
    """Return key and range, or values, of the forms in `_FORMS`.

    Raises:
        ConfigError: It has none of these forms, or the range is empty.
    """
    key, _, values = text.partition("=")
    parts = [part.strip() for part in values.split(":")]
    ends = [parse_value(part) for part in parts[:2]]
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if len(parts) == 1:
        return parse_list("--random", text)
    if len(parts) > 3 or not numbers or not key.strip() or parts[2:] not in ([], ["log"]):
        raise ConfigError(f"--random {text!r}: write {_FORMS}")
    found = Range(ends[0], ends[1], log=len(parts) == 3)
    if not math.isfinite(found.low) or not found.low < found.high < math.inf:
        raise ConfigError(f"--random {text!r}: the second number must be greater than the first")
    if found.log and found.low <= 0:
        raise ConfigError(f"--random {text!r}: with log both numbers must be greater than 0")
    return key.strip(), found


def trials(grid: Sequence[str], random: Sequence[str], n: int, seed: int) -> list[Assignments]:
    """Return the assignments of each trial: every combination of the lists, for each random draw.

    Args:
        grid: Texts of --grid.
        random: Texts of --random.
        n: Number of random draws; counts only with `random`.
        seed: Seed of the draws: equal arguments give equal trials.

    Raises:
        ConfigError: A text is wrong, a key occurs twice, or there are too many trials.
    """
    lists = [parse_list("--grid", text) for text in grid]
    drawn = [parse_random(text) for text in random]
    keys = [key for key, _ in (*lists, *drawn)]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{key} is given twice; give each key one --grid or one --random")
    n_draws = n if random else 1
    count = n_draws * math.prod(len(values) for _, values in lists)
    if count > MAX_TRIALS:
        raise ConfigError(f"these are {count:,} trials; at most {MAX_TRIALS:,} are accepted")
    generator = np.random.Generator(np.random.PCG64(seed))
    found = []
    for _ in range(n_draws):
        own = [f"{key}={_draw(values, generator)}" for key, values in drawn]
        for combination in itertools.product(*(values for _, values in lists)):
            fixed = [f"{key}={v}" for (key, _), v in zip(lists, combination, strict=True)]
            found.append((*fixed, *own))
    return found


def _draw(values: Range | list[str], generator: np.random.Generator) -> Any:
    if isinstance(values, Range):
        return values.draw(generator)
    return values[int(generator.integers(len(values)))]
