"""The files of `deploy/container`; with --thorough the images are built and run."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from restante.relay.settings import RelayServe
from support import foreign
from support.bounds import PATIENCE
from support.documents import ROOT
from support.foreign import debian_release
from support.isolation import RELAY_PORT, isolated_network, unavailable
from support.processes import Child, child, run
from support.tools import MissingError, fetch, installed

DOCKERFILE: Final = ROOT / "deploy" / "container" / "Dockerfile"
CADDYFILE: Final = DOCKERFILE.with_name("Caddyfile")
COMPOSE: Final = DOCKERFILE.with_name("compose.yaml")
SERVERS: Final = ("server", "waku")
"""The targets whose images run a server."""


def test_a_build_is_sent_the_files_that_it_copies_and_images_have_a_user_of_their_own() -> None:
    lines = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    copied = {name for line in lines for name in line.split()[:-1]}
    ignored, *sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored == "*"
    assert {line[1:] for line in sent if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)
    assert list(stages()) == ["pipeline", "waku", "server"], "the last is the default"
    assert "\nUSER 10001:10001\n" in stages("${BASE}")["runtime"]
    assert not [name for name, text in stages().items() if "USER" in text]


def stages(base: str = "runtime") -> dict[str, str]:
    """Return the stages of the Dockerfile that begin with another one, or with ${BASE}, by name."""
    first, *others = re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert first.rstrip().endswith("ARG BASE=python:3.12-slim")
    texts = [stage.partition("\n") for stage in others]
    return {line.removeprefix(f"{base} AS "): text for line, _, text in texts if line.startswith(f"{base} AS ")}


def arguments(target: str, instruction: str) -> list[str]:
    [text] = re.findall(rf"^{instruction} .*?(\[.*\])$", stages()[target], re.MULTILINE)
    return list(json.loads(text))


@pytest.mark.parametrize("target", [*SERVERS, "relay"])
async def test_the_health_check_of_a_container_finds_its_server_healthy(target: str, tmp_path: Path) -> None:
    """The command of the image, or of the example's relay, runs with its settings, in a network of its own."""
    if reason := unavailable():
        pytest.skip(reason)
    image = "server" if target == "relay" else target
    settings = re.findall(r"(RESTANTE_\w+)=(\S+)", stages()[image])
    [listen] = (value for name, value in settings if name.endswith("LISTEN"))
    assert f"\nEXPOSE {listen.removeprefix('*:')}\n" in stages()[image]
    start, check = arguments(image, "CMD"), arguments(image, "HEALTHCHECK")
    if target == "relay":
        start, (_, *check) = setting("relay", "command"), setting("relay", "test")
    program, *start = [*arguments(image, "ENTRYPOINT"), *start]
    checking, *check = check
    assert program == checking == "restante"
    data = str(tmp_path / "data")
    variables = [f"{name}={value.replace('/data', data)}" for name, value in settings]
    start = [word.replace("/data", data).replace(f"*:{RELAY_PORT}", "*:0") for word in start]  # the network has one
    async with isolated_network(tmp_path) as inside:
        command = (*inside, "env", *variables, sys.executable, "-m", "restante")
        async with child(*command, *start, "--log-format", "json") as server:
            await server.says('"event": "listening"')
            done = await asyncio.to_thread(run, *command, *check)
            assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def service(name: str) -> str:
    return COMPOSE.read_text().partition(f"  {name}:\n")[2].partition("\n\n")[0]


def setting(name: str, key: str) -> list[str]:
    [text] = re.findall(rf"^ +{key}: (\[.*\])$", service(name), re.MULTILINE)
    return list(json.loads(text))


def test_the_example_of_compose_lets_the_servers_do_little_and_trusts_the_proxy() -> None:
    text, caddy = COMPOSE.read_text(), CADDYFILE.read_text()
    [network] = re.findall(r"- subnet: (\S+)", text)
    for name, volume in (("restante", "mailboxes"), ("relay", "transfers")):
        for line in ("read_only: true", 'cap_drop: ["ALL"]', '"no-new-privileges:true"'):
            assert line in service(name)
        assert setting(name, "volumes") == [f"{volume}:/data"]
        assert f"\n  {volume}:\n" in text.partition("\nvolumes:")[2]
        assert setting(name, "command")[-2:] == ["--trust-proxy", network]
    assert "ports:" not in service("restante"), "only Caddy is reached from outside"
    assert setting("relay", "ports") == ["4001:4001"], "and the relay, by TCP"
    assert int(re.findall(r"stop_grace_period: (\d+)s", service("relay"))[0]) > RelayServe().drain
    assert "reverse_proxy restante:4000 {" in caddy
    assert caddy.count("header_up X-Real-IP {remote_host}") == 2


def test_caddy_reads_the_example_and_passes_clients_on_to_the_server(tmp_path: Path) -> None:
    caddy = foreign.program("caddy")
    homes = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = run(
        *(caddy.path, "adapt", "--validate", "--adapter", "caddyfile", "--config", CADDYFILE),
        variables={**caddy.variables, **homes, "RELAY_HOST": "relay.example.org"},
    )
    assert done.returncode == 0, done.stderr
    relay, mailbox = (
        done.stdout.find(f'"upstreams":[{{"dial":"{name}"}}]') for name in ("relay:4001", "restante:4000")
    )
    assert 0 < relay < mailbox, "the first that matches is taken"
    assert '"match":[{"path":["/transit"]}]' in done.stdout
    assert '"host":["relay.example.org"]' in done.stdout


BASE: Final = "localhost/debian-python"
SUITE: Final = "bookworm"
CERTIFICATES: Final = Path("/etc/ssl/certs")
"""Where Debian has certificates. A build that reaches the registry through this machine trusts what it trusts."""

READ_ONLY: Final = """\
set -e
mount --make-rprivate /
hostname container
echo "127.0.0.1 localhost container" >"$0/etc/hosts"
mount --bind "$0" "$0"
mount -o remount,bind,ro "$0"
mount -t tmpfs -o mode=0700,uid=10001,gid=10001 none "$0/data"
mount -t tmpfs none "$0/tmp"
mount --bind /dev "$0/dev"
mount -t tmpfs -o mode=1777 none "$0/dev/shm"
mount -t proc none "$0/proc"
ip link set lo up
root=$0
exec chroot --userspec=10001:10001 "$root" "$@"
"""
"""Runs a command in an image as a container engine does: a root that is not written, no rights, the host's name."""


@dataclass(frozen=True)
class Buildah:
    folder: Path

    def call(self, *arguments: str | Path) -> str:
        """Run buildah. Raises MissingError if a registry cannot be reached."""
        places = ("--root", self.folder / "images", "--runroot", self.folder / "run", "--storage-driver", "vfs")
        return fetch("buildah", "buildah", *places, *arguments, cwd=self.folder, seconds=PATIENCE)

    def make_base(self) -> None:
        def install(new: Path) -> None:
            packages = "--include=python3,python3-venv,ca-certificates"
            fetch("apt", "debootstrap", "--variant=minbase", packages, SUITE, new / "root", cwd=new)

        key = f"{SUITE} {platform.machine()} {debian_release()}".encode()
        root = installed("debian-python", key, install) / "root"
        container = self.call("from", "scratch").strip()
        self.call("add", "--quiet", container, root, "/")
        self.call("commit", "--quiet", "--rm", container, BASE)

    def build(self, target: str) -> str:
        """Build a target of the Dockerfile, and return its image. Skip the test without a registry."""
        name = f"localhost/{target}"
        options = ("--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={BASE}", "--target", target)
        certificates = f"SSL_CERT_FILE={CERTIFICATES / 'ca-certificates.crt'}"
        trust = ("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--env", certificates)
        try:
            self.call("build", *options, *trust, "--file", DOCKERFILE, "--tag", name, ROOT)
        except MissingError as missing:
            pytest.skip(str(missing))
        return name

    def configuration(self, image: str) -> dict[str, Any]:
        return dict(json.loads(self.call("inspect", "--type", "image", image))["Docker"]["config"])

    def root_of(self, image: str) -> Path:
        return Path(self.call("mount", self.call("from", image).strip()).strip())


def first_pid(process: Child) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


@asynccontextmanager
async def running(buildah: Buildah, image: str, *arguments: str) -> AsyncIterator[tuple[Child, Callable[..., int]]]:
    """Run an image; yield unshare, whose child is its first process, and a function that runs a command there."""
    configuration, root = buildah.configuration(image), buildah.root_of(image)
    environment = ("env", "-i", *configuration["Env"])
    command = (*environment, *configuration["Entrypoint"], *(arguments or configuration["Cmd"]))
    namespaces = ("--mount", "--net", "--pid", "--uts", "--fork", "--kill-child")

    def call(*arguments: str, printed: str = "") -> int:
        enter = ("nsenter", "--target", str(first_pid(process)), "--mount", "--net", "--pid")
        done = run(*enter, "chroot", "--userspec=10001:10001", root, *environment, *arguments)
        assert printed in done.stdout + done.stderr
        return done.returncode

    async with child("unshare", *namespaces, "sh", "-c", READ_ONLY, str(root), *command) as process:
        yield process, call


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """A storage of images, with the base; the test is skipped where images cannot be built."""
    for program, package in (("buildah", "buildah"), ("debootstrap", "debootstrap"), ("ip", "iproute2")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing (Debian: apt install {package})")
    if reason := unavailable() or ("images are built as root here" if os.geteuid() else None):
        pytest.skip(reason)
    storage = Buildah(tmp_path_factory.mktemp("images"))
    try:
        storage.make_base()
    except MissingError as missing:
        pytest.skip(str(missing))
    yield storage
    storage.call("rm", "--all")
    storage.call("rmi", "--all", "--force")


@pytest.mark.thorough
@pytest.mark.parametrize("target", SERVERS)
async def test_the_image_of_a_server_serves_with_a_root_that_cannot_be_written(buildah: Buildah, target: str) -> None:
    image = buildah.build(target)
    configuration = buildah.configuration(image)
    assert configuration["User"] == "10001:10001"
    assert list(configuration["Volumes"]) == ["/data"]
    async with running(buildah, image) as (process, call):
        await process.says('"event": "listening"')
        assert call(*configuration["Healthcheck"]["Test"][1:], printed="ok\n") == 0
        assert call("id", "-u", printed="10001\n") == 0
        assert call("touch", "/opt/restante/new", printed="Read-only file system") == 1
        if target == "server":
            assert call("restante", "health", "--ready", printed="ok\n") == 0
            assert call("restante", "status", "--json") == 0
        os.kill(first_pid(process), signal.SIGTERM)
        assert await process.ended() == 0
        assert target == "waku" or '"event": "stopped"' in process.said["stderr"]
    assert not list((buildah.root_of(image) / "opt/restante").rglob("pyspark"))


@pytest.mark.thorough
async def test_the_image_of_the_pipeline_makes_a_demo(buildah: Buildah) -> None:
    demo = ("demo", "/data/demo", "--days", "14", "--transfers", "5")
    async with running(buildah, buildah.build("pipeline"), *demo) as (process, _):
        assert await process.ended(PATIENCE) == 0, process.said
        assert "restante pipeline query" in process.said["stdout"]
