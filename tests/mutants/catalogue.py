"""Deliberate breakages, each with the test that must catch it. `make mutants` tries them one at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which is in `file` exactly once, becomes `new`; then `test` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    # -- agent: processes
    Mutant(
        "a kill reaches only the leader's group",
        "agent/proc.c",
        "    proc_order(p, O_KILL, 0);\n    if (p->state == P_ENDING) {",
        "    proc_order(p, O_SIGNAL, SIGKILL);\n    if (p->state == P_ENDING) {",
        "tests/e2e/test_promises.py::test_a_stubborn_process_tree_is_gone_at_the_timeout[user]",
    ),
    Mutant(
        "a signal is lost",
        "agent/supervise.c",
        "                kill(-main, order.signal);\n",
        "                (void)main;\n",
        "tests/agent/test_processes.py::test_a_signal_reaches_the_group[release]",
    ),
    Mutant(
        "an exit code is always 0",
        "agent/proc.c",
        "put_int(b, code_tag, WEXITSTATUS(p->wait_status));",
        "put_int(b, code_tag, 0);",
        "tests/agent/test_exec.py::test_output_and_exit_code_come_back[release]",
    ),
    Mutant(
        "a death by a signal is a normal exit",
        "agent/proc.c",
        '    if (!WIFSIGNALED(p->wait_status))\n        return "exited";',
        '    if (WIFSIGNALED(p->wait_status))\n        return "exited";',
        "tests/agent/test_exec.py::test_death_by_a_signal_is_reported[release-15]",
    ),
    Mutant(
        "a replay starts one byte late",
        "agent/attach.c",
        "    *pos = since < 0 ? r->end : (uint64_t)since;\n",
        "    *pos = since <= 0 ? (since ? r->end : r->start) : (uint64_t)since + 1;\n",
        "tests/agent/test_processes.py::test_a_detached_process_runs_on_and_can_be_replayed[release]",
    ),
    Mutant(
        "a full ring drops a byte too many",
        "agent/ring.c",
        "    r->start += drop;\n    return room + drop;\n",
        "    r->start += drop + 1;\n    return room + drop;\n",
        "tests/agent/test_processes.py::test_a_full_ring_keeps_its_last_mebibyte_to_the_byte[release]",
    ),
    Mutant(
        "an unattached process is held back",
        "agent/output.c",
        "    return a ? a->pos[o->channel] : o->ring.end;",
        "    return a ? a->pos[o->channel] : o->ring.start;",
        "tests/agent/test_processes.py::test_with_nobody_attached_a_process_never_blocks_and_the_gap_is_reported[release]",
    ),
    Mutant(
        "a viewer holds the process back",
        "agent/attach.c",
        "    if (!a->view)\n        attach_control(a);",
        "    attach_control(a);",
        "tests/agent/test_processes.py::test_a_viewer_never_holds_the_process_back_and_jumps[release]",
    ),
    Mutant(
        "a closed foreground stream leaves its command",
        "agent/attach.c",
        "    if (owner && p->state != P_ENDED)\n",
        "    if (owner && p->state == P_ENDED)\n",
        "tests/agent/test_exec.py::test_closing_a_foreground_stream_kills_its_tree[release]",
    ),
    Mutant(
        "the end of input is not passed on",
        "agent/input.c",
        "    p->in.ended = p->in.ended || end;\n",
        "    p->in.ended = p->in.ended && end;\n",
        "tests/agent/test_exec.py::test_megabytes_of_stdin_pass_through_cat[release]",
    ),
    Mutant(
        "the last output before the exit is dropped",
        "agent/output.c",
        "    o->state = OUT_LAST;\n    o->left = (uint64_t)available;",
        "    o->state = OUT_LAST;\n    o->left = 1;",
        "tests/agent/test_exec.py::test_what_is_in_the_pipe_at_the_exit_is_not_lost[release]",
    ),
    # -- agent: connections
    Mutant(
        "any token is the right one",
        "agent/conn.c",
        "    if (!token_matches(token))\n",
        "    if (!token_matches(agent.token))\n",
        "tests/agent/test_protocol.py::test_a_wrong_token_is_refused[release-wrong]",
    ),
    Mutant(
        "the deadline does not end the agent",
        "agent/life.c",
        "    bool late = agent.deadline && now_ms() >= agent.deadline;",
        "    bool late = false;",
        "tests/agent/test_protocol.py::test_the_deadline_of_boot_ends_the_agent[release]",
    ),
    # -- agent: files
    Mutant(
        "a write follows the mode it is given, not the file's",
        "agent/fscontent.c",
        "    w->mode = old->st_mode & 07777;\n",
        "",
        "tests/agent/test_files.py::test_a_write_keeps_mode_and_owner[release]",
    ),
    Mutant(
        "a write that is given up leaves its temporary file",
        "agent/fscontent.c",
        "    struct writing *w = (struct writing *)job;\n\n    if (*w->temp)\n        unlinkat(w->dir, w->temp, 0);\n    if (w->fd >= 0)",
        "    struct writing *w = (struct writing *)job;\n\n    if (w->fd >= 0)",
        "tests/agent/test_files.py::test_a_write_given_up_leaves_the_old_file_and_no_temporary[release]",
    ),
    Mutant(
        "file work is done with root's rights",
        "agent/fsworker.c",
        "    return user->uid == 0 || syscall(SYS_capset, &header, none) == 0;",
        "    setfsuid(0);\n    return (void)header, (void)none, true;",
        "tests/agent/test_files.py::test_the_users_rights_are_what_counts[release]",
    ),
    Mutant(
        "a removal takes a link for what it points to",
        "agent/fsremove.c",
        "    if (lstat(path, &st) < 0)\n",
        "    if (stat(path, &st) < 0)\n",
        "tests/agent/test_files.py::test_remove_takes_files_links_and_empty_directories[release]",
    ),
    Mutant(
        "a special file is opened",
        "agent/fscontent.c",
        "    return S_ISREG(mode) ? 0 : S_ISDIR(mode) ? EISDIR : NOT_A_FILE_ERRNO;",
        "    return S_ISDIR(mode) ? EISDIR : 0;",
        "tests/agent/test_files.py::test_special_files_are_not_opened[release]",
    ),
    # -- agent: terminals
    Mutant(
        "the last output of a terminal is cut",
        "agent/output.c",
        "        o->left = TERMINAL_LAST;\n",
        "        o->left = 1;\n",
        "tests/agent/test_terminals.py::test_the_last_output_is_complete_every_time[release]",
    ),
    Mutant(
        "a take-over is not told",
        "agent/attach.c",
        "        p->controller->replaced = true;\n",
        "        p->controller->replaced = false;\n",
        "tests/agent/test_terminals.py::test_taking_over_is_told_to_the_former_controller[release]",
    ),
    Mutant(
        "a terminal does not control its session",
        "agent/supervise.c",
        "    if (l->terminal && ioctl(0, TIOCSCTTY, 0) < 0) {\n",
        "    if (l->terminal && isatty(0) == 0) {\n",
        "tests/agent/test_terminals.py::test_the_standard_streams_are_one_terminal_that_controls_the_session[release]",
    ),
    Mutant(
        "a terminal joined again starts one byte late",
        "src/skerry/sdk/terminal_stream.py",
        "or self._quiet else former.end(STDOUT)\n",
        "or self._quiet else former.end(STDOUT) + 1\n",
        "tests/sdk/test_real_terminals.py::test_no_line_is_lost_or_doubled_over_many_disconnects",
    ),
    # -- trees
    Mutant(
        "half a tree is taken for a whole one",
        "agent/unpacker.c",
        "    if (!u->ended || !records_complete(&u->records))\n        return EINVAL;\n",
        "    if (!records_complete(&u->records))\n        return EINVAL;\n",
        "tests/agent/test_trees.py::test_a_hostile_stream_is_refused",
    ),
    Mutant(
        "holes are filled with zeros",
        "agent/packer.c",
        "SEEK_DATA);\n",
        "SEEK_SET);\n",
        "tests/agent/test_trees.py::test_holes_stay_holes[release]",
    ),
    Mutant(
        "a download goes through a local link",
        "src/skerry/sdk/unpack.py",
        "_HERE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC\n",
        "_HERE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC\n",
        "tests/sdk/test_hostile_trees.py::test_a_merge_does_not_go_through_a_local_link",
    ),
    Mutant(
        "a path of a tree may climb out of it",
        "src/skerry/sdk/trees.py",
        '        if not part or part == b"." or part == b".." or len(part) > 255:\n',
        '        if not part or part == b"." or len(part) > 255:\n',
        "tests/sdk/test_hostile_trees.py::test_a_hostile_tree_is_a_broken_agent",
    ),
    Mutant(
        "a guarded write does not look",
        "agent/fscontent.c",
        "    return strcmp(etag, w->if_match) ? CONFLICT_ERRNO : 0;\n",
        "    return strcmp(etag, w->if_match) ? 0 : 0;\n",
        "tests/agent/test_trees.py::test_an_etag_guards_a_write[release]",
    ),
    # -- watching and ports
    Mutant(
        "what is in a new directory is not told",
        "agent/fswatchscan.c",
        "    n->announce = announce;\n",
        "    n->announce = announce && false;\n",
        "tests/agent/test_watch.py::test_a_tree_made_at_once_is_told_completely_and_nothing_twice[release-200]",
    ),
    Mutant(
        "an overflow is kept quiet",
        "agent/fswatchevents.c",
        "    if (e->mask & IN_Q_OVERFLOW)\n        w->lost = true;\n",
        "",
        "tests/agent/test_watch.py::test_a_client_that_does_not_read_costs_little_and_then_hears_of_the_overflow[release]",
    ),
    Mutant(
        "the end of what a client sends does not reach the server",
        "agent/dial.c",
        "        if (shutdown(d->socket.fd, SHUT_WR) < 0) {\n",
        "        if (d->socket.fd < 0) {\n",
        "tests/agent/test_ports.py::test_bytes_and_ends_go_both_ways[release-127.0.0.1]",
    ),
    # -- wire, Python
    Mutant(
        "a frame above the limit is taken",
        "src/skerry/wire/frames.py",
        "                if length > MAX_PAYLOAD:\n",
        "                if length > 2 * MAX_PAYLOAD:\n",
        "tests/wire/test_frames.py::test_a_length_above_the_limit_is_refused_before_any_payload",
    ),
    # -- SDK
    Mutant(
        "an exit without a code is a success",
        "src/skerry/sdk/running.py",
        "            sound = code is not None and 0 <= code <= 255 and signal is None",
        "            sound = code is None or 0 <= code <= 255",
        "tests/sdk/test_hostile_agent.py::test_exec_ends_with_corrupted_after",
    ),
    Mutant(
        "more data than was granted is taken",
        "src/skerry/sdk/stream.py",
        "        if size > flow.credit:\n",
        "        if size > 1 << 40:\n",
        "tests/sdk/test_hostile_agent.py::test_exec_ends_with_corrupted_after",
    ),
    Mutant(
        "the dropped middle of the output is not counted",
        "src/skerry/sdk/output.py",
        "        return self.total - len(self._head) - min(len(self._tail), self._tail_limit)",
        "        return 0",
        "tests/sdk/test_output.py::test_the_first_and_the_last_bytes_are_kept_and_the_rest_counted",
    ),
    Mutant(
        "credit is given before the bytes are used",
        "src/skerry/sdk/stream.py",
        "        flow.offset, flow.ended = offset + size, end\n        flow.credit -= size\n",
        "        flow.offset, flow.ended = offset + size, end\n        self.session.queue(credit_frame(self.id, channel, size), soon=True)\n",
        "tests/sdk/test_session.py::test_a_stream_nobody_reads_gives_no_credit",
    ),
    Mutant(
        "cancelling leaves the command running",
        "src/skerry/sdk/stream.py",
        "            self.session.close_stream(self.id)\n            self._finish()\n",
        "            self._finish()\n",
        "tests/sdk/test_session.py::test_cancelling_exec_closes_the_stream_at_once",
    ),
    Mutant(
        "an option without a feature is ignored",
        "src/skerry/sdk/options.py",
        '        if value is not None:\n            raise Unsupported(f"{option} is not supported yet", option=option)\n',
        '        if value is Unsupported:\n            raise Unsupported(f"{option} is not supported yet", option=option)\n',
        "tests/sdk/test_options.py::test_an_option_without_a_feature_is_unsupported",
    ),
    # -- local provider
    Mutant(
        "a failed create leaves its folder",
        "src/skerry/providers/local/engine.py",
        "        except BaseException:\n            self._tear_down(record)\n            raise\n        finally:\n            lock.release()",
        "        finally:\n            lock.release()",
        "tests/providers/test_local.py::test_a_runtime_that_fails_leaves_nothing",
    ),
    Mutant(
        "a destroyed sandbox's cgroup stays",
        "src/skerry/providers/local/engine.py",
        "            record.init.kill(KILL_TIMEOUT)\n        self.cgroups.remove(record.id, KILL_TIMEOUT)\n",
        "            record.init.kill(KILL_TIMEOUT)\n",
        "tests/crash/test_crash.py::test_a_killed_client_takes_its_leased_sandbox_along",
    ),
    Mutant(
        "two sandboxes may share an id range",
        "src/skerry/providers/local/store.py",
        "            except FileExistsError:\n                continue\n            return dataclasses.replace(record, slot=slot)",
        "            except FileExistsError:\n                pass\n            return dataclasses.replace(record, slot=0)",
        "tests/providers/test_local.py::test_two_sandboxes_never_share_ids",
    ),
    Mutant(
        "a taken name is given again",
        "src/skerry/providers/local/store.py",
        '                raise Conflict(f"the name {link.name!r} is taken", hint="choose another, or destroy its sandbox")\n',
        "                continue\n",
        "tests/providers/test_local.py::test_a_taken_name_is_a_conflict_and_destroy_frees_it",
    ),
    Mutant(
        "a dead client's lease is not noticed",
        "src/skerry/providers/local/engine.py",
        "        if record.expired() or record.abandoned():\n            self._tear_down(record)",
        "        if record.expired():\n            self._tear_down(record)",
        "tests/crash/test_crash.py::test_a_killed_client_takes_its_leased_sandbox_along",
    ),
    Mutant(
        "a sandbox's mounts are seen on the host",
        "launcher/launcher.c",
        '    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");\n',
        '    if (mount(NULL, "/sys", NULL, MS_REC | MS_PRIVATE, NULL)) die("private mounts");\n',
        "tests/crash/test_crash.py::test_a_killed_client_takes_its_leased_sandbox_along",
    ),
    Mutant(
        "an open sandbox reaches private ranges",
        "src/skerry/providers/local/network.py",
        '        iifname "{PREFIX}*" ip daddr {{ {_BLOCKED} }} reject with icmpx admin-prohibited\n',
        "",
        "tests/isolation/test_network.py::test_open_network_does_not_reach_private_ranges",
    ),
    # -- storage and volumes
    Mutant(
        "a volume covers the system",
        "launcher/launcher.c",
        "    for (int i = 0; i < plan.volumes; i++) mount_volume(&plan, root, plan.volume[i], userns);\n"
        "    for (int i = 0; i < plan.binds; i++) mount_bound(root, plan.bind[i]);\n",
        "    for (int i = 0; i < plan.binds; i++) mount_bound(root, plan.bind[i]);\n"
        "    for (int i = 0; i < plan.volumes; i++) mount_volume(&plan, root, plan.volume[i], userns);\n",
        "tests/providers/test_volumes.py::"
        "test_a_link_at_the_mount_point_leads_nowhere_but_into_its_own_root[/usr-True]",
    ),
    Mutant(
        "a link in a volume is followed",
        "launcher/launcher.c",
        "RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV",
        "0",
        "tests/providers/test_volumes.py::test_a_subpath_swapped_for_a_link_at_any_moment_never_leads_out",
    ),
    Mutant(
        "a volume in use is deleted",
        "src/skerry/providers/local/volumes.py",
        "            if users := self._users().get(name):\n",
        "            if users := self._users().get(name, ())[:0]:\n",
        "tests/providers/test_volumes.py::test_delete_is_refused_while_any_sandbox_has_it_running_or_not",
    ),
    Mutant(
        "a new pool keeps no accounts",
        "src/skerry/providers/local/pool.py",
        "            if not btrfs.has_quotas(self.root):\n",
        "            if self._limits:\n",
        "tests/providers/test_storage.py::test_the_first_limit_of_a_new_pool_holds",
    ),
    Mutant(
        "the accounts of all sandboxes can be read",
        "src/skerry/providers/local/bundle.py",
        " /sys/fs/btrfs",
        "",
        "tests/isolation/test_host.py::test_the_accounts_of_the_storage_pool_cannot_be_seen[user]",
    ),
    # -- lifecycle
    Mutant(
        "a stop forgets the variables",
        "src/skerry/providers/local/ending.py",
        "    return dataclasses.replace(record, env=kept)\n",
        "    return record if kept else record\n",
        "tests/providers/test_lifecycle.py::test_a_stopped_sandbox_keeps_files_and_variables_and_nothing_else",
    ),
    Mutant(
        "who died at a pause leaves it frozen",
        "src/skerry/providers/local/lifecycle.py",
        "        self._engine.cgroups.thaw(record.id)\n        return self._engine.advance(record, State.RUNNING)\n",
        "        return self._engine.advance(record, State.RUNNING)\n",
        "tests/providers/test_lifecycle.py::test_who_dies_at_a_change_leaves_it_to_the_next[pause]",
    ),
    Mutant(
        "a restart stops before it refuses",
        "src/skerry/providers/local/lifecycle.py",
        "        if changes.resources is not None:\n            self._engine.check_resources(changes.resources)\n",
        "        pass\n",
        "tests/providers/test_lifecycle.py::test_a_restart_that_cannot_be_honoured_is_refused_before_anything_stops",
    ),
    Mutant(
        "a hard reset keeps the files",
        "src/skerry/providers/local/lifecycle.py",
        "            engine.storage.remove(upper)\n            engine.make_upper(record)\n",
        "            engine.make_upper(record)\n",
        "tests/providers/test_lifecycle.py::test_a_hard_reset_leaves_nothing",
    ),
    Mutant(
        "last words nobody can trust are believed",
        "src/skerry/providers/local/ending.py",
        '    return words is not None and words.reason == "idle" and idle_limit(record.spec) is not None\n',
        "    return words is not None\n",
        "tests/providers/test_lifecycle.py::test_a_sandbox_that_ends_without_good_words_has_failed",
    ),
    Mutant(
        "a stopped sandbox is started although it must not be",
        "src/skerry/sdk/link.py",
        "                if attempt == STARTS or not (start and self.auto_start and isinstance(self.provider, Stoppable)):\n",
        "                if attempt == STARTS or not isinstance(self.provider, Stoppable):\n",
        "tests/cli/test_lifecycle.py::test_exec_starts_a_stopped_one_unless_told_not_to",
    ),
    # -- archive
    Mutant(
        "an archive's hashes are not compared",
        "src/skerry/archive/ledger.py",
        "        if block == expected:\n            return\n",
        "        if block:\n            return\n",
        "tests/archive/test_hostile.py::test_an_altered_file_is_named",
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
        "src/skerry/archive/overlay.py",
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
        "src/skerry/archive/overlay.py",
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
    # -- templates
    Mutant(
        "a template in use is removed",
        "src/skerry/providers/local/templates.py",
        '                raise Conflict(f"the template {info.name!r} is in use by {user}", hint="destroy it first")\n',
        "                pass\n",
        "tests/templates/test_building.py::test_what_something_needs_is_not_removed",
    ),
    Mutant(
        "a layer that nobody names stays",
        "src/skerry/providers/local/templates.py",
        "                    self._engine.storage.remove(layers / digest)\n",
        "                    pass\n",
        "tests/templates/test_building.py::test_a_layer_that_nobody_names_is_swept",
    ),
    Mutant(
        "everybody builds what they want",
        "src/skerry/sdk/building.py",
        "            if not await self._templates.has_layer(layer):\n                await self._make_layer",
        "            if True:\n                await self._make_layer",
        "tests/templates/test_building.py::test_two_who_want_the_same_build_it_once",
    ),
    Mutant(
        "a sandbox whose postCreate failed lives on",
        "src/skerry/sdk/preparing.py",
        "            with anyio.CancelScope(shield=True):\n                await sandbox.destroy()\n        raise\n",
        "            pass\n        raise\n",
        "tests/templates/test_building.py::test_a_post_create_that_fails_fails_the_create",
    ),
    # -- local provider: snapshots
    Mutant(
        "a snapshot has the secrets",
        "src/skerry/providers/local/snapshots.py",
        "if name not in record.spec.secrets}",
        "if name}",
        "tests/providers/test_snapshots.py::test_secrets_are_in_no_snapshot_and_in_no_copy_unless_asked_for",
    ),
    Mutant(
        "what a copy began with does not count",
        "src/skerry/providers/local/snapshots.py",
        "inherited=record.inherited if deep else record.total,",
        "inherited=0,",
        "tests/providers/test_snapshots.py::test_a_disk_limit_holds_in_a_clone_and_counts_what_it_began_with",
    ),
    Mutant(
        "the sweep takes a snapshot that somebody is about to use",
        "src/skerry/providers/local/snapshots.py",
        "                    return None  # somebody is about to use it\n",
        "                    pass\n",
        "tests/providers/test_snapshots.py::test_a_snapshot_in_use_by_a_create_under_way_is_not_removed",
    ),
    Mutant(
        "a sandbox left frozen stays so",
        "src/skerry/providers/local/snapshots.py",
        "        if record.state is State.RUNNING:\n            self._engine.cgroups.thaw(record.id)\n",
        "",
        "tests/providers/test_snapshots.py::test_a_sandbox_left_frozen_in_the_middle_of_a_snapshot_goes_on",
    ),
    # -- states
    Mutant(
        "an archive is not read back",
        "src/skerry/providers/local/cold.py",
        "                    archive.verify()\n",
        "                    assert archive\n",
        "tests/providers/test_cold.py::test_an_archive_that_does_not_read_back_is_not_trusted[directory]",
    ),
    Mutant(
        "who dies before an archive is complete loses the files",
        "src/skerry/providers/local/cold.py",
        "        if record.state is State.ARCHIVED:\n            self._engine.storage.remove(",
        "        if record.pending:\n            self._engine.storage.remove(",
        "tests/providers/test_cold.py::test_who_died_at_it_leaves_it_whole[directory-stopped]",
    ),
    Mutant(
        "an export leaves its snapshot",
        "src/skerry/providers/local/states.py",
        "            snapshots.release([made.id])\n",
        "            assert made.id\n",
        "tests/providers/test_states.py::test_a_sandbox_goes_on_while_it_is_exported_and_the_file_is_of_one_moment",
    ),
    Mutant(
        "an import has no disk limit",
        "src/skerry/providers/local/states.py",
        "            room = engine.grant(spec).disk or limits().max_disk\n",
        "            room = (engine.grant(spec).disk or limits().max_disk) + (1 << 40)\n",
        "tests/providers/test_states.py::test_a_bomb_ends_at_the_disk_limit",
    ),
    Mutant(
        "an export writes over its target at once",
        "src/skerry/sdk/portable.py",
        "        if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):\n",
        "        if os.path.exists(path):\n",
        "tests/sdk/test_states.py::test_a_path_that_cannot_be_is_told_and_a_failure_keeps_what_was_there",
    ),
]
