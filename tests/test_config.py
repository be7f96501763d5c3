"""Settings: defaults < TOML file < environment < flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from restante.common.errors import Misuse
from restante.common.settings import resolve
from restante.mailbox.settings import SERVE
from restante.waku.settings import WAKU
from support.processes import called


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "restante.toml"
    path.write_text('[serve]\nmotd = "file"\nprune_after = 100\nno_list = true\n')
    return path


def sources(flags: dict[str, Any], environment: dict[str, str], file: Path | None) -> dict[str, tuple[Any, str]]:
    return {each.name: (each.value, each.source) for each in resolve(SERVE, flags, environment, file)[1]}


def test_each_source_overrides_the_one_before(toml: Path) -> None:
    assert sources({}, {}, None)["motd"] == (None, "default")
    assert sources({}, {}, toml)["motd"] == ("file", str(toml))
    assert sources({}, {"RESTANTE_MOTD": "env"}, toml)["motd"] == ("env", "RESTANTE_MOTD")
    assert sources({"motd": "flag"}, {"RESTANTE_MOTD": "env"}, toml)["motd"] == ("flag", "--motd")
    assert sources({"motd": None}, {}, toml)["motd"] == ("file", str(toml))
    settings, _ = resolve(SERVE, {}, {"RESTANTE_CONFIG": str(toml)}, None)
    assert (settings.motd, settings.prune_after, settings.no_list) == ("file", 100.0, True)
    environment = {"RESTANTE_PRUNE_EVERY": "10", "RESTANTE_NO_LIST": "true", "RESTANTE_BLUR_USAGE": "3600"}
    settings, _ = resolve(SERVE, {}, environment, None)
    assert (settings.prune_every, settings.no_list, settings.blur_usage) == (10.0, True, 3600)


def test_variables_of_other_parts_and_of_kubernetes_are_left_alone() -> None:
    others = {"RESTANTE_WAKU_MIN_POW", "RESTANTE_WAKU_PASSWORD", "RESTANTE_LAKE", "RESTANTED", "HOME"}
    services = {"RESTANTE_SERVICE_HOST", "RESTANTE_SERVICE_PORT_WS", "RESTANTE_PORT", "RESTANTE_PORT_4000_TCP_ADDR"}
    SERVE.check_variables(dict.fromkeys(others | services, "x"))
    WAKU.check_variables({"RESTANTE_MOTDD": "x", "RESTANTE_WAKU_PASSWORD": "x", "RESTANTE_WAKU_SERVICE_HOST": "x"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[serve]\nmodt = 1\n", "has no key 'modt'; its keys are data, listen"),
        ('[serve]\nprune_after = "x"\n', "prune_after: 'x' is not a number from 1 up"),
        ("[serve]\nprune_after = 0\n", "prune_after: 0 is not a number from 1 up"),
        ('[serve]\nframes = "both"\n', "frames: 'both' is not binary or text"),
        ("[other]\n", r"'other' is not known; tables are \[serve\] and \[waku\]"),
        ('motd = "x"\n', "'motd' is not known"),
        ("[serve\n", "is not TOML"),
    ],
)
def test_a_bad_file_is_misuse_and_says_where(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(Misuse, match=words) as caught:
        resolve(SERVE, {}, {}, path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("prune_after", "soon", "'soon' is not a number from 1 up"),
        ("prune_after", "nan", "'nan' is not a number from 1 up"),
        ("keep_usage", "0", "'0' is not a number over 0 to 36525"),
        ("blur_usage", "1.5", "'1.5' is not a whole number from 0 up"),
        ("permission_bits", -1, "-1 is not a whole number from 1 to "),
        ("frames", "json", "'json' is not binary or text"),
        ("no_list", "perhaps", "'perhaps' is not true or false"),
        ("data", "", "'' is not a name"),
        ("listen", ["bogus"], "'bogus' is not HOST:PORT"),
        ("admin", "xx", "'xx' is not HOST:PORT"),
        ("keep_usage", float("inf"), "inf is not a number over 0"),
        ("keep_usage", float("nan"), "nan is not a number over 0"),
        ("motd", 5, "5 is not a string"),
        ("motd", "a\x1b[2Jb", "U\\+001B is a control character; only line breaks and tabs are allowed"),
        ("motd", "a\r\nb", "U\\+000D is a control character"),
        ("motd", "\x7f", "U\\+007F is a control character"),
        ("motd", "\x9b2J", "U\\+009B is a control character"),
        ("motd", "\x00", "U\\+0000 is a control character"),
        ("motd", "\udcff", "U\\+DCFF is half a character; write UTF-8"),
        ("signal_error", "\x1b", "U\\+001B is a control character"),
    ],
)
def test_an_error_says_what_to_write(name: str, value: object, words: str) -> None:
    with pytest.raises(Misuse, match=f"^--{name.replace('_', '-')}: {words}"):
        resolve(SERVE, {name: value}, {}, None)


def test_what_clients_show_may_have_lines_tabs_and_any_letters(tmp_path: Path) -> None:
    """An error names the flag, the variable or the file."""
    text = "Zurück um 12:00\n\t日本語 👩\u200d💻 \u202eabc\u202c"
    assert resolve(SERVE, {"motd": text, "signal_error": text}, {}, None)[0].motd == text
    with pytest.raises(Misuse, match=r"^RESTANTE_MOTD: U\+001B is a control character"):
        resolve(SERVE, {}, {"RESTANTE_MOTD": "\x1b"}, None)
    path = tmp_path / "restante.toml"
    path.write_text('[serve]\nmotd = "\\u001b[31m"\n')
    with pytest.raises(Misuse, match=r"restante\.toml: motd: U\+001B is a control character"):
        resolve(SERVE, {}, {}, path)


@pytest.mark.parametrize(
    ("command", "name", "todo"),
    [
        ("status", "RESTANTE_DATUM", "did you mean RESTANTE_DATA?"),
        ("serve", "RESTANTE_XYZ", "unset it"),
        ("config show", "RESTANTE_LIMIT_CONNECTION", "did you mean RESTANTE_LIMIT_CONNECTIONS?"),
        ("waku serve", "RESTANTE_WAKU_TOPIC", "did you mean RESTANTE_WAKU_TOPICS?"),
        ("export usage.sqlite", "RESTANTE_PRUNE_EVRY", "did you mean RESTANTE_PRUNE_EVERY?"),
        ("pipeline sql", "RESTANTE_LAK", "did you mean RESTANTE_LAKE?"),
        ("waku config", "RESTANTE_MOTDD", "did you mean RESTANTE_MOTD?"),
    ],
)
def test_every_command_refuses_an_unknown_variable(command: str, name: str, todo: str) -> None:
    done = called(*command.split(), **{name: "x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"restante: {name} in the environment is not a setting: {todo}\n"
