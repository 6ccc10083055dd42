"""Objects go in and come out, and bad input is refused without harm."""

import array
import contextlib
import os
import random
import threading
from pathlib import Path

import pytest

import lunette


def test_a_random_sequence_is_that_of_a_dictionary(store, key):
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    model = {}
    for step in range(300):
        name = f"{key}/{draw.randrange(8)}"
        value = draw.randbytes(draw.choice([1, 100, 4096, 70_000, 300_000]))
        what = draw.choice(["put", "upsert", "get", "size", "exists", "remove"])
        if what == "put":
            assert store.put(name, value) == (name not in model), (seed, step)
            model.setdefault(name, value)
        elif what == "upsert":
            assert store.upsert(name, value), (seed, step)
            model[name] = value
        elif what == "get":
            assert store.get(name) == model.get(name), (seed, step)
        elif what == "size":
            held = model.get(name)
            assert store.size(name) == (held and len(held)), (seed, step)
            (place,) = store.locate([name])
            assert (place and (place.size, len(place.nodes))) == (held and (len(held), 1)), (seed, step)
        elif what == "exists":
            assert store.exists([name, name]) == [name in model] * 2, (seed, step)
        else:
            assert store.remove([name]) == [model.pop(name, None) is not None], (seed, step)


def test_what_has_the_buffer_protocol_is_a_value(store, key):
    numbers = array.array("I", range(100))
    for at, value in enumerate([numbers, bytearray(b"abc"), memoryview(b"abcdef")[::2]]):
        store.put(f"{key}/{at}", value)
        assert store.get(f"{key}/{at}") == memoryview(value).tobytes()
    into = array.array("I", bytes(404))
    assert store.get_into(f"{key}/0", into) == 400
    assert into[:100] == numbers and into[100] == 0


def test_room_that_does_not_do_is_refused_and_untouched(store, key):
    store.put(key, b"abcdef")
    short = bytearray(b"-----")
    for room in [short, b"------", memoryview(bytearray(12))[::2]]:
        with pytest.raises(ValueError):
            store.get_into(key, room)
    assert short == b"-----"
    assert store.get_into(key + "/none", short) is None


def test_wrong_types_and_keys_are_refused(store):
    for wrong in [None, 1, 1.5, ["a"]]:
        with pytest.raises(TypeError):
            store.put(wrong, b"value")
        with pytest.raises(TypeError):
            store.put("key", wrong)
    with pytest.raises(lunette.StoreError):
        store.put(b"k" * 100_000, b"value")
    with pytest.raises(lunette.StoreError):
        store.put(b"", b"value")
    with pytest.raises(OverflowError):
        store.put(b"copies", b"value", copies=-1)
    with pytest.raises(lunette.StoreError):
        store.put(b"copies", b"value", copies=0)


def test_one_key_is_not_taken_for_those_that_its_letters_are(store):
    store.put("a", b"value")
    for one in ("ab", b"ab"):
        for batched in (store.exists, store.remove, store.locate):
            with pytest.raises(TypeError, match="keys are several"):
                batched(one)
    assert store.get("a") == b"value"


def test_threads_read_long_objects_whole_while_others_replace_them(store, key):
    long = 1 << 20
    store.put(key, bytes(long))
    failures = []
    ended = threading.Event()

    def replace(at):
        for number in range(40):
            value = bytes([at * 40 + number + 1]) * long
            if not store.upsert(key, value):
                failures.append((at, number))

    def read():
        room = bytearray(long)
        while not ended.is_set():
            (len_bytes,) = store.get_all_into([(key, room)])
            value = store.get(key)
            for whole in (room, value):
                if len_bytes != long or len(set(whole)) != 1:
                    failures.append((len_bytes, set(whole)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=replace, args=(at,)) for at in range(2)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in readers:
        thread.join()
    assert failures == []


def test_threads_share_a_store(store, key):
    def work(at):
        value = bytes([at]) * 100_000
        for step in range(20):
            store.put(f"{key}/{at}/{step}", value)
            assert store.get(f"{key}/{at}/{step}") == value
        done.append(at)

    done = []
    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]


def names_of_threads():
    return [Path(task, "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def test_members_and_clients_have_as_many_cores_as_they_are_told(key):
    draw = random.Random(11)
    lengths = [1, 4096, 70_000, 300_000, 1 << 20]
    values = {f"{key}/{n}": draw.randbytes(lengths[n % 5]) for n in range(60)}
    before = names_of_threads().count("lunette-2")
    with contextlib.ExitStack() as opened:
        coordinator = opened.enter_context(lunette.Coordinator())
        among = [coordinator.address]
        member = opened.enter_context(lunette.Store.member(among, memory_bytes=96 << 20, cores=3))
        assert names_of_threads().count("lunette-2") == before + 1
        client = opened.enter_context(lunette.Store.connect([member.address], cores=2))
        joined = opened.enter_context(lunette.Store.join(among, cores=2))
        assert member.put_all(list(values.items())[:30]) == [True] * 30
        assert client.put_all(list(values.items())[30:]) == [True] * 30
        for store in (member, client, joined):
            rooms = [(name, bytearray(len(value))) for name, value in values.items()]
            assert store.get_all_into(rooms) == [len(value) for value in values.values()]
            assert [bytes(room) for _, room in rooms] == list(values.values())
            assert store.exists([*values, key]) == [True] * 60 + [False]
        assert all(joined.get(name) == value for name, value in values.items())
        assert client.remove(list(values)) == [True] * 60
        assert member.exists(list(values)) == [False] * 60
    for cores in (0, 257):
        with pytest.raises(ValueError, match="1 to 256"):
            lunette.Store.join(among, cores=cores)


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError):
        lunette.Store.connect([address])
    with pytest.raises(ValueError):
        lunette.Coordinator(address)


def test_nobody_listens_beyond_loopback(coordinator):
    with pytest.raises(lunette.StoreError, match="loopback"):
        lunette.Coordinator("0.0.0.0:0")
    with pytest.raises(lunette.StoreError, match="loopback"):
        lunette.Store.member([coordinator.address], memory_bytes=1 << 20, listen="0.0.0.0:0")


def test_without_rdma_devices_objects_go_as_ever(coordinator, key):
    folder = "/sys/class/infiniband"
    present = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    assert sorted(lunette.rdma_devices()) == present
    for devices in ["all", ["nobody_0", "nobody_1"], "nobody_0, nobody_1"]:
        with lunette.Store.join([coordinator.address], rdma=devices) as store:
            store.upsert(key, bytes(200_000))
            into = bytearray(b"-" * 200_000)
            with store.register(into) as landing:
                assert landing.size == 200_000
                with pytest.raises(lunette.Invalid):
                    store.register(memoryview(into)[10:])
                assert store.get_into(key, into) == 200_000
            landing.close()
            assert into == bytes(200_000)
    with pytest.raises(TypeError):
        lunette.Store.join([coordinator.address], rdma=7)
    with pytest.raises(ValueError):
        store.register(b"read-only")
