"""What a model and the store cost each other on one GPU: `beside.py [--mib 4] [--odd 0] [--tokens 8192] [--seconds 2]`. One
JSON object a line.

A model is multiplications of large matrices, queued one behind the other: of as many rows as there are tokens, many as in
prefill, or few as in decoding. Beside it another thread gets objects of the
store, which are in this process, into tensors, or has torch copy as many bytes from pinned memory. Told are the rate of the
multiplications, alone and beside either, and how long gets take, alone and beside them: the middle and the 99th of a hundred.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable

import lunette
import torch

OBJECTS = 32
SIDE = 8192
MIB = 1 << 20


class Model:
    def __init__(self, tokens: int) -> None:
        shape = {"dtype": torch.bfloat16, "device": "cuda"}
        self.one, self.other = torch.randn(tokens, SIDE, **shape), torch.randn(SIDE, SIDE, **shape)
        self.out = torch.empty(tokens, SIDE, **shape)

    def run(self, seconds: float) -> float:
        """Multiplies for so long: operations per second, in 10^12."""
        torch.cuda.synchronize()
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(20):
                torch.matmul(self.one, self.other, out=self.out)
            count += 20
            torch.cuda.current_stream().synchronize()
        return 2 * SIDE**2 * len(self.one) * count / (time.perf_counter() - began) / 1e12


class Copies:
    """Calls one thing over and over, until it is ended."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call, self.took, self.is_over = call, [], False
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        turn = 0
        while not self.is_over:
            began = time.perf_counter()
            self.call(turn % OBJECTS)
            self.took.append(time.perf_counter() - began)
            turn += 1

    def __enter__(self) -> Copies:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self.thread.join()

    def told(self, size: int) -> dict[str, float]:
        took = sorted(self.took)
        return {
            "gb_per_s": round(size * len(took) / sum(took) / 1e9, 1),
            "p50_us": round(statistics.median(took) * 1e6, 1),
            "p99_us": round(took[len(took) * 99 // 100] * 1e6, 1),
        }


def told(what: str, **more: object) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--mib", type=int, default=4)
    flags.add_argument("--odd", type=int, default=0, help="so many bytes more: with 1, a core sums, and the copy engine copies")
    flags.add_argument("--tokens", type=int, default=SIDE)
    flags.add_argument("--seconds", type=float, default=2)
    given = flags.parse_args()
    size = given.mib * MIB + given.odd
    model = Model(given.tokens)
    rooms = torch.empty((OBJECTS, size), dtype=torch.uint8, device="cuda")
    source = torch.zeros((OBJECTS, size), dtype=torch.uint8).pin_memory()
    aside = torch.cuda.Stream()
    with lunette.Coordinator() as coordinator:
        memory = {"memory_bytes": 2 * OBJECTS * size + (256 << 20)}
        with lunette.Store.member([coordinator.address], **memory) as store:
            for n in range(OBJECTS):
                store.put(str(n), rooms[n])

            def get(n: int) -> None:
                # Of the stream that is current; else behind all that the model has queued.
                with torch.cuda.stream(aside):
                    assert store.get_into(str(n), rooms[n]) == size

            def copy(n: int) -> None:
                with torch.cuda.stream(aside):
                    rooms[n].copy_(source[n], non_blocking=True)
                    aside.synchronize()

            # What is first needed is made, and memory pinned.
            for _ in range(20):
                for n in range(OBJECTS):
                    get(n)
            model.run(0.5)
            told("model alone", tflops=round(model.run(given.seconds), 1))
            for name, call in (("gets", get), ("torch's copies", copy)):
                with Copies(call) as alone:
                    time.sleep(given.seconds / 2)
                told(f"{name} alone", bytes=size, **alone.told(size))
                with Copies(call) as beside:
                    rate = model.run(given.seconds)
                told(f"{name} beside the model", bytes=size, tflops=round(rate, 1), **beside.told(size))


if __name__ == "__main__":
    main()
