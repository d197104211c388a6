"""The command `completion`: the scripts that let a shell ask this program to complete a word."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from skerry.cli.terminal.output import note, printable

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS = {
    Shell.BASH: r"""# bash completion for skerry
_skerry() {
    local IFS=$'\n'
    # The line goes as a whole: bash splits NAME:PATH at the colon.
    COMPREPLY=($(skerry __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null))
}
complete -o nospace -o bashdefault -o default -F _skerry skerry
""",
    Shell.ZSH: r"""#compdef skerry
# zsh completion for skerry
_skerry() {
    local line
    local -a values shown
    for line in "${(@f)$(skerry __complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        values+=("${line%%$'\t'*}")
        shown+=("${line//$'\t'/  -- }")
    done
    (( $#values )) || { _files; return }
    compadd -S '' -d shown -a values
}
if [[ $funcstack[1] == _skerry ]]; then _skerry "$@"; else compdef _skerry skerry; fi
""",
    Shell.FISH: r"""# fish completion for skerry
function __skerry_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    skerry __complete fish $words[2..-1] (commandline --current-token --cut-at-cursor) 2>/dev/null
end
complete --command skerry --no-files --arguments '(__skerry_complete)'
""",
}


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
    install: Annotated[
        bool, typer.Option("--install", help="Write the script where the shell looks, instead of printing it.")
    ] = False,
) -> None:
    """Print a script that completes commands for a shell.

    It completes commands, options, sandboxes, and SANDBOX:PATH by asking the sandbox. --install writes the script below
    your home directory, says where, and changes none of your files.

    \b
    Example:
      skerry completion fish --install
      source <(skerry completion bash)
    """
    if not install:
        print(SCRIPTS[shell], end="")
        return
    path, then = _place(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPTS[shell])
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from None
    print(path)
    note(then)


def _place(shell: Shell) -> tuple[Path, str]:
    """The file that a shell reads by itself, and what the user still has to do."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    if shell is Shell.FISH:
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return config / "fish/completions/skerry.fish", "new fish sessions have it"
    if shell is Shell.ZSH:
        directory = data / "zsh/site-functions"
        return directory / "_skerry", f"put this before compinit in your .zshrc: fpath=({directory} $fpath)"
    path = data / "bash-completion/completions/skerry"
    return path, f"new shells have it if bash-completion is installed; else put this in your .bashrc: source {path}"


def answer(app: typer.Typer, arguments: list[str]) -> None:
    """Print the candidates for the last word, one on a line. Errors are silent: the user has only pressed Tab."""
    from skerry.cli.completion.candidates import candidates, for_bash, split_line

    shell, *rest = arguments or [""]
    words = split_line(rest[0]) if shell == Shell.BASH and rest else rest or [""]
    # Some of what a shell shows comes from sandboxes and other users.
    ways = [replace(way, help=printable(way.help)) for way in candidates(app, words) if not CONTROL.search(way.text)]
    if shell == Shell.BASH and rest:
        lines = for_bash(ways, words[-1], rest[1] if len(rest) > 1 else "")
    else:
        # zsh adds no space here, fish does.
        lines = [
            f"{way.text}{'' if shell == Shell.FISH or way.goes_on else ' '}\t{way.help}".rstrip("\t") for way in ways
        ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
