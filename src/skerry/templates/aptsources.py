"""This machine's package sources, adapted to a new root: the same mirrors and keys, at the root's own paths.

Both formats are read: deb822 (`*.sources`) and one line each (`*.list`). Only those of the distribution itself are
taken: its code name with or without -updates, -security and -backports, over http or https. Sources with a password in
their address are left out, since whatever a template has, every sandbox made from it can read.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

from skerry._model import Model
from skerry.core import ProviderUnavailable

KEYRINGS = "/etc/apt/keyrings"
SOURCES = "/etc/apt/sources.list.d/base.sources"
_KEY_SUFFIXES = (".gpg", ".asc")
_SUITE_SUFFIXES = ("", "-updates", "-security", "-backports", "/updates")
_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>(?:\s+\S+)*)\s*")
_OLD = re.compile(r'^\s*Acquire::Check-Valid-Until\s+"?(false|no|0)"?\s*;', re.MULTILINE | re.IGNORECASE)
_HINT = "templates other than 'host' need a machine with apt and Debian's or Ubuntu's own package sources"


class Source(Model):
    """One entry: where packages come from and which keys sign them. No `signed_by`: any that this machine trusts."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: tuple[str, ...] = ()
    key: str = ""
    """A key written into the entry itself."""


class AptSources(Model):
    """What a bootstrap needs and what the new root gets."""

    distribution: str
    """`debian`, `ubuntu` …: the ID of os-release."""
    suite: str
    """The code name."""
    text: str
    """In the format deb822; its keys are those of `files`."""
    files: Mapping[str, bytes]
    """Keyrings by absolute path, the same inside and where the bootstrap runs."""


def read(root: Path = Path("/")) -> AptSources:
    """The sources of the machine whose root directory is given. Raises ProviderUnavailable when it has none."""
    system = os_release(root)
    distribution, suite = system.get("ID", ""), system.get("VERSION_CODENAME", "")
    if not (root / "etc/apt").is_dir() or not suite:
        raise ProviderUnavailable("this machine has no apt, or its os-release names no VERSION_CODENAME", hint=_HINT)
    wanted = [source for source in map(_usable, _entries(root / "etc/apt")) if source is not None]
    chosen = [of for source in wanted if (of := _of_suite(source, suite))]
    if not any(suite in source.suites for source in chosen):
        raise ProviderUnavailable(f"no package source of this machine has {suite} over http or https", hint=_HINT)
    files: dict[str, bytes] = {}
    extra = "Check-Valid-Until: no\n" if _accepts_old_indexes(root / "etc/apt") else ""
    stanzas = [_stanza(source, _keys(source, root), files) + extra for source in chosen]
    return AptSources(distribution=distribution, suite=suite, text="\n".join(dict.fromkeys(stanzas)), files=files)


def os_release(root: Path = Path("/")) -> dict[str, str]:
    """What the system says about itself; empty if it does not."""
    try:
        lines = (root / "etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines)}


def _entries(apt: Path) -> Iterator[Source]:
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        yield from _lines(text) if path.suffix == ".list" else _stanzas(text)


def _accepts_old_indexes(apt: Path) -> bool:
    """Whether this machine takes indexes past their date, as one with a mirror of a fixed day must."""
    paths = [apt / "apt.conf", *sorted((apt / "apt.conf.d").glob("*"))]
    return any(_OLD.search(path.read_text(errors="replace")) for path in paths if path.is_file())


def _lines(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.partition("#")[0].strip()):
            options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
            yield Source(
                uris=(match["uri"],),
                suites=(match["suite"],),
                components=tuple(match["components"].split()),
                signed_by=tuple(options.get("signed-by", "").replace(",", " ").split()),
            )


def _stanzas(text: str) -> Iterator[Source]:
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and name:
                fields[name] += f"\n{line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false", "0"):
            continue
        signed = fields.get("signed-by", "")
        embedded = "-----BEGIN" in signed
        yield Source(
            uris=tuple(fields.get("uris", "").split()),
            suites=tuple(fields.get("suites", "").split()),
            components=tuple(fields.get("components", "").split()),
            signed_by=() if embedded else tuple(signed.replace(",", " ").split()),
            key=signed.strip() if embedded else "",
        )


def _usable(source: Source) -> Source | None:
    """The entry with those of its addresses that a sandbox can reach and may know."""
    uris = []
    for uri in source.uris:
        parts = urllib.parse.urlsplit(uri)
        if parts.scheme in ("http", "https") and parts.username is None and parts.password is None:
            uris.append(uri)
    if not uris or "main" not in source.components:
        return None
    return _replaced(source, uris=tuple(uris))


def _of_suite(source: Source, suite: str) -> Source | None:
    suites = tuple(name for name in source.suites if name in {suite + suffix for suffix in _SUITE_SUFFIXES})
    return _replaced(source, suites=suites) if suites else None


def _replaced(source: Source, *, uris: tuple[str, ...] = (), suites: tuple[str, ...] = ()) -> Source:
    return Source(
        uris=uris or source.uris,
        suites=suites or source.suites,
        components=source.components,
        signed_by=source.signed_by,
        key=source.key,
    )


def _keys(source: Source, root: Path) -> list[tuple[str, bytes]]:
    """Name and content of the keyrings that sign the entry."""
    if source.key:
        # deb822 writes an empty line as a dot
        lines = ("" if line == "." else line for line in source.key.splitlines())
        return [("embedded.asc", ("\n".join(lines) + "\n").encode())]
    named = [root / path.lstrip("/") for path in source.signed_by if path.startswith("/")]
    trusted = root / "etc/apt"
    paths = named or [trusted / "trusted.gpg", *sorted((trusted / "trusted.gpg.d").glob("*"))]
    found = [(path.name, path.read_bytes()) for path in paths if path.suffix in _KEY_SUFFIXES and path.is_file()]
    found = [(name, content) for name, content in found if content]
    if not found:
        raise ProviderUnavailable(
            f"no key of this machine signs its package source for {source.suites[0]}",
            hint="install debian-archive-keyring or ubuntu-keyring",
        )
    return found


def _stanza(source: Source, keys: list[tuple[str, bytes]], files: dict[str, bytes]) -> str:
    paths = []
    for name, content in keys:
        path = f"{KEYRINGS}/{name}"
        while files.get(path, content) != content:  # another keyring of that name
            path = f"{path.removesuffix(Path(path).suffix)}-2{Path(path).suffix}"
        files[path] = content
        paths.append(path)
    return (
        f"Types: deb\nURIs: {' '.join(source.uris)}\nSuites: {' '.join(source.suites)}\n"
        f"Components: {' '.join(source.components)}\nSigned-By: {','.join(paths)}\n"
    )
