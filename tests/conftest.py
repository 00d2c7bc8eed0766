"""Rules for all tests: which of them run, and the processor time of each."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Generator

import pytest
from hypothesis import settings
from long_runs import LONG

# A loaded machine, a sanitizer or five ranks on two cores say nothing about a property.
# Examples are the same in every run; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("mpips", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mpips"))

_cpu_at_start = pytest.StashKey[float]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """By day skip what is marked `long`; in the long run leave only what has more to do there.

    With MPIPS_TEST_ALL=1 the long run leaves everything.
    """
    if not LONG:
        skip = pytest.mark.skip(reason="long: run by `bash tests/run.sh long`")
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(skip)
        return
    if os.environ.get("MPIPS_TEST_ALL") == "1":
        return
    chosen, others = [], []
    for item in items:
        wanted = any(item.get_closest_marker(name) for name in ("long", "sampled"))
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
        item.user_properties.append(("cpu_s", round(_cpu_s() - item.stash[_cpu_at_start], 3)))
    return (yield)


@pytest.fixture(autouse=True, scope="module")
def _freeze() -> None:
    """Exempt what lives to the end from the collections of garbage that tests start.

    Modules and reports of thousands of tests would make each of them take 0.1 s.
    """
    gc.collect()
    gc.freeze()
