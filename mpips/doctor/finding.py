"""What a check has found, and how that is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Status = Literal["PASS", "WARN", "FAIL"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check.

    Attributes:
        name: Of the check.
        status: FAIL: jobs will not run; WARN: they run worse, or some will not; PASS.
        reason: What was found, in one line.
        fix: The command that mends it; empty where nothing is to be mended.
    """

    name: str
    status: Status
    reason: str
    fix: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A finding without the name, as a check returns it."""

    status: Status
    reason: str
    fix: str = ""

    def named(self, name: str) -> Finding:
        """The finding of the check of this name."""
        reason = " ".join(self.reason.split())
        return Finding(name=name, status=self.status, reason=reason, fix=self.fix)


def passed(reason: str) -> Judgement:
    """Nothing to mend."""
    return Judgement(status="PASS", reason=reason)


def warned(reason: str, fix: str) -> Judgement:
    """Jobs run, but worse or not all of them."""
    return Judgement(status="WARN", reason=reason, fix=fix)


def failed(reason: str, fix: str) -> Judgement:
    """Jobs do not run."""
    return Judgement(status="FAIL", reason=reason, fix=fix)


def count(findings: Sequence[Finding], status: Status) -> int:
    """Number of findings of a status."""
    return sum(finding.status == status for finding in findings)


def as_line(finding: Finding, width: int) -> str:
    """One line for people, and the command below it; `width`: of the longest name."""
    line = f"{finding.status}  {finding.name:<{width}}  {finding.reason}"
    return line + (f"\n{'':<{width + 8}}fix: {finding.fix}" if finding.fix else "")


def summary(findings: Sequence[Finding]) -> str:
    """How many of each status."""
    parts = [f"{count(findings, s)} {s}" for s in ("PASS", "WARN", "FAIL")]
    return ", ".join(parts)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything as plain values."""
    return {
        "ok": count(findings, "FAIL") == 0,
        "counts": {s: count(findings, s) for s in ("PASS", "WARN", "FAIL")},
        "checks": [msgspec.to_builtins(finding) for finding in findings],
    }
