"""Objects that stores pass on to each other."""

import array
import asyncio
import doctest
import fcntl
import gc
import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import pytest

import lunette
from lunette import p2p
from lunette.aio import AsyncObjectStore
from lunette.p2p import NameTaken, NotFound, ObjectStore, Part, Tensor, shard

numpy = pytest.importorskip("numpy")

LONG_S = 60.0
# Small ones, so that objects of tests have many.
CHUNK = 4096


def numbers(*shape, dtype="float32"):
    count = int(numpy.prod(shape))
    return (numpy.arange(count) % 251).astype(dtype).reshape(shape)


def test_the_example_does_as_it_says():
    assert doctest.testmod(p2p).failed == 0


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "int32", "float64", "uint64"])
def test_tensors_come_as_they_are(origin, other, name, dtype):
    given = {"w": numbers(33, 65, dtype=dtype), "scalar": numpy.array(7, dtype=dtype), "none": numpy.zeros((0, 3), dtype)}
    with origin.register(name, given, chunk_bytes=CHUNK), other.receive(name, timeout_s=LONG_S) as held:
        for key, tensor in given.items():
            got = numpy.asarray(held[key])
            if dtype == "float16":
                # No buffer is cast to these: they are had as bytes.
                got = numpy.frombuffer(held[key], dtype).reshape(tensor.shape)
            assert got.size == tensor.size
            if tensor.size:
                assert got.dtype == tensor.dtype and got.shape == tensor.shape
                assert (got == tensor).all()
        assert {tensor.name: tensor.shape for tensor in held.tensors} == {
            "w": (33, 65),
            "scalar": (),
            "none": (0, 3),
        }
        assert held.progress() == (held.progress().len_bytes,) * 2 + (held.progress().holders,)


def test_buffers_come_into_memory_that_is_given(origin, other, name):
    buffers = [numbers(3 * CHUNK + 5, dtype="uint8"), array.array("d", [1.5, 2.5]), b"bytes", bytearray()]
    with origin.register(name, buffers, chunk_bytes=CHUNK) as registered:
        found = other.find(name)
        assert found.version == registered.version and found.chunk_bytes == CHUNK
        assert found.buffers == [3 * CHUNK + 5, 16, 5, 0] and found.size == 3 * CHUNK + 26
        assert (found.whole, found.holders) == (1, 1)
        into = [bytearray(size) for size in found.buffers]
        with other.receive(name, into, version=found.version, timeout_s=LONG_S) as held:
            assert [bytes(each) for each in into] == [bytes(memoryview(each)) for each in buffers]
            assert held.buffers == into and held.name == name
            assert other.held == [held]
        assert other.held == [] and other.layout(name) == []
        assert [found.name for found in other.objects("test/test_buffers")] == [name]
    assert other.find(name) is None and other.layout(name) is None
    assert other.objects("test/test_buffers") == []


def test_what_is_there_already_is_not_fetched(coordinator, name):
    # Over connections, where who serves counts.
    given = numbers(16 * CHUNK, dtype="uint8")
    with ObjectStore([coordinator.address]) as one, ObjectStore([coordinator.address]) as two:
        with one.register(name, [given], chunk_bytes=CHUNK):
            into = bytearray(given)
            into[0] ^= 1
            held = two.begin_receive(name, [into], resume=True)
            assert held.progress().held_bytes >= 15 * CHUNK
            held.wait(LONG_S)
            assert into == bytes(given)
        name += "/w"
        with one.register(name, {"w": given}, chunk_bytes=CHUNK):
            # Rows of it, of which chunks are whole.
            room = numpy.copy(given)
            room[0] ^= 1
            part = Part(room[: 8 * CHUNK], start=(0,))
            held = two.begin_receive_tensors(name, {"w": part}, resume=True)
            assert held.progress().held_bytes >= 7 * CHUNK
            held.wait(LONG_S)
            assert (room == given).all()


def test_a_rank_receives_its_part_however_it_is_laid_out(origin, other, name):
    whole = numbers(48, 96)
    # The origin has it in two halves, and something else between.
    halves = {
        "0": numpy.ascontiguousarray(whole[:, :40]),
        "1": numpy.ascontiguousarray(whole[:, 40:]),
    }
    tensors = [
        Tensor("w", "F32", (48, 96), 0, 0, (0, 0), (48, 40)),
        Tensor("w", "F32", (48, 96), 1, 0, (0, 40), (48, 56)),
        Tensor("b", "F32", (48, 40), 0, 0),
    ]
    with origin.register(name, list(halves.values()), tensors=tensors, chunk_bytes=CHUNK):
        assert sorted(other.layout(name)) == sorted(tensors)
        rows, typed = numpy.zeros((12, 96), "float32"), {}
        # Each rank has some rows, in memory of its own; the last one in fresh memory.
        for rank in range(4):
            room = numpy.zeros((12, 96), "float32") if rank < 3 else None
            wanted = {"w": shard(other.layout(name)[1], rank, 4, memory=room), "b": None}
            with other.receive_tensors(name, wanted, timeout_s=LONG_S) as held:
                rows, typed = numpy.asarray(held["w"]), numpy.asarray(held["b"])
                assert (rows == whole[12 * rank : 12 * rank + 12]).all()
                assert (typed == whole[:, :40]).all()
        # A column, which memory of bytes takes as it lies, and keeps nothing else.
        column = bytearray(48 * 4)
        wanted = {"w": Part(column, start=(0, 39), size=(48, 1))}
        with other.receive_tensors(name, wanted, keep=False, timeout_s=LONG_S):
            assert (numpy.frombuffer(column, "float32") == whole[:, 39]).all()
            found = origin.find(name)
            assert (found.whole, found.holders) == (1, 1)


def test_what_does_not_fit_is_refused_and_nothing_is_lost(origin, other, name):
    given = numbers(8, 8)
    with origin.register(name, {"w": given}) as held:
        with pytest.raises(NameTaken, match="taken"):
            other.register(name, {"w": given})
        for into in ([bytearray(255)], [bytearray(256)] * 2, []):
            with pytest.raises(lunette.Invalid):
                other.receive(name, into)
        for wanted in (
            {"v": None},
            {"w": numpy.zeros((8, 8), "int32")},
            {"w": Part(numpy.zeros((4, 8), "float32"), start=(5, 0))},
            {"w": Part(numpy.zeros((4, 8), "float32"), start=(0,))},
            {},
        ):
            with pytest.raises(lunette.Invalid):
                other.receive_tensors(name, wanted)
        for wanted in (
            {"w": bytearray(255)},
            {"w": Part(start=(1, 1))},
            {"w": Part(dtype="F33")},
            {"w": bytes(256)},
            {"w": numpy.zeros((8, 16), "float32")[:, ::2]},
        ):
            with pytest.raises(ValueError):
                other.receive_tensors(name, wanted)
        with pytest.raises(NotFound):
            other.receive(name, version=held.version ^ 1)
        assert other.held == [] and other.find(name).holders == 1
        newer = other.register(name, {"w": given + 1}, replace=True)
        assert origin.find(name).version == newer.version != held.version
        newer.close()
    with pytest.raises(NotFound):
        other.receive(name)
    for asks in (
        lambda: origin.register("a b", [b"x"]),
        lambda: origin.register(name, []),
        lambda: origin.register(name, [b""]),
        lambda: origin.register(name, [b"x"], chunk_bytes=1000),
        lambda: origin.register(name, [b"abcd"], tensors=[Tensor("w", "F32", (2,))]),
        lambda: origin.register(name, [b"abcd"], tensors=[Tensor("w", "F33", (1,))]),
    ):
        with pytest.raises((lunette.Invalid, ValueError)):
            asks()
    assert origin.held == []


def test_memory_is_kept_until_it_is_let_go(origin, other, name):
    given, into = bytearray(3 * CHUNK), bytearray(3 * CHUNK)
    origin.register(name, [given], chunk_bytes=CHUNK)
    gc.collect()
    # Nobody has named it, and it is held all the same.
    held = other.receive(name, [into], timeout_s=LONG_S)
    for memory in (given, into):
        with pytest.raises(BufferError):
            memory.append(0)
    held.close()
    held.close()
    del held
    into.append(0)
    with pytest.raises(BufferError):
        given.append(0)
    for mine in origin.held:
        if mine.name == name:
            mine.close()
    del mine
    gc.collect()
    given.append(0)


def test_types_that_memory_cannot_tell_are_told(origin, other, name):
    class Opaque:
        """An array that is no buffer, as those of other libraries are."""

        def __init__(self, of):
            self.of = of

        def __dlpack__(self, **how):
            return self.of.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.of.__dlpack_device__()

    weights = numbers(16, 32, dtype="uint8")
    with pytest.raises(ValueError):
        origin.register(name, {"w": Part(weights, dtype="F8_E4M3", size=(16, 31))})
    given = {"w": Part(weights, dtype="F8_E4M3"), "v": Opaque(numbers(5, 3))}
    with origin.register(name, given) as registered:
        assert registered.tensors == [Tensor("v", "F32", (5, 3), 1), Tensor("w", "F8_E4M3", (16, 32), 0)]
        room = Opaque(numpy.zeros((5, 3), "float32"))
        with other.receive_tensors(name, {"w": None, "v": room}, timeout_s=LONG_S) as held:
            assert held["v"] is room and (room.of == numbers(5, 3)).all()
            assert held["w"] == weights.tobytes() and "w" in held and "u" not in held


def test_receivers_are_holders_and_survive_the_origin(coordinator, name):
    given = numbers(64, 64)
    origin = ObjectStore([coordinator.address])
    other = ObjectStore([coordinator.address], lease_ttl_s=1)
    origin.register(name, {"w": given}, chunk_bytes=CHUNK)
    held = other.receive(name, timeout_s=LONG_S)
    origin.close()
    with ObjectStore([coordinator.address]) as third:
        found = third.find(name)
        assert found is None or found.version == held.version
        # Its name is written again by who survives, within a third of a lease.
        for _ in range(600):
            try:
                got = third.receive(name, timeout_s=LONG_S)
                break
            except NotFound:
                time.sleep(0.05)
        assert (numpy.asarray(got["w"]) == given).all()
    other.close()
    held.close()
    with pytest.raises(lunette.Closed):
        held.progress()


def test_safetensors_files_are_served_as_they_lie(origin, other, name, tmp_path):
    tensors = {"a": numbers(10, 20), "b": numbers(7, dtype="int64")}
    paths = []
    for key, tensor in tensors.items():
        dtype = {"float32": "F32", "int64": "I64"}[str(tensor.dtype)]
        told = {key: {"dtype": dtype, "shape": tensor.shape, "data_offsets": [0, tensor.nbytes]}}
        header = json.dumps(told).encode()
        header += b" " * (-len(header) % 8)
        paths.append(tmp_path / f"{key}.safetensors")
        paths[-1].write_bytes(struct.pack("<Q", len(header)) + header + tensor.tobytes())
    with origin.register(name, p2p.safetensors(*paths)) as registered:
        assert (numpy.asarray(registered["a"]) == tensors["a"]).all()
        part = Part(start=(2, 0), size=(3, 20))
        with other.receive_tensors(name, {"a": part, "b": None}, timeout_s=LONG_S) as held:
            assert (numpy.asarray(held["a"]) == tensors["a"][2:5]).all()
            assert (numpy.asarray(held["b"]) == tensors["b"]).all()
    for wrong in (b"short", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 8) + b"nothing!"):
        paths[0].write_bytes(wrong)
        with pytest.raises(lunette.Invalid, match="safetensors"):
            p2p.safetensors(paths[0])


def test_tasks_receive_and_are_cancelled(coordinator, name):
    given = numbers(64, 1024)

    async def spread():
        stores = [ObjectStore([coordinator.address]) for _ in range(3)]
        origin, *others = [AsyncObjectStore(store) for store in stores]
        async with await origin.register(name, {"w": given}, chunk_bytes=CHUNK) as registered:
            got = await asyncio.gather(*[each.receive(name, timeout_s=LONG_S) for each in others])
            for held in got:
                assert (numpy.asarray(held["w"]) == given).all()
                progress = await held.progress()
                assert progress.held_bytes == given.nbytes
            assert (await origin.find(name)).whole == 3
            assert [found.name for found in await origin.objects(name)] == [name]
            assert await origin.layout(name) == registered.held.tensors
            await asyncio.gather(*[held.close() for held in got * 2])
            rows = numpy.zeros((2, 1024), "float32")
            wanted = {"w": Part(rows, start=(1, 0))}
            async with await others[0].receive_tensors(name, wanted, timeout_s=LONG_S):
                assert (rows == given[1:3]).all()
        # Begun and given up: it is not held, and the name stays free.
        for turn in range(10):
            task = asyncio.create_task(origin.register(name, {"w": given}, chunk_bytes=CHUNK))
            for _ in range(turn):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await (await task).close()
            except asyncio.CancelledError:
                pass
        for _ in range(10_000):
            try:
                await (await others[0].register(name, {"w": given})).close()
                break
            except NameTaken:
                await asyncio.sleep(0.001)
        else:
            pytest.fail("what was given up is held")
        with pytest.raises(NotFound):
            await others[1].receive(name)
        for store in stores:
            assert store.held == []
            store.close()
        with pytest.raises(lunette.Closed):
            await origin.find(name)

    asyncio.run(spread())


def written(folder, **files):
    paths = []
    for name, content in files.items():
        paths.append(folder / name)
        paths[-1].write_bytes(content)
    return paths


def sealed(size):
    """A file of that size that nothing can be written to: whoever has it keeps it."""
    file = os.fdopen(os.memfd_create("sealed", os.MFD_ALLOW_SEALING), "wb")
    file.write(bytes(size))
    file.flush()
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return file


def test_files_are_registered_and_received(origin, other, coordinator, name, tmp_path):
    contents = {"one": numbers(300, 100).tobytes(), "two": b"short"}
    given = written(tmp_path, **contents)
    room = [tmp_path / "got-one", str(tmp_path / "got-two")]
    with origin.register_files(name, given, chunk_bytes=CHUNK) as registered:
        assert registered.paths == given and registered.buffers == []
        with other.receive_files(name, room, timeout_s=LONG_S) as held:
            held.sync()
            progress = held.progress()
            assert progress.held_bytes == progress.len_bytes == sum(map(len, contents.values()))
            assert held.paths == room and "one" not in held
            assert [pathlib.Path(path).read_bytes() for path in room] == list(contents.values())
            # From there into memory.
            registered.close()
            with ObjectStore([coordinator.address]) as third:
                for _ in range(600):
                    try:
                        got = third.receive(name, timeout_s=LONG_S)
                        break
                    except NotFound:
                        time.sleep(0.05)
                assert [bytes(buffer) for buffer in got.buffers] == list(contents.values())
        with pytest.raises(lunette.Closed):
            held.sync()


def test_files_that_are_there_are_gone_on_with(origin, other, name, tmp_path):
    content = numbers(300, 100).tobytes()
    with origin.register(name, [content], chunk_bytes=CHUNK):
        (room,) = written(tmp_path, got=content[: 5 * CHUNK] + bytes(len(content) * 2))
        with other.begin_receive_files(name, [room], resume=True) as held:
            assert held.progress().held_bytes >= 5 * CHUNK
            held.wait(LONG_S)
        assert room.read_bytes() == content


def test_files_that_are_not_received_leave_nothing(origin, other, name, tmp_path):
    room = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(NotFound):
        other.receive_files(name, room)
    with origin.register(name, [bytes(CHUNK), b"b"], chunk_bytes=CHUNK) as registered:
        with pytest.raises(NotFound):
            other.receive_files(name, room, version=registered.version + 1)
        for wrong in (room[:1], [room[0], room[0]], [room[0], tmp_path], [room[0], tmp_path / "no" / "such"]):
            with pytest.raises(lunette.Invalid):
                other.receive_files(name, wrong)
        with pytest.raises(lunette.Invalid):
            origin.register_files(name + "-files", [tmp_path / "none"])
    assert list(tmp_path.iterdir()) == [] and other.held == []


def test_a_file_that_takes_nothing_is_told(origin, other, name, tmp_path):
    content = bytes(range(256)) * 64
    with origin.register(name, [content], chunk_bytes=CHUNK), sealed(len(content)) as file:
        path = f"/proc/self/fd/{file.fileno()}"
        with pytest.raises(lunette.StoreError, match="not written") as told:
            other.receive_files(name, [path], timeout_s=LONG_S)
        assert not isinstance(told.value, lunette.TimedOut)
        assert other.held == []


def test_files_that_are_changed_are_served_no_more(origin, other, name, tmp_path):
    (path,) = written(tmp_path, weights=bytes(4 * CHUNK))
    with origin.register_files(name, [path], chunk_bytes=CHUNK) as held:
        held.wait(0)
        with open(path, "r+b") as file:
            file.seek(CHUNK + 1)
            file.write(b"other")
        # Whoever has bytes has those that were registered.
        with pytest.raises(lunette.StoreError):
            other.receive(name, timeout_s=0.5)
        for _ in range(6000):
            try:
                held.progress()
            except lunette.Corrupt as error:
                assert "changed" in str(error)
                break
            time.sleep(0.01)
        else:
            pytest.fail("nobody has seen it")
        with pytest.raises(lunette.Corrupt):
            held.wait()


def test_safetensors_files_are_registered_with_their_tensors(origin, other, name, tmp_path):
    tensor = numbers(10, 20)
    header = json.dumps({"a": {"dtype": "F32", "shape": [10, 20], "data_offsets": [0, tensor.nbytes]}}).encode()
    content = struct.pack("<Q", len(header)) + header + tensor.tobytes()
    paths = written(tmp_path, **{"notes.txt": b"notes", "a.safetensors": content})
    with origin.register_files(name, paths) as registered:
        assert [(tensor.name, tensor.buffer) for tensor in registered.tensors] == [("a", 1)]
        wanted = {"a": Part(start=(2, 0), size=(3, 20))}
        with other.receive_tensors(name, wanted, timeout_s=LONG_S) as held:
            assert (numpy.asarray(held["a"]) == tensor[2:5]).all()
    paths[1].write_bytes(b"none")
    with pytest.raises(lunette.Invalid, match="safetensors"):
        origin.register_files(name, paths)


def test_tasks_receive_into_files_and_are_cancelled(coordinator, name, tmp_path):
    content = numbers(64, 1024).tobytes()
    (given,) = written(tmp_path, given=content)
    room = tmp_path / "room"

    async def spread():
        with ObjectStore([coordinator.address]) as one, ObjectStore([coordinator.address]) as two:
            origin, other = AsyncObjectStore(one), AsyncObjectStore(two)
            async with await origin.register_files(name, [given], chunk_bytes=CHUNK):
                async with await other.receive_files(name, [room], timeout_s=LONG_S) as held:
                    await held.sync()
                    assert (await held.progress()).held_bytes == len(content)
                    assert room.read_bytes() == content and held.held.paths == [room]
                # Begun and given up: it is not held, and can be received again.
                for turn in range(10):
                    task = asyncio.create_task(other.begin_receive_files(name, [room]))
                    for _ in range(turn):
                        await asyncio.sleep(0)
                    task.cancel()
                    try:
                        await (await task).close()
                    except asyncio.CancelledError:
                        pass
                room.unlink(missing_ok=True)
                for _ in range(10_000):
                    try:
                        await (await other.receive_files(name, [room], timeout_s=LONG_S)).close()
                        break
                    except lunette.Invalid:
                        await asyncio.sleep(0.001)
                else:
                    pytest.fail("what was given up is held")
                assert room.read_bytes() == content

    asyncio.run(spread())


STARTED = """
import lunette, os, signal, subprocess, sys, time
from lunette.p2p import ObjectStore
"""


def run(program, *arguments):
    quiet = ["-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *quiet, "-c", STARTED + program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    assert ran.stderr == ""
    return ran.stdout.strip()


def test_an_interpreter_ends_with_what_is_held():
    held = """
coordinator = lunette.Coordinator()
one, two = ObjectStore([coordinator.address]), ObjectStore([coordinator.address])
one.register("o", [b"bytes"])
held = two.receive("o")
print(bytes(held.buffers[0]))
"""
    assert run(held) == "b'bytes'"
    dropped = "import gc; one = two = held = coordinator = None; gc.collect(); print('end')"
    assert run(held + dropped).endswith("end")


def test_a_child_of_a_fork_is_refused(origin, name):
    with origin.register(name, [b"bytes"]) as held:
        child = os.fork()
        if child == 0:
            refused = 0
            for ask in (lambda: origin.find(name), held.progress, held.close, origin.close):
                try:
                    ask()
                except lunette.Closed:
                    refused += 1
            os._exit(0 if refused == 4 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert origin.find(name).version == held.version


def test_waiting_ends_with_its_time_or_a_signal(coordinator):
    # The only holder stands still.
    holder = """
store = ObjectStore([sys.argv[1]], lease_ttl_s=60)
store.register("still", [bytes(range(256)) * 1024], chunk_bytes=4096)
print("held", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", STARTED + holder, coordinator.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as still:
        try:
            assert still.stdout.readline() == b"held\n"
            waits = """
still = int(sys.argv[2])
os.kill(still, signal.SIGSTOP)
def state(task):
    with open(f"/proc/{still}/task/{task}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
while any(state(task) != "T" for task in os.listdir(f"/proc/{still}/task")):
    time.sleep(0.001)
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
room = bytearray(256 << 10)
with ObjectStore([sys.argv[1]]) as store:
    begun = time.monotonic()
    held = store.begin_receive("still", [room])
    for timeout_s in (0.0, 0.1):
        try:
            held.wait(timeout_s)
        except lunette.TimedOut as error:
            print("0 of 64 chunks" in str(error))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        held.wait()
    except KeyboardInterrupt:
        print("interrupted")
    held.close()
    # Nobody has the memory any more, long before anything else would have been over.
    room.append(0)
    assert time.monotonic() - begun < 30
    os.kill(still, signal.SIGCONT)
    with store.receive("still", timeout_s=60) as held:
        print(bytes(held.buffers[0]) == bytes(range(256)) * 1024)
"""
            assert run(waits, coordinator.address, str(still.pid)) == "True\nTrue\ninterrupted\nTrue"
        finally:
            still.kill()


def test_a_coordinator_that_does_not_answer_is_waited_for_until_a_signal():
    waits = """
import atexit
from lunette import p2p
from lunette.updates import Offer
here = lunette.Coordinator()
command = [sys.executable, "-c", '''
import lunette, sys
coordinator = lunette.Coordinator()
print(coordinator.address, flush=True)
sys.stdin.read()
''']
coordinator = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
address = coordinator.stdout.readline().strip()
store = ObjectStore([address])
os.kill(coordinator.pid, signal.SIGSTOP)
# On a busy machine its threads go on for a while.
os.waitpid(coordinator.pid, os.WUNTRACED)
atexit.register(coordinator.kill)
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
weights = bytearray(64 << 10)
tensors = [p2p.Tensor("w", "U8", (64 << 10,), 0, 0)]
asks = (
    lambda: ObjectStore([address]),
    lambda: store.find("o"),
    lambda: store.receive("o"),
    lambda: store.receive_tensors("o", {"w": None}),
    lambda: store.receive_files("o", ["/nowhere"]),
    # Of these the memory is lent by then.
    lambda: store.register("o", [weights], tensors=tensors),
    lambda: Offer(store, "u", [weights], tensors=tensors),
)
for ask in asks:
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        ask()
    except KeyboardInterrupt:
        # Long before the coordinator would have been given up.
        print("interrupted", time.monotonic() - begun < 1)
    # Nobody has the memory any more.
    weights.append(0)
    del weights[-1]
"""
    assert run(waits) == "\n".join(["interrupted True"] * 7)


def test_the_example_of_the_weights_runs():
    example = pathlib.Path(__file__).parents[1] / "examples" / "weights.py"
    ran = subprocess.run(
        [sys.executable, example, "2", "4"], capture_output=True, text=True, timeout=120, check=True
    )
    lines = sorted(line.partition(" in ")[0] for line in ran.stdout.splitlines())
    assert lines == ["rank 0: 4 MiB", "rank 1: 4 MiB"]


def test_who_has_no_secret_stays_on_loopback(coordinator):
    with pytest.raises(lunette.StoreError, match="loopback"):
        ObjectStore([coordinator.address], listen="0.0.0.0:0")
    with pytest.raises(lunette.Invalid, match="rack"):
        ObjectStore([coordinator.address], rack="a rack of a name that is too long")
    with pytest.raises(ValueError):
        ObjectStore([])


def test_a_coordinator_that_is_not_there_is_told(tmp_path):
    with lunette.Coordinator() as gone:
        address = gone.address
    with pytest.raises(lunette.Unavailable):
        ObjectStore([address])


def test_a_cluster_with_a_secret_takes_who_knows_it(tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text("c2VjcmV0IHRoYXQgbm9ib2R5IGtub3dzIGJ1dCB1cyE=\n")
    secret.chmod(0o600)
    with lunette.Coordinator(secret_file=secret) as coordinator:
        with (
            ObjectStore([coordinator.address], secret_file=secret) as one,
            ObjectStore([coordinator.address], secret_file=secret) as two,
            one.register(name, [b"bytes"]),
            two.receive(name, timeout_s=LONG_S) as held,
        ):
            assert bytes(held.buffers[0]) == b"bytes"
        with pytest.raises(lunette.StoreError):
            ObjectStore([coordinator.address])
