"""What `COMPATIBILITY.md` says of Mooncake's names, held against what its modules report and ours do."""

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest

from mooncake import _setup, client, engine, master, store
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

HERE = Path(__file__).parent
THEIRS = json.loads((HERE / "data/mooncake_store_api.json").read_text())
THEIR_ENGINE = json.loads((HERE / "data/mooncake_engine_api.json").read_text())
TEXT = (HERE.parent / "COMPATIBILITY.md").read_text()


def table(title: str) -> dict[str, str]:
    """What becomes of each name of a section."""
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = (line.split("|") for line in section.splitlines() if line.startswith("| `"))
    return {name: row[2].strip() for row in rows for name in re.findall(r"`([^`]+)`", row[1])}


METHODS = table("`MooncakeDistributedStore`")
ENGINE_METHODS = table("`TransferEngine`")
# What becomes of each method, of which class, and its parameters there.
ALL = [
    *((MooncakeDistributedStore, name, METHODS[name], THEIRS["MooncakeDistributedStore"].get(name)) for name in METHODS),
    *((TransferEngine, name, ENGINE_METHODS[name], THEIR_ENGINE["TransferEngine"].get(name)) for name in ENGINE_METHODS),
]


def test_every_method_of_theirs_is_listed():
    assert sorted(METHODS) == sorted(THEIRS["MooncakeDistributedStore"])
    assert sorted(ENGINE_METHODS) == sorted(THEIR_ENGINE["TransferEngine"])
    assert {row[2] for row in ALL} == {"mapped", "refused"}


@pytest.mark.parametrize(("kind", "name", "what", "theirs"), ALL)
def test_methods_are_what_the_tables_say(kind, name, what, theirs):
    if name == "setup":
        return  # It has two forms: `test_settings_are_listed`.
    method = getattr(kind(), name)
    if what == "refused":
        with pytest.raises(NotImplementedError, match=name):
            method(*["" for each in theirs if not each.startswith(("?", "*"))])
        return
    ours = list(inspect.signature(method).parameters.values())
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs):
        if their.startswith("*"):
            assert our.kind == inspect.Parameter.VAR_POSITIONAL
            continue
        if not their.startswith("arg"):
            assert our.name == their.lstrip("?")
        assert (our.default is not inspect.Parameter.empty) == their.startswith("?")


def test_configurations_are_listed():
    assert sorted(table("`ReplicateConfig`")) == THEIRS["ReplicateConfig"]
    assert sorted(field.name for field in dataclasses.fields(ReplicateConfig)) == THEIRS["ReplicateConfig"]


def test_settings_are_listed():
    settings = [field.name for field in dataclasses.fields(_setup.Settings)]
    assert sorted(table("Settings")) == sorted(settings)
    for name in [*_setup.ENVIRONMENT, *_setup.LEGACY_KEYS]:
        assert f"`{name}" in TEXT


def test_names_are_listed():
    names = table("Names of `mooncake.store`")
    assert sorted(names) == sorted(store.__all__)
    assert set(names) <= set(THEIRS["module"])
    names = table("Names of `mooncake.engine`")
    assert sorted(names) == sorted(engine.__all__)
    assert set(names) <= set(THEIR_ENGINE["module"])
    for name in ("ObjectDataType", "SoftPinAction"):
        assert sorted(getattr(store, name).__members__) == THEIRS[name]
    for name in ("BufferHandle", "MooncakeHostMemAllocator"):
        assert all(hasattr(getattr(store, name), method) for method in THEIRS[name])


def test_flags_are_listed():
    rows = TEXT.split("## Programs\n")[1].splitlines()
    listed = {row.split("`")[1]: set(re.findall(r"`--(\w+)`", row)) for row in rows if row.startswith("| `")}
    assert listed.pop("mooncake_http_metadata_server") == {"host", "port"}
    assert listed.pop("mooncake_master") == set(master.DEFAULTS)
    assert listed.pop("mooncake_client") == {*client.DEFAULTS, *client.NOT_NEEDED}
    assert not listed
