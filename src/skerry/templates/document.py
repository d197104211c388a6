"""YAML with positions: each value knows its key and line, so an error can name both."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from skerry._model import Model
from skerry.core import InvalidArgument

if TYPE_CHECKING:
    import yaml

MAX_SIZE = 4 * 2**20
MAX_DEPTH = 16
MAX_DIGITS = 18
_NULL, _INT = "tag:yaml.org,2002:null", "tag:yaml.org,2002:int"


class Value(Model, kw_only=False):
    """A value of the document, at `key` (such as `scripts.build[1]`). Every method raises InvalidArgument."""

    node: yaml.Node
    source: str
    key: str = ""

    def wrong(self, why: str, *, hint: str | None = None) -> NoReturn:
        where = f"{self.source}, line {self.node.start_mark.line + 1}"
        named = why if why.startswith(self.key) else f"{self.key}: {why}"
        raise InvalidArgument(f"{where}: {named}", hint=hint)

    @property
    def kind(self) -> str:
        """`text`, `list` or `mapping`; null is `nothing`."""
        import yaml

        if self.node.tag == _NULL:
            return "nothing"
        if isinstance(self.node, yaml.ScalarNode):
            return "text"
        return "list" if isinstance(self.node, yaml.SequenceNode) else "mapping"

    def text(self) -> str:
        """A scalar exactly as it is written: 3.10 stays 3.10."""
        if self.kind != "text":
            self.wrong(f"must be text, not {_article(self.kind)}")
        return str(self.node.value)

    def number(self) -> int:
        if self.kind != "text" or self.node.tag != _INT or not str(self.node.value).isdecimal():
            self.wrong(f"must be a whole number, not {self._shown()}")
        if len(self.node.value) > MAX_DIGITS:
            self.wrong("is a number that is too large")
        return int(self.node.value)

    def items(self) -> list[Value]:
        if self.kind != "list":
            self.wrong(f"must be a list, not {_article(self.kind)}")
        return [Value(node, self.source, f"{self.key}[{number}]") for number, node in enumerate(self.node.value)]

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def pairs(self) -> dict[str, Value]:
        """A mapping of text to anything; no key twice."""
        if self.kind != "mapping":
            self.wrong(f"must be a mapping, not {_article(self.kind)}")
        found: dict[str, Value] = {}
        for key, node in self.node.value:
            name = Value(key, self.source, self.key).text()
            here = Value(node, self.source, f"{self.key}.{name}" if self.key else name)
            if name in found:
                Value(key, self.source, here.key).wrong("is there twice")
            found[name] = here
        return found

    def fields(self, known: Iterable[str]) -> dict[str, Value]:
        """A mapping whose keys are all among the known."""
        pairs, names = self.pairs(), sorted(known)
        for name, value in pairs.items():
            if name not in names:
                folded = {known.lower().replace("_", ""): known for known in names}
                near = difflib.get_close_matches(name.lower().replace("_", ""), folded, n=1)
                hint = f"did you mean {folded[near[0]]!r}?" if near else f"use one of {', '.join(names)}"
                value.wrong("there is no such key", hint=hint)
        return pairs

    def _shown(self) -> str:
        return repr(self.node.value) if self.kind == "text" else _article(self.kind)


def read(text: str, source: str) -> Value:
    """The document's root. Raises InvalidArgument for anything that is not one plain YAML document."""
    import yaml

    if len(text) > MAX_SIZE:
        raise InvalidArgument(f"{source} is larger than {MAX_SIZE} bytes", hint="give each file its own `source`")
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            opens = isinstance(event, yaml.CollectionStartEvent)
            depth += opens - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InvalidArgument(f"{source} is nested deeper than {MAX_DEPTH} levels")
            # What is written is what is meant: a tag, such as !!binary, would make something else of it.
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag not in (None, "!"):
                line = 0 if event.start_mark is None else event.start_mark.line
                raise InvalidArgument(f"{source}, line {line + 1}: a template cannot use YAML tags ({event.tag[:60]})")
            if isinstance(event, yaml.AliasEvent):  # one could stand for itself, or for a billion copies
                line = 0 if event.start_mark is None else event.start_mark.line
                raise InvalidArgument(f"{source}, line {line + 1}: a template cannot use YAML aliases (*name)")
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise InvalidArgument(f"{source}, line {line}: this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{source} is not YAML: {str(error)[:200]}") from error
    if node is None:
        raise InvalidArgument(f"{source} is empty", hint="it needs at least a name")
    return Value(node, source)


def _article(kind: str) -> str:
    return kind if kind in ("nothing", "text") else f"a {kind}"
