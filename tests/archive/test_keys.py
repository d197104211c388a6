"""Where a key comes from, and that it is never shown."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from skerry.archive import Key
from skerry.core.errors import InvalidArgument

BYTES = bytes(range(200, 232))
FORMS = [
    BYTES,
    BYTES.hex().encode(),
    BYTES.hex().upper().encode() + b"\n",
    base64.b64encode(BYTES) + b"\n",
    base64.urlsafe_b64encode(BYTES).rstrip(b"="),
]


@pytest.mark.parametrize("form", FORMS, ids=["raw", "hex", "HEX", "base64", "urlsafe"])
def test_a_key_comes_from_a_file_the_environment_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: bytes
) -> None:
    (tmp_path / "a key").write_bytes(form)
    expected = Key(BYTES)
    assert Key.from_file(tmp_path / "a key") == Key.of(f"file:{tmp_path}/a key") == expected
    assert Key.from_command(["cat", str(tmp_path / "a key")]) == Key.of(f"command:cat '{tmp_path}/a key'") == expected
    if b"\n" not in form:
        monkeypatch.setenv("THE_KEY", form.decode("utf-8", "surrogateescape"))
        assert Key.from_env("THE_KEY") == Key.of("env:THE_KEY") == expected
    assert Key.of(BYTES) == Key.of(expected) == expected != Key.generate()


@pytest.mark.parametrize("text", [b"", b"short", b"x" * 33, b"ab" * 31, b"zz" * 32, b"A" * 100])
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "key").write_bytes(text)
    with pytest.raises(InvalidArgument, match="holds no key") as caught:
        Key.from_file(tmp_path / "key")
    assert not text or text.decode() not in str(caught.value)


def test_a_place_without_a_key_is_an_error(tmp_path: Path) -> None:
    for place in (
        f"file:{tmp_path}/none",
        "env:NO_SUCH_VARIABLE",
        "command:false",
        "command:/no/program",
        "command:'",
        "file:",
    ):
        with pytest.raises(InvalidArgument):
            Key.of(place)
    with pytest.raises(InvalidArgument, match="took more than"):
        Key.from_command(["sleep", "60"], timeout=0.1)
    with pytest.raises(InvalidArgument, match="32 bytes, not 3"):
        Key(b"abc")


def test_a_key_is_in_no_repr_error_or_pickle() -> None:
    secret = BYTES.hex()
    key = Key(BYTES)
    assert (repr(key), str(key), f"{[key]}") == ("Key(...)", "Key(...)", "[Key(...)]")
    with pytest.raises(TypeError):
        pickle.dumps(key)
    for wrong in (lambda: Key.of(secret), lambda: Key.from_command([sys.executable, "-c", f"print('{secret}!')"])):
        with pytest.raises(InvalidArgument) as caught:
            wrong()
        error = caught.value
        assert secret not in str(error) + error.hint and error.__cause__ is None
        assert f"{secret}!" not in "".join(traceback.format_exception_only(error))


def test_neither_zstd_nor_the_ciphers_are_loaded_before_they_are_needed() -> None:
    program = "import skerry.archive, sys; print({'zstandard', 'cryptography'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
