"""Help, completion, suggestions, and what commands cost to start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import batonq.cli
from batonq.api.rest.operations import OPERATIONS
from batonq.cli.json_shapes import OUTPUTS, shape_of
from batonq.cli.main import COMMANDS, SUBJECTS
from tests.cli.support import CLEAN, Shell
from tools.make_docs import commands

ALL = [(parser.prog, parser) for parser, _ in commands()]


@pytest.mark.parametrize(("name", "parser"), ALL, ids=[name for name, _ in ALL])
def test_every_command_explains_itself(name: str, parser: object, nowhere: Shell) -> None:
    said = nowhere.good(*name.split()[1:], "--help")
    assert said.startswith(f"usage: {name}") and "--help" in said


def test_the_overview_names_every_command_with_its_subject(nowhere: Shell) -> None:
    said = nowhere.good("--help")
    lines = {line.split()[0] for line in said.splitlines() if line.startswith("  ")}
    assert lines >= set(COMMANDS)
    assert all(f"\n{subject}:\n" in said for subject in SUBJECTS)


def test_json_is_offered_by_every_command_that_has_a_shape() -> None:
    """And every command that has --json and talks to a server has a shape."""
    flags = {name.removeprefix("baton "): parser._option_string_actions for name, parser in ALL}
    with_json = {name for name, known in flags.items() if "--json" in known}
    assert OUTPUTS.keys() <= with_json
    assert {name for name in with_json if "--token" in flags[name]} <= OUTPUTS.keys()
    for name in OUTPUTS:
        assert shape_of(name) is not None


# Operations of the REST API without a command of the same purpose, and why.
WITHOUT_COMMAND = {
    "ack": "`baton ack` sends batches",
    "nack": "`baton nack` sends batches",
    "changeVisibility": "`baton extend` sends batches",
    "queueStatsByVerb": "another path of queueStats",
    "listReports": "`baton pipeline report` writes the reports",
    "readReport": "`baton pipeline report` writes the reports",
}


def test_every_operation_of_the_rest_api_has_a_command() -> None:
    """A path of the API, as a command writes it, is in the source of some command."""
    source = "".join(file.read_text() for file in Path(batonq.cli.__file__).parent.glob("*.py"))
    missing = []
    for operation in OPERATIONS:
        words = [part for part in re.split(r"\{[a-z]+\}|/|:", operation.path) if part not in ("", "v1")]
        if operation.name not in WITHOUT_COMMAND and not all(re.search(rf"\b{word}\b", source) for word in words):
            missing.append(operation.name)
    assert missing == []
    assert WITHOUT_COMMAND.keys() <= {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("quue", "list"), "baton: unknown command 'quue'. Did you mean queue? `baton --help` lists them."),
        (("stat",), "Did you mean status?"),
        (("zzz",), "baton: unknown command 'zzz'. `baton --help` lists them."),
        (("peek", "q", "--sate", "dead"), "baton peek: unknown flag --sate. Did you mean --state?"),
        (("peek", "q", "--limit", "many"), "argument --limit: invalid int value: 'many'"),
        (("worker", "lst"), "'lst' is not a worker. Use a module and its variable, for example jobs:app"),
    ],
)
def test_mistakes_get_a_suggestion(nowhere: Shell, words: tuple[str, ...], said: str) -> None:
    done = nowhere(*words)
    assert done.code in (1, 2) and said in done.err, done


@pytest.mark.parametrize("words", [(), ("queue",), ("message",), ("pipeline",), ("outbox",), ("worker",)])
def test_a_command_without_an_action_lists_the_actions(nowhere: Shell, words: tuple[str, ...]) -> None:
    done = nowhere(*words)
    assert done.code == 2 and done.out == "" and done.err == nowhere.good(*words, "--help")


def test_help_and_version_are_also_words(nowhere: Shell) -> None:
    assert nowhere.good("help") == nowhere.good("--help")
    assert nowhere.good("help", "queue", "create") == nowhere.good("queue", "create", "--help")
    assert nowhere.good("version") == nowhere.good("--version")


# --- completion -------------------------------------------------------------------------------


def test_completion_for_bash_completes(nowhere: Shell, tmp_path: Path) -> None:
    script = tmp_path / "baton.bash"
    script.write_text(nowhere.good("completion", "bash"))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0

    def complete(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in words)
        program = (
            f"baton() {{ echo orders orders-dead; }}; source {script}; COMP_WORDS=({typed}); "
            f"COMP_CWORD={len(words) - 1}; _baton; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert complete("baton", "qu") == ["queue"]
    assert complete("baton", "status", "--context", "orders-") == ["orders-dead"]
    assert complete("baton", "queue", "se") == ["set", "series"]
    assert complete("baton", "queue", "list", "--so") == ["--sort"]
    assert complete("baton", "queue", "set", "orders", "--visib") == ["--visibility"]
    assert complete("baton", "peek", "ord") == ["orders", "orders-dead"]
    assert complete("baton", "peek", "orders", "--sta") == ["--state"]
    assert complete("baton", "redrive", "orders-dead", "--to", "o") == ["orders", "orders-dead"]


@pytest.mark.parametrize("shell_name", ["zsh", "fish"])
def test_completion_for_other_shells(nowhere: Shell, shell_name: str) -> None:
    """These shells are not installed everywhere. Quotes that are not closed would break the whole script."""
    said = nowhere.good("completion", shell_name)
    assert (all(name in said for name in COMMANDS) and "--visibility" in said) or "-l 'visibility'" in said
    outside = said.replace("'\\''", "")
    assert all(line.count("'") % 2 == 0 for line in outside.splitlines()[1:])
    done = nowhere("completion", "tcsh")
    assert done.code == 2 and "unknown value 'tcsh'. Choose from: bash, zsh, fish." in done.err


# --- start-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [("--help",), ("queue", "list", "--help"), ("send", "--help"), ("context", "list"), ("completion", "--help")],
)
def test_a_command_loads_only_what_it_needs(words: tuple[str, ...], tmp_path: Path) -> None:
    program = (
        "import sys; from batonq.cli.main import main\n"
        f"try: main({list(words)!r})\nexcept SystemExit: pass\n"
        "heavy = ('asyncio', 'msgspec', 'uvloop', 'batonq.node', 'batonq.api', 'batonq.core', 'batonq.client')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    environment = {**CLEAN, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr.splitlines()[-1] == "[]"
