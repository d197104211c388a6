"""Frozen data classes that cost little to define: a class gets its constructor when it is first called."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, dataclass_transform


def _first_call(self: Model, *arguments: Any, **values: Any) -> None:
    """The `__init__` of a class that has not been called yet."""
    cls = type(self)
    _give_init(cls)
    cls.__init__(self, *arguments, **values)


class _Fields:
    """`__dataclass_fields__`, which is what the functions of `dataclasses` look for: made when one of them asks."""

    def __get__(self, instance: object, cls: type[Model]) -> dict[str, dataclasses.Field[Any]]:
        made: Any = dataclasses.make_dataclass(
            cls.__name__,
            [(name, cls._notes[name], _field(default)) for name, default in cls._defaults.items()],
            namespace={"__doc__": cls.__name__},  # without one, it would make the text of a signature
            init=False,
            repr=False,
            eq=False,
            match_args=False,
            kw_only=cls._kw_only,
        )
        cls.__dataclass_fields__ = made.__dataclass_fields__
        return cls.__dataclass_fields__


_FIELDS = _Fields()


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
class ModelType(type):
    """The type of models. It takes the fields out of a class's body and makes slots of them."""

    _notes: dict[str, str]
    """The type of each field, as text."""
    _defaults: dict[str, Any]
    """The default of each field: MISSING, a value, or what `dataclasses.field` returned."""
    _kw_only: bool

    def __new__(
        mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], *, kw_only: bool = True, **others: Any
    ) -> ModelType:
        notes: dict[str, str] = {}
        defaults: dict[str, Any] = {}
        for base in bases:
            if isinstance(base, ModelType):
                notes.update(base._notes)
                defaults.update(base._defaults)
        own = [field for field, note in body.get("__annotations__", {}).items() if not note.startswith("ClassVar")]
        for field in own:
            notes[field] = body["__annotations__"][field]
            defaults[field] = body.pop(field, dataclasses.MISSING)
        body.update(__slots__=own, __init__=_first_call, __dataclass_fields__=_FIELDS)
        if not kw_only:
            body["__match_args__"] = tuple(notes)
        cls = super().__new__(mcls, name, bases, body, **others)
        cls._notes, cls._defaults, cls._kw_only = notes, defaults, kw_only
        return cls

    @property
    def __signature__(cls) -> inspect.Signature:
        if cls.__init__ is _first_call:  # type: ignore[misc]
            _give_init(cls)
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Model(metaclass=ModelType):
    """Frozen data, compared by value. Fields are declared as in a dataclass and given by keyword.

    With the class argument `kw_only=False` they may be given by position. The functions of `dataclasses` take models
    as they take dataclasses. The repr leaves out fields made by `field(repr=False)`.
    """

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __repr__(self) -> str:
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name, default in type(self)._defaults.items()
            if not isinstance(default, dataclasses.Field) or default.repr
        ]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __replace__(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), dict(zip(type(self)._notes, _values(self), strict=True)))


def _values(model: Any) -> tuple[Any, ...]:
    return tuple(getattr(model, name) for name in type(model)._notes)


def _made(cls: type[Model], values: dict[str, Any]) -> Model:
    return cls(**values)


def _field(default: Any) -> Any:
    return default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)


def _give_init(cls: ModelType) -> None:
    """Write the constructor of a class. Two threads may do it at once: both write the same."""
    scope: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    parameters, lines = ["self"], ["  pass"]
    if cls._kw_only and cls._notes:
        parameters.append("*")
    for name, given in cls._defaults.items():
        field, value = _field(given), name
        scope[f"_put_{name}"] = getattr(cls, name).__set__
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"] = field.default_factory
            parameters.append(f"{name}=MISSING")
            value = f"_make_{name}() if {name} is MISSING else {name}"
        elif field.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f"  _put_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("  self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines), scope)  # noqa: S102
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**cls._notes, "return": "None"}
    type.__setattr__(cls, "__init__", init)
