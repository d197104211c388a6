"""Models behave as frozen dataclasses do, for their users and for `dataclasses`, `copy` and `pickle`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import ClassVar

import pytest

from skerry._model import Model


class Point(Model, kw_only=False):
    x: int
    y: int = 0


class Login(Model):
    """Who, with what."""

    kind: ClassVar[str] = "password"
    user: str
    password: str = field(repr=False)
    groups: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.user:
            raise ValueError("nobody")


class Admin(Login):
    level: int = 1
    user: str = "root"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Login(user="ann"), "missing 1 required keyword-only argument: 'password'"),
        (lambda: Login(user="ann", password="x", usr="y"), "unexpected keyword argument 'usr'"),  # type: ignore[call-arg]
        (lambda: Login("ann", "x"), "takes 1 positional argument"),  # type: ignore[call-arg, misc]
        (lambda: Point(), r"Point.__init__\(\) missing 1 required positional argument: 'x'"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_call_says_what_is_wrong(call: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()  # type: ignore[operator]


def test_fields_have_their_values_and_defaults() -> None:
    one, other = Login(user="ann", password="x"), Login(user="ann", password="x")
    assert (one.user, one.password, one.groups, one.kind) == ("ann", "x", [], "password")
    assert one.groups is not other.groups
    assert (Point(1, 2), Point(1)) == (Point(x=1, y=2), Point(1, 0))
    with pytest.raises(ValueError, match="nobody"):
        Login(user="", password="x")


def test_a_subclass_that_is_called_second_has_its_own_fields() -> None:
    Login(user="ann", password="x")
    admin = Admin(password="x")
    assert (admin.user, admin.level) == ("root", 1)
    assert [item.name for item in dataclasses.fields(Login)] == ["user", "password", "groups"]
    assert [item.name for item in dataclasses.fields(Admin)] == ["user", "password", "groups", "level"]
    assert admin != Login(user="root", password="x")


def test_the_repr_has_no_secret() -> None:
    assert repr(Admin(password="hunter2")) == "Admin(user='root', groups=[], level=1)"


def test_a_model_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'z'"):
        point.z = 2  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x
    assert point == Point(1)


def test_models_are_compared_and_hashed_by_value() -> None:
    assert Point(1) != Point(2) and Point(1) != (1, 0)
    assert len({Point(1), Point(1), Point(2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Login(user="ann", password="x"))


def test_the_functions_of_dataclasses_take_models() -> None:
    login = Login(user="ann", password="x")
    assert dataclasses.is_dataclass(Login) and dataclasses.is_dataclass(login)
    assert dataclasses.replace(login, user="bob") == Login(user="bob", password="x")
    assert dataclasses.asdict(Admin(password="x")) == {"user": "root", "password": "x", "groups": [], "level": 1}
    assert dataclasses.astuple(Point(1)) == (1, 0)
    assert [item.type for item in dataclasses.fields(Point)] == ["int", "int"]


def test_models_are_copied_and_pickled() -> None:
    login = Login(user="ann", password="x", groups=["a"])
    again = copy.deepcopy(login)
    assert again == login == pickle.loads(pickle.dumps(login)) == copy.copy(login)
    assert again.groups is not login.groups


def test_signature_and_pattern_show_the_fields() -> None:
    assert list(inspect.signature(Admin).parameters) == ["user", "password", "groups", "level"]
    assert inspect.signature(Point).parameters["y"].default == 0
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
