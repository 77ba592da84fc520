"""Commands about the whole server: status, alarms, config, definitions, doctor, top, bench, keys, clock, cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batonq import __version__
from tests.cli.support import Shell, wait_for
from tests.system.process import ServerProcess

# --- status, top, config ----------------------------------------------------------------------


def test_status_is_a_sentence_and_figures(shell: Shell, server: ServerProcess) -> None:
    status = shell.json("status")
    assert status["profile"] == "development" and status["verdict"]["level"] == "ok"
    lines = shell.good("status").splitlines()
    assert lines[0] == status["verdict"]["sentence"]
    assert lines[1].split() == ["server", server.url, "(BATON_URL)"]
    assert lines[2].split() == ["version", f"{__version__},", "development"]


def test_config_shows_where_each_value_comes_from(shell: Shell) -> None:
    settings = {each["name"]: each for each in shell.json("config", "show")["settings"]}
    assert (settings["port"]["value"], settings["port"]["origin"]) == (0, "flag")
    assert settings["drain_s"]["origin"] == "default"
    changed = shell.good("config", "show", "--changed")
    assert "\nport  " in changed and "drain_s" not in changed
    only = shell.json("config", "show", "DRAIN-S")["settings"]
    assert [each["name"] for each in only] == ["drain_s"]


def test_config_without_a_server(nowhere: Shell, tmp_path: Path) -> None:
    file = tmp_path / "baton.toml"
    file.write_text('shards = 3\nlog_url = "postgres://user:hush@db/queues"\n')
    settings = {
        each["name"]: each for each in nowhere.json("config", "show", "--local", "--config", str(file))["settings"]
    }
    assert (settings["shards"]["value"], settings["shards"]["origin"], settings["shards"]["file"]) == (
        3,
        "file",
        str(file),
    )
    assert settings["log_url"]["value"] == "postgres://user:***@db/queues"
    assert "\nshards  " in nowhere.good("config", "show", "--local", "shards")
    file.write_text("shrads = 3\n")
    wrong = nowhere("config", "show", "--local", "--config", str(file))
    assert wrong.code == 1 and "unknown setting 'shrads'. Did you mean shards?" in wrong.err
    assert nowhere("config", "show", "--config", str(file)).code == 2


def test_the_clock_of_a_development_server(shell: Shell) -> None:
    before = shell.json("status")["atMs"]
    assert shell.json("clock", "advance", "1h")["nowMs"] >= before + 3_600_000
    assert shell.good("clock", "advance", "1s").startswith("The server's clock is now 20")
    done = shell("clock", "advance", "soon")
    assert done.code == 2 and "'soon' is not a duration" in done.err


# --- alarms -----------------------------------------------------------------------------------


def test_alarms(shell: Shell) -> None:
    assert shell.json("alarms", "list")["alarms"] == []
    assert shell("alarms", "list").err == "There are no active alarms.\n"
    assert "history" in shell.json("alarms", "list", "--history")
    done = shell("alarms", "ack", "no-such-alarm")
    assert done.code == 3 and "no-such-alarm" in done.err
    done = shell("alarms", "test")
    assert done.code == 1 and "The server has no alarm webhooks. Set --alarm-webhooks and restart it." in done.err


def test_an_alarm_is_acknowledged(shell: Shell) -> None:
    shell.good("queue", "create", "alarming", "--dead-letter-queue", "alarming-dead")
    shell.good("send", "alarming", "x")
    receipt = shell.json("receive", "alarming")["messages"][0]["receiptHandle"]
    shell.good("nack", "alarming", receipt, "--dead-letter")

    def raised() -> list[dict[str, Any]]:
        shell.good("clock", "advance", "1m")
        found: list[dict[str, Any]] = shell.json("alarms", "list")["alarms"]
        return [alarm for alarm in found if alarm.get("queue") == "alarming-dead"]

    (alarm,) = wait_for(raised)
    said = shell.good("alarms", "list")
    assert alarm["alarm"] in said and alarm["text"] in said and "  active  " in said
    assert shell("status").code == 6
    assert shell.json("alarms", "ack", alarm["alarm"], "--note", "on it")["note"] == "on it"
    assert "  acknowledged" in shell.good("alarms", "list")


# --- definitions ------------------------------------------------------------------------------


def test_definitions_travel_in_a_file(shell: Shell, tmp_path: Path) -> None:
    shell.good("queue", "create", "exported", "--visibility", "45s", "--dead-letter-queue", "exported-dead")
    file = tmp_path / "queues.json"
    done = shell("export", str(file))
    assert done.code == 0 and f"were written to {file}." in done.err
    assert shell.json("export") == json.loads(file.read_text())
    done = shell("export", str(file))
    assert done.code == 2 and f"The file {file} already exists." in done.err
    assert shell("export", str(file), "--force").code == 0
    definitions = json.loads(file.read_text())
    said = f"0 queues created, 0 changed, {len(definitions['queues'])} unchanged.\n"
    assert shell.good("import", str(file)) == said
    definitions["queues"][0]["defaultVisibilityTimeoutSeconds"] = 50
    definitions["queues"].append({**definitions["queues"][0], "name": "new"})
    file.write_text(json.dumps(definitions))
    said = shell.good("import", str(file), "--dry-run")
    assert "new  would be created\n" in said and "would be changed: defaultVisibilityTimeoutSeconds\n" in said
    assert shell("queue", "show", "new").code == 3
    assert shell.json("import", str(file))["created"] == ["new"]
    assert shell.json("queue", "show", "new")["queue"]["defaultVisibilityTimeoutSeconds"] == 50


def test_definitions_have_topics_and_reader_groups(shell: Shell, tmp_path: Path) -> None:
    shell.good("queue", "create", "copied", "--retain", "1h")
    shell.good("reader", "create", "copied", "audit")
    shell.good("topic", "create", "copies")
    shell.good("topic", "subscribe", "copies", "copied")
    file = tmp_path / "definitions.json"
    done = shell("export", str(file))
    assert done.code == 0 and " and 1 topic were written to" in done.err and "1 reader group" in done.err
    shell.good("topic", "delete", "copies", "--yes")
    shell.good("reader", "delete", "copied", "audit", "--yes")
    expected = ["reader group audit@copied", "topic copies", "subscription copied@copies"]
    said = shell.good("import", str(file), "--dry-run")
    assert [line for line in said.splitlines() if line.endswith("  would be created")] == [
        f"{name}  would be created" for name in expected
    ]
    assert shell("topic", "show", "copies").code == 3
    said = shell.good("import", str(file))
    assert [line for line in said.splitlines() if line.endswith("  created")] == [
        f"{name}  created" for name in expected
    ]
    definitions = json.loads(file.read_text())
    definitions["topics"][0]["subscriptions"][0]["filterPolicy"] = {"a": ["b"]}
    file.write_text(json.dumps(definitions))
    assert "subscription copied@copies  changed: filterPolicy\n" in shell.good("import", str(file))
    assert shell.json("topic", "show", "copies")["subscriptions"][0]["filterPolicy"] == {"a": ["b"]}


def test_bad_definitions(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    done = shell("import", str(file))
    assert done.code == 2 and f"{file} cannot be read: No such file or directory." in done.err
    file.write_text("queues:")
    done = shell("import", str(file))
    assert done.code == 2 and f"{file} is not a file of definitions: it is not JSON" in done.err
    bad = {"version": 1, "account": "000000000000", "queues": [{"name": "a", "maxMessageBytes": 5}, {"name": "b!"}]}
    for words in (("--dry-run",), ()):
        done = shell("import", "-", *words, stdin=json.dumps(bad).encode())
        assert done.code != 0 and ("maxMessageBytes" in done.err or "b!" in done.err), done
    assert shell("queue", "show", "a").code == 3


# --- bench ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--fifo",), ("--receivers", "0")])
def test_bench_measures_and_cleans_up(shell: Shell, words: tuple[str, ...]) -> None:
    report = shell.json("bench", "--messages", "300", "--size", "200", "--batch", "50", *words)
    assert report["complete"] and report["sent"] == 300 and report["sentPerSecond"] > 0
    assert report["latency"]["send"]["p50Ms"] <= report["latency"]["send"]["maxMs"]
    if words != ("--receivers", "0"):
        assert report["acked"] == 300 and report["latency"]["endToEnd"]["p99Ms"] > 0
    names = [queue["name"] for queue in shell.json("export")["queues"]]
    assert not [name for name in names if name.startswith("baton-bench")]


def test_bench_for_people(shell: Shell) -> None:
    said = shell.good("bench", "--messages", "20", "--batch", "10")
    assert said.startswith("20 messages of 1,000 bytes to http") and " messages per second\n" in said
    assert "send to receive" in said and " p99 " in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--messages", "0"), "--messages must be from 1 to 10,000,000, not 0."),
        (("--batch", "1001"), "--batch must be from 1 to 1,000, not 1,001."),
        (("--size", "1MiB", "--batch", "100"), "is too large for a request."),
        (("--size", "big"), "'big' is not a size such as 1000000, 64MiB or 2GiB"),
    ],
)
def test_bad_input_of_bench(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell("bench", *words)
    assert done.code == 2 and said in done.err


def test_settings_are_shown_as_the_configuration_file_has_them(nowhere: Shell) -> None:
    assert [line.split()[1] for line in nowhere.good("config", "show", "read-only", "--local").splitlines()[1:]] == [
        "false"
    ]
    done = nowhere("config", "show", "--changed", "--local")
    assert done == (0, "", "No setting differs from its default.\n")
    done = nowhere("config", "show", "no-such-setting", "--local")
    assert done == (0, "", "There is no setting whose name contains 'no-such-setting'.\n")


def test_an_alarm_that_is_not_active_is_named(shell: Shell) -> None:
    done = shell("alarms", "ack", "no-such-alarm")
    assert done.code == 3 and done.err.endswith("is active. List the active alarms to see their ids.\n")


# --- keys, from afar --------------------------------------------------------------------------


def test_keys_of_a_server_that_is_far_away(shell: Shell, tmp_path: Path) -> None:
    created = shell.json("keys", "create", "--name", "ci", "--role", "read", "--expires", "90d")
    assert created["name"] == "ci" and created["secret"] and created["account"] == "000000000000"
    theirs = shell.json("keys", "create", "--account", "123412341234")
    assert theirs["account"] == "123412341234"
    head, *rows = shell.good("keys", "list").splitlines()
    assert head.split() == ["KEY", "ID", "NAME", "ROLE", "ACCOUNT", "CREATED", "EXPIRES", "STATE"] and len(rows) == 2
    assert created["secret"] not in "".join(rows)
    assert shell.json("keys", "disable", created["keyId"])["disabled"]
    assert not shell.json("keys", "enable", created["keyId"])["disabled"]
    assert len(shell.json("keys", "list")["keys"]) == 2
    done = shell("keys", "disable", "BATONNOSUCHKEY")
    assert done.code == 3 and "BATONNOSUCHKEY" in done.err
    done = shell("keys", "create", "--role", "owner")
    assert done.code == 2 and "unknown value 'owner'. Choose from:" in done.err
    said = shell.good("keys", "create")
    names = [line.partition("=")[0] for line in said.splitlines()]
    assert names == ["BATON_ACCESS_KEY_ID", "BATON_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]


def test_keys_without_data_ask_the_server_that_all_commands_ask(
    nowhere: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("batonq.cli.connection.DEFAULT_URL", "http://127.0.0.1:9")  # nothing listens there
    done = nowhere("keys", "create")
    assert done.code == 4 and "No server listens at http://127.0.0.1:9 (the default)." in done.err
    assert done.err.endswith("Without a running server, name its data directory with --data.\n")
    assert not (tmp_path / "baton-data").exists()


def test_keys_of_a_data_directory_that_no_server_uses(nowhere: Shell, tmp_path: Path) -> None:
    data = str(tmp_path / "new")
    done = nowhere("keys", "create", "--data", data)
    assert done.code == 0 and f"Created a new data directory, {data}, because no server uses it yet." in done.err
    assert nowhere("keys", "create", "--data", data).err == ""
    assert len(nowhere.json("keys", "list", "--data", data)["keys"]) == 2


# --- cluster ----------------------------------------------------------------------------------


def test_cluster_status_of_a_server_that_runs_alone(shell: Shell, server: ServerProcess) -> None:
    said = shell.good("cluster", "status")
    assert said.startswith(f"The server at {server.url} runs alone: it is not a node of a cluster.\n")
    assert not shell.json("cluster", "status")["clustered"]
    done = shell("cluster", "drain", "a")
    assert done.code == 1 and "is not a node of a cluster" in done.err and "<" not in done.err
    done = shell("cluster", "status", BATON_URL="http://127.0.0.1:1")
    assert done.code == 4 and "No server listens at http://127.0.0.1:1" in done.err
    done = shell("cluster", "drain", "a", BATON_URL="http://127.0.0.1:1")
    assert done.code == 4 and "http://127.0.0.1:1 cannot be reached" in done.err
