"""Packages that import a name when it is first used, so that `import skerry` and `skerry --help` stay quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package; `modules` maps each of its modules to the names it provides."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        module = homes.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(sys.modules[package].__all__)
