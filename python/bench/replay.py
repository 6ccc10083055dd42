"""Block hit ratio of a live cluster: members in this process serve a trace of requests.

    python replay.py TRACE --capacity-blocks 3000,10000 [--members 5] [--block-bytes 65536] [--requests N] [--chains]

The trace has a request a line, `{"hash_ids": [...]}`. Each request gets all of its blocks, in one call and in their
order, and puts those that were not there in another one, as engines do. A hit is a block that was there before. The
members' memory has room for so many blocks together. Some blocks may be there without the one before them, so that
nobody can use them: their mean share is printed beside, and how many there are in the end. With `--chains` each is put
behind the one before it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import lunette

# What an object takes beside its value: header, key, the arena's granule.
OVERHEAD_BYTES = 512
# Requests between two looks at what lacks the block before it; none in the first eighth, while memory fills.
LOOK_EVERY = 250


def serve(
    store: lunette.Store,
    requests: list[list[int]],
    value: bytes,
    rooms: list[bytearray],
    are_chains: bool,
) -> tuple[int, int, list[tuple[int, int]]]:
    """Blocks, those of them that were hits, and from time to time what is there and what of it lacks the one before."""
    blocks = hits = 0
    before: dict[int, int] = {}
    candidates: set[int] = set()
    looks = []
    for at_request, request in enumerate(requests):
        keys = [f"block/{block}" for block in request]
        found = store.get_all_into(list(zip(keys, rooms)))
        missed = [at for at, len_bytes in enumerate(found) if len_bytes is None]
        blocks += len(keys)
        hits += len(keys) - len(missed)
        if missed:
            behind = [keys[at - 1] if at and are_chains else None for at in missed]
            store.put_all(((keys[at], value) for at in missed), behind=behind)
        before.update(zip(request[1:], request))
        candidates.update(request)
        if (at_request + 1) % LOOK_EVERY == 0 or at_request + 1 == len(requests):
            candidates = present(store, candidates)
            if at_request >= len(requests) // 8:
                lost = sum(before.get(block, block) not in candidates for block in candidates)
                looks.append((len(candidates), lost))
    return blocks, hits, looks


def present(store: lunette.Store, candidates: set[int]) -> set[int]:
    """Those of the blocks that are there."""
    blocks = list(candidates)
    there = set()
    for at in range(0, len(blocks), 500):
        part = blocks[at : at + 500]
        found = store.exists([f"block/{block}" for block in part])
        there.update(block for block, is_there in zip(part, found) if is_there)
    return there


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--capacity-blocks", default="3000,10000")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--block-bytes", type=int, default=65536)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--chains", action="store_true")
    arguments = parser.parse_args()
    with arguments.trace.open() as trace:
        requests = [json.loads(line)["hash_ids"] for line in trace][: arguments.requests]
    value = bytes(arguments.block_bytes)
    longest = max(map(len, requests))
    rooms = [bytearray(arguments.block_bytes) for _ in range(longest)]
    for capacity in map(int, arguments.capacity_blocks.split(",")):
        memory = capacity * (arguments.block_bytes + OVERHEAD_BYTES) // arguments.members
        with lunette.Coordinator() as coordinator:
            members = [
                lunette.Store.member([coordinator.address], memory_bytes=memory)
                for _ in range(arguments.members)
            ]
            begun = time.monotonic()
            blocks, hits, looks = serve(members[0], requests, value, rooms, arguments.chains)
            took = time.monotonic() - begun
            there, lost = looks[-1]
            mean = sum(lost for _, lost in looks) / sum(there for there, _ in looks)
            print(
                f"{capacity} blocks, {arguments.members} members: hit ratio {hits / blocks:.4f}"
                f" of {blocks} blocks, {took:.1f} s; {mean:.2%} lack the one before,"
                f" {lost} of {there} in the end",
                flush=True,
            )
            for member in members:
                member.close()


if __name__ == "__main__":
    main()
