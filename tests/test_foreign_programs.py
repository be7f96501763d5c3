"""Programs of others are unpacked from Debian packages without root, with the libraries that they need, and work."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.debian import DOWNLOAD, STALL, Program, debian_programs, others, unpacked
from support.foreign import foreign
from support.processes import run
from support.timing.browser import chromium, opened
from support.tools import MissingError, fetch

PAGE = b"<!doctype html><title>A page</title><p id=p><script>p.append(6 * 7)</script>"


def without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*command: object, **options: object) -> str:
        raise AssertionError("E: Failed to fetch http://debian.example/x.deb  Could not resolve 'debian.example'")

    monkeypatch.setattr("support.tools.build", refused)


def test_a_program_of_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "nginx"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian_programs("nginx", "nginx")["nginx"].path == own


def test_without_a_network_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_network(monkeypatch)
    monkeypatch.setattr("support.tools.TOOLS", tmp_path / "tools")
    with pytest.raises(
        MissingError, match="apt does not reach its registry, which it needs once: E: Failed to fetch"
    ):
        unpacked("haproxy", "haproxy")
    assert [each.name for each in (tmp_path / "tools").iterdir() if each.is_dir()] == [], "nothing half-made stays"


def test_without_apt_the_package_is_named_and_the_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(pytest.skip.Exception, match=r"nobody: missing, .*\(Debian: apt install nothing\)"):
        foreign("nothing", "nobody")


def test_a_download_that_takes_too_long_is_a_reason_too(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"apt has no answer of its registry after 0\.05 s"):
        fetch("apt", "sleep", "60", cwd=tmp_path, seconds=0.05)
    assert STALL < DOWNLOAD < 900, "less than a test may take (pyproject.toml)"


def test_the_packages_of_the_same_source_count_as_missing() -> None:
    own = ["Package: chromium\nVersion: 1", "Package: chromium-common\nSource: chromium (1-2)"]
    other = ["Package: chromium-bsu\nVersion: 3", "Package: libc6\nSource: glibc"]
    assert others("\n\n".join((*own, *other)), "chromium") == "\n\n".join(other)


def bare(package: str) -> Program:
    """Unpack a program with all that it needs; skip the test without a network."""
    try:
        return unpacked(package, package, bare=True)[package]
    except MissingError as missing:
        pytest.skip(str(missing))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("package", "word", "said"),
    [
        ("haproxy", "-v", "haproxy version"),
        ("nginx", "-v", "nginx version"),
        ("caddy", "help", "caddy is an extensible server"),
    ],
)
def test_an_unpacked_proxy_finds_its_libraries_beside_it(package: str, word: str, said: str) -> None:
    program = bare(package)
    done = run(program.path, word, variables=program.variables)
    assert said in (done.stdout + done.stderr).lower()
    libraries = run("ldd", program.path, variables=program.variables).stdout
    elsewhere = [line.split()[0] for line in libraries.splitlines() if ".tools" not in line]
    assert {name.partition(".")[0] for name in elsewhere} <= {"linux-vdso", "libc", "libm", "/lib64/ld-linux-x86-64"}


@pytest.mark.thorough
def test_an_unpacked_chromium_loads_a_page(tmp_path: Path) -> None:
    program = bare("chromium")
    with chromium(program) as browser, opened(browser, PAGE, tmp_path) as found:
        assert found.text("#p") == "42"
        box = found.page.locator("#p").bounding_box()
        assert box is not None
        assert box["height"] > 10, "there is a font"
        assert found.complaints == []
