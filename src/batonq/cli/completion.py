"""`baton completion bash|zsh|fish`: a script that completes commands, flags and the names of queues."""

from __future__ import annotations

import argparse
from typing import NamedTuple

SHELLS = ("bash", "zsh", "fish")
INSTALL = {
    "bash": '# Load it with: eval "$(baton completion bash)", for example in ~/.bashrc.',
    "zsh": '# Load it with: eval "$(baton completion zsh)", for example in ~/.zshrc after compinit.',
    "fish": "# Load it with: baton completion fish | source, for example in ~/.config/fish/config.fish.",
}
QUEUES = "baton queue list --all --names"
CONTEXTS = "baton context list --names"
QUEUE_FLAGS = ("--to", "--queue", "--dead-letter-queue")


class Entry(NamedTuple):
    """What can follow a command, such as `queue create`."""

    words: tuple[str, ...]  # the command
    help: str
    subcommands: tuple[str, ...]
    flags: tuple[tuple[str, str], ...]  # each with its help text
    takes_value: frozenset[str]  # those flags that need a value
    takes_file: frozenset[str]  # those whose value is a file or a directory
    takes_queue: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    from batonq.cli.main import build_parser

    entries = list(_entries(build_parser(), ()))
    print(INSTALL[arguments.shell])
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](entries), end="")
    return 0


def _entries(parser: argparse.ArgumentParser, words: tuple[str, ...], text: str = "") -> list[Entry]:
    flags: list[tuple[str, str]] = []
    values: set[str] = set()
    files: set[str] = set()
    subcommands: dict[str, str] = {}
    takes_queue = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            subcommands.update({entry.dest: entry.help or "" for entry in action._choices_actions})
            children = action.choices
        elif action.option_strings:
            help_text = (action.help or "").replace("%%", "%") if action.help is not argparse.SUPPRESS else ""
            names = [name for name in action.option_strings if name.startswith("--")]
            flags += [(name, help_text) for name in names]
            values.update(names if action.nargs != 0 else ())
            files.update(names if action.metavar in ("FILE", "DIR", "PATH", "DIRECTORY") else ())
        else:
            takes_queue = takes_queue or action.metavar == "QUEUE"
    found = [Entry(words, text, tuple(subcommands), tuple(flags), frozenset(values), frozenset(files), takes_queue)]
    for name, help_text in subcommands.items():
        found += _entries(children[name], (*words, name), help_text)
    return found


def _bash(entries: list[Entry]) -> str:
    lines = [
        "_baton() {",
        "  local word command subcommand place words=() queues=",
        '  word="${COMP_WORDS[COMP_CWORD]}"',
        "  for ((place = 1; place < COMP_CWORD; place++)); do",
        '    [[ "${COMP_WORDS[place]}" == -* ]] && break',
        '    words+=("${COMP_WORDS[place]}")',
        "  done",
        '  command="${words[0]:-}"; subcommand="${words[1]:-}"',
        '  case "${COMP_WORDS[COMP_CWORD-1]}" in',
        f"    {'|'.join(QUEUE_FLAGS)}) queues=yes ;;",
        f'    --context) COMPREPLY=($(compgen -W "$({CONTEXTS} 2>/dev/null)" -- "$word")); return ;;',
        "  esac",
        '  if [[ -n "$queues" ]]; then',
        f'    COMPREPLY=($(compgen -W "$({QUEUES} 2>/dev/null)" -- "$word"))',
        "    return",
        "  fi",
        '  local known="" named=""',
        '  case "$command $subcommand" in',
    ]
    # Commands of two words first: the pattern of a command alone also matches its subcommands.
    for entry in sorted(entries, key=lambda entry: -len(entry.words)):
        known = " ".join((*entry.subcommands, *(flag for flag, _ in entry.flags)))
        pattern = {0: '" "', 1: f'"{" ".join(entry.words)} "*', 2: f'"{" ".join(entry.words)}"'}[len(entry.words)]
        named = " named=yes" if entry.takes_queue else ""
        lines.append(f'    {pattern}) known="{known}"{";" + named if named else ""} ;;')
    lines += [
        "  esac",
        '  if [[ -n "$named" && "$word" != -* ]]; then',
        f'    known="$known $({QUEUES} 2>/dev/null)"',
        "  fi",
        '  COMPREPLY=($(compgen -W "$known" -- "$word"))',
        "}",
        "complete -o default -F _baton baton",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """For a shell's single quotes."""
    return text.replace("'", "'\\''")


def _zsh(entries: list[Entry]) -> str:
    lines = [
        "_baton() {",
        "  local -a known",
        "  local named='' place command='' subcommand=''",
        "  for ((place = 2; place < CURRENT; place++)); do",
        '    [[ "${words[place]}" == -* ]] && break',
        '    if [[ -z "$command" ]]; then command="${words[place]}"',
        '    elif [[ -z "$subcommand" ]]; then subcommand="${words[place]}"; fi',
        "  done",
        '  case "${words[CURRENT-1]}" in',
        f"    {'|'.join(QUEUE_FLAGS)}) named=only ;;",
        f'    --context) compadd -- ${{(f)"$({CONTEXTS} 2>/dev/null)"}}; return ;;',
        "  esac",
        '  case "$command $subcommand" in',
    ]
    helps = {entry.words: entry.help for entry in entries}
    for entry in sorted(entries, key=lambda entry: -len(entry.words)):
        words = [(name, helps[(*entry.words, name)]) for name in entry.subcommands] + list(entry.flags)
        known = " ".join(_zsh_entry(name, text) for name, text in words)
        pattern = {0: '" "', 1: f'"{" ".join(entry.words)} "*', 2: f'"{" ".join(entry.words)}"'}[len(entry.words)]
        named = "; named=${named:-yes}" if entry.takes_queue else ""
        lines.append(f"    {pattern}) known=({known}){named} ;;")
    lines += [
        "  esac",
        '  if [[ -n "$named" && "${words[CURRENT]}" != -* ]]; then',
        f'    compadd -- ${{(f)"$({QUEUES} 2>/dev/null)"}}',
        "  fi",
        '  [[ "$named" == only ]] || _describe -t commands "baton" known',
        "  _files",
        "}",
        "compdef _baton baton",
    ]
    return "\n".join(lines) + "\n"


def _zsh_entry(name: str, text: str) -> str:
    """A name and its description, with a colon between them."""
    escaped = text.replace(":", "\\:")
    return f"'{_quoted(name)}:{_quoted(escaped)}'"


def _fish(entries: list[Entry]) -> str:
    lines = [
        "function __baton_at",
        "    set -l words (commandline -opc)[2..-1]",
        "    set -l found",
        "    for word in $words",
        "        string match -q -- '-*' $word; and break",
        "        set -a found $word",
        "    end",
        "    for place in (seq (count $argv))",
        '        test "$found[$place]" = "$argv[$place]"; or return 1',
        "    end",
        "    return 0",
        "end",
        "complete -c baton -f",
    ]
    helps = {entry.words: entry.help for entry in entries}
    for entry in entries:
        condition = f"__baton_at {' '.join(entry.words)}".strip()
        unless = f"; and not __fish_seen_subcommand_from {' '.join(entry.subcommands)}" if entry.subcommands else ""
        for name in entry.subcommands:
            text = _quoted(helps[(*entry.words, name)])
            lines.append(f"complete -c baton -n '{condition}{unless}' -a '{name}' -d '{text}'")
        for flag, text in entry.flags:
            more = (" -r" if flag in entry.takes_value else "") + (" -F" if flag in entry.takes_file else "")
            more += f" -a '({CONTEXTS} 2>/dev/null)'" if flag == "--context" else ""
            name = flag.removeprefix("--")
            lines.append(f"complete -c baton -n '{condition}' -l '{name}'{more} -d '{_quoted(text)}'")
        if entry.takes_queue:
            lines.append(f"complete -c baton -n '{condition}' -a '({QUEUES} 2>/dev/null)' -d queue")
    return "\n".join(lines) + "\n"
