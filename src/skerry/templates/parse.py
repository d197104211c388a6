"""`template.yaml` read into a Template; what is wrong is named with its key and line."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from skerry.core import InvalidArgument, Resources, Unsupported, check_cores, parse_size
from skerry.templates import model
from skerry.templates.document import MAX_SIZE, Value, read
from skerry.templates.model import Command, File, Packages, Scripts, Template

FILE_NAME = "template.yaml"
MAX_FILES = 10_000
MAX_BYTES = 256 * 2**20
_KEYS = "name version description base packages files env workdir user ports scripts resources aliases".split()
_SKIPPED = {".git", "node_modules", "__pycache__"}

T = TypeVar("T")


def load(path: str | os.PathLike[str]) -> Template:
    """The template in a file, or in `template.yaml` of a directory. Raises InvalidArgument."""
    file = Path(path)
    if file.is_dir():
        file /= FILE_NAME
    try:
        if file.exists() and not file.is_file():
            raise InvalidArgument(f"{file} is not a regular file", hint="give a template.yaml or its directory")
        with open(file, "rb") as content:
            text = content.read(MAX_SIZE + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            f"{file} cannot be read: {error}", hint="give a template.yaml or its directory"
        ) from error
    return parse_text(text, source=str(file), directory=file.parent)


def parse_text(text: str, *, source: str = FILE_NAME, directory: Path | None = None) -> Template:
    """The template that a YAML text describes. `directory` is where the `source` of a file is looked for.

    Raises InvalidArgument, and Unsupported for a stack of services as base.
    """
    root = read(text, source)
    keys = root.fields(_KEYS)
    if "name" not in keys:
        root.wrong("a template needs a name", hint="add `name: …`")

    def take(key: str, convert: Callable[[Value], T], default: T) -> T:
        return _checked(keys[key], convert) if key in keys else default

    try:
        return Template(
            name=_checked(keys["name"], lambda value: model.check_name(value.text())),
            version=take("version", Value.text, "1"),
            description=take("description", lambda value: value.text().strip(), ""),
            base=_checked(keys["base"], lambda value: _base(value, directory)) if "base" in keys else "debian",
            packages=take("packages", _packages, Packages()),
            files=take("files", lambda value: _files(value, directory), {}),
            env=take("env", _env, {}),
            workdir=take("workdir", Value.text, "/workspace"),
            user=take("user", Value.text, "user"),
            ports=take("ports", _ports, ()),
            scripts=take("scripts", _scripts, Scripts()),
            resources=take("resources", _resources, Resources()),
            aliases=take("aliases", _aliases, ()),
        )
    except InvalidArgument as error:
        if error.message.startswith(source):
            raise
        _find_key(root, keys, error.message).wrong(error.message, hint=error.hint)


def _find_key(root: Value, keys: dict[str, Value], message: str) -> Value:
    """The value that a message of the model is about: it begins with the key, and may name one below it."""
    key, _, rest = message.partition(":")
    top, _, below = key.split(" ")[0].partition(".")
    found = keys.get(top, root)
    if found is root or found.kind != "mapping":
        return found
    below = below or rest.strip().partition("'")[2].partition("'")[0]
    return found.pairs().get(below, found)


def _checked(value: Value, convert: Callable[[Value], T]) -> T:
    """What `convert` makes of it; an error without a position gets the value's."""
    try:
        return convert(value)
    except InvalidArgument as error:
        if error.message.startswith(value.source):
            raise
        value.wrong(error.message, hint=error.hint)


def _base(value: Value, directory: Path | None) -> str | None:
    if value.kind == "nothing":
        return None
    if value.kind == "list":
        raise Unsupported(
            f"{value.source}: base: a list of services started together is not supported yet",
            option="base",
            hint="give one template as base, and install what else is needed with packages or scripts",
        )
    if value.kind == "mapping":
        fields = value.fields(["image"])
        if "image" not in fields:
            value.wrong("must be a name, or `image:` with a reference")
        image = fields["image"].text()
        if directory is not None and (beside := directory / image).is_file():
            image = str(beside.absolute())  # wherever the one who builds it is
        return f"image:{image}"
    return value.text()


def _packages(value: Value) -> Packages:
    kinds = {kind: names.texts() for kind, names in value.fields(["apt", "pip", "npm"]).items()}
    return Packages(apt=kinds.get("apt", ()), pip=kinds.get("pip", ()), npm=kinds.get("npm", ()))


def _env(value: Value) -> dict[str, str]:
    env = {name: "" if text.kind == "nothing" else text.text() for name, text in value.pairs().items()}
    model.check_env(env)
    return env


def _ports(value: Value) -> tuple[int, ...]:
    ports = tuple(item.number() for item in value.items())
    model.check_ports(ports)
    return ports


def _aliases(value: Value) -> tuple[str, ...]:
    return tuple(_checked(item, lambda item: model.check_name(item.text(), item.key)) for item in value.items())


def _scripts(value: Value) -> Scripts:
    kinds = {kind: _commands(script) for kind, script in value.fields(["build", "postCreate", "postStart"]).items()}
    return Scripts(
        build=kinds.get("build", ()), post_create=kinds.get("postCreate", ()), post_start=kinds.get("postStart", ())
    )


def _commands(value: Value) -> tuple[Command, ...]:
    return tuple(_checked(item, _command) for item in (value.items() if value.kind == "list" else [value]))


def _command(value: Value) -> Command:
    if value.kind != "mapping":
        return Command(value.text())
    fields = value.fields(["run", "user", "name"])
    if "run" not in fields:
        value.wrong("needs `run:`")
    return Command(
        fields["run"].text(),
        fields["user"].text() if "user" in fields else None,
        fields["name"].text() if "name" in fields else "",
    )


def _resources(value: Value) -> Resources:
    fields = value.fields(["cpu", "memory", "disk", "pids"])

    def size(name: str) -> int | None:
        return _checked(fields[name], lambda value: parse_size(value.text(), name)) if name in fields else None

    def cores(value: Value) -> float:
        try:
            return check_cores(float(value.text()))
        except ValueError:
            value.wrong(f"must be a number of cores above 0, not {value.text()!r}")

    def processes(value: Value) -> int:
        return value.number() or value.wrong("must be above 0")

    return Resources(
        cpu=_checked(fields["cpu"], cores) if "cpu" in fields else None,
        memory=size("memory"),
        disk=size("disk"),
        pids=_checked(fields["pids"], processes) if "pids" in fields else None,
    )


def _files(value: Value, directory: Path | None) -> dict[str, File]:
    files: dict[str, File] = {}
    for path, given in value.pairs().items():
        found = {path: File(given.text())} if given.kind == "text" else _checked(given, _described(path, directory))
        if twice := files.keys() & found.keys():
            given.wrong(f"{min(twice)} is there twice")
        files |= found
    return files


def _described(path: str, directory: Path | None) -> Callable[[Value], dict[str, File]]:
    def described(value: Value) -> dict[str, File]:
        fields = value.fields(["content", "source", "mode", "owner"])
        if ("content" in fields) == ("source" in fields):
            value.wrong("needs either `content:` or `source:`")
        mode = _checked(fields["mode"], _mode) if "mode" in fields else None
        owner = fields["owner"].text() if "owner" in fields else None
        if "content" in fields:
            return {path: File(fields["content"].text(), 0o644 if mode is None else mode, owner)}
        return _read_source(fields["source"], path, directory, mode, owner)

    return described


def _mode(value: Value) -> int:
    text = value.text()
    if not text.removeprefix("0o").isdecimal() or set(text.removeprefix("0o")) & set("89"):
        value.wrong(f"{text!r} is not the mode of a file", hint='write it like "0755"')
    return int(text.removeprefix("0o"), 8)


def _read_source(
    value: Value, path: str, directory: Path | None, mode: int | None, owner: str | None
) -> dict[str, File]:
    """A file, or all files below a directory, from beside the template; never from outside of it."""
    name = value.text()
    if directory is None:
        value.wrong("a text on its own has no directory to take files from", hint="use `content:`")
    top = directory.resolve()
    source = (top / name).resolve()
    if not source.is_relative_to(top) or Path(name).is_absolute():
        value.wrong(f"{name!r} is outside of the template's directory")
    try:
        found = _walk(source) if source.is_dir() else [source]
        if len(found) > MAX_FILES or sum(file.lstat().st_size for file in found) > MAX_BYTES:
            value.wrong(f"more than {MAX_FILES} files or {MAX_BYTES} bytes", hint="fetch them in scripts.build")
        if not source.is_dir():
            return {path: _read_file(source, mode, owner)}
        files: dict[str, File] = {}
        for file in found:
            where = file.relative_to(source).as_posix()
            files[where if path in (".", "") else f"{path.rstrip('/')}/{where}"] = _read_file(file, mode, owner)
    except OSError as error:
        value.wrong(f"{name!r} cannot be read: {error.strerror}")
    if not files:
        value.wrong(f"there is no file in {name!r}")
    return files


def _walk(directory: Path) -> list[Path]:
    found = []
    for top, names, files in os.walk(directory):
        names[:] = sorted(set(names) - _SKIPPED)
        links = [name for name in names if os.path.islink(os.path.join(top, name))]  # which os.walk does not follow
        found += [Path(top, name) for name in sorted([*files, *links])]
    return found


def _read_file(path: Path, mode: int | None, owner: str | None) -> File:
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        raise InvalidArgument(
            f"{path.name} is not a regular file", hint="links and devices cannot be part of a template"
        )
    executable = bool(info.st_mode & 0o100)
    return File(path.read_bytes(), (0o755 if executable else 0o644) if mode is None else mode, owner)
