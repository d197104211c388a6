"""Twenty sandboxes at once, each with its own task."""

import asyncio
import time

from skerry import AsyncSandbox


async def square(number: int) -> int:
    async with await AsyncSandbox.create(metadata={"task": str(number)}) as sandbox:
        result = await sandbox.exec(["expr", str(number), "*", str(number)], check=True)
        return int(result.stdout)


async def main() -> None:
    start = time.perf_counter()
    squares = await asyncio.gather(*(square(number) for number in range(1, 21)))
    print(squares)
    print(f"{len(squares)} sandboxes created, used and removed in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
