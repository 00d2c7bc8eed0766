"""The checks that need no ranks, in the order in which they run and are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mpips.doctor import machine, site, software, storage
from mpips.doctor.finding import Finding, Judgement, warned
from mpips.doctor.situation import Situation

Check = Callable[[Situation], Judgement]

CHECKS: dict[str, Check] = {
    **software.CHECKS,
    **site.CHECKS,
    **machine.CHECKS,
    **storage.CHECKS,
}


def run_checks(here: Situation) -> Iterator[Finding]:
    """Run all checks; yield the finding of each as soon as the check is done. Blocks.

    A check that cannot read what it needs becomes a warning.
    """
    for name, check in CHECKS.items():
        try:
            verdict = check(here)
        except (OSError, ValueError) as error:
            verdict = warned(
                f"could not be checked: {type(error).__name__}: {error}", "mpips doctor --json"
            )
        yield verdict.named(name)
