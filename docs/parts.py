"""The parts of pages that come from the code: commands, options, errors, files, names, bars, history.

No table of an option or a command is written by hand. Two comments of a page enclose a part:

    <!-- part NAME -->
    <!-- end part -->

A block of code behind `<!-- test: example NAME.py -->` is the program of this name in docs/examples.
`python docs/build.py --parts` writes both into the pages, and a test compares them.
"""

from __future__ import annotations

import functools
import html
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
import msgspec

import mpips
from mpips import errors
from mpips.bench.measure import BARS, Bars
from mpips.cli import cli
from mpips.config.schema import JobConfig
from mpips.config.table_section import TableConfig
from mpips.data import DataInfo
from mpips.model.buffers import BufferShares
from mpips.mpi.failure_report import FailureReport
from mpips.rundir.files import (
    BuffersChoice,
    Event,
    Finished,
    Lease,
    LinkLoad,
    Load,
    PlacementChoice,
    Places,
    Progress,
    RankPlace,
    RankRow,
    Ranks,
    RunInfo,
    StagesChoice,
    StartPoint,
    Status,
    TableLoad,
)
from mpips.rundir.tracing import TraceIndex, TraceRequest
from mpips.tasks import TASKS
from tests.bench import bars, history
from tests.bench import suites as of_developers

DOCS = Path(__file__).parent
# Sections of a job file whose structs are no sections of their own.
_NOT_SECTIONS = ("task", "tables", "options")
_COLUMNS = 4  # newest entries of a suite in its table of the history


_PART = re.compile(r"^(<!-- part (\w+) -->\n).*?^(<!-- end part -->)$", re.M | re.S)
_EXAMPLE = re.compile(r"^(<!-- test: example (\w+\.py) -->\n```python\n).*?^(```)$", re.M | re.S)


def write_parts() -> None:
    """Write the parts into all pages. Pages that have not changed are left alone."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        if (new := with_parts(text)) != text:
            path.write_text(new)


def with_parts(text: str) -> str:
    """Return the text of a page with its parts and programs as they are now.

    Raises:
        KeyError: There is no such part.
        OSError: There is no such program.
    """

    def made(name: str) -> str:
        return names_of(text) if name == "names" else PARTS[name]()

    text = _PART.sub(lambda m: f"{m[1]}\n{made(m[2]).strip()}\n\n{m[3]}", text)
    return _EXAMPLE.sub(lambda m: m[1] + (DOCS / "examples" / m[2]).read_text() + m[3], text)


# --- Commands ------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command of mpips with its full name, groups before their members."""
    context = click.Context(cli, info_name="mpips")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield f"mpips {name}", command
        if isinstance(command, click.Group):
            for inner in sorted(command.commands):
                yield f"mpips {name} {inner}", command.commands[inner]


def _cli() -> str:
    return "\n".join(_command(name, command) for name, command in commands())


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    level = "#" * name.count(" ")
    lines = [f"#{level} {name}\n", _prose(command.help or ""), "```text"]
    lines += [" ".join([name, *command.collect_usage_pieces(context)]), "```\n"]
    records = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    rows = [(f"`{option}`", _escaped(text)) for option, text in records if "--help" not in option]
    lines += _table(("option", "meaning"), rows) if rows else []
    if command.epilog:
        lines += ["", _prose(command.epilog)]
    return "\n".join(lines) + "\n"


def _prose(text: str) -> str:
    r"""Return a docstring of click as Markdown: paragraphs behind \b become blocks of text."""
    found = []
    for paragraph in re.split(r"\n\s*\n", _dedented(text)):
        if paragraph.startswith("\b"):
            found.append("```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```")
        else:
            found.append(_escaped(" ".join(paragraph.split())))
    return "\n\n".join(found) + "\n"


def _dedented(text: str) -> str:
    first, _, rest = text.partition("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest.splitlines() if line.strip()]
    cut = min(indents, default=0)
    return "\n".join([first.strip(), *(line[cut:] for line in rest.splitlines())]).strip()


# --- Options of a job ----------------------------------------------------------------------------


def _options() -> str:
    hints = typing.get_type_hints(JobConfig)
    lines = []
    for field in msgspec.structs.fields(JobConfig):
        if field.name in _NOT_SECTIONS:
            continue
        struct = hints[field.name]
        lines += [f"## [{field.name}] {{ #{field.name} }}\n", _first_sentence(struct) + "\n"]
        if struct is TableConfig:
            lines.append(
                "`[table]` applies to all tables of the task, `[tables.NAME]` to one of them and wins.\n"
            )
        lines += _struct_table(struct)
        lines.append("")
    return "\n".join(lines)


def _task_options() -> str:
    lines = []
    for name, task in TASKS.items():
        lines += [f"## {name} {{ #{name} }}\n", _escaped(_summary(task)) + "\n"]
        lines.append(
            f"Defaults: {task.default_epochs} epochs, batches of {task.default_batch_size} samples "
            "per worker.\n"
        )
        lines += [*_struct_table(task.Options), "", *_task_tables(name), ""]
    return "\n".join(lines)


def _task_tables(name: str) -> list[str]:
    """Return the tables of a task on small data, with their default optimizers."""
    task = TASKS[name]
    # All tasks take sparse data of two classes with columns of both kinds.
    columns, text = ("word", "number"), ("word",)
    # kge and mf read their files themselves; they have the sizes of their vocabularies.
    arrays = tuple(f"vocabulary/{name}" for name in ("entities", "relations", "users", "items"))
    info = DataInfo(
        *(100, 100, 64, (0.0, 1.0), "sparse"),
        columns=columns,
        categorical=text,
        arrays=arrays,
        sizes=(10,) * len(arrays),
    )
    rows = []
    for table in task(info, task.Options(), 0).tables():
        kind = "dense" if isinstance(table, mpips.DenseTable) else "embedding"
        rows.append((f"`{table.name}`", kind, type(table.optimizer).__name__))
    return _table(("table", "kind", "default optimizer"), rows)


def _struct_table(struct: type[msgspec.Struct]) -> list[str]:
    hints = typing.get_type_hints(struct, include_extras=True)
    documented = attributes(struct)
    rows = []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        meaning = _description(hint) or documented[field.name]
        rows.append(
            (f"`{field.name}`", _default(field), _escaped(_accepted(hint)), _escaped(meaning))
        )
    return _table(("option", "default", "values", "meaning"), rows)


def _description(hint: Any) -> str:
    """Return the description in the type of an option, or "" where its struct's docstring has it."""
    if get_origin(hint) is Annotated:
        found = [
            note.description for note in get_args(hint)[1:] if getattr(note, "description", None)
        ]
        return found[-1] if found else _description(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_description, get_args(hint))), "")
    return ""


def _accepted(hint: Any) -> str:
    """Return a type, with its bounds if it has any, in words."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        bounds = [text for note in notes for text in _bounds(note)]
        return " ".join([_accepted(kind), *([", ".join(bounds)] if bounds else [])])
    if get_origin(hint) is Literal:
        return ", ".join(str(value) for value in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return " or ".join(map(_accepted, kinds))
    if get_origin(hint) is tuple:
        return f"list: {_accepted(get_args(hint)[0])}"
    if get_origin(hint) is dict or hint is dict:
        return "table"
    return {bool: "true, false", int: "whole number", float: "number", str: "text"}.get(hint, "")


def _bounds(note: Any) -> Iterator[str]:
    words = {
        "ge": "≥",
        "gt": ">",
        "le": "≤",
        "lt": "<",
        "min_length": "length ≥",
        "max_length": "length ≤",
    }
    for name, sign in words.items():
        if (bound := getattr(note, name, None)) is not None:
            yield f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound}"


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if value is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is None or value == "":
        return ""
    if value is msgspec.NODEFAULT:
        return "needed"
    text = msgspec.json.encode(value).decode()
    return f"`{text}`"


# --- Docstrings ----------------------------------------------------------------------------------


def attributes(kind: type) -> dict[str, str]:
    """Return the attributes' descriptions of a class from its docstring (Google style)."""
    _, _, section = _dedented(kind.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line.strip() and not line.startswith(" "):
            break
        start = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if start:
            names = start[1].split(", ")
            found.update(dict.fromkeys(names, start[2]))
        elif line.strip():
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    return found


def _summary(kind: type) -> str:
    return " ".join(_dedented(kind.__doc__ or "").partition("\n\n")[0].split())


def _first_sentence(struct: type) -> str:
    """Return the summary of a section's struct, without the section's name before it."""
    text = re.sub(r"^\[[^:]*: ", "", _summary(struct))
    return _escaped(text[:1].upper() + text[1:])


def _escaped(text: str) -> str:
    """Return text as Markdown shows it, outside code spans."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([*_\[\]])", r"\\\1", html.escape(part, False)) for part in parts[::2]]
    joined = [plain[0]]
    for code, rest in zip(parts[1::2], plain[1:], strict=True):
        joined += [code, rest]
    return "".join(joined)


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return lines + [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    ]


# --- Errors, files, bars -------------------------------------------------------------------------


def error_classes() -> list[type[Exception]]:
    """Return the classes of mpips.errors that carry an exit code, by code and name."""
    found = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and hasattr(kind, "exit_code")
    ]
    return sorted(found, key=lambda kind: (kind.exit_code, kind.__name__))


def _errors() -> str:
    rows = []
    for kind in error_classes():
        name = f"mpips.{kind.__name__}" if hasattr(mpips, kind.__name__) else kind.__name__
        rows.append((f"`{name}`", str(kind.exit_code), _escaped(_summary(kind))))
    return "\n".join(_table(("error", "exit code", "meaning"), rows)) + "\n"


FILES: dict[str, type[msgspec.Struct]] = {
    "run.json": RunInfo,
    "status.json": Status,
    "status.json: start": StartPoint,
    "status.json: progress": Progress,
    "places.json": Places,
    "places.json: ranks": RankPlace,
    "placement.json": PlacementChoice,
    "stages.json": StagesChoice,
    "buffers.json": BuffersChoice,
    "buffers.json: shares": BufferShares,
    "ranks.json": Ranks,
    "ranks.json: ranks": RankRow,
    "ranks.json: load": Load,
    "ranks.json: load, tables": TableLoad,
    "ranks.json: load, links": LinkLoad,
    "events.jsonl": Event,
    "lease.json": Lease,
    "finished.json": Finished,
    "traces/NAME/request.json": TraceRequest,
    "traces/NAME/index.json": TraceIndex,
    "failure report of a rank": FailureReport,
}


def _files() -> str:
    lines = []
    for name, struct in FILES.items():
        hints = typing.get_type_hints(struct, include_extras=True)
        meanings = attributes(struct)
        rows = []
        for field in msgspec.structs.fields(struct):
            kind = _accepted(hints[field.name]) or "object"
            rows.append((f"`{field.name}`", kind, _escaped(meanings.get(field.name, ""))))
        lines += [f"### {name}\n", _escaped(_summary(struct)) + "\n"]
        lines += [*_table(("key", "type", "meaning"), rows), ""]
    return "\n".join(lines)


def _bar(name: str, table: Bars) -> str:
    sense, bar = table.get(name, ("", 0.0))
    text = f"from {1 / bar:.2f} to {bar:g}" if sense == "within" else f"{sense} {bar:g}"
    return _escaped(text) if sense else ""


def _bars_of(table: Bars) -> str:
    rows: list[tuple[str, ...]] = [(f"`{name}`", _bar(name, table)) for name in table]
    return "\n".join(_table(("ratio", "bar"), rows)) + "\n"


def history_of(entries: list[history.Entry]) -> str:
    """Return a table for each suite of a history: its ratios, or its figures if it has none, by entry."""
    lines = []
    for suite, (_, what) in of_developers.SUITES.items():
        mine = [entry for entry in entries if entry.suite == suite][-_COLUMNS:]
        if not mine:
            continue
        values = [entry.ratios or entry.figures for entry in mine]
        headings = [f"{entry.version}, {entry.date}" for entry in mine]
        names = dict.fromkeys(name for found in values for name in found)
        rows = [
            (
                f"`{name}`",
                _bar(name, of_developers.BARS),
                *(f"{found[name]:g}" if name in found else "" for found in values),
            )
            for name in names
        ]
        lines += [f"**{suite}**: {_escaped(what)}\n"]
        lines += [*_table(("median", "bar", *headings), rows), ""]
        for entry in mine:
            commit = f"commit `{entry.commit}`" if entry.commit else "commit unknown"
            parts = [commit, entry.machine, *([entry.conditions] if entry.conditions else [])]
            lines.append(f"- {entry.version}, {entry.date}: {_escaped('; '.join(parts))}")
        lines.append("")
    return "\n".join(lines)


@functools.cache
def _sources() -> Any:
    """Return the objects of mpips by name, from the sources alone: frameworks need not be installed."""
    import griffe

    loader = griffe.GriffeLoader(search_paths=[DOCS.parent])
    loader.load("mpips")
    loader.resolve_aliases(implicit=False, external=False)
    return loader.modules_collection


def names_of(page: str) -> str:
    """Return a table of the names whose docstrings a page of the site shows: what they are, and where."""
    rows = []
    for name in re.findall(r"^::: (\S+)$", page, re.M):
        found = _sources()[name]
        found = found.final_target if found.is_alias else found
        if found.is_module:
            found = found.members.get(name.rpartition(".")[2], found)  # a function of the same name
        what = " ".join(_dedented(found.docstring.value).partition("\n\n")[0].split())
        place = found.filepath.relative_to(DOCS.parent)
        rows.append((f"`{name}`", _escaped(what), f"`{place}`"))
    return "\n".join(_table(("name", "meaning", "docstring in"), rows)) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "cli": _cli,
    "options": _options,
    "task_options": _task_options,
    "errors": _errors,
    "files": _files,
    "bars": lambda: _bars_of(BARS),
    "bars_of_developers": lambda: _bars_of(bars.BARS),
    "history": lambda: history_of(history.read()),
}
