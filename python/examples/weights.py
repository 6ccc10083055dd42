"""Weights from one program to N receivers, which feed each other: `python weights.py [N] [MIB]`, 4 of 64 MiB by default.

Each receiver is a process of its own, as the ranks of an inference engine are, and says how long it took. On several hosts
the coordinator is `lunette cluster coordinator`, or etcd, and all have the same secret.
"""

import subprocess
import sys
import time

import lunette
from lunette.p2p import ObjectStore


def receive(coordinator: str, rank: str) -> None:
    with ObjectStore([coordinator]) as store:
        began = time.monotonic()
        with store.receive("model/step-1", timeout_s=600) as held:
            took = time.monotonic() - began
            size = held.progress().len_bytes
            # One write for the whole line: the ranks share a pipe, and `print` may write the line's end by itself.
            sys.stdout.write(f"rank {rank}: {size >> 20} MiB in {took:.2f} s\n")
            sys.stdout.flush()
            # It serves what it has until it is told that all have it.
            sys.stdin.read()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    length = (int(sys.argv[2]) if len(sys.argv) > 2 else 64) << 20
    weights = {"embedding": bytearray(length // 2), "output": bytearray(length // 2)}
    with lunette.Coordinator() as coordinator, ObjectStore([coordinator.address]) as store:
        with store.register("model/step-1", weights, chunk_bytes=1 << 20):
            command = [sys.executable, __file__, "--receive", coordinator.address]
            ranks = [
                subprocess.Popen([*command, str(rank)], stdin=subprocess.PIPE) for rank in range(count)
            ]
            while store.find("model/step-1").whole <= count and all(rank.poll() is None for rank in ranks):
                time.sleep(0.05)
            for rank in ranks:
                rank.stdin.close()
            if any([rank.wait() for rank in ranks]):
                sys.exit("a receiver failed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--receive"]:
        receive(sys.argv[2], sys.argv[3])
    else:
        main()
