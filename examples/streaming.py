"""Take a command's output while it runs, and feed it input."""

import asyncio
from collections.abc import AsyncIterator

from skerry import AsyncSandbox


async def numbers() -> AsyncIterator[bytes]:
    for number in range(1, 6):
        yield f"{number}\n".encode()
        await asyncio.sleep(0.05)


async def main() -> None:
    async with await AsyncSandbox.create() as sandbox:
        command = "while read n; do echo $((n * n)); done; echo done >&2"
        async with sandbox.exec_stream(command, stdin=numbers()) as stream:
            async for chunk in stream:
                print(f"{chunk.stream} at byte {chunk.offset}: {chunk.data!r}")
            result = await stream.wait()
        print(f"exit code {result.exit_code} after {result.duration:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
