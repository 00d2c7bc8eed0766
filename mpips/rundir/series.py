"""The metrics of a run as one series: lines of metrics.jsonl without those that a restart has repeated.

An attempt that begins at step s repeats all steps after s, so lines of earlier attempts about these steps
are not part of the series. Where attempts begin is in events.jsonl. An attempt that begins at the end of an
epoch may evaluate step s once more; then the earlier evaluation is not part of the series either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event
from mpips.rundir.reading import DAMAGED, read_regular

Line = dict[str, Any]
TEST: Final = "test"
EVALUATIONS = ("validation", TEST)  # keys of the metrics in a line about an evaluation


def series(run: RunFolder) -> list[Line]:
    """Return the lines of metrics.jsonl that make one series, in their order.

    A line that is cut off or of another form is left out.

    Args:
        run: The run.

    Raises:
        OSError: The file is there and cannot be read, or is not a regular file.
    """
    try:
        encoded = read_regular(run.metrics_file).split(b"\n")
    except FileNotFoundError:
        return []
    return settled(_decoded(encoded), run.events())


def _decoded(lines: Iterable[bytes]) -> Iterable[Line]:
    """Yield the lines that have a step and a generation."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    for encoded in lines:
        try:
            line = decoder.decode(encoded)
        except DAMAGED:
            continue
        if isinstance(line.get("step"), int) and isinstance(line.get("generation"), int):
            yield line


def settled(lines: Iterable[Line], events: Sequence[Event]) -> list[Line]:
    """Return the lines that no later attempt has repeated.

    Args:
        lines: Lines in the order in which they were written.
        events: Events of the run, of which those about the begin of an attempt count.
    """
    began = sorted(
        ((event.generation, event.step) for event in events if event.event == "began"), reverse=True
    )
    # Least step at which an attempt after a generation has begun, the last generation first.
    limits: list[tuple[int, int]] = []
    for generation, step in began:
        limits.append((generation, min(step, limits[-1][1] if limits else step)))

    def is_settled(line: Line) -> bool:
        later = [step for generation, step in limits if generation > line["generation"]]
        return not later or line["step"] <= min(later)

    return _evaluated_once([line for line in lines if is_settled(line)])


def metrics_of(line: Line) -> tuple[str, dict[str, Any]]:
    """Return "validation" or "test", and the metrics of this data; ("", {}) for other lines."""
    for key in EVALUATIONS:
        if isinstance(line.get(key), dict):
            return key, line[key]
    return "", {}


def evaluations_of(line: Line) -> set[tuple[int, str, str]]:
    """Return step, data and name of each metric of a line; none if the line is not an evaluation."""
    data, metrics = metrics_of(line)
    return {(line["step"], data, name) for name in metrics}


def _evaluated_once(lines: Iterable[Line]) -> list[Line]:
    """Return the lines without metrics that a later generation has evaluated at the same step."""
    found = list(lines)
    newest: dict[tuple[int, str, str], int] = {}  # greatest generation by step, data and metric
    for line in found:
        for key in evaluations_of(line):
            newest[key] = max(newest.get(key, line["generation"]), line["generation"])
    remaining = []
    for line in found:
        repeated = {key for key in evaluations_of(line) if newest[key] > line["generation"]}
        if repeated:
            data, metrics = metrics_of(line)
            left = {n: v for n, v in metrics.items() if (line["step"], data, n) not in repeated}
            if not left:
                continue
            line = {**line, data: left}
        remaining.append(line)
    return remaining
