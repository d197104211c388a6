"""A client that builds templates until it is killed. It says on stdout what it is about to build and what is built.

python builder.py PREFIX IMAGE
"""

from __future__ import annotations

import sys

from skerry import Sandbox, Templates
from skerry.templates import Command, Scripts, Template

CONTENT = "seq 20000 >numbers; mkdir -p tree; for n in $(seq 50); do echo $n >tree/$n; done"
MADE = "crash"
"""The purpose of what it creates; that of its builds is another."""
PREPARED = "sleep 0.05; sha256sum numbers >sum"


def template(name: str, base: str) -> Template:
    scripts = Scripts(build=(Command(CONTENT),), post_create=(Command(PREPARED),))
    return Template(name=name, base=base, scripts=scripts)


def main(prefix: str, image: str) -> None:
    for number in range(100):
        name = f"{prefix}-{number}"
        print("building", name, flush=True)
        base = "host" if number % 2 == 0 else f"{prefix}-{number - 1}"
        Templates().build(template(name, base))
        print("built", name, flush=True)
        Sandbox.create(template=name, purpose=MADE).destroy()
        Templates().build(image=image, name=f"{name}-image", force=number % 2 == 1)
        Templates().build(template(name, base), force=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
