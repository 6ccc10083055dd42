"""What leaves memory and comes back from a drive, under this wheel and Mooncake's own: the same calls, in the same run.

    python tier.py --theirs OTHER/bin/python --folder ON_THE_DRIVE [--rounds 5] [--cpus 0,1]
        [--memory-mib 768] [--objects 1536]

A store with too little memory for its objects, of 1 MiB each, and a folder for the rest. In each round both wheels, one
after the other and with processes and folders of their own, do this; the order changes from round to round:

    put     `put_from` of all objects, one at a time; one that is refused is tried again until it is taken
    out     until the folder, or its drive, has been written all that it is going to be: GB/s of that, since the first put.
            Mooncake's files may be in memory of the system still
    lost    objects that are not there then, though each put was acknowledged
    back    `batch_get_into` of 16 at a time, of the 512 objects that were put first, with the page cache dropped:
            each is verified; `from_drive` is the share of their bytes that the drive was read for

Mooncake's is run as it does best here: its master with a lease of 100 ms, its folder looked after each second, not each
ten, and files of 64 MiB.

A line tells medians over the rounds under either, and the ratio of the two in each round (more than 1: this wheel is
ahead). `cpu_s_per_gb` is the time of processors of all processes for what was put, and for what came back.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from store import free_port, wait_for

HERE = Path(__file__).resolve()
OBJECT_BYTES = 1 << 20
BATCH = 16
BACK_OBJECTS = 512
BUFFER_BYTES = 64 << 20
QUIET_S = 3.0
SETTLE_MAX_S = 60.0
REFUSED_MAX = 6000
# What Mooncake's own wheel is told besides; this one has no such settings.
THEIRS = {
    "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(64 << 20),
}
OURS = {"LUNETTE_DRIVE_SIZE": "4GB"}


def device_of(folder: Path) -> str:
    """The name of the device that has the folder, as the kernel counts its reads and writes."""
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def device_bytes(device: str) -> tuple[int, int]:
    """Read and written, since the machine began."""
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if f"{fields[0]}:{fields[1]}" == device:
            return int(fields[5]) * 512, int(fields[9]) * 512
    raise SystemExit(f"{device}: the kernel does not count what it reads and writes")


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take."""
    taken = 0
    for path in folder.rglob("*"):
        try:
            taken += path.stat().st_blocks * 512
        except OSError:
            continue  # it is gone meanwhile
    return taken


def cpu_s(*processes: int) -> float:
    """The time of processors that these have used."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def drop_pages(folder: Path) -> None:
    """Nothing of the folder is read from memory of the system."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


class Worker:
    """One wheel, in the process that measures."""

    def __init__(self, master: str, master_pid: int, folder: Path, memory_bytes: int) -> None:
        import ctypes

        from mooncake.store import MooncakeDistributedStore

        self.folder, self.device = folder, device_of(folder)
        self.processes = (os.getpid(), master_pid)
        self.store = MooncakeDistributedStore()
        path = str(folder)
        setup = ("127.0.0.1", "P2PHANDSHAKE", memory_bytes, 256 << 20, "tcp", "", master, None, True, path)
        code = self.store.setup(*setup)
        assert code == 0, code
        self.bytes = ctypes.create_string_buffer(os.urandom(1 << 16) * (BUFFER_BYTES >> 16), BUFFER_BYTES)
        self.at = ctypes.addressof(self.bytes)
        assert self.store.register_buffer(self.at, BUFFER_BYTES) == 0
        self.word_at = ctypes.c_uint64.from_address

    def place(self, index: int) -> int:
        return self.at + index % (BUFFER_BYTES // OBJECT_BYTES) * OBJECT_BYTES

    def put(self, keys: list[str]) -> dict:
        """All objects, and what the drive has been written until it is quiet."""
        before, taken = device_bytes(self.device)[1], folder_bytes(self.folder)
        written_since = lambda: max(device_bytes(self.device)[1] - before, folder_bytes(self.folder) - taken)
        cpu, begun = cpu_s(*self.processes), time.perf_counter()
        refused = 0
        for index, key in enumerate(keys):
            place = self.place(index)
            self.word_at(place).value = index
            self.word_at(place + OBJECT_BYTES - 8).value = index
            while self.store.put_from(key, place, OBJECT_BYTES) != 0:
                refused += 1
                if refused > REFUSED_MAX:
                    raise SystemExit("puts are refused for ever")
                time.sleep(0.02)
        put_s = time.perf_counter() - begun
        last, last_at = 0, begun
        while True:
            now, written = time.perf_counter(), written_since()
            if written - last > 1 << 20:
                last, last_at = written, now
            elif now - max(last_at, begun + put_s) > QUIET_S or now - begun > SETTLE_MAX_S:
                break
            time.sleep(0.05)
        put_bytes = len(keys) * OBJECT_BYTES
        return {
            "put_gb_s": put_bytes / put_s / 1e9,
            "out_gb_s": last / max(last_at - begun, 1e-3) / 1e9,
            "written": last / put_bytes,
            "refused": refused,
            "put_cpu_s_per_gb": (cpu_s(*self.processes) - cpu) / put_bytes * 1e9,
        }

    def back(self, keys: list[str]) -> dict:
        """Those that are there of the first objects, and what is not."""
        there = [code == 1 for code in self.store.batch_is_exist(keys)]
        lost = there.count(False)
        wanted = [index for index, is_there in enumerate(there) if is_there][:BACK_OBJECTS]
        drop_pages(self.folder)
        before, cpu = device_bytes(self.device)[0], cpu_s(*self.processes)
        took = wrong = 0.0
        for first in range(0, len(wanted), BATCH):
            batch = wanted[first : first + BATCH]
            places = [self.place(slot) for slot in range(len(batch))]
            begun = time.perf_counter()
            got = self.store.batch_get_into([keys[index] for index in batch], places, [OBJECT_BYTES] * len(batch))
            took += time.perf_counter() - begun
            for index, place, code in zip(batch, places, got):
                words = self.word_at(place).value, self.word_at(place + OBJECT_BYTES - 8).value
                wrong += code != OBJECT_BYTES or words != (index, index)
        back_bytes = len(wanted) * OBJECT_BYTES
        return {
            "lost": lost,
            "wrong": wrong,
            "back_gb_s": back_bytes / took / 1e9,
            "from_drive": (device_bytes(self.device)[0] - before) / back_bytes,
            "back_cpu_s_per_gb": (cpu_s(*self.processes) - cpu) / back_bytes * 1e9,
        }


def work(master: str, master_pid: str, folder: str, memory_mib: str, objects: str) -> None:
    worker = Worker(master, int(master_pid), Path(folder), int(memory_mib) << 20)
    keys = [f"{os.getpid()}/{index}" for index in range(int(objects))]
    print(json.dumps(worker.put(keys) | worker.back(keys)), flush=True)
    os._exit(0)


def run(python: str, given: argparse.Namespace, settings: dict[str, str]) -> dict:
    """What came of one wheel in one round."""
    folder = Path(given.folder) / f"tier-{os.getpid()}"
    folder.mkdir()
    port, metrics = free_port(), free_port()
    program = str(Path(python).parent / "mooncake_master")
    pinned, quiet = ["taskset", "-c", given.cpus], subprocess.DEVNULL
    command = [*pinned, program, f"--rpc_port={port}", f"--metrics_port={metrics}", "--enable_offload=true", "--default_kv_lease_ttl=100"]
    environment = {**os.environ, **settings}
    master = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment)
    try:
        wait_for(port)
        how = [f"127.0.0.1:{port}", str(master.pid), str(folder), str(given.memory_mib), str(given.objects)]
        command = [*pinned, python, str(HERE), "work", *how]
        worked = subprocess.run(command, stdout=subprocess.PIPE, stderr=quiet, env=environment, timeout=300, text=True)
        lines = [line for line in worked.stdout.splitlines() if line.startswith('{"put_gb_s')]
        if not lines:
            raise SystemExit(f"{python}: it ended early")
        return json.loads(lines[-1])
    finally:
        master.kill()
        master.wait()
        shutil.rmtree(folder)


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:])
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--theirs", required=True)
    flags.add_argument("--folder", required=True)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--cpus", default="0,1")
    flags.add_argument("--memory-mib", type=int, default=768)
    flags.add_argument("--objects", type=int, default=1536)
    given = flags.parse_args()
    sides = {"ours": (sys.executable, OURS), "theirs": (given.theirs, THEIRS)}
    found = {name: [] for name in sides}
    for turn in range(given.rounds):
        for name in sorted(sides, reverse=turn % 2 == 1):
            found[name].append(run(sides[name][0], given, sides[name][1]))
    for figure in found["ours"][0]:
        our, their = ([one[figure] for one in found[name]] for name in ("ours", "theirs"))
        line = {
            "figure": figure,
            "ours": round(statistics.median(our), 3),
            "theirs": round(statistics.median(their), 3),
        }
        if figure.endswith("gb_s"):
            line["ratios"] = [round(a / b, 2) for a, b in zip(our, their) if b]
        elif figure.endswith("per_gb"):
            line["ratios"] = [round(b / a, 2) for a, b in zip(our, their) if a]
        else:
            line["rounds"] = [[round(a, 3), round(b, 3)] for a, b in zip(our, their)]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
