#!/usr/bin/env python3
"""The store beside Mooncake's, with its master, over loopback TCP, interleaved in one run.

    python3 -m venv /tmp/mooncake && /tmp/mooncake/bin/pip install numpy \
        mooncake-transfer-engine-non-cuda==0.3.13.post1
    cargo build --release -p lunette-bench
    /tmp/mooncake/bin/python bench/rivals/beside_mooncake_store.py target/release/lunette-bench [ROW...]

Our side is that of the rows of `cargo xtask bench`; Mooncake is asked for the same through its Python module,
as its users ask it. What serves runs on one CPU and what asks on another, on both sides. "Local" is memory of
the asking process, which may use both CPUs then, and Mooncake has no other process but its master. Each pair is one run of each side;
what is shown is the median of each side and of the pairs' ratios.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from beside import answer, start

PAIRS = 9
SECONDS = 1
SERVER_CPU, CLIENT_CPU = 0, 1
SEGMENT = {"remote": 1 << 30, "local": 1 << 30}
BUFFER = 256 << 20
WORKING_SET = 64 << 20
MIB = 1 << 20
# Our row, where the objects are, what is asked, bytes of an object, objects of a batch, and the unit.
ROWS = [
    ("member_exists_hot", "remote", "exists", 0, 1, "us p50"),
    ("member_exists_500", "remote", "exists", 0, 500, "M keys/s"),
    ("member_get_4k_hot", "remote", "get", 4096, 1, "us p50"),
    ("member_get_64x4k", "remote", "get", 4096, 64, "k/s"),
    ("member_get_16x1m", "remote", "get", MIB, 16, "GB/s"),
    ("inside_put_4k_thread", "local", "put", 4096, 1, "k/s"),
    ("inside_get_4k_thread", "local", "get", 4096, 1, "k/s"),
    ("inside_get_16x1m_task", "local", "get", MIB, 16, "GB/s"),
    ("inside_put_16x1m_task", "local", "put", MIB, 16, "GB/s"),
]


def store(segment, buffer, master):
    from mooncake.store import MooncakeDistributedStore
    made = MooncakeDistributedStore()
    if made.setup("127.0.0.1", "P2PHANDSHAKE", segment, buffer, "tcp", "", master) != 0:
        sys.exit("mooncake does not start")
    return made


def provide(master):
    made = store(SEGMENT["remote"], 64 << 20, master)
    print("ready", flush=True)
    time.sleep(1 << 20)
    return made


class Asker:
    """Asks Mooncake's store for what a row wants."""

    def __init__(self, where, master):
        import numpy
        self.store = store(SEGMENT["local"] if where == "local" else 0, BUFFER, master)
        self.memory = numpy.ones(BUFFER, dtype=numpy.uint8)
        self.at = self.memory.ctypes.data
        if self.store.register_buffer(self.at, BUFFER) != 0:
            sys.exit("mooncake does not register memory")
        self.runs = 0

    def places(self, batch, size):
        return [self.at + index * size for index in range(batch)]

    def put(self, keys, size):
        """In batches of at most as many as the buffer has room for."""
        for first in range(0, len(keys), 64):
            part = keys[first:first + 64]
            done = self.store.batch_put_from(part, self.places(len(part), size), [size] * len(part))
            if any(done):
                sys.exit(f"a put failed: {done}")

    def remove(self, keys):
        for key in keys:
            self.store.remove(key, True)

    def measure(self, what, size, batch):
        """The seconds that each call took."""
        self.runs += 1
        count = max(batch, min(WORKING_SET // max(size, 1), 4096) // batch * batch)
        keys = [f"{self.runs}/{index}" for index in range(count)]
        batches = [keys[first:first + batch] for first in range(0, count, batch)]
        places, sizes = self.places(batch, size), [size] * batch
        if what != "put":
            self.put(keys, max(size, 1))

        def exists(part):
            if batch == 1:
                return self.store.is_exist(part[0]) == 1
            return all(found == 1 for found in self.store.batch_is_exist(part))

        def get(part):
            if batch == 1:
                return self.store.get_into(part[0], self.at, size) == size
            return all(got == size for got in self.store.batch_get_into(part, places, sizes))

        def put(part):
            if batch == 1:
                return self.store.put_from(part[0], self.at, size) == 0
            return not any(self.store.batch_put_from(part, places, sizes))

        once = {"exists": exists, "get": get, "put": put}[what]
        took, spent, turn = [], 0.0, 0
        while spent < SECONDS:
            if what == "put" and turn and turn % len(batches) == 0:
                # The next ones take the place of these.
                self.remove(keys)
            part = batches[turn % len(batches)]
            turn += 1
            began = time.perf_counter()
            done = once(part)
            took.append(time.perf_counter() - began)
            spent += took[-1]
            if not done:
                sys.exit(f"{what} failed")
        self.remove(keys)
        return took


def ask(where, master):
    asker = Asker(where, master)
    print("ready", flush=True)
    for line in sys.stdin:
        what, size, batch, unit = json.loads(line)
        took = asker.measure(what, size, batch)
        rate = len(took) * batch / sum(took)
        value = {"us p50": statistics.median(took) * 1e6, "k/s": rate / 1e3,
                 "M keys/s": rate / 1e6, "GB/s": rate * size / 1e9}[unit]
        print(json.dumps([value]), flush=True)


def pinned(process, *cpus):
    os.sched_setaffinity(process.pid, cpus)
    return process


def start_master(port):
    import mooncake
    binary = pathlib.Path(mooncake.__path__[0]) / "mooncake_master"
    command = [str(binary), f"--rpc_port={port}", f"--metrics_port={port + 1000}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = pinned(subprocess.Popen(command, **quiet), SERVER_CPU)
    # Its clients try for long enough.
    time.sleep(2)
    return process


def lunette(program, row):
    command = [program, "--ours", "--rounds", "1", "--server-cpu", f"{SERVER_CPU}",
               "--client-cpu", f"{CLIENT_CPU}", row]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return next(one["value"] for one in found if one["name"] == row)


def compare(program, wanted):
    processes = []
    try:
        asking = {}
        for where, port in (("remote", 50051), ("local", 50061)):
            master = f"127.0.0.1:{port}"
            processes.append(start_master(port))
            if where == "remote":
                processes.append(pinned(start(__file__, "provide", master), SERVER_CPU))
                answer(processes[-1], "ready")
            # A node of ours in the asking process has a core of its own.
            cpus = {"remote": [CLIENT_CPU], "local": [SERVER_CPU, CLIENT_CPU]}[where]
            processes.append(pinned(start(__file__, "ask", where, master), *cpus))
            asking[where] = processes[-1]
            answer(processes[-1], "ready")
        print("| row | unit | ours | Mooncake | ratio |")
        print("|---|---|---|---|---|")
        for row in ROWS:
            if not wanted or row[0] in wanted:
                show(row, [pair(program, row, asking[row[1]]) for _ in range(PAIRS)])
    finally:
        for process in processes:
            process.kill()


def pair(program, row, asking):
    mine = lunette(program, row[0])
    asking.stdin.write(json.dumps(row[2:]) + "\n")
    asking.stdin.flush()
    return mine, json.loads(answer(asking))[0]


def show(row, pairs):
    median = statistics.median
    mine, other = (median(pair[side] for pair in pairs) for side in (0, 1))
    ratio = median(pair[0] / pair[1] for pair in pairs)
    print(f"| {row[0]} | {row[5]} | {mine:,.2f} | {other:,.2f} | {ratio:.3f} |", flush=True)


def main():
    if sys.argv[1:2] == ["provide"]:
        provide(sys.argv[2])
    elif sys.argv[1:2] == ["ask"]:
        ask(*sys.argv[2:4])
    elif len(sys.argv) < 2:
        sys.exit(__doc__)
    else:
        try:
            import mooncake.store
        except ImportError as error:
            for row in ROWS:
                print(f"SKIP {row[0]}: no Mooncake in this Python: {error}")
            return
        compare(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
