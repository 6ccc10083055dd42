"""Random calls of `mooncake.store`, and what came of each, one line of JSON for each.

Run by the test of the same calls under both wheels: `python calls.py SEED CALLS MASTER`. What is left out, since it
differs for a reason that `COMPATIBILITY.md` has: objects of no bytes from addresses, removals without `force`, and
stores that are closed.
"""

import ctypes
import hashlib
import json
import os
import random
import sys

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MEMORY_BYTES = 1 << 20
# Each object of a batch has a part of the memory of its own.
PART_BYTES = MEMORY_BYTES // 8
SIZES = [1, 2, 100, 4096, 5000, 70_000]
# Of three pieces, the last one may be as long as the longest object, and lies within the part.
PIECE_BYTES = 30_000
assert 2 * PIECE_BYTES + max(SIZES) <= PART_BYTES


class Calls:
    """A store, memory, and a source of arguments."""

    def __init__(self, store, seed):
        self.store = store
        self.draw = random.Random(seed)
        self.bytes = ctypes.create_string_buffer(self.draw.randbytes(MEMORY_BYTES), MEMORY_BYTES)
        self.at = ctypes.addressof(self.bytes)
        self.others = ctypes.create_string_buffer(MEMORY_BYTES)
        # Where its master keeps objects of those who have gone, they are not this one's.
        self.prefix = seed

    def keys(self, most=4):
        return self.draw.sample([f"{self.prefix}/{n}" for n in range(8)], self.draw.randint(1, most))

    def key(self):
        return self.draw.choice([*self.keys(1) * 9, ""])

    def value(self):
        return self.draw.randbytes(self.draw.choice([*SIZES, 0]))

    def size(self):
        return self.draw.choice(SIZES)

    def place(self, part):
        return self.at + part * PART_BYTES

    def misfit(self, values):
        """The values; seldom, one too few."""
        return values[1:] if self.draw.random() < 0.05 else values

    def digest(self, parts):
        return hashlib.sha256(self.bytes.raw[: parts * PART_BYTES]).hexdigest()[:12]

    def config(self):
        if self.draw.random() < 0.8:
            return ()
        config = ReplicateConfig()
        for name, values in (
            ("replica_num", [0, 1, 2]),
            ("group_ids", [None, ["g"], ["g", "h"]]),
            ("soft_pin_ttl_ms", [None, None, 5]),
            ("nof_replica_num", [0, 0, 1]),
        ):
            setattr(config, name, self.draw.choice(values))
        return (config,)

    # --- One call each ---

    def put(self):
        return self.store.put(self.key(), self.value(), *self.config())

    def upsert(self):
        return self.store.upsert(self.key(), self.value())

    def put_batch(self):
        keys = self.keys()
        return self.store.put_batch(keys, self.misfit([self.value() for _ in keys]))

    def upsert_batch(self):
        keys = self.keys()
        return self.store.upsert_batch(keys, [self.draw.randbytes(self.size()) for _ in keys])

    def put_parts(self):
        return self.store.put_parts(self.key(), *[self.draw.randbytes(self.size()) for _ in "ab"])

    def put_from(self):
        return self.store.put_from(self.key(), self.place(0), self.size())

    def upsert_from(self):
        return self.store.upsert_from(self.key(), self.place(1), self.size())

    def batch_put_from(self):
        keys = self.keys()
        places = [self.place(n) for n in range(len(keys))]
        sizes = self.misfit([self.size() for _ in keys])
        return self.store.batch_put_from(keys, places, sizes, *self.config())

    def batch_upsert_from(self):
        keys = self.keys()
        places = [self.place(n) for n in range(len(keys))]
        return self.store.batch_upsert_from(keys, places, [self.size() for _ in keys])

    def pieces(self, keys):
        """One to three pieces of each object, in its part of the memory."""
        counts = [self.draw.choice([1, 2, 3]) for _ in keys]
        places = [
            [self.place(part) + piece * PIECE_BYTES for piece in range(count)]
            for part, count in enumerate(counts)
        ]
        sizes = [[self.draw.choice([1, 50, 4096, 30_000]) for _ in range(count)] for count in counts]
        return places, sizes

    def batch_put_from_multi_buffers(self):
        keys = self.keys()
        places, sizes = self.pieces(keys)
        sizes[0] = self.misfit(sizes[0])
        config = ReplicateConfig()
        config.prefer_alloc_in_same_node = self.draw.random() < 0.5
        return self.store.batch_put_from_multi_buffers(keys, places, sizes, config)

    def get(self):
        return hashlib.sha256(self.store.get(self.key())).hexdigest()[:12]

    def get_batch(self):
        got = self.store.get_batch(self.keys())
        return [hashlib.sha256(each).hexdigest()[:12] for each in got]

    def get_buffer(self):
        got = self.store.get_buffer(self.key())
        return None if got is None else [got.size(), len(got), hash_of(got)]

    def batch_get_buffer(self):
        got = self.store.batch_get_buffer(self.keys())
        return [None if each is None else [len(each), hash_of(each)] for each in got]

    def get_into(self):
        return self.store.get_into(self.key(), self.place(0), self.size()), self.digest(1)

    def batch_get_into(self):
        keys = self.keys()
        places = [self.place(n) for n in range(len(keys))]
        sizes = self.misfit([self.size() for _ in keys])
        return self.store.batch_get_into(keys, places, sizes), self.digest(4)

    def batch_get_into_multi_buffers(self):
        keys = self.keys()
        places, sizes = self.pieces(keys)
        # With more room than an object needs, the original gets nothing.
        for index, key in enumerate(keys):
            wanted = self.store.get_size(key)
            last = wanted - sum(sizes[index][:-1])
            if last > 0:
                sizes[index][-1] = last
            elif wanted > 0:
                places[index], sizes[index] = places[index][:1], [wanted - (wanted > 2)]
        return self.store.batch_get_into_multi_buffers(keys, places, sizes), self.digest(8)

    def ranges(self):
        keys = self.keys(2)
        sizes = {key: self.store.get_size(key) for key in keys}
        begun = self.store.batch_get_session_start(keys)
        present = [key for key in keys if sizes[key] > 0]
        places, lengths, offsets = [], [], []
        for part, key in enumerate(present):
            first = self.draw.randrange(sizes[key])
            length = self.draw.randint(1, sizes[key] - first)
            places.append([self.place(part)])
            lengths.append([length + (self.draw.random() < 0.1) * sizes[key]])
            offsets.append([first])
        got = self.store.batch_get_into_multi_buffer_ranges(present, places, lengths, offsets)
        ended = self.store.batch_get_session_end(keys)
        return begun, got, ended, self.digest(2)

    def put_session(self):
        keys = self.keys(3)
        sizes = {key: self.size() for key in keys}
        begun = self.store.batch_put_session_start(keys, list(sizes.values()))
        room = [key for key, code in zip(keys, begun) if code == 0]
        places, lengths, offsets = [], [], []
        for part, key in enumerate(room):
            first = sizes[key] // 2
            parts = [(0, first), (first, sizes[key] - first)] if first else [(0, 1)]
            self.draw.shuffle(parts)
            places.append([self.place(part) + begin for begin, _ in parts])
            lengths.append([length for _, length in parts])
            offsets.append([begin for begin, _ in parts])
        written = self.store.batch_put_from_multi_buffer_ranges(room, places, lengths, offsets)
        names = ["batch_put_session_end", "batch_put_session_revoke"]
        return begun, written, getattr(self.store, self.draw.choice(names))(keys)

    def remove_by_regex(self):
        """As a rule of few keys; without `force` the original leaves those that were looked at."""
        first = self.draw.randint(0, 7)
        patterns = [f"^{self.prefix}/{first}$", f"{self.prefix}/[{first}-7]", f"^{self.prefix}/(?:[[:upper:]]|{first})"]
        pattern = self.draw.choice([*patterns * 3, "(", "a{2", "[a", "(?i)a", "(?P<n>a)", "zz", r"\\d{9}"])
        return self.store.remove_by_regex(pattern, True)

    def is_exist(self):
        return self.store.is_exist(self.key())

    def batch_is_exist(self):
        return self.store.batch_is_exist(self.keys())

    def get_size(self):
        return self.store.get_size(self.key())

    def get_replica_desc(self):
        return [told_of(copy) for copy in self.store.get_replica_desc(self.key())]

    def batch_get_replica_desc(self):
        told = self.store.batch_get_replica_desc(self.keys())
        return {key: [told_of(copy) for copy in told[key]] for key in sorted(told)}

    def remove(self):
        return self.store.remove(self.key(), True)

    def batch_remove(self):
        return self.store.batch_remove(self.keys(), True)

    def register_buffer(self):
        part, size = self.draw.randrange(8), self.draw.choice([1, PART_BYTES, 2 * PART_BYTES])
        place = ctypes.addressof(self.others) + part * PART_BYTES
        return self.store.register_buffer(place, min(size, (8 - part) * PART_BYTES))

    def unregister_buffer(self):
        place = ctypes.addressof(self.others) + self.draw.randrange(8) * PART_BYTES
        return self.store.unregister_buffer(place)


def told_of(copy):
    kinds = [copy.is_memory_replica(), copy.is_disk_replica(), copy.is_local_disk_replica()]
    return [copy.status.name, kinds, copy.get_memory_descriptor().buffer_descriptor.size]


def hash_of(handle):
    return hashlib.sha256(ctypes.string_at(handle.ptr(), handle.size())).hexdigest()[:12]


NAMES = sorted(
    name
    for name in vars(Calls)
    if name in ("ranges", "put_session") or not name.startswith("_") and hasattr(MooncakeDistributedStore, name)
)


def main(seed, count, master):
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master)
    print(json.dumps(["setup", code]), flush=True)
    if code == 0:
        calls = Calls(store, seed)
        print(json.dumps(["register_buffer", store.register_buffer(calls.at, MEMORY_BYTES)]))
        for _ in range(count):
            name = calls.draw.choice(NAMES)
            print(json.dumps([name, getattr(calls, name)()]))
    sys.stdout.flush()
    # The original does not always survive its own end.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
