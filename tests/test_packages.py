"""The wheel and the sdist: what is in them, and that each main job runs where only the wheel is installed."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from email import message_from_string
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, Final

import pytest

from restante import __version__
from restante.common import extras
from restante.common.errors import Misuse
from support.bounds import PATIENCE
from support.documents import ROOT, Document
from support.mailbox.clients import Clients
from support.processes import called, child, run, serving
from support.tools import MissingError, build, fetch, uv
from support.waku.processes import node_process

ENV: Final = ("env", "-u", "PYTHONPATH", "-u", "VIRTUAL_ENV")
"""Before a program that shall import nothing of the tests or of the checkout."""


def build_packages(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the sdist with the hatchling of our own environment, without a network; return both."""
    options = ("--offline", "--no-build-isolation", "--python", sys.executable)
    build(uv(), "build", *options, "--out-dir", folder, source, cwd=folder)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def changed_sources(folder: Path, dependency: str) -> Path:
    """Copy what a build needs, with a name `CHANGED` in the package and one more dependency; return the folder.

    The version stays, as it does between two releases.
    """
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "deploy/systemd"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "src" / "restante" / "__init__.py").open("a") as file:
        file.write("CHANGED = True\n")
    project = folder / "pyproject.toml"
    before = project.read_text()
    after = before.replace("\ndependencies = [\n", f'\ndependencies = [\n    "{dependency}",\n')
    assert after != before
    project.write_text(after)
    return folder


def write_constraints(folder: Path) -> Path:
    """Write the versions of uv.lock, as constraints."""
    file = folder / "constraints.txt"
    options = ("--frozen", "--all-extras", "--no-hashes", "--no-emit-project", "--quiet")
    build(uv(), "export", *options, "--project", ROOT, "--output-file", file, cwd=folder)
    return file


def install(package: Path, folder: Path, extras: str = "") -> Path:
    """Install the package and its extras into a new environment; return its folder of programs. Raises MissingError.

    The versions are those of uv.lock.
    """
    folder.mkdir(parents=True)
    environment = folder / "environment"
    build(uv(), "venv", "--quiet", "--python", sys.executable, environment, cwd=folder)
    wanted = f"restante[{extras}] @ {package.as_uri()}" if extras else f"restante @ {package.as_uri()}"
    into = ("--python", environment / "bin" / "python", "--constraint", write_constraints(folder))
    fetch("uv", uv(), "pip", "install", "--quiet", *into, wanted, cwd=folder)
    return environment / "bin"


def program(folder: Path) -> tuple[str, ...]:
    """Return the words that call the `restante` of an environment's folder of programs."""
    return (*ENV, str(folder / "restante"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def installed(
    packages: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[str, ...]]:
    """Return what installs the wheel with extras into an empty environment, once, and names its program."""
    folder, wheel = tmp_path_factory.mktemp("environments"), packages[0]
    found: dict[str, tuple[str, ...]] = {}

    def get(wanted: str) -> tuple[str, ...]:
        if wanted not in found:
            try:
                found[wanted] = program(install(wheel, folder / f"with-{wanted}", wanted))
            except MissingError as missing:
                pytest.skip(str(missing))
        return found[wanted]

    return get


def files_of_the_sources() -> set[str]:
    """Return the files below `src/` and the units that git knows or would take in."""
    folders = ("src", "deploy/systemd")
    if not (ROOT / ".git").exists():
        files = (each for folder in folders for each in (ROOT / folder).rglob("*") if each.is_file())
        return {str(each.relative_to(ROOT)) for each in files if "__pycache__" not in each.parts}
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *folders, cwd=ROOT)
    return {each for each in listed.stdout.splitlines() if (ROOT / each).exists()}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        return message_from_string(opened.read(f"restante-{__version__}.dist-info/METADATA").decode())


def test_the_sdist_has_what_a_build_needs_and_nothing_else(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[1]) as opened:
        names = {each.name.partition("/")[2] for each in opened.getmembers() if each.isfile()}
    of_the_build = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"}
    assert names == files_of_the_sources() | of_the_build


def test_the_wheel_has_every_file_of_the_package(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[0]) as opened:
        names = {each for each in opened.namelist() if each.startswith("restante/")}
        shared = {each.partition("/data/share/")[2] for each in opened.namelist() if "/data/share/" in each}
        entry_points = opened.read(f"restante-{__version__}.dist-info/entry_points.txt").decode()
        licence = opened.read(f"restante-{__version__}.dist-info/licenses/LICENSE").decode()
    assert names == {each.removeprefix("src/") for each in files_of_the_sources() if each.startswith("src/")}
    assert "restante/py.typed" in names
    assert shared == {
        *("man/man1/restante.1", "bash-completion/completions/restante", "zsh/site-functions/_restante"),
        "fish/vendor_completions.d/restante.fish",
        *(f"restante/systemd/{each.name}" for each in (ROOT / "deploy/systemd").iterdir()),
    }
    assert entry_points == "[console_scripts]\nrestante = restante.cli.main:main\n"
    assert licence == (ROOT / "LICENSE").read_text()


def test_a_wheel_built_from_the_sdist_is_the_same(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """`uv build` builds the wheel from the sdist; this one is built from the checkout."""
    options = ("--wheel", "--offline", "--no-build-isolation", "--python", sys.executable)
    build(uv(), "build", *options, "--out-dir", tmp_path, ROOT, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.read_bytes() == packages[0].read_bytes()


def test_the_metadata_say_what_the_package_is(packages: tuple[Path, Path]) -> None:
    found = metadata(packages[0])
    assert (found["Name"], found["Version"]) == ("restante", __version__)
    assert (found["License-Expression"], found.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (ROOT / "README.md").read_text()
    assert found.get_all("Provides-Extra") == ["client", "leveldb", "pipeline", "waku"]
    assert "Typing :: Typed" in (found.get_all("Classifier") or [])
    assert found["Project-URL"] is None, "the project has no public address yet (CONTRIBUTING.md)"


def test_serving_mailboxes_needs_no_package_of_an_extra(packages: tuple[Path, Path]) -> None:
    needed = [each for each in metadata(packages[0]).get_all("Requires-Dist") or [] if "extra ==" not in each]
    names = {re.split(r"[<>=\[ ;]", each)[0] for each in needed}
    assert names == {
        *("aiohttp", "msgspec", "picows", "prometheus-client", "rich", "structlog", "typer", "uvloop"),
    }


# ── extras that are not installed ────────────────────────────────────────────────────────────────

COMMANDS = {"client": ("send", "--text", "hi"), "waku": ("waku", "check"), "pipeline": ("pipeline", "build")}
"""A command that needs each extra."""


@pytest.mark.parametrize("extra", COMMANDS)
def test_a_command_without_its_extra_says_how_to_install_it(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in extras.MODULES[extra]:
        monkeypatch.setitem(sys.modules, module, None)
    said = called(*COMMANDS[extra])
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == f"restante: this command needs the extra '{extra}': {extras.how_to_install(extra)}\n"


ORIGINS = [
    ({"url": "file:///a/r-1-py3-none-any.whl", "archive_info": {}}, "'/a/r-1-py3-none-any.whl[waku]'"),
    ({"url": "file:///it%27s%20here", "dir_info": {}}, """'/it'"'"'s here[waku]'"""),
    ({"url": "file:///a/checkout", "dir_info": {"editable": True}}, "-e '/a/checkout[waku]'"),
    ({"url": "https://h/r.whl", "archive_info": {}}, "'restante[waku] @ https://h/r.whl'"),
    (
        {"url": "https://h/r", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "'restante[waku] @ git+https://h/r@abc'",
    ),
    (None, "'restante[waku]'"),
]
"""From where Restante was installed, and how the command names it."""


@pytest.mark.parametrize(("origin", "named"), ORIGINS)
def test_the_command_installs_from_where_restante_was_installed(
    origin: dict[str, Any] | None, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(extras, "distribution", lambda _: PathDistribution(tmp_path))
    assert extras.how_to_install("waku") == f"{shlex.quote(sys.executable)} -m pip install {named}"


@pytest.mark.parametrize(
    ("file", "command"),
    [("uv-receipt.toml", "uv tool install --force"), ("pipx_metadata.json", "pipx install --force")],
)
def test_in_an_environment_of_uv_or_pipx_the_command_names_the_extras_that_are_there(
    file: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for module in ("coincurve", "pyspark", "plyvel"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(extras, "_origin", dict)
    with pytest.raises(Misuse) as found:
        extras.require_extra("waku")
    assert str(found.value) == f"this command needs the extra 'waku': {command} 'restante[client,waku]'"


# ── only the wheel is installed ──────────────────────────────────────────────────────────────────


@pytest.mark.thorough
async def test_the_wheel_alone_serves_mailboxes(
    packages: tuple[Path, Path], installed: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    restante = installed("")
    async with serving(tmp_path / "data", restante) as server, Clients() as clients:
        one = await clients.opened(server.url, "app", "a", "m")
        await one.call("add", phase="1", body="held")
        other = await clients.opened(server.url, "app", "b", "m")
        assert [each["body"] for each in other.frames if each["type"] == "message"] == ["held"]
        await one.leave()
        await other.leave()
        shown = run(*restante, "status", "--data", tmp_path / "data", "--json")
        assert json.loads(shown.stdout)["messages"] == 1
        await server.stop()
    assert run(*restante, "backup", tmp_path / "copy.sqlite", "--data", tmp_path / "data").returncode == 0
    for extra, words in COMMANDS.items():
        said = run(*restante, *words)
        assert said.returncode == 2
        command = (
            rf"{re.escape(str(Path(restante[-1]).parent))}/python\S* -m pip install '{re.escape(str(packages[0]))}"
        )
        words_said = rf"restante: this command needs the extra '{extra}': {command}\[{extra}\]'\n"
        assert re.fullmatch(words_said, said.stderr), said.stderr
    python = str(Path(restante[-1]).parent / "python")
    for package in ("pyspark", "pyarrow", "nacl", "coincurve"):
        assert "ModuleNotFoundError" in run(*ENV, python, "-c", f"import {package}").stderr


@pytest.mark.thorough
async def test_with_the_extra_client_the_wheel_transfers_a_text_and_a_file(
    installed: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    restante = installed("client")
    (tmp_path / "file").write_bytes(b"held" * 1000)
    async with serving(tmp_path / "data", restante) as server:
        to = ("--server", server.url, "--transit-relay", "")
        async with child(*restante, "send", *to, "--text", "held until called for") as sender:
            code = (await sender.says(r"code is: (\S+)"))[1]
            received = await asyncio.to_thread(run, *restante, "receive", *to, code)
            assert (received.returncode, received.stdout) == (0, "held until called for\n"), received.stderr
            assert await sender.ended() == 0
        async with child(*restante, "send", *to, str(tmp_path / "file")) as sender:
            code = (await sender.says(r"code is: (\S+)"))[1]
            received = await asyncio.to_thread(
                run, *restante, "receive", *to, "--accept", "--output", tmp_path / "received", code
            )
            assert received.returncode == 0, received.stderr
            assert await sender.ended() == 0
        await server.stop()
    assert (tmp_path / "received").read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.thorough
async def test_with_the_extra_waku_the_wheel_serves_and_fetches_envelopes(
    installed: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    restante = installed("waku")
    async with node_process(tmp_path / "data", program=(*restante, "waku")) as node:
        words = ("waku", "post", node.url, "--channel", "status", "held until called for")
        posted = await asyncio.to_thread(run, *restante, *words)
        assert posted.returncode == 0, posted.stderr
        fetched = await asyncio.to_thread(
            run, *restante, "waku", "request", node.url, "--channel", "status", "--from", "-1h"
        )
        assert json.loads(fetched.stdout)["text"] == "held until called for"
        await node.serving.stop()
    assert run(*restante, "waku", "check", "--data", tmp_path / "data").stdout.startswith("1 envelope, ")


@pytest.mark.thorough
def test_with_the_extra_pipeline_the_wheel_makes_a_demo(
    installed: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    demo = ("pipeline", "demo", tmp_path / "demo", "--days", "14", "--transfers", "20")
    made = build(*installed("pipeline"), *map(str, demo), cwd=tmp_path, seconds=PATIENCE)
    assert "restante pipeline query" in made
    assert list((tmp_path / "demo" / "reports").glob("*.html"))


@pytest.mark.thorough
def test_the_commands_of_the_guide_to_a_first_server_install_the_wheel(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    commands = Document("docs/mailbox/first-server.md").blocks["install"]
    commands = commands.replace("/opt/restante", str(tmp_path / "restante"))
    commands = commands.replace("/path/to/restante", str(packages[0])).replace("python3 ", f"{sys.executable} ")
    variables = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "PIP_CONSTRAINT": str(write_constraints(tmp_path))}
    try:
        fetch("pip", "sh", "-e", "-c", commands, cwd=tmp_path, variables=variables)
    except MissingError as missing:
        pytest.skip(str(missing))
    assert run(*program(tmp_path / "restante/bin"), "--version").stdout == f"restante {__version__}\n"
    copied = re.findall(r"cp /opt/restante/(\S+)", Document("docs/mailbox/first-server.md").text)
    assert copied
    assert all(list((tmp_path / "restante").glob(each)) for each in copied)


def installers(folder: Path) -> dict[str, str]:
    """Return variables with which uv and pipx install into a folder, with the versions of uv.lock."""
    constraints = str(write_constraints(folder))
    return {
        "PYTHONPATH": "",
        "VIRTUAL_ENV": "",
        "PIP_CONSTRAINT": constraints,
        "UV_CONSTRAINT": constraints,
        "UV_PYTHON": sys.executable,
        "UV_TOOL_DIR": f"{folder}/tools",
        "UV_TOOL_BIN_DIR": f"{folder}/bin/uv",
        "PIPX_HOME": f"{folder}/pipx",
        "PIPX_BIN_DIR": f"{folder}/bin/pipx",
        "PIPX_MAN_DIR": f"{folder}/man",
        "XDG_DATA_HOME": str(folder / "share"),  # where pipx makes links to the completions
    }


@pytest.mark.thorough
def test_plain_pip_uv_tool_install_and_pipx_install_the_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, bin_folder, variables = packages[0], tmp_path / "bin", installers(tmp_path)
    venv.create(tmp_path / "pip", with_pip=True)
    try:
        fetch("pip", tmp_path / "pip/bin/pip", "install", "--quiet", wheel, cwd=tmp_path, variables=variables)
        fetch("uv", uv(), "tool", "install", wheel, cwd=tmp_path, variables=variables)
        fetch("uv", uv(), "tool", "run", "pipx", "install", wheel, cwd=tmp_path, variables=variables)
    except MissingError as missing:
        pytest.skip(str(missing))
    assert (tmp_path / "man" / "man1" / "restante.1").exists()
    assert (tmp_path / "tools" / "restante" / "share" / "bash-completion" / "completions" / "restante").exists()
    for program_of in (tmp_path / "pip/bin", bin_folder / "uv", bin_folder / "pipx"):
        assert run(*program(program_of), "--version").stdout == f"restante {__version__}\n", program_of
    for name, environment in (("uv", "tools/restante"), ("pipx", "pipx/venvs/restante")):
        said = run(*program(bin_folder / name), "send", "--text", "hi").stderr
        command = said.partition("the extra 'client': ")[2]
        assert command == f"{'uv tool' if name == 'uv' else 'pipx'} install --force '{wheel}[client]'\n"
        command = command.replace("pipx ", "uv tool run pipx ").replace("uv ", f"{uv()} ", 1)
        try:
            fetch("uv", "sh", "-c", command, cwd=tmp_path, variables=variables)
        except MissingError as missing:
            pytest.skip(str(missing))
        assert run(*ENV, tmp_path / environment / "bin/python", "-c", "import nacl").returncode == 0


@pytest.mark.thorough
def test_the_commands_of_the_guides_upgrade_a_wheel_and_go_back(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """Both wheels have the same version and the same path, as two builds of a checkout have."""
    for name in ("sources", "newer", "dist"):
        (tmp_path / name).mkdir()
    newer, _ = build_packages(tmp_path / "newer", changed_sources(tmp_path / "sources", "segno>=1.6"))
    wheel, variables = tmp_path / "dist" / newer.name, installers(tmp_path)
    assert newer.name == packages[0].name
    with_pip = Document("docs/install.md").blocks["upgrade"]
    assert with_pip == Document("docs/mailbox/operating.md").blocks["install"]
    commands = with_pip + Document("docs/install.md").blocks["upgrade for one user"]
    for said, meant in (
        ("/opt/restante", str(tmp_path / "pip")),
        ("/path/to/restante", str(wheel)),
        ("pipx ", f"{uv()} tool run pipx "),
        ("uv ", f"{uv()} "),
    ):
        commands = re.sub(rf"(?<![\w/]){said}", meant, commands)
    venv.create(tmp_path / "pip", with_pip=True)
    environments = (tmp_path / "pip", tmp_path / "tools/restante", tmp_path / "pipx/venvs/restante")
    for build_of, changed in ((packages[0], False), (newer, True), (packages[0], False)):
        shutil.copy(build_of, wheel)
        try:
            fetch("pip", "sh", "-e", "-c", commands, cwd=tmp_path, variables=variables)
        except MissingError as missing:
            pytest.skip(str(missing))
        for each in environments:
            found = run(*ENV, each / "bin/python", "-c", "import restante; print(hasattr(restante, 'CHANGED'))")
            assert found.stdout == f"{changed}\n", (each, found.stderr)
        if changed:
            assert run(*ENV, environments[0] / "bin/python", "-c", "import segno").returncode == 0
