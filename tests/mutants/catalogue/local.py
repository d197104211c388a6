"""Breakages of the local provider: the launcher, isolation, networks, storage, volumes and the lifecycle."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LOCAL = [
    # -- local provider
    Mutant(
        "a failed create leaves its folder",
        "src/skerry/providers/local/sandbox/create.py",
        "        except BaseException:\n            changes.tear_down(record)\n            raise\n        finally:\n            lock.release()",
        "        finally:\n            lock.release()",
        "tests/providers/local/test_local.py::test_a_runtime_that_fails_leaves_nothing",
    ),
    Mutant(
        "a destroyed sandbox's cgroup stays",
        "src/skerry/providers/local/sandbox/changes.py",
        "            record.init.kill(KILL_TIMEOUT)\n        self.cgroups.remove(record.id, KILL_TIMEOUT)\n",
        "            record.init.kill(KILL_TIMEOUT)\n",
        "tests/providers/local/crash/test_kill.py::test_a_killed_client_takes_its_leased_sandbox_along",
    ),
    Mutant(
        "two sandboxes may share an id range",
        "src/skerry/providers/local/sandbox/folders.py",
        "            except FileExistsError:\n                continue\n            view",
        "            except FileExistsError:\n                slot = 0\n            view",
        "tests/providers/local/test_local.py::test_two_sandboxes_never_share_ids",
    ),
    Mutant(
        "a taken name is given again",
        "src/skerry/providers/local/sandbox/folders.py",
        "                raise _taken(record.spec)\n",
        "                continue\n",
        "tests/providers/local/test_local.py::test_a_taken_name_is_a_conflict_and_destroy_frees_it",
    ),
    Mutant(
        "a dead client's lease is not noticed",
        "src/skerry/providers/local/sandbox/sweep.py",
        "        if record.abandoned() or (record.expired() and record.ends_for_good):\n",
        "        if record.expired() and record.ends_for_good:\n",
        "tests/providers/local/crash/test_kill.py::test_a_killed_client_takes_its_leased_sandbox_along",
    ),
    Mutant(
        "a sandbox's mounts are seen on the host",
        "launcher/launcher.c",
        '    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");\n',
        '    if (mount(NULL, "/sys", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");\n',
        "tests/providers/local/crash/test_kill.py::test_a_killed_client_takes_its_leased_sandbox_along",
    ),
    Mutant(
        "a sandbox's network belongs to the machine",
        "launcher/namespaces.c",
        """    enter_userns(plan->ids);
    if (!tells(tell) || !hears(hear)) _exit(1);
    if (plan->inotify) write_file("/proc/sys/user/max_inotify_instances", plan->inotify);
    if (unshare(CLONE_NEWNET)) die("unshare network namespace");
""",
        """    if (unshare(CLONE_NEWNET)) die("unshare network namespace");
    enter_userns(plan->ids);
    if (!tells(tell) || !hears(hear)) _exit(1);
    if (plan->inotify) write_file("/proc/sys/user/max_inotify_instances", plan->inotify);
""",
        "tests/providers/local/isolation/test_network.py::test_the_network_belongs_to_the_sandbox_and_not_to_the_machine",
    ),
    Mutant(
        "a newer crun does not find what it wants of systemd",
        "src/skerry/providers/local/launch/launch.py",
        '        light = kind == "crun" and _needs_no_systemd(path, os.stat(path).st_mtime_ns)\n',
        '        light = kind == "crun" and bool(os.stat(path))\n',
        "tests/providers/local/test_local.py::test_a_crun_that_wants_more_of_systemd_gets_all_of_it",
    ),
    Mutant(
        "an open sandbox reaches private ranges",
        "src/skerry/providers/local/limits/network.py",
        '        iifname "{PREFIX}*" ip daddr {{ {ranges} }} reject with icmpx admin-prohibited\n',
        "",
        "tests/providers/local/isolation/test_network.py::test_open_network_does_not_reach_private_ranges[user]",
    ),
    Mutant(
        "an open sandbox reaches a public network that the machine is in",
        "src/skerry/providers/local/limits/network.py",
        "collapse_addresses([*private, *connected])",
        "collapse_addresses(private)",
        "tests/providers/local/isolation/test_network.py::test_open_network_does_not_reach_a_public_network_that_the_machine_is_in",
    ),
    Mutant(
        "a sandbox asks the machine's resolvers for zones",
        "launcher/dns.c",
        "(type < 249 || type > 254)",
        "(type < 249 || type > 251)",
        "tests/providers/local/isolation/test_names.py::test_nothing_but_plain_queries_reaches_a_resolver[user]",
    ),
    Mutant(
        "an open sandbox begins any number of connections",
        "src/skerry/providers/local/limits/network.py",
        "{NEW_AT_ONCE} packets }} drop\n",
        "{NEW_AT_ONCE} packets }}\n",
        "tests/providers/local/isolation/test_network.py::test_open_network_does_not_fill_the_machine_s_table_of_connections[user]",
    ),
    Mutant(
        "an open sandbox has any number of connections",
        "src/skerry/providers/local/limits/network.py",
        "ct count over {TRACKED} }} drop\n",
        "ct count over {TRACKED} }}\n",
        "tests/providers/local/isolation/test_network.py::test_a_sandbox_keeps_no_more_connections_than_its_share",
    ),
    Mutant(
        "a process sets the limit with which core handlers run",
        "tools/gen_seccomp.py",
        "setting_or_reading(policy.CORE, pretended, refused)",
        "answer(ALLOW)",
        "tests/providers/local/isolation/test_crashes.py::test_the_limit_of_cores_stays_at_the_one_that_calls_no_handler[user-setrlimit]",
    ),
    Mutant(
        "a sandbox uses up the machine's terminals",
        "src/skerry/providers/local/launch/bundle.py",
        ', f"max={TERMINALS}"),',
        "),",
        "tests/providers/local/isolation/test_bombs.py::test_terminal_bomb_takes_nothing_from_the_neighbour_or_the_machine[user]",
    ),
    # -- storage and volumes
    Mutant(
        "a volume is mounted where links of the sandbox lead",
        "launcher/mounts.c",
        "RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | (across ? 0 : RESOLVE_NO_XDEV)",
        "RESOLVE_IN_ROOT | (across ? 0 : RESOLVE_NO_XDEV)",
        "tests/providers/local/storage/test_volumes.py::test_no_link_is_followed_to_a_mount_point[/usr]",
    ),
    Mutant(
        "what an import has in the agent's place stays there",
        "launcher/mounts.c",
        "AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode)",
        "AT_SYMLINK_NOFOLLOW)",
        "tests/providers/local/isolation/test_root.py::test_what_an_import_has_in_the_agent_s_place_is_replaced[link-.skerry/agent]",
    ),
    Mutant(
        "last words have no limit",
        "src/skerry/providers/local/sandbox/changes.py",
        "_WORDS_ROOM if storage.default_limit() is not None else None",
        "None",
        "tests/providers/local/isolation/test_root.py::test_what_a_first_process_writes_to_its_descriptors_is_bounded",
    ),
    Mutant(
        "sandboxes have the machine's own inodes",
        "launcher/mounts.c",
        "part->tree = part->shared ? overlaid(",
        "part->tree = part->shared > 1 ? overlaid(",
        "tests/providers/local/isolation/test_shared_files.py::test_a_lock_on_a_shared_file_stops_nobody_else[user]",
    ),
    Mutant(
        "a home of somebody else is used",
        "src/skerry/providers/local/sandbox/folders.py",
        "            _require_own(self.home)\n",
        "",
        "tests/providers/local/storage/test_storage.py::test_a_home_that_others_can_change_is_refused[12345-448]",
    ),
    Mutant(
        "a link in a volume is followed",
        "launcher/mounts.c",
        "RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV",
        "0",
        "tests/providers/local/storage/test_volumes.py::test_a_subpath_swapped_for_a_link_at_any_moment_never_leads_out",
    ),
    Mutant(
        "a volume in use is deleted",
        "src/skerry/providers/local/storage/volumes.py",
        "            if users := self._users().get(name):\n",
        "            if users := self._users().get(name, ())[:0]:\n",
        "tests/providers/local/storage/test_volumes.py::test_delete_is_refused_while_any_sandbox_has_it_running_or_not",
    ),
    Mutant(
        "a new pool keeps no accounts",
        "src/skerry/providers/local/storage/pool.py",
        "            if not btrfs.has_quotas(self.root):\n",
        "            if self._limits:\n",
        "tests/providers/local/storage/test_storage.py::test_the_first_limit_of_a_new_pool_holds",
    ),
    Mutant(
        "the accounts of all sandboxes can be read",
        "src/skerry/providers/local/launch/bundle.py",
        " /sys/fs/btrfs",
        "",
        "tests/providers/local/isolation/test_host.py::test_the_accounts_of_the_storage_pool_cannot_be_seen[user]",
    ),
    Mutant(
        "an encrypted sandbox lies with the others",
        "src/skerry/providers/local/home.py",
        "        if not encrypted:\n            return plain\n",
        "        if plain:\n            return plain\n",
        "tests/providers/local/storage/test_encrypted.py::test_nothing_that_an_encrypted_sandbox_writes_can_be_read_from_the_disk",
    ),
    Mutant(
        "a pool that is open elsewhere is said to be locked",
        "src/skerry/providers/local/storage/encrypted.py",
        "        return found is None or fscrypt.remove_key(self.disk, found)\n",
        "        return True\n",
        "tests/providers/local/storage/test_encrypted.py::test_a_pool_that_another_mount_namespace_has_is_not_said_to_be_locked",
    ),
    Mutant(
        "a copy of an encrypted sandbox need not be encrypted",
        "src/skerry/providers/local/sandbox/create.py",
        "            if spec.encrypted not in (None, encrypted):\n",
        "            if spec.encrypted and not encrypted:\n",
        "tests/providers/local/storage/test_encrypted.py::test_what_is_made_from_an_encrypted_sandbox_is_encrypted_too",
    ),
    # -- lifecycle
    Mutant(
        "a stop forgets the variables",
        "src/skerry/providers/local/sandbox/last_words.py",
        "    return dataclasses.replace(record, env=kept)\n",
        "    return record if kept else record\n",
        "tests/providers/local/sandbox/test_lifecycle.py::test_a_stopped_sandbox_keeps_files_and_variables_and_nothing_else",
    ),
    Mutant(
        "who died at a pause leaves it frozen",
        "src/skerry/providers/local/sandbox/lifecycle.py",
        "        self._changes.cgroups.thaw(record.id)\n        return self._changes.advance(record, State.RUNNING)\n",
        "        return self._changes.advance(record, State.RUNNING)\n",
        "tests/providers/local/sandbox/test_lifecycle.py::test_who_dies_at_a_change_leaves_it_to_the_next[pause]",
    ),
    Mutant(
        "a restart stops before it refuses",
        "src/skerry/providers/local/sandbox/lifecycle.py",
        "        if wanted.resources is not None:\n            check_supported(wanted.resources, storage)\n            check_limits(wanted.resources, self._changes.cgroups)\n",
        "        pass\n",
        "tests/providers/local/sandbox/test_lifecycle.py::test_a_restart_that_cannot_be_honoured_is_refused_before_anything_stops",
    ),
    Mutant(
        "a hard reset keeps the files",
        "src/skerry/providers/local/sandbox/lifecycle.py",
        "            changes.storage_of(record).remove(upper)\n            changes.make_upper(record)\n",
        "            changes.make_upper(record)\n",
        "tests/providers/local/sandbox/test_lifecycle.py::test_a_hard_reset_leaves_nothing",
    ),
    Mutant(
        "last words nobody can trust are believed",
        "src/skerry/providers/local/sandbox/last_words.py",
        '    return words is not None and words.reason == "idle" and idle_limit(record.spec) is not None\n',
        "    return words is not None\n",
        "tests/providers/local/sandbox/test_ends.py::test_a_sandbox_that_ends_without_good_words_has_failed",
    ),
    Mutant(
        "a stopped sandbox is started although it must not be",
        "src/skerry/sdk/connection/link.py",
        "                if attempt == STARTS or not (start and self.auto_start and isinstance(self.provider, Stoppable)):\n",
        "                if attempt == STARTS or not isinstance(self.provider, Stoppable):\n",
        "tests/cli/commands/test_lifecycle.py::test_exec_starts_a_stopped_one_unless_told_not_to",
    ),
    # -- the audit
    Mutant(
        "an attempt that proves nothing counts as denied",
        "src/skerry/audit/attempt.py",
        "        return Verdict.ALLOWED\n    return Verdict.NOT_TRIED",
        "        return Verdict.ALLOWED\n    return Verdict.DENIED",
        "tests/audit/test_audit.py::test_an_answer_that_proves_nothing_is_not_a_denial[error-EINVAL-not tried]",
    ),
    Mutant(
        "an attempt that ends the sandbox is not told",
        "src/skerry/audit/run.py",
        "elif await answers(self.target):",
        "elif True:",
        "tests/audit/test_audit.py::test_an_attempt_that_ends_the_sandbox_is_allowed_and_the_rest_was_not_tried",
    ),
    Mutant(
        "a variable that is planted for the audit stays",
        "src/skerry/audit/planted.py",
        '        del os.environ["AUDIT_MARK"]',
        "        pass",
        "tests/audit/test_audit.py::test_what_is_planted_is_gone_afterwards_even_if_planting_fails",
    ),
]
