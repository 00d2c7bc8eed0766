"""Names of a package that are imported at their first use.

A package lists its names by the modules that define them, so that a process loads only the modules that it
uses. For type checkers the package imports the same names under TYPE_CHECKING.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping


def lazy_names(
    package: str, names: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    A name is stored in the package at its first use, so later uses cost nothing.

    Args:
        package: Name of the package.
        names: Names that the package has, by the module that defines them, such as {"mpips.errors":
            ["MpipsError"]}.
        modules: Modules of the package that are attributes without an import statement.
    """
    origins = {name: module for module, own in names.items() for name in own}
    members = {name: f"{package}.{name}" for name in modules}

    def get(name: str) -> object:
        """Import the module that defines `name`, and return its value."""
        if name in members:
            return importlib.import_module(members[name])
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(origins[name]), name)
        vars(sys.modules[package])[name] = value
        return value

    def names_of() -> list[str]:
        """Return the names that the package has, also those that are not imported yet.

        Names in `modules` are included only if they are imported: a program that gets every name must not
        import all libraries.
        """
        return sorted({*vars(sys.modules[package]), *origins})

    return get, names_of
