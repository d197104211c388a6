"""A new root from this machine's package sources, made inside a `host` sandbox with a network.

mmdebstrap runs there as root without the right to mount or to make devices: it needs neither, since the packages'
scripts only chroot. The builder runs the recipe's steps and takes the directory `ROOT_TREE` as the template's root.
"""

from __future__ import annotations

import dataclasses
import shlex

from skerry.core import InvalidArgument
from skerry.templates import aptsources
from skerry.templates.aptsources import AptSources
from skerry.templates.model import Command, File, Scripts, Template

ROOT_TREE = "/workspace/root"
PROGRAM = "mmdebstrap"
"""What the machine must have; its /usr is what a `host` sandbox sees."""

_STAGE = "/workspace/bootstrap"
_FILTER = f"{_STAGE}/left-out"
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
_KEPT = ("/usr/share/doc/*/copyright",)
_DPKG = "".join([*(f"path-exclude={path}\n" for path in _LEFT_OUT), *(f"path-include={path}\n" for path in _KEPT)])
_APT = ('APT::Install-Recommends "false"', 'Acquire::Languages "none"', 'Acquire::Retries::Delay::Maximum "3"')
_SETUP = r"""root={root}
find "$root"/usr/share/doc -type f ! -name copyright -delete
rm -rf "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* "$root"/usr/share/lintian/*
rm -rf "$root"/dev/* "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/* "$root"/var/log/*.log \
    "$root"/var/log/apt "$root"/var/cache/apt/*.bin "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
install -d "$root"/etc/apt/keyrings "$root"/.skerry
cp {stage}/keyrings/* "$root"/etc/apt/keyrings/
cp {stage}/base.sources "$root"{sources}
chroot "$root" groupadd --gid 1000 user
chroot "$root" useradd --uid 1000 --gid 1000 --shell /bin/bash --create-home user
install -d -o 1000 -g 1000 "$root"/workspace "$root"/opt/python "$root"/opt/npm
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$root"/etc/hosts
printf 'skerry\n' >"$root"/etc/hostname
printf 'nameserver 127.0.0.53\n' >"$root"/etc/resolv.conf
ln -sf ../proc/self/mounts "$root"/etc/mtab
rm -f "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow- "$root"/etc/machine-id
touch "$root"/.skerry/agent "$root"/etc/machine-id"""


def recipe(template: Template, sources: AptSources) -> Template:
    """What to build on `host` so that `ROOT_TREE` is the root of `template`, which has no base.

    Raises InvalidArgument for one whose other parts could not be honoured.
    """
    if template.base is not None or template.packages.pip or template.packages.npm or template.scripts.build:
        hint = "make a template of that base with the rest"
        raise InvalidArgument(
            f"template {template.name!r}: a root without a base can only have apt packages", hint=hint
        )
    if template.files:
        raise InvalidArgument(f"template {template.name!r}: a root without a base cannot have files")
    files = {f"{_STAGE}/base.sources": File(sources.text, owner="root"), _FILTER: File(_DPKG, owner="root")}
    for path, content in sources.files.items():
        files[f"{_STAGE}/keyrings/{path.rpartition('/')[2]}"] = File(content, owner="root")
        files[path] = File(content, owner="root")
    return dataclasses.replace(
        template,
        name=f"{template.name}-root",
        base="host",
        packages=dataclasses.replace(template.packages, apt=()),
        files=files,
        scripts=Scripts(
            build=(
                Command(_mmdebstrap(template.packages.apt, sources.suite), "root", "bootstrap"),
                Command(_SETUP.format(root=ROOT_TREE, stage=_STAGE, sources=aptsources.SOURCES), "root", "set up"),
            )
        ),
        aliases=(),
    )


def _mmdebstrap(packages: tuple[str, ...], suite: str) -> str:
    options = ["--mode=root", "--variant=minbase", "--format=directory"]
    options += ["--skip=check/canmount,chroot/mount,output/dev,output/mknod"]
    options += [f"--aptopt={option}" for option in _APT]
    # As --dpkgopt they would make mmdebstrap pass the essential packages through a filter, which takes very long.
    options += [f'--setup-hook=install -D -m 644 {_FILTER} "$1"/etc/dpkg/dpkg.cfg.d/left-out']
    if packages:
        options.append(f"--include={','.join(packages)}")
    words = [PROGRAM, *options, suite, ROOT_TREE, "-"]
    return f"cd /tmp && exec {shlex.join(words)} <{_STAGE}/base.sources"
