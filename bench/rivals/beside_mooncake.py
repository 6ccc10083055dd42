#!/usr/bin/env python3
"""The transfer engine beside Mooncake's, over loopback TCP, interleaved in one run.

    python3 -m venv /tmp/mooncake && /tmp/mooncake/bin/pip install numpy \
        mooncake-transfer-engine-non-cuda==0.3.13.post1
    cargo build --release -p lunette
    /tmp/mooncake/bin/python bench/rivals/beside_mooncake.py target/release/lunette

Both sides have one process that serves memory and one that reads and writes it, all on the same CPUs.
Each row is measured in pairs, one after the other; what is shown is the median of each side and of the
pairs' ratios. Mooncake is asked through its Python module, as its users ask it.
"""
import json
import os
import statistics
import subprocess
import sys
import time

PAIRS = 7
SECONDS = 1
MEMORY = 64 << 20
# Bytes of a request, requests of a batch, and whether it writes.
ROWS = [(4096, 1, False), (4096, 1, True), (4096, 128, False), (4096, 128, True),
        (1 << 20, 1, False), (1 << 20, 1, True), (16 << 20, 1, False), (16 << 20, 1, True)]


def mooncake(role, *arguments):
    command = [sys.executable, os.path.abspath(__file__), role, *arguments]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(command, stdin=subprocess.PIPE, **quiet)


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
    """Answers each line of standard input, a row, with requests per second and the p50 of a batch."""
    made, memory = engine()
    here, there = memory.ctypes.data, int(address)
    print("ready", flush=True)
    for line in sys.stdin:
        size, batch, writes = json.loads(line)
        one = made.transfer_sync_write if writes else made.transfer_sync_read
        many = made.batch_transfer_sync_write if writes else made.batch_transfer_sync_read
        offsets = [index * size for index in range(batch)]
        ours, theirs = [here + at for at in offsets], [there + at for at in offsets]
        took, began = [], time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            start = time.perf_counter()
            if batch == 1:
                done = one(target, here, there, size)
            else:
                done = many(target, ours, theirs, [size] * batch)
            took.append(time.perf_counter() - start)
            if done < 0:
                sys.exit("a transfer failed")
        total = time.perf_counter() - began
        print(json.dumps([len(took) * batch / total, statistics.median(took) * 1e6]), flush=True)


def answer(process, start="["):
    """The next line that is for us: the library writes its own between them."""
    for line in process.stdout:
        if line.startswith(start):
            return line
    sys.exit("a process of Mooncake's ended")


def lunette(program, address, row):
    size, batch, writes = row
    command = [program, "transfer", "bench", address, "--size", f"{size}", "--batch", f"{batch}",
               "--seconds", f"{SECONDS}"] + ["--write"] * writes
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [found["requests_per_s"], found["batch_p50_us"]]


def compare(program):
    command = [program, "transfer", "serve", "--json", "--listen", "127.0.0.1:0",
               "--memory", f"{MEMORY}"]
    ours = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    theirs = mooncake("serve")
    asking = None
    try:
        address = json.loads(ours.stdout.readline())["addresses"][0]
        target, memory = json.loads(answer(theirs))
        asking = mooncake("ask", target, f"{memory}")
        answer(asking, "ready")
        print("| row | ours | Mooncake | requests per second, ratio | p50, ratio |")
        print("|---|---|---|---|---|")
        for row in ROWS:
            pairs = []
            for _ in range(PAIRS):
                mine = lunette(program, address, row)
                asking.stdin.write(json.dumps(row) + "\n")
                asking.stdin.flush()
                pairs.append((mine, json.loads(answer(asking))))
            show(row, pairs)
    finally:
        for process in filter(None, [ours, theirs, asking]):
            process.kill()


def show(row, pairs):
    size, batch, writes = row
    median = statistics.median
    mine, other = (median(pair[side][0] for pair in pairs) for side in (0, 1))
    rate = median(pair[0][0] / pair[1][0] for pair in pairs)
    latency = median(pair[0][1] / pair[1][1] for pair in pairs)
    name = f"{'write' if writes else 'read'} {size >> 10} KiB" + f", batches of {batch}" * (batch > 1)
    shown = [f"{value:,.0f}/s, {value * size / 1e9:.2f} GB/s" for value in (mine, other)]
    print(f"| {name} | {shown[0]} | {shown[1]} | {rate:.2f} | {latency:.2f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    elif sys.argv[1:2] == ["ask"]:
        ask(*sys.argv[2:4])
    elif len(sys.argv) == 2:
        compare(sys.argv[1])
    else:
        sys.exit(__doc__)
