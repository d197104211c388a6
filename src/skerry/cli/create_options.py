"""The options of commands that make sandboxes, declared once and turned into options of the SDK."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from skerry.cli import options
from skerry.cli.options import Network, parse_env, parse_volumes

if TYPE_CHECKING:
    from skerry.core import Resources

OPTIONS: Mapping[str, tuple[Any, Any]] = {
    "name": (options.Name, None),
    "template": (options.Template, None),
    "image": (options.Image, None),
    "source": (options.Source, None),
    "env": (options.Env, None),
    "lifetime": (options.Lifetime, None),
    "on_timeout": (options.OnTimeoutOption, None),
    "memory": (options.Memory, None),
    "cpu": (options.Cpu, None),
    "pids": (options.Pids, None),
    "disk": (options.Disk, None),
    "volume": (options.Volume, None),
    "network": (options.NetworkOption, Network.NONE),
    "user": (options.User, None),
    "workdir": (options.Workdir, None),
    "snapshot": (options.Snapshot, None),
    "auto_stop": (options.AutoStop, None),
    "auto_delete": (options.AutoDelete, None),
    "encrypted": (options.Encrypted, None),
}
"""The options with their defaults, in the order of the help."""

Given = Callable[[], dict[str, Any]]
"""What was given on the command line, as options of `AsyncSandbox.create`. Raises InvalidArgument."""
_LIMITS = ("memory", "cpu", "pids", "disk")


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take these options instead of its argument `given`, which is a `Given`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            if parameter.name == "given":
                made = ((name, *OPTIONS[name]) for name in names)
                parameters += [
                    inspect.Parameter(name, keyword, annotation=kind, default=default) for name, kind, default in made
                ]
            else:
                parameters.append(parameter)

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in names}
            command(**values, given=functools.partial(create_options, chosen))

        wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def create_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the command line as those of the SDK, without those not given. Raises InvalidArgument."""
    found = {name: value for name, value in values.items() if value is not None and name not in _LIMITS}
    if "lifetime" in found:
        found["timeout"] = found.pop("lifetime")
    if "env" in found:
        found["env"] = parse_env(found["env"])
    if "volume" in found:
        found["volumes"] = parse_volumes(found.pop("volume"))
    for name in ("network", "on_timeout"):
        if name in found:
            found[name] = found[name].value
    limits = {name: values[name] for name in _LIMITS if values.get(name) is not None}
    if limits:
        found["resources"] = resources(**limits)
    return found


def resources(
    *, memory: str | None = None, cpu: float | None = None, pids: int | None = None, disk: str | None = None
) -> Resources:
    """Raises InvalidArgument."""
    from skerry.core import Resources, parse_size

    return Resources(
        memory=None if memory is None else parse_size(memory, "--memory"),
        disk=None if disk is None else parse_size(disk, "--disk"),
        cpu=cpu,
        pids=pids,
    )
