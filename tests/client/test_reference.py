"""The reference of the client library: complete, and what the docstrings say."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from restante import client
from restante.client import Journal, JournaledWormhole, Wormhole
from support.bounds import bounded
from support.client import reference, sources
from support.mailbox.days import ServerOfDays

PAGE = reference.reference()
CLASSES = [name for _, names in reference.GROUPS.values() for name in names if name[0].isupper()]


def test_the_document_is_what_the_docstrings_say() -> None:
    assert reference.PATH.read_text() == PAGE, f"it is out of date: {reference.__doc__}"


def test_every_public_name_is_described_once() -> None:
    described = [name for _, names in reference.GROUPS.values() for name in names]
    described += [*reference.events(), *reference.CONSTANTS, "Event"]
    described += [each.__name__ for each in reference.errors()]
    assert sorted(described) == sorted(client.__all__)


def test_the_names_for_type_checkers_are_the_public_ones() -> None:
    assert sorted(reference.PLACES) == sorted(client.__all__)


def test_a_signature_has_the_arguments_of_any_name() -> None:
    assert "timing.event(name: str, **details: Any)" in PAGE


def test_every_event_is_one_of_its_type() -> None:
    assert all(inspect.isclass(each) for each in get_args(client.Event))


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_and_attribute_has_a_docstring(name: str) -> None:
    kind = sources.class_of(*reference.PLACES[name])
    assert kind is not None
    assert ast.get_docstring(kind)
    for each in reference.public_attributes(kind):
        assert each.name.startswith("_") or (each.meaning and each.type), f"{name}.{each.name}"
    for method in sources.members(kind):
        if not method.name.startswith("_"):
            assert ast.get_docstring(method), f"{name}.{method.name}"


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_are_explained_by_their_names(name: str) -> None:
    kind = sources.class_of(*reference.PLACES[name])
    assert kind is not None
    for method in sources.members(kind):
        taken = {each.arg for each in ast.walk(method.args) if isinstance(each, ast.arg)}
        explained = {each for each, _ in sources.said(method).args}
        assert explained <= taken, f"{name}.{method.name}"


def test_errors_are_raised_by_their_names() -> None:
    raised = re.findall(r"^\* \[?`(\w+)`\]?(?:\(#errors\))?: ", PAGE.replace("Raises:", ""), re.MULTILINE)
    errors = [each for each in raised if each.endswith("Error") or each == "Misuse"]
    assert errors
    assert {each for each in errors if each not in client.__all__} <= {"TypeError", "ValueError"}


def test_limits_and_constants_have_a_meaning() -> None:
    for home, names in reference.LIMIT_NAMES.items():
        for name in names:
            assert sources.constant(home, name).meaning.endswith("."), name


def test_links_on_the_page_lead_to_its_headings() -> None:
    targets = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert targets
    assert targets <= set(reference.anchors(PAGE).values())


async def test_the_example_of_a_journal_exchanges_messages(server: ServerOfDays, tmp_path: Path) -> None:
    class JournalAtServer(Journal[Any]):
        def __init__(self, path: Path, initial: Any) -> None:
            super().__init__(tmp_path / path, initial)

        def wormhole(self, name: str, app_id: str, **options: Any) -> JournaledWormhole:
            return super().wormhole(name, app_id, server=server.url, **options)

    [example] = re.findall(r"(?:^ {4}.*\n)+", f"{inspect.getdoc(Journal)}\n", re.MULTILINE)
    names: dict[str, Any] = {"Path": Path, "Journal": JournalAtServer}
    exec(f"async def run():\n{example}    return journal.state['entries']", names)
    async with bounded("the entry"), Wormhole.create("example.com/contacts", server=server.url) as bob:
        await bob.set_code("7-your-code")
        await bob.send(b"an entry")
        while await names["run"]() != ["an entry"]:
            pass
        assert await bob.receive() == b"thank you"
    assert await names["run"]() == ["an entry"]
