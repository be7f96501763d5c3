"""Container images: built by buildah on a Debian file system of our own, and run as a container engine runs them."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.bounds import PATIENCE
from support.debian import debian_release
from support.documents import ROOT
from support.isolation import unavailable
from support.processes import Child, child, run
from support.tools import MissingError, fetch, installed

DOCKERFILE: Final = ROOT / "deploy" / "container" / "Dockerfile"
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
"""Runs a command in an image, in namespaces of its own: the root cannot be written, the user has no rights. As a
container engine does, it names the host in /etc/hosts."""


def check_tools() -> None:
    """Raise MissingError if images cannot be built here."""
    for program, package in (("buildah", "buildah"), ("debootstrap", "debootstrap"), ("ip", "iproute2")):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is missing (Debian: apt install {package})")
    if os.geteuid() != 0:
        raise MissingError("images are built as root here")
    if reason := unavailable():
        raise MissingError(reason)


@dataclass(frozen=True)
class Buildah:
    """A storage of images."""

    folder: Path

    def call(self, *words: str | Path) -> str:
        """Run buildah. Raises MissingError if a registry cannot be reached."""
        places = ("--root", self.folder / "images", "--runroot", self.folder / "run", "--storage-driver", "vfs")
        return fetch("buildah", "buildah", *places, *words, cwd=self.folder, seconds=PATIENCE)

    def make_base(self) -> None:
        """Make the base image from Debian's packages."""

        def install(new: Path) -> None:
            packages = "--include=python3,python3-venv,ca-certificates"
            fetch("apt", "debootstrap", "--variant=minbase", packages, SUITE, new / "root", cwd=new)

        key = f"{SUITE} {platform.machine()} {debian_release()}".encode()
        root = installed("debian-python", key, install) / "root"
        container = self.call("from", "scratch").strip()
        self.call("add", "--quiet", container, root, "/")
        self.call("commit", "--quiet", "--rm", container, BASE)

    def build(self, target: str) -> str:
        """Build a target of the Dockerfile, and return its image."""
        name = f"localhost/{target}"
        options = ("--isolation", "chroot", "--format", "docker", "--build-arg", f"BASE={BASE}", "--target", target)
        certificates = f"SSL_CERT_FILE={CERTIFICATES / 'ca-certificates.crt'}"
        trust = ("--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--env", certificates)
        self.call("build", *options, *trust, "--file", DOCKERFILE, "--tag", name, ROOT)
        return name

    def configuration(self, image: str) -> dict[str, Any]:
        """Return how an image says that it is run."""
        found: dict[str, Any] = json.loads(self.call("inspect", "--type", "image", image))["Docker"]["config"]
        return found

    def root_of(self, image: str) -> Path:
        """Return the folder with the files of an image."""
        return Path(self.call("mount", self.call("from", image).strip()).strip())


@dataclass(frozen=True)
class Container:
    """A running image."""

    process: Child
    """unshare, whose child is the image's first process."""
    root: Path
    environment: tuple[str, ...]

    @property
    def first_pid(self) -> int:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def call(self, *words: str) -> tuple[int, str]:
        """Run a command in it; return its exit code and what it says."""
        enter = ("nsenter", "--target", str(self.first_pid), "--mount", "--net", "--pid")
        inside = ("chroot", "--userspec=10001:10001", str(self.root), *self.environment, *words)
        done = run(*enter, *inside)
        return done.returncode, done.stdout + done.stderr


@asynccontextmanager
async def running(buildah: Buildah, image: str, *words: str) -> AsyncIterator[Container]:
    """Run an image, with other words behind its entry point if there are some."""
    configuration, root = buildah.configuration(image), buildah.root_of(image)
    environment = ("env", "-i", *configuration["Env"])
    command = (*environment, *configuration["Entrypoint"], *(words or configuration["Cmd"]))
    namespaces = ("--mount", "--net", "--pid", "--uts", "--fork", "--kill-child")
    async with child("unshare", *namespaces, "sh", "-c", READ_ONLY, str(root), *command) as process:
        yield Container(process, root, environment)
