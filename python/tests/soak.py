"""Threads that put and get for a long time while members of the cluster are killed and come back.

    python soak.py [--seconds 600] [--seed 1] [--threads 4] [--members 2]

The store is a member of this process; the others are programs `mooncake_client`, of which one is killed every few
seconds, and another one comes instead. It holds:

- what is got is what was put under that key, whole, or is not got;
- every code is one of those that `COMPATIBILITY.md` has, and every call ends within its time;
- members come and go without an end: calls succeed, in every tenth of the time, or in what a lease and a call may last;
- memory does not grow with time: what the process has of its own at the end is not much more than after a third.

It prints one object of JSON, and ends with 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter

import lunette
from mooncake.store import MooncakeDistributedStore

TIMEOUT_S = 2.0
# Beyond its timeout a call may take this long, on a machine that is busy.
LATE_S = 3.0
SIZES = [1, 4096, 65_536, 300_000]
KEYS = 200
# While a member that was killed is in the map, and each thread waits for it, nothing may be done: no longer than this.
IDLE_S = 8.0
# Between two kills: the map follows in most cases, and in some not yet.
KILLS_S = (3, 15)
BATCH = 6
CODES = {0, -200, -600, -704, -800, -900}
# What the process may have gained since a third of the time, in bytes.
GROWTH_MAX = 48 << 20


def value_of(key: str) -> bytes:
    """What is under a key, whoever puts it."""
    draw = random.Random(key)
    return draw.randbytes(16) * (draw.choice(SIZES) // 16 + 1)


class Broken(AssertionError):
    """Something does not hold."""


class Asker:
    """What one thread asks, and what came of it."""

    def __init__(self, store: MooncakeDistributedStore, seed: str) -> None:
        self.store = store
        self.draw = random.Random(seed)
        self.room = ctypes.create_string_buffer(BATCH * (max(SIZES) + 16))
        self.at = ctypes.addressof(self.room)
        self.codes: Counter[int] = Counter()
        self.hits = 0
        self.slowest_s = 0.0
        self.calls = [self.put, self.batch_put, self.get, self.get_into, self.batch_get, self.exist, self.remove]

    def keys(self, count: int) -> list[str]:
        return [f"soak/{n}" for n in self.draw.sample(range(KEYS), count)]

    def coded(self, codes: list[int]) -> None:
        wrong = [code for code in codes if code not in CODES]
        if wrong:
            raise Broken(f"codes {wrong}")
        self.codes.update(codes)

    def hit(self, key: str, got: bytes) -> None:
        if got != value_of(key):
            raise Broken(f"{key}: {len(got)} bytes that nobody has put there")
        self.hits += 1

    def lay(self, keys: list[str]) -> tuple[list[int], list[int]]:
        """Values of keys, one after the other in the room."""
        places, sizes, end = [], [], self.at
        for key in keys:
            value = value_of(key)
            ctypes.memmove(end, value, len(value))
            places.append(end)
            sizes.append(len(value))
            end += len(value)
        return places, sizes

    def put(self) -> None:
        (key,) = self.keys(1)
        self.coded([self.store.put(key, value_of(key))])

    def batch_put(self) -> None:
        keys = self.keys(BATCH)
        self.coded(self.store.batch_put_from(keys, *self.lay(keys)))

    def get(self) -> None:
        (key,) = self.keys(1)
        got = self.store.get(key)
        if got:
            self.hit(key, got)

    def get_into(self) -> None:
        self.read(self.keys(1))

    def batch_get(self) -> None:
        self.read(self.keys(BATCH))

    def read(self, keys: list[str]) -> None:
        places, sizes = self.lay(keys)
        ctypes.memset(self.at, 0, sum(sizes))
        got = self.store.batch_get_into(keys, places, sizes)
        self.coded([min(code, 0) for code in got])
        for key, place, code in zip(keys, places, got):
            if code > 0:
                self.hit(key, ctypes.string_at(place, code))

    def exist(self) -> None:
        present = self.store.batch_is_exist(self.keys(BATCH))
        if not set(present) <= {0, 1, -1}:
            raise Broken(f"is_exist: {present}")

    def remove(self) -> None:
        (key,) = self.keys(1)
        self.coded([self.store.remove(key)])

    def run_once(self) -> None:
        begun = time.monotonic()
        self.draw.choice(self.calls)()
        took_s = time.monotonic() - begun
        self.slowest_s = max(self.slowest_s, took_s)
        if took_s > TIMEOUT_S + LATE_S:
            raise Broken(f"a call took {took_s:.1f} s")


class Member:
    """Another member, in a process that can be killed."""

    def __init__(self, coordinator: str) -> None:
        flags = ["--port=0", "--host=127.0.0.1", "--global_segment_size=32MB"]
        command = [sys.executable, "-m", "mooncake.client", f"--master_server_address={coordinator}", *flags]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True)
        if not self.process.stdout.readline():
            raise Broken("a member does not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Soak:
    """Threads, members, and what is seen of them."""

    def __init__(self, given: argparse.Namespace) -> None:
        os.environ["LUNETTE_TIMEOUT_S"] = str(TIMEOUT_S)
        self.given = given
        self.draw = random.Random(given.seed)
        self.coordinator = lunette.Coordinator()
        self.members = [Member(self.coordinator.address) for _ in range(given.members)]
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", "", 64 << 20, 0, "tcp", "", self.coordinator.address)
        if code != 0:
            raise Broken(f"setup: {code}")
        self.askers = [Asker(self.store, f"{given.seed}/{n}") for n in range(given.threads)]
        self.failures: list[str] = []
        self.ended = threading.Event()

    def ask(self, asker: Asker) -> None:
        try:
            while not self.ended.is_set():
                asker.run_once()
        except Exception as error:  # noqa: BLE001
            self.failures.append(f"{type(error).__name__}: {error}")
            self.ended.set()

    def done(self) -> int:
        return sum(asker.codes[0] + asker.hits for asker in self.askers)

    def run(self) -> dict[str, object]:
        threads = [threading.Thread(target=self.ask, args=(asker,)) for asker in self.askers]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        kills, memory, progress = 0, [], [0]
        part = max(self.given.seconds / 10, IDLE_S)
        next_kill = self.draw.uniform(*KILLS_S)
        while (elapsed := time.monotonic() - begun) < self.given.seconds and not self.ended.wait(0.2):
            if elapsed > part * len(progress):
                progress.append(self.done())
                memory.append(own_bytes())
            if self.members and elapsed > next_kill:
                self.replace()
                kills += 1
                next_kill = elapsed + self.draw.uniform(*KILLS_S)
        self.ended.set()
        for thread in threads:
            thread.join(30)
        progress.append(self.done())
        memory.append(own_bytes())
        return self.judged(kills, memory, progress)

    def replace(self) -> None:
        self.members.pop(self.draw.randrange(len(self.members))).kill()
        self.members.append(Member(self.coordinator.address))

    def judged(self, kills: int, memory: list[int], progress: list[int]) -> dict[str, object]:
        grown = memory[-1] - memory[len(memory) // 3]
        if grown > GROWTH_MAX:
            self.failures.append(f"memory has grown by {grown >> 20} MiB: {memory}")
        idle = [n for n, (some, more) in enumerate(zip(progress, progress[1:])) if more <= some]
        if idle:
            self.failures.append(f"nothing was done in the parts {idle}")
        if self.members and not kills:
            self.failures.append("no member was killed")
        codes = sum((asker.codes for asker in self.askers), Counter())
        return {
            "seconds": self.given.seconds,
            "seed": self.given.seed,
            "threads": self.given.threads,
            "killed": kills,
            "hits": sum(asker.hits for asker in self.askers),
            "codes": dict(sorted(codes.items())),
            "slowest_s": round(max(asker.slowest_s for asker in self.askers), 2),
            "own_mib": [bytes_ >> 20 for bytes_ in memory],
            "failures": self.failures,
        }

    def end(self) -> None:
        for member in self.members:
            member.kill()
        self.store.close()
        self.coordinator.close()


def own_bytes() -> int:
    """Memory that is this process's alone: what the store lends has a bound of its own."""
    with open("/proc/self/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) << 10


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--seconds", type=float, default=600)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--threads", type=int, default=4)
    flags.add_argument("--members", type=int, default=2)
    soak = Soak(flags.parse_args())
    told = soak.run()
    soak.end()
    print(json.dumps(told))
    sys.exit(1 if told["failures"] else 0)


if __name__ == "__main__":
    main()
