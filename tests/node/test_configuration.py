"""Where settings come from, which origin wins, and what is said about values that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonq.errors import InvalidInput
from batonq.node.configuration import ShownSetting, hide, load, show, variable_of
from batonq.node.settings import Settings, documented


def shown(settings: Settings, name: str) -> ShownSetting:
    return next(one for one in show(settings) if one.name == name)


def write(directory: Path, text: str) -> str:
    path = directory / "baton.toml"
    path.write_text(text)
    return str(path)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nshards = 4\nhistory_bytes = "2GiB"\nnode = "from-file"\n')
    settings = load({"port": 3}, {"BATON_PORT": "2", "BATON_SHARDS": "5"}, file)
    assert (settings.port, settings.shards, settings.history_bytes, settings.node) == (3, 5, 2 << 30, "from-file")
    origins = [shown(settings, name).origin for name in ("port", "shards", "history_bytes", "host")]
    assert origins == ["flag", "environment", "file", "default"]
    assert shown(settings, "history_bytes").file == file and shown(settings, "shards").file == ""


def test_every_setting_has_a_variable() -> None:
    texts = {"float": "0.5", "bool": "true"}
    for entry, _ in documented():
        text = texts[str(entry.type).partition(" ")[0]] if entry.default is None else str(entry.default)
        settings = load({}, {variable_of(entry.name): text})
        assert settings.origins == {entry.name: "environment"}, entry.name


def test_the_file_is_taken_only_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "port = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load({}, {}).port == 9324
    assert load({}, {"BATON_CONFIG": file}).port == 7
    assert load({}, {"BATON_CONFIG": "/nowhere"}, file).port == 7


def test_values_in_the_file_have_the_types_of_toml(tmp_path: Path) -> None:
    text = 'secure = true\naccount = "123456789012"\nallowed_hosts = ["a.test", "b.test"]\ndrain_s = 5\nlease_s = 2.5\n'
    settings = load({}, {}, write(tmp_path, text))
    assert settings.secured and settings.account == "123456789012" and settings.allowed_hosts == "a.test,b.test"
    assert (settings.drain_s, settings.lease_s) == (5.0, 2.5) and isinstance(settings.drain_s, float)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", r"unknown setting 'prot'. Did you mean port\?"),
        ("history-bytes = 1", r"unknown setting 'history-bytes'. Did you mean history_bytes\?"),
        ("zzz = 1", "unknown setting 'zzz'. baton serve --help-all lists the settings"),
        ("[server]\nport = 1", "unknown setting 'server'"),
        ("port = 'x'", "has port, which is not valid: 'x' is not an integer"),
        ("port = true", "has port, which is not valid: true is not an integer"),
        ("port = 1.5", "has port, which is not valid: 1.5 is not an integer"),
        ("secure = 1", "has secure, which is not valid: 1 is not true or false"),
        ("node = 5", "has node, which is not valid: 5 is not a text"),
        ("history_bytes = '2 apples'", "is not a size such as"),
        ("port = ", "is not valid TOML"),
        ("port = 99999", r"--port must be 0 to 65535, not 99999. \(--port is set by port in .*baton.toml"),
    ],
)
def test_what_is_said_about_a_bad_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as raised:
        load({}, {}, write(tmp_path, text))
    assert "baton.toml" in raised.value.message


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"BATON_PORT": "x"}, "The environment variable BATON_PORT is not valid: 'x' is not an integer"),
        ({"BATON_SECURE": "perhaps"}, "BATON_SECURE is not valid: 'perhaps' is neither true nor false"),
        ({"BATON_SHARDS": "0"}, r"--shards must be 1 to 256.*set by the environment variable BATON_SHARDS"),
        ({"BATON_HOST": "0.0.0.0"}, r"--host is set by the environment variable BATON_HOST"),
        ({"BATON_CONFIG": "/nowhere.toml"}, "The configuration file /nowhere.toml cannot be read: No such file"),
    ],
)
def test_what_is_said_about_a_bad_variable(variables: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load({}, variables)


def test_a_flag_that_is_wrong_is_not_blamed_on_the_environment() -> None:
    with pytest.raises(InvalidInput) as raised:
        load({"port": -1}, {"BATON_PORT": "5"})
    assert "environment" not in raised.value.message


def test_the_service_links_of_kubernetes_are_not_settings() -> None:
    """A pod beside a service named baton has BATON_PORT=tcp://10.0.0.1:9324."""
    assert load({}, {"BATON_PORT": "tcp://10.0.0.1:9324", "BATON_SERVICE_HOST": "10.0.0.1"}).port == 9324


def test_as_many_shards_as_processes() -> None:
    assert load({"processes": 3}, {}).shards == 3
    assert load({}, {"BATON_PROCESSES": "2", "BATON_SHARDS": "4"}).shards == 4


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "log",
            "postgres://user:pass@host/db?sslpassword=x&schema=s",
            "postgres://user:***@host/db?sslpassword=***&schema=s",
        ),
        ("log", "postgres://user@host/db", "postgres://user@host/db"),
        ("log", "nats://token@host:4222/name", "nats://***@host:4222/name"),
        ("log", "nats://user:pa:ss@h1,h2/name?replicas=3", "nats://user:***@h1,h2/name?replicas=3"),
        ("log", "nats://user@host/name?password_file=/etc/p", "nats://user@host/name?password_file=/etc/p"),
        ("log", "nats://[bad", "***"),
        ("cluster_secret_file", "/etc/secret", "/etc/secret"),
        ("webhook_secret", "abc", "***"),
        ("webhook_urls", "https://a:b@c/x,https://d/?token=e", "https://a:***@c/x,https://d/?token=***"),
        (
            "alarm_webhooks",
            "https://hooks.example.com/services/T0/B0/hush, https://d:8443/?sig=e,https://f/",
            "https://hooks.example.com/***,https://d:8443/***,https://f",
        ),
        ("port", 9324, 9324),
        ("archive", "s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_secrets_are_hidden(name: str, value: str | int, expected: str | int) -> None:
    assert hide(name, value) == expected


def test_defaults_that_depend_on_the_profile_are_shown_as_they_are_in_effect() -> None:
    assert shown(load({}, {}), "purge_wait_s").value == 0
    secured = load({"secure": True}, {})
    assert (shown(secured, "purge_wait_s").value, shown(secured, "secure").value) == (60, True)
