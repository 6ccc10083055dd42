"""What torch does with pages of a KV cache: `gpu.py DEVICE PAGES PAGE_BYTES`. One JSON object a line.

    {"what": "pages", "fragment_bytes": 65536, "gb_per_s": 1.0}     pages from pinned memory to the device, one by one
    {"what": "copies", ...}                                         4096 fragments to pinned memory, one by one
    {"what": "index_select", ...}                                   4096 fragments gathered on the device, then copied
    {"pending": "why nothing is measured"}

The example `gpu` of `lunette-bench` runs it, and prints its figures beside ours. Torch is no dependency: without it, or
without a device, it says so.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

FRAGMENTS = 4096
FRAGMENT_BYTES = (16 << 10, 32 << 10, 64 << 10)
RUNS = 10


def told(**what: object) -> None:
    print(json.dumps(what), flush=True)


def best(torch: Any, device: Any, work: Callable[[], None]) -> float:
    """Seconds of the best of some runs, each to its end on the device."""
    seconds = []
    for _ in range(RUNS):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def pages(torch: Any, device: Any, count: int, size: int) -> None:
    """The pages that are got from the store, to other places than they lay."""
    source = torch.zeros((count, size), dtype=torch.uint8).pin_memory()
    cache = torch.zeros((count, size), dtype=torch.uint8, device=device)
    places = [(page * 101 + 7) % count for page in range(count)]

    def work() -> None:
        for page, place in enumerate(places):
            cache[place].copy_(source[page], non_blocking=True)

    told(what="pages", fragment_bytes=size, gb_per_s=count * size / best(torch, device, work) / 1e9)


def fragments(torch: Any, device: Any, size: int) -> None:
    """Every other fragment of a cache, to a dense block of the host."""
    cache = torch.zeros((2 * FRAGMENTS, size), dtype=torch.uint8, device=device)
    room = torch.empty((FRAGMENTS, size), dtype=torch.uint8).pin_memory()
    index = torch.arange(0, 2 * FRAGMENTS, 2, device=device)
    places = range(0, 2 * FRAGMENTS, 2)

    def copies() -> None:
        for at, place in enumerate(places):
            room[at].copy_(cache[place], non_blocking=True)

    def index_select() -> None:
        room.copy_(cache.index_select(0, index), non_blocking=True)

    for name, work in (("copies", copies), ("index_select", index_select)):
        seconds = best(torch, device, work)
        told(what=name, fragment_bytes=size, gb_per_s=FRAGMENTS * size / seconds / 1e9)


def main(which: str, count: str, size: str) -> None:
    if which == "fake":
        return told(pending="torch has no fake device")
    try:
        import torch
    except ImportError as error:
        return told(pending=f"no torch: {error}")
    if not torch.cuda.is_available() or int(which) >= torch.cuda.device_count():
        return told(pending="torch finds no such device")
    device = torch.device("cuda", int(which))
    pages(torch, device, int(count), int(size))
    for fragment_bytes in FRAGMENT_BYTES:
        fragments(torch, device, fragment_bytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
