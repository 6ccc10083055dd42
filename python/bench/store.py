"""`mooncake.store` of this wheel beside Mooncake's own: the same calls, in the same run, on the same CPUs.

    python store.py --theirs OTHER/bin/python [--rounds 5] [--cpus 0,1] [--sizes 4096,65536]
        [--mode local,remote,tcp] [--pause-us 0] [--objects-max 1024] [--busy] [--gpu]

All processes of either wheel are pinned to these CPUs, and only one of the wheels has something to do at a time.

Each row is measured in rounds. In each round both wheels make its calls, one after the other, and the order changes
from round to round. A line tells the median over the rounds of what a call takes at its median under either, the ratio of
the two in each round (more than 1: this wheel is ahead), in how many it was ahead, and the share of time that the host took away
meanwhile. `store.py --table LINES` prints such lines as tables.

`local`: the objects are in the memory of the process itself. `remote`: in that of another process of this host. `tcp`: the
same, and all bytes go over TCP, as Mooncake's do anyway.

With a pause, calls are paced: each begins so long after the one before it has ended, and what had something to do has gone
to sleep. Of no more than `--objects-max` objects in a round that takes less time. With `--busy`, another thread of the process
that measures runs Python all the time. With `--gpu`, what is put and got into is memory of a GPU, of torch's.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve()
SIZES = (4096, 65536, 1 << 20, 4 << 20)
CALLS = {4096: 1024, 65536: 512, 1 << 20: 96, 4 << 20: 24}
BATCH = {4096: 64, 65536: 32, 1 << 20: 16, 4 << 20: 8}
MEMORY_BYTES = 2 << 30
BUFFER_BYTES = 128 << 20
# Calls that have no memory of a program's.
OF_HOST = ("put", "get", "is_exist", "batch_is_exist")
SINGLE = ("put", "get", "get_into", "put_from", "is_exist")
BATCHES = (
    "batch_is_exist",
    "batch_put_from",
    "batch_get_into",
    "batch_put_from_multi_buffers",
    "batch_get_into_multi_buffers",
)


class Worker:
    """One wheel, in the process that measures."""

    def __init__(self, mode: str, master: str, pause_s: float, is_gpu: bool, objects_max: int) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        memory = MEMORY_BYTES if mode == "local" else 0
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", memory, 256 << 20, "tcp", "", master)
        assert code == 0, code
        self.pause_s, self.objects_max = pause_s, objects_max
        self.bytes, self.at = of_gpu() if is_gpu else of_host()
        assert self.store.register_buffer(self.at, BUFFER_BYTES) == 0
        self.turn = 0

    def places(self, count: int, size: int) -> list[int]:
        slots = BUFFER_BYTES // size
        return [self.at + (index % slots) * size for index in range(count)]

    def calls(self, row: str, size: int):
        """The keys, what is called for each, and what it answers."""
        # Whole batches.
        store, count = self.store, max(BATCH[size], min(CALLS[size], self.objects_max))
        self.turn += 1
        keys = [f"{os.getpid()}/{self.turn}/{index}" for index in range(count)]
        places = self.places(count, size)
        if row.startswith("batch"):
            per = BATCH[size]
            groups = [slice(first, first + per) for first in range(0, count, per)]
            if "multi" in row:
                halves = [[at, at + size // 2] for at in places]
                sizes = [[size // 2] * 2] * per
                put = lambda g: store.batch_put_from_multi_buffers(keys[g], halves[g], sizes)
                get = lambda g: store.batch_get_into_multi_buffers(keys[g], halves[g], sizes)
            else:
                sizes = [size] * per
                put = lambda g: store.batch_put_from(keys[g], places[g], sizes)
                get = lambda g: store.batch_get_into(keys[g], places[g], sizes)
            if row == "batch_is_exist":
                return keys, groups, put, lambda g: store.batch_is_exist(keys[g]), ([0] * per, [1] * per)
            return keys, groups, put, get, ([0] * per, [size] * per)
        value = bytes(size)
        puts = {
            "put": lambda n: store.put(keys[n], value),
        }
        put = puts.get(row, lambda n: store.put_from(keys[n], places[n], size))
        gets = {
            "get": lambda n: len(store.get(keys[n])),
            "is_exist": lambda n: store.is_exist(keys[n]),
        }
        get = gets.get(row, lambda n: store.get_into(keys[n], places[n], size))
        return keys, list(range(count)), put, get, (0, 1 if row == "is_exist" else size)

    def measure(self, row: str, size: int) -> list[float]:
        """What each call took, in seconds."""
        keys, items, put, get, (put_answer, get_answer) = self.calls(row, size)
        is_put = "put" in row
        took_put = timed(put, items, put_answer, self.pause_s if is_put else 0)
        took = took_put if is_put else timed(get, items, get_answer, self.pause_s)
        self.store.batch_remove(keys, True)
        return took


def of_host() -> tuple[object, int]:
    """What is put, and where it is."""
    import ctypes

    buffer = ctypes.create_string_buffer(b"\x01" * BUFFER_BYTES, BUFFER_BYTES)
    return buffer, ctypes.addressof(buffer)


def of_gpu() -> tuple[object, int]:
    import torch

    buffer = torch.ones(BUFFER_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return buffer, buffer.data_ptr()


def timed(call, items, answer, pause_s) -> list[float]:
    took = []
    clock = time.perf_counter
    for item in items:
        if pause_s:
            time.sleep(pause_s)
        begun = clock()
        got = call(item)
        took.append(clock() - begun)
        if got != answer:
            raise RuntimeError(f"{got!r}, not {answer!r}")
    return took


def run_always() -> None:
    """Python that wants the interpreter all the time."""
    count = 0
    while True:
        count += 1


def work(mode: str, master: str, pause_us: str, is_busy: str, memory: str, objects_max: str) -> None:
    """Measures rows that standard input names, until it ends."""
    worker = Worker(mode, master, float(pause_us) / 1e6, memory == "gpu", int(objects_max))
    if is_busy == "busy":
        threading.Thread(target=run_always, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        row, size = line.split()
        took = worker.measure(row, int(size))
        print(json.dumps(statistics.median(took)), flush=True)
    os._exit(0)


def own(master: str) -> None:
    """Lends memory until standard input ends."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", MEMORY_BYTES, 64 << 20, "tcp", "", master)
    assert code == 0, code
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


class Child:
    """A process that says when it is ready."""

    def __init__(self, command: list[str], cpus: str, mode: str) -> None:
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
        command = ["taskset", "-c", cpus, *command]
        settings = {**os.environ, "LUNETTE_ONE_SIDED": "0"} if mode == "tcp" else None
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True, env=settings)

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args}: it ended early")
        return line

    def ask(self, text: str) -> str:
        print(text, file=self.process.stdin, flush=True)
        return self.line()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(20)


class Side:
    """One wheel: its master, who owns memory, who measures."""

    def __init__(self, python: str, mode: str, given: argparse.Namespace) -> None:
        cpus = given.cpus
        port, metrics = free_port(), free_port()
        program = str(Path(python).parent / "mooncake_master")
        flags = [f"--rpc_port={port}", f"--metrics_port={metrics}"]
        quiet = subprocess.DEVNULL
        command = ["taskset", "-c", cpus, program, *flags]
        self.master = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        wait_for(port)
        address = f"127.0.0.1:{port}"
        self.children = []
        if mode != "local":
            self.children.append(Child([python, str(HERE), "own", address], cpus, mode))
            self.children[0].line()
        how = [str(given.pause_us), "busy" if given.busy else "alone", "gpu" if given.gpu else "host"]
        how.append(str(given.objects_max))
        self.worker = Child([python, str(HERE), "work", mode, address, *how], cpus, mode)
        self.worker.line()
        self.children.append(self.worker)

    def measure(self, row: str, size: int) -> float:
        return json.loads(self.worker.ask(f"{row} {size}"))

    def end(self) -> None:
        for child in reversed(self.children):
            child.end()
        self.master.kill()
        self.master.wait()


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


def wait_for(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("a master does not start")


def steal() -> tuple[int, int]:
    """Ticks that the host took away, and all."""
    ticks = [int(tick) for tick in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def compare(mode: str, given: argparse.Namespace) -> None:
    ours, theirs = Side(given.ours, mode, given), Side(given.theirs, mode, given)
    sides = {"ours": ours, "theirs": theirs}
    sizes = [int(size) for size in given.sizes.split(",")]
    rows = [row for row in (*SINGLE, *BATCHES) if given.rows in row and not (given.gpu and row in OF_HOST)]
    for size in sizes:
        for row in rows:
            before = steal()
            took = {name: [] for name in sides}
            for turn in range(given.rounds):
                for name in sorted(sides, reverse=turn % 2 == 1):
                    took[name].append(sides[name].measure(row, size) * 1e6)
            after = steal()
            ratios = [their / our for our, their in zip(took["ours"], took["theirs"])]
            print(
                json.dumps(
                    {
                        "mode": mode,
                        "pause_us": given.pause_us,
                        "busy": given.busy,
                        "gpu": given.gpu,
                        "row": row,
                        "bytes": size,
                        "objects": BATCH[size] if row.startswith("batch") else 1,
                        "ours_us": round(statistics.median(took["ours"]), 1),
                        "theirs_us": round(statistics.median(took["theirs"]), 1),
                        "ratio": round(statistics.median(ratios), 2),
                        "ratios": [round(min(ratios), 2), round(max(ratios), 2)],
                        "ahead": sum(ratio > 1 for ratio in ratios),
                        "steal": round((after[0] - before[0]) / max(1, after[1] - before[1]), 3),
                    }
                ),
                flush=True,
            )
    for side in sides.values():
        side.end()


def told(number: float) -> str:
    """To three digits."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.1f}"


def tables(lines: Path) -> None:
    """Prints measured lines as tables, one for each mode: what a call takes, and the median and the range of the ratios."""
    modes: dict[str, dict[str, dict[int, str]]] = {}
    for line in map(json.loads, lines.read_text().splitlines()):
        least, most = line["ratios"]
        cell = f"{told(line['ours_us'])} us, {line['ratio']:.1f} ({least:.1f} - {most:.1f})"
        modes.setdefault(line["mode"], {}).setdefault(line["row"], {})[line["bytes"]] = cell
    for mode, rows in modes.items():
        sizes = sorted({size for cells in rows.values() for size in cells})
        names = [f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB" for size in sizes]
        print(f"| {mode} |", " | ".join(names), "|")
        print("|---" * (len(sizes) + 1) + "|")
        for row, cells in rows.items():
            print(f"| `{row}` |", " | ".join(cells.get(size, "") for size in sizes), "|")
        print()


def main() -> None:
    if sys.argv[1:2] == ["--table"]:
        tables(Path(sys.argv[2]))
        return
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
    if sys.argv[1:2] == ["own"]:
        own(*sys.argv[2:])
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--theirs", required=True, help="a Python that has the other wheel")
    flags.add_argument("--ours", default=sys.executable, help="a Python that has this one")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--cpus", default="0,1")
    flags.add_argument("--sizes", default=",".join(map(str, SIZES)))
    flags.add_argument("--rows", default="", help="only those whose name has this")
    flags.add_argument("--mode", default="local,remote")
    flags.add_argument("--pause-us", type=int, default=0)
    flags.add_argument("--objects-max", type=int, default=max(CALLS.values()))
    flags.add_argument("--busy", action="store_true")
    flags.add_argument("--gpu", action="store_true")
    given = flags.parse_args()
    for mode in given.mode.split(","):
        compare(mode, given)


if __name__ == "__main__":
    main()
