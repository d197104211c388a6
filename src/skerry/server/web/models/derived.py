"""Bodies of requests, derived from the options of the SDK, which define and describe each option once."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar, get_type_hints

from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from skerry.server.web.models.types import Body

B = TypeVar("B", bound=Body)


def descriptions(options: type) -> dict[str, str]:
    """The texts below the keys of a TypedDict and of its bases; nothing where Python has no source text."""
    found: dict[str, str] = {}
    try:
        source = inspect.getsource(options)
    except OSError:
        return found
    [declared] = ast.parse(textwrap.dedent(source)).body
    assert isinstance(declared, ast.ClassDef)
    for name in declared.bases:  # at run time a TypedDict does not know its bases
        base = getattr(sys.modules[options.__module__], ast.unparse(name))
        found |= descriptions(base) if isinstance(base, type) else {}
    for key, text in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ast.unparse(key.target)] = inspect.cleandoc(str(text.value.value))
    return found


def derive(
    name: str,
    base: type[B],
    options: type,
    *,
    types: Mapping[str, Any],
    defaults: Mapping[str, Any],
    without: Collection[str] = (),
) -> type[B]:
    """A body with a field for each option except those in `without`.

    `types` says how an option is written in JSON where that is not its type in Python; None is allowed everywhere. A
    type may come with a FieldInfo, as (type, Field(…)).
    """
    told = descriptions(options)
    own = {name: hint for name, hint in options.__annotations__.items() if name not in types and name not in without}
    hints = get_type_hints(SimpleNamespace(__annotations__=own))  # those of the others may be unknown at run time
    fields: dict[str, Any] = {}
    for option in options.__annotations__:
        if option in without:
            continue
        kind, info = types[option] if option in types else hints[option], Field()
        if isinstance(kind, tuple):
            kind, info = kind
        default = defaults.get(option)
        fields[option] = (kind | None if default is None else kind, _field(info, default, told.get(option)))
    return create_model(name, __base__=base, __doc__=base.__doc__, __module__=base.__module__, **fields)


def _field(info: FieldInfo, default: object, description: str | None) -> FieldInfo:
    made = FieldInfo.merge_field_infos(info, default=default, description=description)
    assert isinstance(made, FieldInfo)
    return made
