"""Your own template: built once, told step by step, and the beginning of every sandbox after that."""

from skerry import BuildProgress, Sandbox, TemplateNotFound, Templates, Unsupported
from skerry.templates import Command, File, Scripts, Template

reporter = Template(
    name="reporter",
    base="host",  # this machine's own programs: quick, and without a network
    files={"total": File("#!/bin/sh\nawk '{ sum += $1 } END { print sum }' \"$@\"\n", mode=0o755)},
    env={"LANG": "C.UTF-8"},
    scripts=Scripts(build=(Command("seq 100 >numbers.txt", name="make numbers"),)),
)


def show(progress: BuildProgress) -> None:
    print(f"{progress.template}: {progress.done} of {progress.total} steps done {progress.step}")


def main() -> None:
    with Sandbox.create(template=reporter, on_progress=show) as sandbox:
        print("total:", sandbox.exec("./total numbers.txt", check=True).stdout.strip())
    with Sandbox.create(template="reporter", build=False) as sandbox:
        print("again:", sandbox.exec("wc -l <numbers.txt", check=True).stdout.strip())

    for name in ("reporer", "node:19", "pytorch-gpu"):
        try:
            Sandbox.create(template=name)
        except (TemplateNotFound, Unsupported) as error:
            print(f"{error}: {error.hint}")
    Templates().remove("reporter")


if __name__ == "__main__":
    main()
