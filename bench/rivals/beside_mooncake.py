#!/usr/bin/env python3
"""The transfer engine beside Mooncake's, over loopback TCP, interleaved in one run.

    python3 -m venv /tmp/mooncake && /tmp/mooncake/bin/pip install numpy \
        mooncake-transfer-engine-non-cuda==0.3.13.post1
    cargo build --release -p lunette
    /tmp/mooncake/bin/python bench/rivals/beside_mooncake.py target/release/lunette

Mooncake is asked through its Python module, as its users ask it.
"""
import json
import os
import sys
import time

from beside import MEMORY, answer, answer_rows, compare, start


def engine():
    import numpy
    from mooncake.engine import TransferEngine
    made = TransferEngine()
    port = 13000 + os.getpid() % 999
    if made.initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit("mooncake does not start")
    memory = numpy.ones(MEMORY, dtype=numpy.uint8)
    if made.register_memory(memory.ctypes.data, MEMORY) != 0:
        sys.exit("mooncake does not register memory")
    return made, memory


def serve():
    made, memory = engine()
    print(json.dumps([f"127.0.0.1:{made.get_rpc_port()}", memory.ctypes.data]), flush=True)
    time.sleep(1 << 20)


def ask(target, address):
    made, memory = engine()
    here, there = memory.ctypes.data, int(address)

    def prepare(row):
        size, batch, writes = row
        one = made.transfer_sync_write if writes else made.transfer_sync_read
        many = made.batch_transfer_sync_write if writes else made.batch_transfer_sync_read
        offsets = [index * size for index in range(batch)]
        ours, theirs = [here + at for at in offsets], [there + at for at in offsets]

        def once():
            if batch == 1:
                done = one(target, here, there, size)
            else:
                done = many(target, ours, theirs, [size] * batch)
            if done < 0:
                sys.exit("a transfer failed")
        return once
    answer_rows(prepare)


def asking(serving):
    target, memory = json.loads(answer(serving))
    return start(__file__, "ask", target, f"{memory}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    elif sys.argv[1:2] == ["ask"]:
        ask(*sys.argv[2:4])
    elif len(sys.argv) == 2:
        compare(sys.argv[1], "Mooncake", lambda: start(__file__, "serve"), asking, ["--network"])
    else:
        sys.exit(__doc__)
