"""A coordinator, a member and stores, for all tests of a file."""

from collections.abc import Iterator

import pytest

import lunette
from lunette.p2p import ObjectStore


@pytest.fixture(scope="module")
def coordinator() -> Iterator[lunette.Coordinator]:
    with lunette.Coordinator() as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def member(coordinator: lunette.Coordinator) -> Iterator[lunette.Store]:
    with lunette.Store.member([coordinator.address], memory_bytes=64 << 20) as store:
        yield store


@pytest.fixture(scope="module", params=["member", "client", "client by TCP"])
def store(
    request: pytest.FixtureRequest, member: lunette.Store
) -> Iterator[lunette.Store]:
    if request.param == "member":
        yield member
        return
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "client by TCP":
            patched.setenv("LUNETTE_ONE_SIDED", "0")
        client = lunette.Store.connect([member.address])
    with client:
        yield client


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key of the test's own."""
    return request.node.nodeid


@pytest.fixture(scope="module")
def origin(coordinator: lunette.Coordinator) -> Iterator[ObjectStore]:
    """A store of objects that has what others receive."""
    with ObjectStore([coordinator.address]) as store:
        yield store


@pytest.fixture(scope="module")
def other(coordinator: lunette.Coordinator) -> Iterator[ObjectStore]:
    with ObjectStore([coordinator.address]) as store:
        yield store


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An object's name, the test's own."""
    return f"test/{request.node.name}"


def pytest_terminal_summary(terminalreporter) -> None:
    """Says what `cargo xtask test` counts, as tests in Rust say it."""
    stats = terminalreporter.stats
    skipped = stats.get("skipped", [])
    for report in skipped:
        terminalreporter.write_line(f"SKIP {report.nodeid}: {report.longrepr[2]}")
    passed = len(stats.get("passed", [])) + len(skipped)
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    verdict = "FAILED" if failed else "ok"
    terminalreporter.write_line(
        f"test result: {verdict}. {passed} passed; {failed} failed; 0 ignored"
    )
