"""Run code in a real sandbox and see how long each step takes."""

import time
from itertools import pairwise

from skerry import Sandbox

PROGRAM = "import os; print(f'hello from user {os.getuid()}, process {os.getpid()}')"


def main() -> None:
    with Sandbox.create() as first:  # the first one on a machine, or in a program, prepares things once
        print(first.exec(["python3", "-c", PROGRAM], check=True).stdout)

    marks = [time.perf_counter()]
    with Sandbox.create() as sandbox:
        marks.append(time.perf_counter())
        sandbox.exec(["python3", "-c", PROGRAM], check=True)
        marks.append(time.perf_counter())
        sandbox.exec(["true"], check=True)
        marks.append(time.perf_counter())
        info = sandbox.info()
        marks.append(time.perf_counter())
    marks.append(time.perf_counter())

    created, python, true, _, removed = (f"{(end - start) * 1000:6.1f} ms" for start, end in pairwise(marks))
    print(f"sandbox      {info.id}, isolation: {info.isolation}, network: {info.network}")
    print(f"create       {created}")
    print(f"run python3  {python}")
    print(f"run true     {true}")
    print(f"remove       {removed}")


if __name__ == "__main__":
    main()
