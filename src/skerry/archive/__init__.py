"""The state of a sandbox as one file: a manifest and the layers it wrote, compressed, hashed and on request encrypted.

`write_archive` and `open_archive` are the two ends, `tree_hash` compares what went in with what came out. They block:
call them in a thread. docs/design/archive.md describes the format.
"""

from skerry.archive.format import JSON, ArchiveInfo, Limits, Manifest, Totals, disk_errors
from skerry.archive.keys import Key
from skerry.archive.read import Archive, open_archive
from skerry.archive.treehash import tree_hash
from skerry.archive.write import write_archive

__all__ = [
    "JSON",
    "Archive",
    "ArchiveInfo",
    "Key",
    "Limits",
    "Manifest",
    "Totals",
    "disk_errors",
    "open_archive",
    "tree_hash",
    "write_archive",
]
