#!/usr/bin/env python3
"""The transfer engine beside NIXL with UCX, interleaved in one run: between two processes of one host by
shared memory, or over loopback TCP.

    python3 -m venv /tmp/nixl && /tmp/nixl/bin/pip install numpy
    /tmp/nixl/bin/pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1
    cargo build --release -p lunette
    /tmp/nixl/bin/python bench/rivals/beside_nixl.py target/release/lunette          # shared memory
    /tmp/nixl/bin/python bench/rivals/beside_nixl.py target/release/lunette tcp

NIXL is asked through its Python module with prepared transfers, and polled without a pause, as its users
do; so that both are as eager, the engine's cores poll too (`--idle latency`).
"""
import json
import os
import sys
import tempfile
import time

from beside import MEMORY, answer_rows, compare, start


def engine(name):
    import numpy
    from nixl._api import nixl_agent, nixl_agent_config
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = numpy.ones(MEMORY + 4096, dtype=numpy.uint8)
    first = memory.ctypes.data + -memory.ctypes.data % 4096
    agent.register_memory([(first, MEMORY, 0, name)], "DRAM")
    return agent, first, memory


def put(path, content):
    with open(f"{path}.new", "wb") as file:
        file.write(content)
    os.rename(f"{path}.new", path)


def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return file.read()


def serve(folder):
    agent, first, _memory = engine("serving")
    put(f"{folder}/first", f"{first}".encode())
    put(f"{folder}/serving", agent.get_agent_metadata())
    agent.add_remote_agent(wait(f"{folder}/asking"))
    while True:
        time.sleep(1)


def ask(folder):
    agent, here, _memory = engine("asking")
    put(f"{folder}/asking", agent.get_agent_metadata())
    serving = agent.add_remote_agent(wait(f"{folder}/serving"))
    serving = serving.decode() if isinstance(serving, bytes) else serving
    there = int(wait(f"{folder}/first"))
    agent.make_connection(serving)

    def prepare(row):
        size, batch, writes = row
        def places(base):
            pieces = [(base + index * size, size, 0) for index in range(batch)]
            return agent.get_xfer_descs(pieces, "DRAM")
        operation = "WRITE" if writes else "READ"
        handle = agent.initialize_xfer(operation, places(here), places(there), serving)

        def once():
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                sys.exit(f"a transfer ended as {state}")
        return once
    answer_rows(prepare)


def main(program, way):
    folder = tempfile.mkdtemp()
    environment = dict(os.environ, **({"UCX_TLS": "tcp"} if way == "tcp" else {}))
    flags = ["--idle", "latency"] + ["--network"] * (way == "tcp")
    compare(program, "NIXL",
            lambda: start(__file__, "serve", folder, environment=environment),
            lambda _serving: start(__file__, "ask", folder, environment=environment), flags)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["ask"]:
        ask(sys.argv[2])
    elif len(sys.argv) in (2, 3) and sys.argv[2:] in ([], ["tcp"]):
        main(sys.argv[1], "".join(sys.argv[2:]))
    else:
        sys.exit(__doc__)
