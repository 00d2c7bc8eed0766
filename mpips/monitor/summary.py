"""The summary of a run in about twenty lines: what ran where, its versions and options, and its results."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mpips.config.schema import JobConfig
from mpips.monitor.summary_text import text
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Event, RankPlace

# Keys that other lines of the summary show, or that concern where a run ran and not what it computed.
_NOT_OPTIONS = (
    *("task", "data.train", "data.validation", "data.test"),
    *("run.", "slurm.", "checkpoint.folder"),
)


def differences(config: JobConfig) -> dict[str, Any]:
    """Return the values of a configuration that differ from the defaults, by dotted keys.

    Keys of the data, the launch and the folder of checkpoints are left out.
    """
    found: dict[str, Any] = {}

    def walk(given: Mapping[str, Any], default: Mapping[str, Any], where: str) -> None:
        for key, value in given.items():
            other = default.get(key)
            if isinstance(value, dict) and key not in ("optimizer", "partition"):
                walk(value, other if isinstance(other, dict) else {}, f"{where}{key}.")
            elif value != other and value is not None:
                found[where + key] = value

    walk(msgspec.to_builtins(config), msgspec.to_builtins(JobConfig()), "")
    return {key: value for key, value in found.items() if not key.startswith(_NOT_OPTIONS)}


def setbacks(events: Sequence[Event], end_s: float) -> dict[str, Any]:
    """Return the failures of a run and what they cost.

    Args:
        events: Events of the run.
        end_s: Unix time of its end.

    Returns:
        `restarts`, their number; `seconds` between each failure and the start of work of the next attempt,
        summed; `steps` that were computed twice; `causes`, one for each failure.
    """
    seconds, steps, causes = 0.0, 0, []
    failed: Event | None = None
    for event in events:
        if event.event == "failed":
            failed = failed or event
            causes.append(event.cause)
        elif failed is not None:
            seconds += event.time_s - failed.time_s
            steps += max(failed.step - event.step, 0)
            failed = None
    if failed is not None:
        seconds += end_s - failed.time_s
    return {
        "restarts": len(causes),
        "seconds": round(max(seconds, 0.0), 3),
        "steps": steps,
        "causes": causes,
    }


def figures(statistics: Mapping[str, Any], transports: Mapping[str, int]) -> dict[str, Any]:
    """Return the counts that every job has, as plain values.

    Args:
        statistics: Statistics of the job, as `Outcome.statistics`.
        transports: Number of pairs of worker and server by transport, as `Outcome.transports`.
    """
    servers, workers = statistics["servers"], statistics["workers"]
    tables = [t for server in servers for t in server["tables"].values()]
    # Add the histograms of all tables, and cut off empty bins at the end.
    staleness = [sum(column) for column in zip(*(t["staleness"] for t in tables), strict=True)]
    while staleness and staleness[-1] == 0:
        staleness.pop()
    kinds = ("applied", "rejected", "scaled", "compensated", "late")
    updates = {kind: sum(t[kind] for t in tables) for kind in kinds}
    # Workers apply those of replicated tables, and servers get those of a group as one.
    updates["applied"] += sum(
        w["pushes"].get("replicated", 0) + w["pushes"].get("grouped", 0) for w in workers
    )
    return {
        "pushed_bytes": sum(w["pushes"]["pushed_bytes"] for w in workers),
        "pulled_bytes": sum(w["pushes"]["pulled_bytes"] for w in workers),
        "updates_pushed": sum(w["pushes"]["pushed"] for w in workers),
        **{f"updates_{kind}": n for kind, n in updates.items()},
        "checkpoint": servers[0].get("checkpoint"),
        "staleness": staleness,
        "transports": dict(transports),
    }


def summarize(
    config: JobConfig,
    report: Mapping[str, Any],
    ranks: Sequence[RankPlace],
    versions: Mapping[str, str],
    run: RunFolder | None = None,
) -> dict[str, Any]:
    """Return the summary of a training run, as plain values.

    Args:
        config: The resolved configuration.
        report: The report of `mpips.cli.train.make_report`.
        ranks: Role, host and process of every rank.
        versions: Versions of mpips, MPI and HDF5, by name; "" is left out.
        run: The run directory of a supervised run.
    """
    return {
        "name": run.path.name if run is not None else config.task,
        **_of_any_job(config.task, report, ranks, versions, run),
        "options": differences(config),
        "train": str(config.data.train_files),
        "test": str(config.data.test_files),
        "validation": str(config.data.validation_files) or config.data.held_fraction,
    }


def summarize_script(
    script: str,
    report: Mapping[str, Any],
    ranks: Sequence[RankPlace],
    versions: Mapping[str, str],
    run: RunFolder,
) -> dict[str, Any]:
    """Return the summary of the run of a script: as `summarize`, without data, options and metrics.

    Args:
        script: Name of the script.
        report: The counts of `figures`.
        ranks: Role, host and process of every rank.
        versions: Versions of mpips, MPI and HDF5, by name; "" is left out.
        run: The run directory; the run is finished.
    """
    mark = run.finished()
    return {
        "name": run.path.name,
        **_of_any_job(script, report, ranks, versions, run),
        "steps": mark.step if mark is not None else 0,
    }


def _of_any_job(
    task: str,
    report: Mapping[str, Any],
    ranks: Sequence[RankPlace],
    versions: Mapping[str, str],
    run: RunFolder | None,
) -> dict[str, Any]:
    """Return the part of the summary that trainings and scripts have in common."""
    now = time.time()
    events = run.events() if run is not None else []
    return {
        "run_dir": str(run.path) if run is not None else None,
        "task": task,
        "ended": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now)),
        "wall_seconds": round(now - _begun_s(run, events), 3) if run is not None else None,
        "hosts": list(dict.fromkeys(place.host for place in ranks)),
        "roles": dict(Counter(_roles(ranks))),
        "ranks": len(ranks),
        "pairs": dict(report["transports"]),
        "versions": {
            **{k: v for k, v in versions.items() if v},
            "Python": platform.python_version(),
        },
        "setbacks": setbacks(events, now),
        **report,
    }


def _begun_s(run: RunFolder, events: Sequence[Event]) -> float:
    """Return the Unix time at which the first attempt of a run began; trials of a sweep wait for it."""
    began = [event.time_s for event in events if event.event == "began"]
    return min(began, default=run.info().created_s)


def _roles(ranks: Sequence[RankPlace]) -> list[str]:
    """Return the role of each rank without its number."""
    return [" + ".join(part.split()[0] for part in place.role.split(" + ")) for place in ranks]


def write(run: RunFolder, summary: Mapping[str, Any]) -> None:
    """Write the summary into the run directory, as summary.txt and summary.json.

    Raises:
        OSError: A file cannot be written.
    """
    replace_json(run.path / "summary.json", summary)
    new = run.path / ".summary.txt"
    new.write_text(text(summary) + "\n")
    new.replace(run.path / "summary.txt")
