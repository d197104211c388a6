"""Breakages of templates, sources and images."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TEMPLATES = [
    # -- templates
    Mutant(
        "a template in use is removed",
        "src/skerry/providers/local/storage/layers.py",
        '            return Conflict(f"the template {info.name!r} is in use by {user}", hint="destroy it first")\n',
        "            pass\n",
        "tests/templates/test_building.py::test_what_something_needs_is_not_removed",
    ),
    Mutant(
        "a layer that nobody names stays",
        "src/skerry/providers/local/storage/layers.py",
        "        self._changes.storage.remove(layers / digest)\n",
        "        pass\n",
        "tests/templates/test_building.py::test_a_layer_that_nobody_names_is_swept",
    ),
    Mutant(
        "everybody builds what they want",
        "src/skerry/sdk/templates/builder.py",
        "                if not await self._templates.has_layer(layer):\n                    await self._make_layer",
        "                if True:\n                    await self._make_layer",
        "tests/templates/test_building.py::test_two_who_want_the_same_build_it_once",
    ),
    Mutant(
        "what force replaces goes while a sandbox has it",
        "src/skerry/providers/local/storage/layers.py",
        "                if info.superseded and self._needed(info) is None:\n",
        "                if info.superseded:\n",
        "tests/templates/test_force.py::test_what_force_replaces_stays_for_who_needs_it_and_then_goes",
    ),
    Mutant(
        "force uses the layer that is there",
        "src/skerry/sdk/templates/builder.py",
        "            fresh = new_layer_id(layer)\n",
        "            return await self._templates.add_template(wanted)\n            fresh = new_layer_id(layer)\n",
        "tests/templates/test_force.py::test_force_builds_anew_though_something_has_the_layer",
    ),
    Mutant(
        "the password of a source is in a command line",
        "src/skerry/sdk/templates/sources.py",
        'command = ["/bin/sh", "-c", _DOWNLOAD, "sh", place]',
        'command = ["/bin/sh", "-c", _DOWNLOAD, "sh", place, source.url]',
        "tests/templates/test_sources.py::test_a_password_of_a_url_is_in_no_command_line_and_no_repr",
    ),
    Mutant(
        "the first sandbox's preparation counts for its copies",
        "src/skerry/sdk/templates/setup.py",
        '    return f"/.skerry/{kind}-{sandbox_id}"\n',
        '    return f"/.skerry/{kind}"\n',
        "tests/templates/test_sources.py::test_a_sandbox_from_a_snapshot_gets_its_source_though_the_first_one_had_one",
    ),
    Mutant(
        "a layer is removed in its place",
        "src/skerry/providers/local/storage/layers.py",
        "                (layers / digest).rename(layers / gone)\n",
        "                gone = digest\n",
        "tests/templates/test_force.py::test_a_layer_whose_removal_was_cut_short_is_no_layer",
    ),
    Mutant(
        "an image is cached under the hash of another",
        "src/skerry/sdk/templates/images.py",
        "    if reader.hash.hexdigest() != content:\n",
        "    if reader.hash is None:\n",
        "tests/templates/images/test_images.py::test_an_image_that_changes_while_it_is_read_is_not_taken_for_the_one_before",
    ),
    Mutant(
        "a name with a number may be taken",
        "src/skerry/templates/catalogue.py",
        '    elif match is not None and match["name"] in taken:\n',
        "    elif match is not None and not taken:\n",
        "tests/templates/test_names.py::test_a_name_that_means_something_already_is_refused[node20]",
    ),
    Mutant(
        "a sandbox whose postCreate failed lives on",
        "src/skerry/sdk/templates/setup.py",
        "            with anyio.CancelScope(shield=True):\n                await sandbox.destroy()\n        raise\n",
        "            pass\n        raise\n",
        "tests/templates/test_building.py::test_a_post_create_that_fails_fails_the_create",
    ),
    Mutant(
        "a private registry is pulled from outside the sandbox",
        "src/skerry/sdk/templates/registry_images.py",
        "        return ipaddress.ip_address(name).is_loopback\n",
        "        return not ipaddress.ip_address(name).is_global\n",
        "tests/templates/images/test_registry.py::test_only_a_loopback_address_is_this_machine",
    ),
    Mutant(
        "what a build writes is obeyed by the terminal",
        "src/skerry/sdk/templates/progress_line.py",
        """        plain = "".join(char if char.isprintable() else " " for char in text)\n""",
        "        plain = text\n",
        "tests/templates/test_progress.py::test_a_build_is_shown_on_a_terminal_and_the_line_is_gone_at_the_end",
    ),
]
