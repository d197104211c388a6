"""Errors as problem documents of HTTP (RFC 9457) and back: the same class with the same attributes on both sides."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from skerry.core import errors
from skerry.core.errors import SkerryError
from skerry.core.hints import hint_for
from skerry.core.json import dump_json, from_plain, load_json
from skerry.core.models import ExecResult

CONTENT_TYPE = "application/problem+json"


def to_problem(error: SkerryError) -> dict[str, Any]:
    """Everything of an error but the HTTP status."""
    problem: dict[str, Any] = {
        "type": f"urn:skerry:error:{error.code}",
        "title": type(error).__name__,
        "code": error.code,
        "detail": error.message,
        "hint": hint_for("http", error.hint),
        "retryable": error.retryable,
    }
    for name in ("option", "providers", "step", "log", "retry_after", "request_id"):
        if hasattr(error, name):
            problem[name] = getattr(error, name)
    if isinstance(error, errors.FileError) and error.errno is not None:
        problem["errno"] = error.errno
    if (result := getattr(error, "result", None)) is not None:
        problem["result"] = result_to_json(result)
    return problem


def from_problem(problem: Mapping[str, Any]) -> SkerryError:
    """The error that a problem document describes. Raises Corrupted for anything else."""
    code, message = problem.get("code"), problem.get("detail")
    if not isinstance(code, str) or not isinstance(message, str):
        raise errors.Corrupted("the server sent an error without a code and a text")
    kind = BY_CODE.get(code)
    result = problem.get("result")
    try:
        error = _build(SkerryError if kind is None else kind, message, problem, result)
    except (KeyError, TypeError, ValueError) as wrong:
        raise errors.Corrupted(f"the server sent an error {code[:40]} that cannot be read") from wrong
    if isinstance(problem.get("hint"), str):
        error.hint = hint_for("python", problem["hint"], written_for="http")
    error.retryable = problem.get("retryable") is True
    return error


def _build(kind: type[SkerryError], message: str, problem: Mapping[str, Any], result: Any) -> SkerryError:
    if kind is errors.Timeout and result is not None:
        return errors.ExecTimeout(message, result_from_json(result))
    if issubclass(kind, errors.CommandFailed | errors.GitError):
        return kind(message, result_from_json(result))
    if kind is errors.Unsupported:
        providers = tuple(str(name) for name in problem.get("providers", ()))
        return errors.Unsupported(message, option=str(problem.get("option", "")), providers=providers)
    if kind is errors.TemplateBuildFailed:
        return errors.TemplateBuildFailed(message, step=str(problem["step"]), log=str(problem.get("log", "")))
    if kind is errors.RateLimited:
        return errors.RateLimited(message, retry_after=float(problem.get("retry_after", 1.0)))
    if kind is errors.InternalError:
        return errors.InternalError(message, request_id=str(problem.get("request_id", "")))
    if issubclass(kind, errors.FileError) and isinstance(problem.get("errno"), int):
        return kind(message, errno=problem["errno"])
    return kind(message)


def result_to_json(result: ExecResult) -> dict[str, Any]:
    """A command's result with its exact bytes."""
    data: dict[str, Any] = load_json(dump_json(result))
    for stream in ("stdout", "stderr"):
        data[f"{stream}_base64"] = data.pop(f"{stream}_bytes")
    return data


def result_from_json(data: Mapping[str, Any]) -> ExecResult:
    """From `result_to_json`, or from an answer: the text stands for the bytes, unless those are given beside it.

    Raises InvalidArgument, or another ValueError.
    """
    fields = dict(data)
    for stream in ("stdout", "stderr"):
        exact, text = fields.pop(f"{stream}_base64", None), fields.pop(stream, None)
        if exact is None and isinstance(text, str):
            exact = base64.b64encode(text.encode()).decode()
        fields[f"{stream}_bytes"] = exact
    return from_plain(ExecResult, fields, strict=False)


def _kinds(kind: type[SkerryError] = SkerryError) -> Iterator[type[SkerryError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


BY_CODE: dict[str, type[SkerryError]] = {}
"""The class of every code; where two share one, the more general."""
for _kind in _kinds():
    if _kind.__module__ == errors.__name__:
        BY_CODE.setdefault(_kind.code, _kind)
