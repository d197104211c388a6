"""A sandbox as a file: export it encrypted, make another from it, put one into cold storage and bring it back."""

from __future__ import annotations

import tempfile
from pathlib import Path

from skerry import Key, Sandbox, Unauthenticated

key = Key.generate()

with tempfile.TemporaryDirectory() as directory, Sandbox.create(env={"MODE": "test"}) as sandbox:
    sandbox.exec("mkdir results; for n in 1 2 3; do echo $((n * n)) > results/$n; done", check=True)

    file = Path(directory, "box.skerry")
    sandbox.export_state(file, key=key)
    print("exported:", file.name, "readable without the key:", b"results" in file.read_bytes())

    with Sandbox.create(import_state=file, key=key) as copy:
        print("imported:", copy.exec("cat results/*; echo $MODE").stdout.split())

    info = sandbox.archive(key=key)
    print("archived:", info.state)
    try:
        sandbox.start()
    except Unauthenticated as error:
        print("without the key:", error.code)
    sandbox.start(key=key)
    print("back again:", sandbox.files.read_text("results/3").strip())
