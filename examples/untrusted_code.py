"""Run code nobody has read: bounded in time, memory and processes, without network."""

from skerry import ExecResult, ExecStatus, Resources, Sandbox

SNIPPETS = {
    "well-behaved": "print(sum(range(1000)))",
    "never ends": "while True: pass",
    "wants all memory": "x = bytearray(10**10)",
    "looks around": "import os; print(os.listdir('/home'), os.path.exists('/root/.ssh'))",
    "calls home": "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)",
}


def verdict(result: ExecResult) -> str:
    if result.ok:
        return result.stdout.strip()
    if result.status is ExecStatus.EXITED:
        return f"failed: {result.stderr.strip().splitlines()[-1]}"
    return result.status.value  # timed_out, out_of_memory, signaled


def main() -> None:
    limits = Resources(cpu=1, memory=128 * 1024 * 1024, pids=32)
    for name, code in SNIPPETS.items():
        with Sandbox.create(resources=limits, timeout=60) as sandbox:
            result = sandbox.exec(["python3", "-c", code], timeout=2)
        print(f"{name:18}{verdict(result)}")


if __name__ == "__main__":
    main()
