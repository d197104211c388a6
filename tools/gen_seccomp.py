"""Compile the system call filter of the local provider for this machine's architecture.

python tools/gen_seccomp.py OUT
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pyseccomp

POLICY = Path(__file__).parents[1] / "src/skerry/providers/local/seccomp.py"


def load_policy() -> ModuleType:
    """The policy module by itself, so that building does not need the package installed."""
    spec = importlib.util.spec_from_file_location("policy", POLICY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known(name: str) -> bool:
    """Whether this architecture and libseccomp have the call; an unknown one is as good as unlisted."""
    return bool(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0)


def build(policy: ModuleType) -> pyseccomp.SyscallFilter:
    allow = pyseccomp.ALLOW
    filter = pyseccomp.SyscallFilter(pyseccomp.ERRNO(policy.UNLISTED_ERRNO))
    filter.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.ERRNO(policy.UNLISTED_ERRNO))
    filter.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    for name in filter_known(policy.ALLOWED):
        filter.add_rule(allow, name)
    for name in filter_known(policy.REFUSED):
        filter.add_rule(pyseccomp.ERRNO(policy.REFUSED_ERRNO), name)
    masked = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, policy.NAMESPACE_FLAGS, 0)
    filter.add_rule(allow, "clone", masked)
    for family in policy.SOCKET_FAMILIES:
        filter.add_rule(allow, "socket", pyseccomp.Arg(0, pyseccomp.EQ, family))
    for value in policy.PERSONALITIES:
        filter.add_rule(allow, "personality", pyseccomp.Arg(0, pyseccomp.EQ, value))
    return filter


def filter_known(names: list[str]) -> list[str]:
    return [name for name in names if known(name)]


def main() -> int:
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as file:
        build(load_policy()).export_bpf(file)
    print(f"{out}: {out.stat().st_size // 8} instructions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
