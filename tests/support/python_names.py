"""Names of Python's standard library that an older version lacks, by the stubs that mypy brings."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

Version = tuple[int, int]
NEWEST: Version = (3, 14)


def stubs() -> Path:
    """Return the folder of the stubs."""
    import mypy

    return Path(mypy.__file__).parent / "typeshed" / "stdlib"


def newer_names(source: str, oldest: Version) -> list[tuple[int, str]]:
    """Return line and name of each use of a module or of its attribute that came after `oldest`.

    Imports under a comparison of `sys.version_info`, and those in a `try` with `except ImportError`, are left
    out.
    """
    found: set[tuple[int, str]] = set()
    modules: dict[str, str] = {}
    nodes = list(_unguarded(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
                if _is_newer(alias.name, None, oldest):
                    found.add((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                if _is_newer(node.module, alias.name, oldest):
                    found.add((node.lineno, f"{node.module}.{alias.name}"))
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            module = modules.get(ast.unparse(node.value))
            if module is not None and _is_newer(module, node.attr, oldest):
                found.add((node.lineno, f"{module}.{node.attr}"))
    return sorted(found)


def _unguarded(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "sys.version_info" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Try):
        kinds = " ".join(ast.unparse(h.type) for h in node.handlers if h.type is not None)
        if "ImportError" in kinds or "ModuleNotFoundError" in kinds:
            return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _unguarded(child)


def _is_newer(module: str, name: str | None, oldest: Version) -> bool:
    """Return True if the standard library has the name today, but not in version `oldest`."""
    if module.partition(".")[0] not in sys.stdlib_module_names:
        return False
    now, then = names(module, NEWEST), names(module, oldest)
    if now is None:
        return False
    return then is None or (name is not None and name in now and name not in then)


@functools.cache
def names(module: str, version: Version) -> frozenset[str] | None:
    """Return the names of a module in a version; None: there is no such module."""
    if not _is_there(module, version):
        return None
    path = stubs().joinpath(*module.split("."))
    file = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
    if not file.exists():
        return None
    return frozenset(_bound(ast.parse(file.read_text()).body, module, version))


def _is_there(module: str, version: Version) -> bool:
    parts = module.split(".")
    spans = _spans()
    for n in range(1, len(parts) + 1):
        low, high = spans.get(".".join(parts[:n]), ((3, 0), NEWEST))
        if not low <= version <= high:
            return False
    return True


@functools.cache
def _spans() -> dict[str, tuple[Version, Version]]:
    found = {}
    for line in (stubs() / "VERSIONS").read_text().splitlines():
        name, _, span = line.partition("#")[0].partition(":")
        if span.strip():
            low, _, high = span.strip().partition("-")
            found[name.strip()] = (_version(low), _version(high) if high else NEWEST)
    return found


def _version(text: str) -> Version:
    major, _, minor = text.strip().partition(".")
    return int(major), int(minor)


def _bound(body: list[ast.stmt], module: str, version: Version) -> Iterator[str]:
    """Return the names that statements of a stub bind at the top level."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _bound(
                node.body if _holds(node.test, version) else node.orelse, module, version
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name).partition(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name
                elif node.level == 0 and node.module:
                    yield from names(node.module, version) or ()


def _holds(test: ast.expr, version: Version) -> bool:
    """Return the value of a condition of a stub; conditions of the platform hold."""
    if isinstance(test, ast.BoolOp):
        held = [_holds(value, version) for value in test.values]
        return all(held) if isinstance(test.op, ast.And) else any(held)
    if isinstance(test, ast.UnaryOp):
        return not _holds(test.operand, version)
    if isinstance(test, ast.Compare) and ast.unparse(test.left) == "sys.version_info":
        bound = ast.literal_eval(test.comparators[0])[:2]
        return version >= bound if isinstance(test.ops[0], ast.GtE) else version < bound
    if isinstance(test, ast.Compare) and ast.unparse(test.left) == "sys.platform":
        return (ast.literal_eval(test.comparators[0]) == "linux") == isinstance(test.ops[0], ast.Eq)
    return True
