"""The provider that `--provider` names, installed or not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.core import Provider


def find_provider(name: str) -> Provider:
    """An installed provider, or a new object of a class. Raises InvalidArgument, ProviderUnavailable."""
    from importlib import import_module

    from skerry.core import InvalidArgument, Provider, registry

    module, colon, attribute = name.partition(":")
    if not colon:
        return registry.provider(name)
    sys.path.insert(0, "")  # as `python -m` does: a provider under development is in the current directory
    try:
        made = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"there is no {name}: {error}", hint="write it like package.module:Class") from error
    if not isinstance(made, Provider):
        raise InvalidArgument(f"{name} is not a provider", hint="derive it from skerry.core.contract.provider.Provider")
    return made
