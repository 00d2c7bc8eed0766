"""Write a plan as text and as JSON."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from mpips.model.served import served
from mpips.model.table import DenseTable
from mpips.monitor.progress import plural
from mpips.plan import local_training
from mpips.plan.limits import MOST_RANKS
from mpips.plan.needs import Needs
from mpips.plan.planning import Plan
from mpips.plan.predict import server_seconds
from mpips.terminal.table import text_table
from mpips.terminal.units import binary_size
from mpips.worker.paths import has_direct_path, path_to_server

_FEW_RANKS = 24  # up to so many ranks, each has a line of its own
_FEW_SERVERS = 16  # servers that have a line
_FEW_NODES = 8  # nodes that have a line: those that need the most memory
_FEW_LIMITS = 3


def as_text(plan: Plan) -> str:
    """Return the plan as text: tables of at most a hundred columns, and a verdict in the last lines."""
    parts = [
        _head(plan),
        _roles(plan),
        _tables(plan),
        _servers(plan),
        _memory(plan),
        _buffers(plan),
    ]
    if plan.rehearsal is not None:
        parts += [_steps(plan), _time(plan), _range(plan)]
    else:
        outer = local_training.as_text(plan.inputs.tables)
        parts.append(outer or "no steps were made here, so messages and time are unknown")
    parts.append(_limits(plan))
    parts.append("\n".join(f"cannot run: {p}" for p in plan.problems) or "it fits")
    return "\n\n".join(part for part in parts if part)


def _head(plan: Plan) -> str:
    a, config = plan.assignment, plan.config
    return (
        f"{config.task} on {config.data.train_files}\n{plural(len(a.servers), 'server')}, "
        f"{plural(len(a.workers), 'worker')}, {plural(len(a.node_of), 'rank')} on "
        f"{plural(len(a.node_names), 'node')}\n"
        f"{plan.inputs.info.n_samples_total:,} samples, batch {plan.inputs.batch_size} a worker, "
        f"{plural(plan.steps_per_epoch, 'step')} an epoch, {plural(plan.inputs.n_epochs, 'epoch')}"
    )


def _roles(plan: Plan) -> str:
    a = plan.assignment
    if len(a.node_of) <= _FEW_RANKS:
        return a.describe()
    rows = [["node", "ranks", "servers", "workers"]]
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(a.node_of):
        ranks_of[node].append(rank)
    for node in range(min(len(a.node_names), _FEW_NODES)):
        ranks = ranks_of[node]
        servers = sum(r in a.server_of for r in ranks)
        workers = sum(r in a.worker_of for r in ranks)
        also = " + scheduler" if a.scheduler in ranks else ""
        name = a.node_names[node]
        rows.append([name, f"{ranks[0]}-{ranks[-1]}", f"{servers}{also}", str(workers)])
    more = len(a.node_names) - _FEW_NODES
    end = f"\n(and {plural(more, 'node')} more)" if more > 0 else ""
    return _aligned(rows, first_right=len(rows[0])) + end


def _tables(plan: Plan) -> str:
    rows = [["table", "kind", "shape", "optimizer", "consistency", "rows", "updates"]]
    for table in plan.inputs.tables:
        dense = isinstance(table, DenseTable)
        shape = (
            "x".join(map(str, table.shape))
            if isinstance(table, DenseTable)
            else f"rows of {table.dim}"
        )
        found = None if dense else plan.needs.rows[table.name]
        count = "" if found is None else f"{found.total:,} ({found.source})"
        kind = "dense" if dense else "embedding"
        optimizer = str(table.optimizer.to_config()["name"])
        paths = ", ".join(update_paths(plan, table)) if isinstance(table, DenseTable) else "ring"
        rows.append([table.name, kind, shape, optimizer, table.consistency.name, count, paths])
    assumed = f"\n{plan.assumed}" if plan.assumed else ""
    return _aligned(rows, first_right=len(rows[0])) + assumed


def update_paths(plan: Plan, table: DenseTable) -> list[str]:
    """Return the names of the paths that a table's updates take, over all workers; see mpips.worker.paths."""
    if table.is_replicated:
        return ["replicated"]
    table = served([table])[0]  # type: ignore[assignment]
    a, parts = plan.assignment, plan.placement.dense[table.name]
    near = [set(workers) for workers in a.near_workers(plan.config.cluster.transport)]
    names = set()
    # Workers of one node have the same servers on their node.
    for w in {a.node_of[rank]: w for w, rank in enumerate(a.workers)}.values():
        is_remote = [w not in near[part.server] for part in parts]
        if has_direct_path(table, parts, is_remote):
            names.add("direct")
            continue
        for part, far in zip(parts, is_remote, strict=True):
            area_bytes = plan.placement.layouts[part.server].area_bytes(w)
            names.add(path_to_server(table, part, far, area_bytes))
    return sorted(names)


def _servers(plan: Plan) -> str:
    servers, a = plan.needs.servers, plan.assignment
    rows = [["server", "node", "rows", "parameters", "mailboxes", "key map", "share"]]
    total = sum(s.parameters for s in servers) or 1
    for i, server in enumerate(servers[:_FEW_SERVERS]):
        node = a.node_names[a.node_of[a.servers[i]]]
        sizes = (
            binary_size(server.parameters),
            binary_size(server.mailboxes),
            binary_size(server.maps),
        )
        rows.append([str(i), node, f"{server.rows:,}", *sizes, f"{server.parameters / total:.1%}"])
    more = len(servers) - _FEW_SERVERS
    end = f"\n(and {plural(more, 'server')} more)" if more > 0 else ""
    balance = f"\nthe fullest server holds {plan.needs.balance:.2f} times the mean"
    return _aligned(rows, first_right=2) + end + (balance if len(servers) > 1 else "")


def _memory(plan: Plan) -> str:
    needs, have = plan.needs, plan.hardware
    rows = [["node", "ranks", "/dev/shm", "of", "memory", "of"]]
    shown = sorted(needs.nodes, key=lambda node: -node.memory)[:_FEW_NODES]
    for node in shown:
        shm = [binary_size(node.shared), binary_size(have.shm)]
        rows.append(
            [node.name, str(node.ranks), *shm, binary_size(node.memory), binary_size(have.memory)]
        )
    more = len(needs.nodes) - len(shown)
    end = f"\n(and {plural(more, 'node')} that need no more)" if more > 0 else ""
    return (
        _aligned(rows, first_right=1)
        + end
        + f"\na rank takes {binary_size(needs.program)} before MPI starts; a worker "
        f"{binary_size(needs.worker_data)} of samples and {binary_size(needs.worker_staging)} of staging\n"
        f"{_beside(needs)}"
        f"a checkpoint has {binary_size(needs.checkpoint)}{_residuals(needs)}{_common(needs)}"
        f"{_node_rows(needs, have.shm)}"
    )


def _residuals(needs: Needs) -> str:
    files, memory = map(binary_size, (needs.checkpoint_residuals, needs.worker_residuals))
    text = f" and {files} of residuals\na worker takes, too: {memory} for what its pushes have not sent"
    return text * (needs.worker_residuals > 0)


def _common(needs: Needs) -> str:
    text = f"\na worker takes, too: {binary_size(needs.worker_common)} for copies that its pulls follow"
    return text * (needs.worker_common > 0)


def _node_rows(needs: Needs, shm: int) -> str:
    """Return a line on the memory of rows that the workers of a node share; "" if they share none."""
    most = max(node.node_rows for node in needs.nodes)
    if not most:
        return ""
    without = [node.name for node in needs.nodes if node.shared + node.node_rows > shm]
    more = f" and {len(without) - _FEW_NODES} more" if len(without) > _FEW_NODES else ""
    return (
        f"\nlook-aheads and groups take {binary_size(most)} more of /dev/shm on a node for shared rows "
        "(node_buffers_mib)"
        + f"; no room on {', '.join(without[:_FEW_NODES])}{more}, where they share none"
        * bool(without)
    )


def _beside(needs: Needs) -> str:
    """Return a line on a server's memory beside parameters, mailboxes and key maps; "" if it has none."""
    sums = max(s.sums for s in needs.servers)
    journal = max(s.journal for s in needs.servers)
    copy = max(s.copy for s in needs.servers)
    parts = [f"{binary_size(sums)} for the sums of a clock"] if sums else []
    parts += [f"{binary_size(journal)} for a journal under mpips run"] if journal else []
    encoding = max(s.encoding for s in needs.servers)
    parts += [f"{binary_size(encoding)} to encode differences"] if encoding else []
    parts += [f"{binary_size(copy)} for the copy that a checkpoint is written from"] if copy else []
    files = max(s.files for s in needs.servers)
    parts += [f"{binary_size(files)} on disk for rows of tables with storage"] if files else []
    return f"a server takes, too: {', '.join(parts)}\n" if parts else ""


def _buffers(plan: Plan) -> str:
    """Return a table of the buffers of the node on which they take most, and how to limit them."""
    found, budget_mib = plan.buffers, plan.config.cluster.node_buffers_mib
    rows = [[f"buffers of {found.node}", "at most", "for"]]
    rows += [[part.name, binary_size(part.n_bytes), part.reason] for part in found.parts]
    rows.append(["together", binary_size(found.total), ""])
    end = f"cluster.node_buffers_mib limits their sum ({found.least_mib:,} or more)"
    if budget_mib is not None:
        end = f"cluster.node_buffers_mib = {budget_mib:,} ({found.least_mib:,} or more)"
    return "\n".join([*text_table(rows, right=[1]), end])


def _limits(plan: Plan) -> str:
    """Return a line for each of the first limits that more ranks of the same kind would meet."""
    rows = [["ranks", "limit"]]
    for limit in plan.limits[:_FEW_LIMITS]:
        beyond = limit.n_ranks >= MOST_RANKS
        rows.append([f"{limit.n_ranks:,}{' or more' if beyond else ''}", limit.what])
    return "more ranks of the same kind meet these limits:\n" + "\n".join(
        text_table(rows, right=[0])
    )


def per_step(plan: Plan) -> dict[str, float]:
    """Return what one worker sends and reads in a step, as counted by the rehearsal.

    Returns:
        Means over its steps: `messages` (records), `reads` (one-sided reads of dense shards), `push_bytes`
        and `pull_bytes` (keys and values).
    """
    found = plan.rehearsal
    assert found is not None
    dense = {t.name for t in plan.inputs.tables if isinstance(t, DenseTable)}
    reads = {name: len(plan.placement.dense[name]) for name in dense}
    return {
        "messages": sum(found.records) / len(found.steps),
        "reads": found.mean(lambda t: sum(t.pulls[name] * n for name, n in reads.items())),
        "push_bytes": found.mean(lambda t: sum(t.push_bytes)),
        "pull_bytes": found.mean(lambda t: sum(t.pull_bytes)),
    }


def _steps(plan: Plan) -> str:
    assert plan.rehearsal is not None
    one, n = per_step(plan), len(plan.assignment.workers)
    names = {
        "messages": "messages to servers",
        "reads": "one-sided reads of dense tables",
        "push_bytes": "bytes pushed",
        "pull_bytes": "bytes pulled",
    }
    rows = [["per step", "of a worker", "of all"]]
    for key, text in names.items():
        show = binary_size if key.endswith("bytes") else (lambda v: f"{v:,.1f}")
        rows.append([text, show(one[key]), show(n * one[key])])
    return (
        _aligned(rows, first_right=1)
        + f"\ncounted over {plural(len(plan.rehearsal.steps), 'step')} made here"
    )


def measured(plan: Plan) -> dict[str, Any]:
    """Return the seconds of one worker's step, as measured by the rehearsal.

    Returns:
        `compute_s` (the task itself), `rows_s` (calls of embedding tables, and the clock) and `serve_s` (a
        list: the work of each server for this one worker).
    """
    found = plan.rehearsal
    assert found is not None
    return {
        "compute_s": found.seconds(lambda tally: tally.compute_s),
        "rows_s": found.seconds(lambda tally: tally.rows_s),
        "serve_s": server_seconds(found),
    }


def _time(plan: Plan) -> str:
    p, one = plan.prediction, measured(plan)
    rows = [
        ["measured here", "per step of a worker"],
        ["computing", _time_text(one["compute_s"])],
        ["calls of embedding tables, clock", _time_text(one["rows_s"])],
        ["the busiest server's work for it", _time_text(max(one["serve_s"]))],
    ]
    text = _aligned(rows, first_right=1)
    if p is None:
        return f"{text}\n\nno time is predicted: {plan.no_time}"
    rows = [
        ["predicted", "per step"],
        ["a worker", _time_text(p.worker_s)],
        ["the servers", _time_text(p.serve_s)],
        ["together", _time_text(p.step_s)],
    ]
    costs, epoch = plan.costs, plan.steps_per_epoch * p.step_s
    lines = [
        f"{text}\n\n{_aligned(rows, first_right=1)}",
        f"{plan.samples_per_s:,.0f} samples/s; an epoch {_time_text(epoch)}, "
        f"all {_time_text(epoch * plan.inputs.n_epochs)}",
        f"bottleneck: {p.bottleneck}",
        f"costs of pushes and pulls of dense tables are from {costs.source}"
        if costs.source
        else "there is no calibration file (mpips bench all makes one)",
    ]
    if costs.defaults:
        shown = ", ".join(f"{name} = {costs.values[name]:g}" for name in costs.defaults)
        lines += textwrap.wrap(f"defaults, not measured: {shown}", 98)
    return "\n".join(lines)


def _range(plan: Plan) -> str:
    if not plan.cells:
        return ""
    workers = sorted({c.workers for c in plan.cells})
    rows = [["samples/s", *(plural(w, "worker") for w in workers)]]
    for n in sorted({c.servers for c in plan.cells}):
        mine = {c.workers: c for c in plan.cells if c.servers == n}
        rates = (f"{mine[w].samples_per_s:,.0f}" if w in mine else "-" for w in workers)
        rows.append([plural(n, "server"), *rates])
    best = max(plan.cells, key=lambda c: c.samples_per_s)
    return (
        _aligned(rows, first_right=1)
        + f"\nfastest of these: {plural(best.servers, 'server')} and {plural(best.workers, 'worker')}; "
        f"its bottleneck: {best.prediction.bottleneck}"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values: bytes, seconds and counts."""
    a, needs, p = plan.assignment, plan.needs, plan.prediction
    result: dict[str, Any] = {
        "fits": not plan.problems,
        "problems": plan.problems,
        "roles": [
            {"rank": r, "role": a.roles_of(r), "node": a.node_names[node]}
            for r, node in enumerate(a.node_of)
        ],
        "tables": {
            name: {"rows": rows.total, "per_server": list(rows.per_server), "source": rows.source}
            for name, rows in needs.rows.items()
        },
        "paths": {
            table.name: update_paths(plan, table)
            for table in plan.inputs.tables
            if isinstance(table, DenseTable)
        },
        "servers": [
            {
                "rows": s.rows,
                "parameter_bytes": s.parameters,
                "mailbox_bytes": s.mailboxes,
                "map_bytes": s.maps,
                "sum_bytes": s.sums,
                "journal_bytes": s.journal,
                "copy_bytes": s.copy,
                "file_bytes": s.files,
                "region_bytes": s.mailboxes + s.dense,
                "shared_bytes": s.shared,
            }
            for s in needs.servers
        ],
        "balance": needs.balance,
        "nodes": [
            {
                "node": n.name,
                "ranks": n.ranks,
                "shared_bytes": n.shared,
                "memory_bytes": n.memory,
                "held_row_bytes": n.node_rows,
            }
            for n in needs.nodes
        ],
        "buffers": {
            "node": plan.buffers.node,
            "bytes": {part.name: part.n_bytes for part in plan.buffers.parts},
            "least_mib": plan.buffers.least_mib,
            "sizes": msgspec.to_builtins(plan.shares),
        },
        "checkpoint_bytes": needs.checkpoint,
        "common_bytes": needs.worker_common,
        "residual_bytes": [needs.worker_residuals, needs.checkpoint_residuals],
        "steps_per_epoch": plan.steps_per_epoch,
        "limits": [{"ranks": limit.n_ranks, "limit": limit.what} for limit in plan.limits],
        "costs": {"values": plan.costs.values, "defaults": list(plan.costs.defaults)},
    }
    if plan.rehearsal is not None:
        result["per_step_and_worker"] = per_step(plan)
        result["measured"] = measured(plan)
    if plan.no_time:
        result["no_prediction"] = plan.no_time
    if p is not None:
        result["prediction"] = {
            "step_s": p.step_s,
            "worker_s": p.worker_s,
            "serve_s": p.serve_s,
            "samples_per_s": plan.samples_per_s,
            "bottleneck": p.bottleneck,
        }
        result["range"] = [
            {
                "servers": c.servers,
                "workers": c.workers,
                "step_s": c.prediction.step_s,
                "samples_per_s": c.samples_per_s,
                "bottleneck": c.prediction.bottleneck,
            }
            for c in plan.cells
        ]
    return result


def _time_text(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:,.1f} min"
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} us"


def _aligned(rows: Sequence[Sequence[str]], first_right: int) -> str:
    """Return the table as text; the columns from `first_right` on are aligned to the right."""
    return "\n".join(text_table(rows, right=range(first_right, len(rows[0]))))
