"""`mpips ckpt`: list, show, verify, compare, export and remove checkpoints.

Only deltas and compaction need h5py.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from mpips.checkpoint.compact import compact, write_whole
from mpips.checkpoint.compare import TableDifference, compare
from mpips.checkpoint.delta import write_delta
from mpips.checkpoint.delta_apply import apply_delta
from mpips.checkpoint.export import FORMATS, ROW_TYPES, export
from mpips.checkpoint.find import choose_checkpoint, is_checkpoint, order
from mpips.checkpoint.folder import find_folder, list_checkpoints
from mpips.checkpoint.manifest import Manifest, TableEntry
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.retention import Retention, retain
from mpips.cli import publish
from mpips.errors import CheckpointError, ConfigError
from mpips.monitor.progress import plural
from mpips.monitor.summary_text import metric_label
from mpips.terminal.screen import columns, has_colour, say
from mpips.terminal.table import text_table
from mpips.terminal.units import binary_size

_ENTRY_CHARACTERS = 160  # of an entry of a cursor in `show`

_path = click.argument("path", type=click.Path(path_type=Path), default=Path())
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON instead of text."
)


@click.group(short_help="List, show, verify, compare, export and remove checkpoints.")
def command() -> None:
    """List, show, verify, compare, export and remove checkpoints.

    PATH is a run directory, its `checkpoints` folder, or one checkpoint in it [default: the working
    folder]. Commands that need one checkpoint take the newest readable one of a run. MPI is not needed;
    only delta, apply and compact need HDF5.
    """


command.add_command(publish.command)


@command.command("ls")
@_path
@_json
def list_them(path: Path, as_json: bool) -> None:
    """List the checkpoints of a run, the newest last.

    The best one is marked, if the run keeps it (checkpoint.keep_best). Checkpoints that cannot be read follow
    with the reason.
    """
    folder = find_folder(path)
    ordered = order(folder)
    reasons = {r.path: r.reason.removeprefix(str(r.path)).lstrip("/: ") for r in ordered.refused}
    names = [name.path for name in ordered.readable[::-1]] + list(reasons)
    best = ordered.best.path if ordered.best is not None else None
    rows = [_summary(name, reasons.get(name, ""), name == best) for name in names]
    if as_json:
        click.echo(json.dumps(rows))
        return
    header = ("checkpoint", "generation", "step", "time", "tables", "rows", "size", "")
    cells = [
        (
            row["name"],
            str(row["generation"]),
            str(row["step"]),
            _moment(row["wall_time_s"]),
            str(row["tables"]),
            f"{row['rows']:,}",
            binary_size(row["n_bytes"]),
            _best_text(row["best"]) if row["is_best"] else _link_text(row["link"]),
        )
        if not row["problem"]
        else (row["name"], "", "", "", "", "", "", f"REFUSED: {row['problem']}")
        for row in rows
    ]
    if cells:
        say(_table(header, cells, range(1, 7), optional=(1, 4, 5, 3, 6)), err=False)
    else:
        say(f"no checkpoints in '{folder}'", err=False)


def _link_text(link: Mapping[str, Any] | None) -> str:
    return "" if link is None else f"link {link['index']} of {link['base']}"


def _best_text(best: Mapping[str, Any]) -> str:
    metric = metric_label(best["metric"])
    return f"BEST: {metric} {best['value']:.4f} after epoch {best['epoch']}"


def _summary(path: Path, problem: str, is_best: bool) -> dict[str, Any]:
    """Return the row of `mpips ckpt ls --json` for one checkpoint; only name and problem if there is one."""
    if problem:
        return {"name": path.name, "problem": problem}
    with open_checkpoint(path) as checkpoint:
        m = checkpoint.manifest
    return {
        "name": path.name,
        "problem": "",
        "run_id": m.run_id,
        "generation": m.generation,
        "step": m.step,
        "wall_time_s": m.wall_time_s,
        "servers": len(m.servers),
        "workers": len(m.workers),
        "tables": len(m.tables),
        "rows": sum(t.shape[0] for t in m.tables if t.kind == "embedding"),
        "n_bytes": m.file.n_bytes,
        "is_best": is_best,
        "best": msgspec.to_builtins(m.best),
        "link": None
        if m.link is None
        else {
            "index": m.link.index,
            "base": m.link.base.name,
            "previous": m.link.previous.name,
        },
    }


@command.command("show")
@_path
@_json
def show(path: Path, as_json: bool) -> None:
    """Show the content of one checkpoint.

    That is its tables, the shards of its servers, the positions of its workers, and its configuration.
    """
    with open_checkpoint(choose_checkpoint(path)) as checkpoint:
        manifest = checkpoint.manifest
        name = str(checkpoint.path)
    if as_json:
        click.echo(msgspec.json.encode(manifest).decode())
        return
    parts = [_head_text(name, manifest), _tables_text(manifest.tables)]
    if any(table.kind == "embedding" for table in manifest.tables):
        parts.append(_rows_text(manifest.tables))
    parts.append(_shards_text(manifest))
    if manifest.workers:
        rows = [
            (
                str(w.worker),
                str(w.clock),
                str(w.epoch),
                str(w.step),
                ", ".join(
                    _shortened(f"{k} {v}")
                    for k, v in w.cursor.items()
                    if k not in ("epoch", "step")
                )
                or "-",
                ", ".join(w.random) or "-",
            )
            for w in manifest.workers
        ]
        header = ("worker", "clock", "epoch", "step", "cursor", "random states")
        parts.append(_table(header, rows, right=range(4)))
        files = [file for w in manifest.workers for file in w.files]
        if files:
            total = binary_size(sum(file.n_bytes for file in files))
            parts.append(
                f"residuals, own values and inner states of workers: {len(files)} files, {total}; the tables "
                "are those of the servers, under LocalSGD and DiLoCo with the outer rule"
            )
    if manifest.sampling:
        parts.append(_sampling_text(manifest.sampling))
    if manifest.config:
        config = msgspec.json.format(msgspec.json.encode(manifest.config), indent=2).decode()
        parts.append(f"configuration\n{config}")
    say("\n\n".join(parts), err=False, hang=12)


def _shortened(entry: str) -> str:
    """Return an entry of a cursor for a line: hundreds of param groups of a torch script fill pages."""
    if len(entry) <= _ENTRY_CHARACTERS:
        return entry
    return f"{entry[:_ENTRY_CHARACTERS]}... ({len(entry):,} characters; all of them with --json)"


def _sampling_text(sampling: dict[str, Any]) -> str:
    """Return the table of how workers divide the data, with a row for each part of a resumed epoch."""
    legs = [*sampling.get("legs", ()), sampling]
    rows = [
        (
            str(leg["number"]),
            *(str(leg["shape"][name]) for name in ("n_workers", "batch_size", "seed")),
            ", ".join(f"{e}:{s}" for e, s in leg.get("cursors", ())) or "as above",
        )
        for leg in legs
    ]
    header = ("part of the epoch", "workers", "batch size", "seed", "read up to epoch:step")
    return _table(header, rows, right=range(4))


def _head_text(name: str, m: Manifest) -> str:
    lines = [
        ("checkpoint", name),
        ("run", f"{m.run_id}, generation {m.generation}"),
        ("step", f"{m.step}, {_moment(m.wall_time_s)}"),
        ("size", f"{binary_size(m.file.n_bytes)} ({m.file.n_bytes:,} bytes)"),
        (
            "written by",
            f"{plural(len(m.servers), 'server')}, for {plural(len(m.workers), 'worker')}",
        ),
        ("with", ", ".join(f"{k} {v}" for k, v in m.versions.items())),
    ]
    if m.example:
        rows = m.example.get("predictions", [])
        lines.append(
            ("example", m.example.get("absent") or f"{plural(len(rows), 'sample')} predicted")
        )
    if m.best is not None:
        lines.append(("written as", _best_text(msgspec.to_builtins(m.best))))
    if m.link is not None:
        n, base, previous = m.link.index, m.link.base.name, m.link.previous.name
        lines.append(
            ("chain", f"link {n} of {base}, continues {previous}; the sizes of tables are whole")
        )
    lines += [("note", m.note)] if m.note else []
    return "\n".join(text_table(lines))


def _tables_text(tables: Sequence[TableEntry]) -> str:
    rows = [
        (
            t.name,
            t.kind,
            " x ".join(map(str, t.shape)) or "scalar",
            t.optimizer["name"],
            ", ".join((*t.state, *(("steps",) if t.counts_steps else ()))) or "-",
            t.consistency["name"],
            t.partition["name"],
            str(t.version),
            binary_size(sum(d.n_bytes for d in t.datasets)),
        )
        for t in tables
    ]
    header = ("table", "kind", "shape", "optimizer", "state", "consistency", "partition", "updates")
    return _table((*header, "size"), rows, right=(7, 8), optional=(4, 6, 3, 8))


def _rows_text(tables: Sequence[TableEntry]) -> str:
    """Return the table of the options that rows of embedding tables have, by the names of [table]."""
    rows = [
        (
            t.name,
            "bf16" if t.dtype == "bfloat16" else t.dtype,
            f"{t.hash_buckets:,}" if t.hash_buckets else "-",
            _limit_text(t.admit, "-"),
            _limit_text(t.evict, "not recorded" if t.notes_uses else "-"),
        )
        for t in tables
        if t.kind == "embedding"
    ]
    return _table(("rows of", "row_dtype", "hash_buckets", "admit", "evict"), rows, right=(2,))


def _limit_text(limit: Mapping[str, Any] | None, absent: str) -> str:
    """Return a limit of rows in words, such as "max_rows: rows 1000, by lru"; `absent` for None."""
    if limit is None:
        return absent
    options = ", ".join(f"{name} {value}" for name, value in limit.items() if name != "name")
    return f"{limit['name']}: {options}"


def _shards_text(m: Manifest) -> str:
    rows = []
    for table in m.tables:
        for s in table.shards:
            part = f"elements {s.start:,} to {s.stop:,}"
            if table.kind == "embedding":
                part = plural(s.rows, "row") + (
                    "" if s.low is None else f", keys {s.low} to {s.high}"
                )
            rows.append((table.name, str(s.server), str(s.version), part))
    lines = [_table(("table", "server", "updates", "part"), rows, right=(1, 2))]
    lines += [
        f"server {s.server}: last record applied of workers 0, 1, ...: {', '.join(map(str, s.applied))}"
        for s in m.servers
        if s.applied
    ]
    return "\n".join(lines)


@command.command("verify")
@_path
@_json
def verify(path: Path, as_json: bool) -> None:
    """Verify every checksum of one checkpoint, or of all of a run.

    Exit code 1 if any checkpoint is damaged.
    """
    paths = [path] if is_checkpoint(path) else [n.path for n in list_checkpoints(find_folder(path))]
    if not paths:
        raise ConfigError(
            f"{path}: there is no checkpoint to verify; give a run directory or a checkpoint"
        )
    found = [(p, _problems(p)) for p in paths]
    bad = [p.name for p, problems in found if problems]
    if as_json:
        click.echo(json.dumps([{"name": p.name, "problems": texts} for p, texts in found]))
    else:
        for p, texts in found:
            say(f"{p.name}  {'DAMAGED' if texts else 'good'}", err=False)
            for text in texts:
                say(f"    {text}", err=False)
    if bad:
        raise CheckpointError(
            f"{len(bad)} of {len(found)} checkpoints are damaged: {', '.join(bad)}; remove them or restore "
            "copies of them"
        )


def _problems(path: Path) -> list[str]:
    """Return one sentence for each damaged part of a checkpoint."""
    try:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.damage()
    except CheckpointError as error:
        return [str(error)]


@command.command("diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@_json
def diff(first: Path, second: Path, as_json: bool) -> None:
    """Compare two checkpoints bit by bit.

    Exit code 1 if they differ.
    """
    with (
        open_checkpoint(choose_checkpoint(first)) as a,
        open_checkpoint(choose_checkpoint(second)) as b,
    ):
        found = compare(a, b)
    if as_json:
        click.echo(json.dumps({d.table: _plain(d) for d in found}))
    else:
        header = ("table", "compared", "changed", "greatest", "only first", "only second", "")
        say(_table(header, [_difference_row(d) for d in found], right=range(1, 6)), err=False)
    if not all(d.same for d in found):
        click.get_current_context().exit(1)


def _plain(d: TableDifference) -> dict[str, Any]:
    return {"same": d.same, **msgspec.to_builtins(d)}


def _difference_row(d: TableDifference) -> tuple[str, ...]:
    state = [role.removeprefix("state/") for role, n in d.changed.items() if n and role != "values"]
    differs = [f"state differs: {', '.join(state)}"] if state else []
    note = d.note or "; ".join([*differs, *d.lacks])
    numbers = (d.compared, d.changed.get("values", 0))
    rows = (d.only_first, d.only_second)
    middle = f"{d.greatest:.3g}"
    return (d.table, *(f"{n:,}" for n in numbers), middle, *(f"{n:,}" for n in rows), note)


@command.command("delta")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write (HDF5).",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@_json
def delta(first: Path, second: Path, out: Path, force: bool, as_json: bool) -> None:
    """Write the rows and the pieces of dense tables in which two checkpoints differ.

    `mpips ckpt apply FIRST FILE` makes the second checkpoint from the first one and the file. Needs h5py.
    """
    with open_checkpoint(choose_checkpoint(first)) as a, _whole(second, out) as b:
        a.verify()
        b.verify()
        found = write_delta(a, b, out, force)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    rows = [
        (t.table, f"{t.changed:,}", f"{t.removed:,}" if t.removed else "", f"{t.total:,}")
        for t in found.tables
    ]
    say(_table(("table", "changed", "removed", "of"), rows, right=range(1, 4)), err=False)
    whole = found.n_bytes / found.full_bytes
    say(
        f"{found.path}  {binary_size(found.n_bytes)}, {whole:.1%} of the checkpoint's file",
        err=False,
    )


@contextlib.contextmanager
def _whole(path: Path, out: Path) -> Iterator[Checkpoint]:
    """Open a checkpoint; a link of a chain is first made whole in a temporary folder beside `out`."""
    with open_checkpoint(choose_checkpoint(path)) as checkpoint:
        if checkpoint.manifest.link is None or not out.absolute().parent.is_dir():
            yield checkpoint
            return
        with tempfile.TemporaryDirectory(prefix=".whole-", dir=out.absolute().parent) as folder:
            made = write_whole(checkpoint, Path(folder))
            with open_checkpoint(made.path) as whole:
                yield whole


@command.command("compact")
@_path
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Write the whole checkpoint there and leave the link as it is.",
)
@_json
def compact_it(path: Path, out: Path | None, as_json: bool) -> None:
    """Make a link of a chain (checkpoint.incremental) a whole checkpoint, in its place. Needs h5py.

    All checksums are compared. The links that follow it stay usable, and no longer need the older
    checkpoints.
    """
    chosen = choose_checkpoint(path)
    if out is None:
        made = compact(chosen)
    else:
        with open_checkpoint(chosen) as checkpoint:
            made = write_whole(checkpoint, out)
    if as_json:
        click.echo(msgspec.json.encode(made).decode())
        return
    say(
        f"{made.path}  {binary_size(made.n_bytes)}, whole (the link: {binary_size(made.link_bytes)})",
        err=False,
    )


@command.command("apply")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the new checkpoint, or an existing folder in which it gets its own name.",
)
@_json
def apply(first: Path, file: Path, out: Path, as_json: bool) -> None:
    """Make a checkpoint from an earlier one and the delta between them, byte for byte.

    FIRST is the checkpoint from which the delta was made. All checksums are compared. Needs h5py.
    """
    with open_checkpoint(choose_checkpoint(first)) as checkpoint:
        made = apply_delta(checkpoint, file, out)
    click.echo(json.dumps({"path": str(made)}) if as_json else str(made))


@command.command("export")
@_path
@click.option("--format", "kind", type=click.Choice(FORMATS), default="npz", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File (npz) or folder (csv, parquet) to write.",
)
@click.option("--table", "tables", multiple=True, help="Export only this table; may be repeated.")
@click.option(
    "--row-dtype",
    type=click.Choice(ROW_TYPES),
    default=ROW_TYPES[0],
    show_default=True,
    help="Type of the values of rows. int8: npz and parquet, with a float32 scale for each row.",
)
@click.option(
    "--force", is_flag=True, help="Replace an existing file, or a folder of an earlier export."
)
@_json
def export_it(
    path: Path,
    kind: str,
    out: Path,
    tables: tuple[str, ...],
    row_dtype: str,
    force: bool,
    as_json: bool,
) -> None:
    """Write a checkpoint, or some of its tables, as npz, CSV or Parquet.

    The checkpoint is verified first.
    """
    with open_checkpoint(choose_checkpoint(path)) as checkpoint:
        checkpoint.verify()
        files = export(checkpoint, kind, out, tables, force, row_dtype=row_dtype)
    if as_json:
        click.echo(json.dumps({"files": [str(file) for file in files]}))
    else:
        for file in files:
            click.echo(f"{file}  {binary_size(file.stat().st_size)}")


@command.command("prune")
@_path
@click.option(
    "--keep-last",
    type=int,
    default=3,
    show_default=True,
    metavar="N",
    help="Do not remove the newest N checkpoints.",
)
@click.option(
    "--keep-every",
    type=int,
    default=0,
    metavar="STEPS",
    help="Do not remove the first checkpoint at or after each multiple of STEPS; 0: no such rule.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@_json
def prune(path: Path, keep_last: int, keep_every: int, dry_run: bool, as_json: bool) -> None:
    """Remove old checkpoints.

    The newest checkpoint that verifies is never removed, and neither are the best one of the run and the
    checkpoints that a remaining link of a chain needs.
    """
    rule = Retention(keep_last, keep_every)
    result = retain(find_folder(path), rule, full=True, dry_run=dry_run)
    if as_json:
        found = msgspec.to_builtins(result, enc_hook=str)
        found["kept"] = found.pop("remaining")
        click.echo(json.dumps(found))
        return
    verb = "would be removed" if dry_run else "removed"
    for name in result.removed:
        click.echo(f"{name}  {verb}")
    for refusal in result.damaged:
        say(f"damaged: {refusal.reason}", err=False)
    say(f"{len(result.removed)} {verb}, {len(result.remaining)} remain", err=False)


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int],
    optional: Sequence[int] = (),
) -> str:
    """Return a table for stdout. `optional`: columns that a narrow terminal does not show."""
    styles = {0: "bold"} if has_colour(sys.stdout) else None
    width = columns(sys.stdout)
    lines = text_table([header, *rows], right, styles=styles, width=width, optional=optional)
    return "\n".join(lines)


def _moment(seconds: float) -> str:
    """Return a time since the epoch as local date and time."""
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
