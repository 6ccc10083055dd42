"""Block hit ratio of a live cluster: members in this process serve a trace of requests.

    python replay.py TRACE --capacity-blocks 3000,10000 [--members 5] [--block-bytes 65536] [--requests N]

The trace has a request a line, `{"hash_ids": [...]}`. Each request gets all of its blocks and puts those that were not
there, the last block first, as `lunette cache-sim` has it. A hit is a block that was there before. The members' memory
has room for so many blocks together; what they hold of that in the end is printed beside.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import lunette

# What an object takes beside its value: header, key, the arena's granule.
OVERHEAD_BYTES = 512
BATCH = 64


def serve(
    store: lunette.Store, requests: list[list[int]], value: bytes, rooms: list[bytearray]
) -> tuple[int, int]:
    """Blocks, and those of them that were hits."""
    blocks = hits = 0
    for request in requests:
        keys = [f"block/{block}" for block in reversed(request)]
        missed = []
        for at in range(0, len(keys), BATCH):
            part = keys[at : at + BATCH]
            found = store.get_all_into(list(zip(part, rooms[: len(part)])))
            missed += [key for key, len_bytes in zip(part, found) if len_bytes is None]
        blocks += len(keys)
        hits += len(keys) - len(missed)
        for at in range(0, len(missed), BATCH):
            store.put_all((key, value) for key in missed[at : at + BATCH])
    return blocks, hits


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--capacity-blocks", default="3000,10000")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--block-bytes", type=int, default=65536)
    parser.add_argument("--requests", type=int)
    arguments = parser.parse_args()
    with arguments.trace.open() as trace:
        requests = [json.loads(line)["hash_ids"] for line in trace][: arguments.requests]
    value = bytes(arguments.block_bytes)
    rooms = [bytearray(arguments.block_bytes) for _ in range(BATCH)]
    for capacity in map(int, arguments.capacity_blocks.split(",")):
        memory = capacity * (arguments.block_bytes + OVERHEAD_BYTES) // arguments.members
        with lunette.Coordinator() as coordinator:
            members = [
                lunette.Store.member([coordinator.address], memory_bytes=memory)
                for _ in range(arguments.members)
            ]
            begun = time.monotonic()
            blocks, hits = serve(members[0], requests, value, rooms)
            took = time.monotonic() - begun
            print(
                f"{capacity} blocks, {arguments.members} members: hit ratio {hits / blocks:.4f}"
                f" of {blocks} blocks, {took:.1f} s",
                flush=True,
            )
            for member in members:
                member.close()


if __name__ == "__main__":
    main()
