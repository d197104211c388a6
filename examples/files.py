"""Put files in, work on them, take the result out."""

import tempfile
from pathlib import Path

from skerry import FileMissing, Sandbox

CSV = "name,price\nbread,3\nmilk,2\ncheese,9\n"
PROGRAM = """
import csv
rows = list(csv.DictReader(open("prices.csv")))
with open("report/total.txt", "w") as file:
    print(sum(int(row["price"]) for row in rows), file=file)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as here, Sandbox.create() as sandbox:
        local = Path(here, "prices.csv")
        local.write_text(CSV)
        sandbox.files.upload(local, "prices.csv")
        sandbox.files.mkdir("report")
        sandbox.files.write("total.py", PROGRAM)
        sandbox.exec(["python3", "total.py"], check=True)

        for entry in sandbox.files.list(depth=2):
            print(f"{entry.type:5}{entry.size:6}  {entry.path}")
        sandbox.files.download("report/total.txt", Path(here, "total.txt"))
        print("total:", Path(here, "total.txt").read_text().strip())

        try:
            sandbox.files.read("no-such-file")
        except FileMissing as error:
            print(error.code, "-", error.hint)


if __name__ == "__main__":
    main()
