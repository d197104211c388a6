"""Breakages of archives: what is compared, refused and kept."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ARCHIVE = [
    # -- archive
    Mutant(
        "an archive's hashes are not compared",
        "src/skerry/archive/ledger.py",
        "        if block == expected:\n            return\n",
        "        if block:\n            return\n",
        "tests/archive/test_hostile.py::test_an_altered_file_is_named",
    ),
    Mutant(
        "a header of an archive may have any form",
        "src/skerry/archive/members.py",
        "    if written != whole:\n",
        "    if not whole:\n",
        "tests/archive/test_hostile.py::test_what_another_program_wrote_is_not_an_archive[a prefix]",
    ),
    Mutant(
        "the seal of an archive is not looked at",
        "src/skerry/archive/streams.py",
        "        if seal != SEAL_HEAD + self._seal.digest():\n",
        "        if len(seal) < SEAL_SIZE:\n",
        "tests/archive/test_damage.py::test_with_more_at_its_end_it_raises",
    ),
    Mutant(
        "the last chunk of an encrypted archive looks like the others",
        "src/skerry/archive/crypt.py",
        'struct.pack(">Q?", index, last)',
        'struct.pack(">Q?", index, False)',
        "tests/archive/test_damage.py::test_a_chunk_says_itself_whether_it_is_the_last",
    ),
    Mutant(
        "a wrong key is tried",
        "src/skerry/archive/crypt.py",
        "        if not secrets.compare_digest(check, expected):\n",
        "        if len(check) != len(expected):\n",
        "tests/archive/test_damage.py::test_a_wrong_key_is_told_before_anything_else",
    ),
    Mutant(
        "a hard link of an archive follows links",
        "src/skerry/archive/unpack.py",
        "                at = os.open(directory, _HERE, dir_fd=at)\n",
        "                at = os.open(directory, os.O_RDONLY, dir_fd=at)\n",
        "tests/archive/test_hostile.py::test_it_is_refused_and_nothing_is_left[hard link through a link]",
    ),
    Mutant(
        "an archive brings any attribute",
        "src/skerry/trees/overlay.py",
        '    return name.startswith(b"user.") or os.fsdecode(name) in _KEPT\n',
        "    return len(name) > 0\n",
        "tests/archive/test_hostile.py::test_it_is_refused_and_nothing_is_left[opaque attribute]",
    ),
    Mutant(
        "an archive has no limit",
        "src/skerry/archive/read.py",
        "        if limit is not None and self._ledger.content_bytes > limit:\n",
        "        if limit is not None and self._ledger.content_bytes < 0:\n",
        "tests/archive/test_hostile.py::test_entries_and_bytes_are_limited_exactly",
    ),
    Mutant(
        "a failed import leaves its files",
        "src/skerry/archive/read.py",
        "                _remove(layers, error)\n",
        "                error.add_note('left as it is')\n",
        "tests/archive/test_disk_full.py::test_a_full_disk_is_told_and_nothing_is_left[bytes]",
    ),
    Mutant(
        "a user's .wh. file becomes a whiteout",
        "src/skerry/trees/overlay.py",
        "    return name.startswith(WHITEOUT)\n",
        "    return name == OPAQUE\n",
        "tests/archive/test_overlay.py::test_a_users_file_with_the_name_of_a_mark_stays_a_file",
    ),
    Mutant(
        "an opaque directory is forgotten",
        "src/skerry/archive/unpack.py",
        "            if level.opaque:\n                _set",
        "            if level.opaque and level.fd == self._root:\n                _set",
        "tests/archive/test_overlay.py::test_an_overlay_shows_the_same_on_the_unpacked_layer",
    ),
]
