"""The files of `deploy/container`; with --thorough the images are built and run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support import foreign
from support.documents import ROOT
from support.images import DOCKERFILE, Buildah, check_tools, running
from support.isolation import isolated_network, unavailable
from support.processes import child, run
from support.tools import MissingError

COMPOSE: Final = DOCKERFILE.with_name("compose.yaml")
CADDYFILE: Final = DOCKERFILE.with_name("Caddyfile")
SERVERS: Final = ("server", "waku")
"""The targets whose images run a server."""


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """A storage of images, with the base."""
    try:
        check_tools()
        storage = Buildah(tmp_path_factory.mktemp("images"))
        storage.make_base()
    except MissingError as missing:
        pytest.skip(str(missing))
    yield storage
    storage.call("rm", "--all")
    storage.call("rmi", "--all", "--force")


def test_a_build_is_sent_the_files_that_it_copies_and_no_others() -> None:
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
        for name in line.split()[:-1]
    }
    ignored, *sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored == "*"
    assert {each[1:] for each in sent if each.startswith("!")} == copied
    assert all((ROOT / each).exists() for each in copied)


def stages(base: str = "runtime") -> dict[str, str]:
    """Return the stages of the Dockerfile that begin with another one, or with ${BASE}, by name."""
    first, *others = re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert first.rstrip().endswith("ARG BASE=python:3.12-slim")
    texts = [each.partition("\n") for each in others]
    return {line.removeprefix(f"{base} AS "): text for line, _, text in texts if line.startswith(f"{base} AS ")}


def words(target: str, instruction: str) -> list[str]:
    """Return the words of an instruction of an image."""
    [found] = re.findall(rf"^{instruction} .*?(\[.*\])$", stages()[target], re.MULTILINE)
    read: list[str] = json.loads(found)
    return read


def test_images_have_a_user_of_their_own() -> None:
    assert list(stages()) == ["pipeline", "waku", "server"], "the last is the default"
    assert "\nUSER 10001:10001\n" in stages("${BASE}")["runtime"]
    assert not [name for name, text in stages().items() if "USER" in text]


@pytest.mark.parametrize("target", SERVERS)
async def test_the_health_check_of_an_image_finds_its_server_healthy(target: str, tmp_path: Path) -> None:
    """The command of the image runs with the image's settings and ports, in a network of its own."""
    if reason := unavailable():
        pytest.skip(reason)
    settings = dict(re.findall(r"(RESTANTE_\w+)=(\S+)", stages()[target]))
    [data] = (name for name, value in settings.items() if value == "/data")
    [listen] = (value for name, value in settings.items() if name.endswith("LISTEN"))
    assert f"\nEXPOSE {listen.removeprefix('*:')}\n" in stages()[target]
    variables = [f"{name}={value}" for name, value in (settings | {data: str(tmp_path / "data")}).items()]
    program, *start = [*words(target, "ENTRYPOINT"), *words(target, "CMD")]
    asked, *check = words(target, "HEALTHCHECK")
    assert (program, asked) == ("restante", "restante")
    async with isolated_network(tmp_path) as inside:
        command = (*inside, "env", *variables, sys.executable, "-m", "restante")
        async with child(*command, *start, "--log-format", "json") as server:
            await server.says('"event": "listening"')
            done = await asyncio.to_thread(run, *command, *check)
            assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_the_example_of_compose_lets_the_server_do_little_and_trusts_the_proxy() -> None:
    text = COMPOSE.read_text()
    service = text.partition("  restante:\n")[2].partition("\n\n")[0]
    for line in ("read_only: true", 'cap_drop: ["ALL"]', '"no-new-privileges:true"', 'volumes: ["mailboxes:/data"]'):
        assert line in service
    [network] = re.findall(r"- subnet: (\S+)", text)
    assert f'"--trust-proxy", "{network}"' in service
    assert "ports:" not in service, "only Caddy is reached from outside"
    assert "reverse_proxy restante:4000 {" in CADDYFILE.read_text()
    assert "header_up X-Real-IP {remote_host}" in CADDYFILE.read_text()


def test_caddy_reads_the_example_and_passes_clients_on_to_the_server(tmp_path: Path) -> None:
    caddy = foreign.caddy()
    homes = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = run(
        *(caddy.path, "adapt", "--validate", "--adapter", "caddyfile", "--config", CADDYFILE),
        variables={**caddy.variables, **homes, "RELAY_HOST": "relay.example.org"},
    )
    assert done.returncode == 0, done.stderr
    assert '"upstreams":[{"dial":"restante:4000"}]' in done.stdout
    assert '"host":["relay.example.org"]' in done.stdout


def test_the_guide_names_the_files() -> None:
    guide = (ROOT / "docs" / "install.md").read_text()
    for file in (DOCKERFILE, COMPOSE, CADDYFILE):
        assert file.exists()
    for name in ("deploy/container/Dockerfile", "deploy/container/compose.yaml", "--target pipeline"):
        assert name in guide


@pytest.mark.thorough
async def test_the_image_of_the_waku_node_is_healthy(buildah: Buildah) -> None:
    image = built(buildah, "waku")
    configuration = buildah.configuration(image)
    async with running(buildah, image) as container:
        await container.process.says('"event": "listening"')
        assert container.call(*configuration["Healthcheck"]["Test"][1:]) == (0, "ok\n")
        os.kill(container.first_pid, signal.SIGTERM)
        assert await container.process.ended() == 0


@pytest.mark.thorough
async def test_the_image_of_the_server_serves_with_a_root_that_cannot_be_written(buildah: Buildah) -> None:
    image = built(buildah, "server")
    configuration = buildah.configuration(image)
    assert configuration["User"] == "10001:10001"
    assert list(configuration["Volumes"]) == ["/data"]
    async with running(buildah, image) as container:
        await container.process.says('"event": "listening"')
        assert container.call("restante", "health", "--ready") == (0, "ok\n")
        assert container.call(*configuration["Healthcheck"]["Test"][1:]) == (0, "ok\n")
        assert container.call("restante", "status", "--json")[0] == 0
        assert container.call("id", "-u") == (0, "10001\n")
        code, said = container.call("touch", "/opt/restante/new")
        assert (code, "Read-only file system" in said) == (1, True)
        os.kill(container.first_pid, signal.SIGTERM)
        assert await container.process.ended() == 0
        assert '"event": "stopped"' in container.process.said["stderr"]
    assert not list((buildah.root_of(image) / "opt/restante").rglob("pyspark"))


@pytest.mark.thorough
async def test_the_image_of_the_pipeline_makes_a_demo(buildah: Buildah) -> None:
    image = built(buildah, "pipeline")
    demo = ("demo", "/data/demo", "--days", "14", "--transfers", "5")
    async with running(buildah, image, *demo) as container:
        assert await container.process.ended(600) == 0, container.process.said
        assert "restante pipeline query" in container.process.said["stdout"]


def built(buildah: Buildah, target: str) -> str:
    try:
        return buildah.build(target)
    except MissingError as missing:
        pytest.skip(str(missing))
