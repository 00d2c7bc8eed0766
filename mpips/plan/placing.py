"""The placement that a plan assumes for tables with placement = "auto"; the job decides when it starts."""

from __future__ import annotations

from dataclasses import replace

from mpips.config.options import TRANSPORTS
from mpips.config.schema import JobConfig
from mpips.model.auto_codec import listed_codecs, without_auto
from mpips.model.auto_placement import Site, auto_tables, choose_placement, placed
from mpips.mpi.roles import Assignment
from mpips.plan.predict import Costs
from mpips.training.epochs import Inputs

_NETWORK_RATE = 1.2e9  # bytes per second between nodes: 10 Gb/s, as nothing was measured


def assume_placement(
    config: JobConfig, inputs: Inputs, a: Assignment, shm: int, costs: Costs
) -> tuple[Inputs, str]:
    """Return the inputs with a placement and codecs for each table, and lines about them; "" without "auto".

    Args:
        config: Configuration of the job.
        inputs: Its task, tables and data.
        a: Roles of its ranks.
        shm: Bytes of /dev/shm of a node.
        costs: Costs that were measured on this machine.
    """
    lines, tables = [], inputs.tables
    if listed_codecs(tables):
        inputs = replace(inputs, tables=without_auto(tables))
        lines.append("codecs that are Auto: the plan assumes none; the job decides when it starts")
    asked = auto_tables(tables)
    if not asked:
        return inputs, "\n".join(lines)
    if len(a.node_of) == 1:
        chosen: tuple[str, ...] = ()
        why = "with one process all are on the server"
    else:
        shares = TRANSPORTS[config.cluster.transport].shares_memory
        node_of = a.node_of if shares else tuple(range(len(a.node_of)))
        memory = 2e9 * costs.values["pull_gb_s"]  # a pull reads and writes each byte
        site = Site(
            tuple(node_of[rank] for rank in a.workers),
            tuple(node_of[rank] for rank in a.servers),
            memory,
            _NETWORK_RATE,
            shm,
            config.redundancy.warm,
        )
        chosen = choose_placement(tables, site).replicated
        why = f"the plan assumes that {len(chosen)} of {len(asked)} are replicated"
        if len(a.node_names) > 1:
            why += f", with {_NETWORK_RATE / 1e9:g} GB/s between nodes"
        why += "; the job decides when it starts"
    lines.append(f"placement = 'auto': {why}")
    return replace(inputs, tables=placed(inputs.tables, chosen)), "\n".join(lines)
