"""Names of parameters: those of a .pyi file, and those in the docstrings that pybind11 writes.

A signature is the list of its parameters without self: `name`, or `name=` with a default, and `*` before
those that are given by name only.
"""

from __future__ import annotations

import ast
import re

Signature = list[str]


def in_stub(text: str) -> dict[str, list[Signature]]:
    """Return the signatures of each function and method, overloads included, by its dotted name."""
    found: dict[str, list[Signature]] = {}

    def add(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                add(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and not is_property(node):
                found.setdefault(prefix + node.name, []).append(parameters(node.args))

    add(ast.parse(text).body, "")
    return found


def is_property(node: ast.FunctionDef) -> bool:
    """Return True for the getter or the setter of a property."""
    names = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
    return bool(names & {"property", "setter"})


def parameters(arguments: ast.arguments) -> Signature:
    """Return the signature of a function of Python."""
    first = [*arguments.posonlyargs, *arguments.args]
    n_plain = len(first) - len(arguments.defaults)
    found = [each.arg + "=" * (i >= n_plain) for i, each in enumerate(first)]
    found = found[found[:1] == ["self"] :]
    if arguments.kwonlyargs:
        found.append("*")
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(each.arg + "=" * (default is not None))
    return found


def in_docstring(name: str, text: str) -> list[Signature]:
    """Return the signatures of a function of pybind11: `name(a: int, b: str = 'x') -> int`."""
    found = []
    for arguments in re.findall(rf"^(?:\d+\. )?{name}\((.*)\) -> ", text, re.M):
        if arguments != "*args, **kwargs":
            parts = [part.partition(":") for part in split(arguments)]
            found.append(
                [
                    label.strip() + "=" * (" = " in rest)
                    for label, _, rest in parts
                    if label.strip() != "self"
                ]
            )
    return found


def split(text: str) -> list[str]:
    """Divide parameters at the commas between them; types and defaults may have brackets."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "[({<":
            depth += 1
        elif letter in "])}" or (letter == ">" and text[i - 1] != "-"):
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in [*parts, text[start:]] if part.strip()]
