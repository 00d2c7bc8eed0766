"""Rules for all tests: which of them run, and the processor time of each."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings
from long_runs import LONG, TURN, heavy_parts, resting, turn
from patience import PATIENCE

# A loaded machine, a sanitizer or five ranks on two cores say nothing about a property.
# Examples are the same in every run; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("mpips", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mpips"))

# What tests/tally.py reads: processor seconds, under the second name for what takes turns case by case.
_PROPERTIES = ("cpu_s", "sampled_s")
_cpu_at_start = pytest.StashKey[float]()


def pytest_report_header() -> list[str]:
    """Say whose turn it is, and how to choose the same tests again."""
    if LONG:
        return ["long run: all cases"]
    return [f"what takes turns: that of commit {turn()}; again: {TURN}={turn()}"]


def _stage(item: pytest.Item) -> str:
    """The stage of tests/run.sh that runs a test."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return "sanitize" if folder == "unit" and "MPIPS_NATIVE_DIR" in os.environ else folder


def _name(item: pytest.Item) -> str:
    """The name of a test as tests/tally.py has it from the reports."""
    path = item.path.relative_to(Path(__file__).parents[1]).with_suffix("")
    address, bracket, parameters = item.nodeid.partition("[")
    _, *classes, name = address.split("::")
    return f"{'.'.join([*path.parts, *classes])}::{name}{bracket}{parameters}"


def _reason_by_day(item: pytest.Item, named: set[Path]) -> str:
    """Return why a test does not run by day, or ""."""
    if item.get_closest_marker("long") is not None:
        return "long: run by `bash tests/run.sh long`"
    if item.get_closest_marker("sampled") is not None or item.path in named:
        return ""
    return resting(_stage(item), _name(item))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """By day skip what is marked `long` or waits for its turn; the long run leaves what has more to do there.

    With MPIPS_TEST_ALL=1 the long run leaves everything.
    """
    for item in items:
        if (limit := item.get_closest_marker("timeout")) is not None:
            item.add_marker(pytest.mark.timeout(PATIENCE * limit.args[0]), append=False)
    if not LONG:
        named = {Path(argument.partition("::")[0]).absolute() for argument in config.args}
        for item in items:
            if reason := _reason_by_day(item, named):
                item.add_marker(pytest.mark.skip(reason=reason))
        return
    if os.environ.get("MPIPS_TEST_ALL") == "1":
        return
    chosen, others = [], []
    for item in items:
        turns = any(item.get_closest_marker(name) for name in ("long", "sampled"))
        wanted = turns or _name(item) in heavy_parts(_stage(item))
        (chosen if wanted else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def _cpu_s() -> float:
    """Return the processor time of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[_cpu_at_start] = _cpu_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the processor time of the test into its report; `tests/tally.py` reads it there."""
    if call.when == "teardown" and _cpu_at_start in item.stash:
        name = _PROPERTIES[item.get_closest_marker("sampled") is not None]
        item.user_properties.append((name, round(_cpu_s() - item.stash[_cpu_at_start], 3)))
    return (yield)


@pytest.fixture(autouse=True, scope="module")
def _freeze() -> None:
    """Exempt what lives to the end from the collections of garbage that tests start.

    Modules and reports of thousands of tests would make each of them take 0.1 s.
    """
    gc.collect()
    gc.freeze()
