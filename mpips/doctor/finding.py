"""The finding of a check, as text for a terminal and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from mpips.terminal.screen import command_text, state_style, styled, wrapped

Status = Literal["PASS", "WARN", "FAIL"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check.

    Attributes:
        name: Name of the check.
        status: FAIL: jobs cannot run; WARN: jobs run slower, or some kinds of jobs fail; PASS: neither.
        reason: Result of the check, in one line.
        fix: Shell command that repairs it; empty for PASS.
    """

    name: str
    status: Status
    reason: str
    fix: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A finding without the name of its check; a check returns it. Attributes as in `Finding`."""

    status: Status
    reason: str
    fix: str = ""

    def named(self, name: str) -> Finding:
        """Return the finding of the check `name`, with the reason in one line."""
        reason = " ".join(self.reason.split())
        return Finding(name=name, status=self.status, reason=reason, fix=self.fix)


def passed(reason: str) -> Judgement:
    """Return a PASS: there is nothing to repair."""
    return Judgement(status="PASS", reason=reason)


def warned(reason: str, fix: str) -> Judgement:
    """Return a WARN: jobs run slower, or some kinds of jobs fail."""
    return Judgement(status="WARN", reason=reason, fix=fix)


def failed(reason: str, fix: str) -> Judgement:
    """Return a FAIL: jobs cannot run."""
    return Judgement(status="FAIL", reason=reason, fix=fix)


def count(findings: Sequence[Finding], status: Status) -> int:
    """Return the number of findings with this status."""
    return sum(finding.status == status for finding in findings)


def as_line(finding: Finding, width: int, columns: int = 0, colour: bool = False) -> str:
    """Return the line of a finding, and its fix below it.

    Args:
        finding: The finding.
        width: Characters to which names are padded.
        columns: Characters of a line; 0: any number, so the finding has one line and the fix another.
        colour: The status has a colour.
    """
    margin = width + 8
    lines = wrapped(f"{finding.name:<{width}}  {finding.reason}", max(columns - 6, 0), width + 2)
    status = styled(finding.status, state_style(finding.status), colour)
    text = f"{status}  " + lines.replace("\n", "\n" + 6 * " ")
    if not finding.fix:
        return text
    room = max(columns - margin, 0)
    if finding.fix.startswith("export ") and "#" not in finding.fix:
        # A copy of the command must be the whole command.
        fix = command_text(["fix: export", *finding.fix.split()[1:]], room)
    else:
        fix = wrapped(f"fix: {finding.fix}", room)
    return text + "\n" + "\n".join(" " * margin + line for line in fix.split("\n"))


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each status, as text."""
    parts = [f"{count(findings, s)} {s}" for s in ("PASS", "WARN", "FAIL")]
    return ", ".join(parts)


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as plain values for JSON; "ok" is True if none is a FAIL."""
    return {
        "ok": count(findings, "FAIL") == 0,
        "counts": {s: count(findings, s) for s in ("PASS", "WARN", "FAIL")},
        "checks": [msgspec.to_builtins(finding) for finding in findings],
    }
