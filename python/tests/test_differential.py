"""The same random calls under this wheel and the original one: call by call the same answers.

`LUNETTE_MOONCAKE_PYTHON` is the interpreter of an environment with the original; `cargo xtask test --lane python` makes one.
A failure names its seed.
"""

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CALLS = 400
SEEDS = 2
THEIR_PYTHON = os.environ.get("LUNETTE_MOONCAKE_PYTHON", "")


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


@pytest.fixture
def their_master():
    if not THEIR_PYTHON:
        pytest.skip("LUNETTE_MOONCAKE_PYTHON is not set, or pip did not install the original")
    port = free_port()
    program = Path(THEIR_PYTHON).parent / "mooncake_master"
    command = [program, f"--rpc_port={port}", f"--metrics_port={free_port()}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:
        try:
            for _ in range(200):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def answers(python, seed, master):
    command = [python, HERE / "calls.py", str(seed), str(CALLS), master]
    # Each finds its own wheel, and none of the other's settings.
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd="/")
    return [json.loads(line) for line in ran.stdout.splitlines()], ran.stderr[-2000:]


@pytest.mark.parametrize("seed", [*range(SEEDS - 1), random.randrange(1 << 32)])
def test_both_answer_alike(coordinator, their_master, seed):
    theirs, said = answers(THEIR_PYTHON, seed, their_master)
    if theirs[:1] != [["setup", 0]]:
        pytest.skip(f"the original does not run here: {theirs} {said[-200:]}")
    ours, said = answers(sys.executable, seed, coordinator.address)
    assert len(ours) == CALLS + 2, (seed, said)
    assert len(theirs) == CALLS + 2, (seed, "the original ended early")
    for index, (our, their) in enumerate(zip(ours, theirs)):
        assert our == their, (seed, index, ours[max(0, index - 3) : index])
