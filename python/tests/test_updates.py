"""Weights that ranks take in buckets."""

import asyncio
import doctest
import os
import subprocess
import sys
import threading

import pytest

import lunette
from lunette import updates
from lunette.aio import AsyncUpdate
from lunette.p2p import NameTaken, NotFound, ObjectStore, Part, Tensor, shard
from lunette.updates import Offer, Update

numpy = pytest.importorskip("numpy")

CHUNK = 4096
LAYERS, ROWS, COLUMNS = 12, 32, 64


@pytest.fixture(scope="module")
def trainer(origin):
    return origin


@pytest.fixture(scope="module")
def rank(other):
    return other


def weights():
    count = ROWS * COLUMNS
    return {
        f"layer.{n}": (numpy.arange(count, dtype="float32") + n * count).reshape(ROWS, COLUMNS)
        for n in range(LAYERS)
    }


def offer(store, name, **how):
    # Three layers a bucket.
    return Offer(store, name, weights(), bucket_bytes=3 * ROWS * COLUMNS * 4, chunk_bytes=CHUNK, **how)


def taken(update):
    """Copies of what comes, as a rank copies it to where it belongs."""
    model = {}
    for bucket in update:
        for key in bucket:
            assert key not in model
            model[key] = numpy.array(bucket[key])
    return model


def assert_is_right(model):
    expected = weights()
    assert sorted(model) == sorted(expected)
    for key, tensor in model.items():
        assert tensor.dtype == "float32" and (tensor == expected[key]).all(), key


def test_the_example_does_as_it_says():
    assert doctest.testmod(updates).failed == 0


@pytest.mark.parametrize("slots", [2, 3, 16])
def test_ranks_take_all_side_by_side(coordinator, trainer, name, slots):
    models = [None] * 3

    def take(index):
        with ObjectStore([coordinator.address]) as store, Update(store, name, slots=slots) as update:
            assert update.buckets == 4
            models[index] = taken(update)

    with offer(trainer, name) as offered:
        assert offered.buckets == 4
        threads = [threading.Thread(target=take, args=(index,)) for index in range(len(models))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for model in models:
        assert_is_right(model)
    assert trainer.find(name) is None


def test_a_rank_takes_its_parts_into_memory_that_is_given(trainer, rank, name):
    whole = Tensor("", "F32", (ROWS, COLUMNS))
    parts = {f"layer.{n}": shard(whole, 1, 4) for n in (0, 7)}
    with offer(trainer, name):
        staging = [bytearray(64 << 10) for _ in range(2)]
        with Update(rank, name, parts=parts, staging=staging, keep=True) as update:
            seen = []
            for bucket in update:
                (part, memory), = bucket.parts
                assert (part.start, part.size) == ((8, 0), (8, COLUMNS))
                assert memory == weights()[part.name][8:16].tobytes()
                assert (numpy.asarray(bucket[part.name]) == weights()[part.name][8:16]).all()
                seen.append((bucket.index, part.name))
            assert seen == [(0, "layer.0"), (2, "layer.7")]
        # Nobody has it any more.
        staging[0].append(0)
        for wrong, error in (
            (Part(start=(0, 0)), ValueError),
            (Part(start=(31, 0), size=(2, 1)), lunette.Invalid),
        ):
            with pytest.raises(error), Update(rank, name, parts={"layer.1": wrong}) as update:
                next(update)


def test_what_is_copied_is_not_looked_at(trainer, rank, name):
    with offer(trainer, name), Update(rank, name, slots=2) as update:
        first = next(update)
        view = first["layer.0"]
        second = next(update)
        assert (first.index, second.index) == (0, 1)
        with pytest.raises(ValueError):
            view.tolist()
        update.close()
        update.close()
        with pytest.raises(lunette.Closed):
            next(update)


def test_a_rank_that_dies_stops_nobody(coordinator, trainer, rank, name):
    dies = """
import lunette, os, sys
from lunette.p2p import ObjectStore
from lunette.updates import Update
update = Update(ObjectStore([sys.argv[1]]), sys.argv[2])
next(update)
print("one", flush=True)
os.kill(os.getpid(), 9)
"""
    with offer(trainer, name):
        command = [sys.executable, "-c", dies, coordinator.address, name]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as dying:
            with Update(rank, name) as update:
                model = {key: numpy.array(tensor) for key, tensor in next(update).items()}
                assert dying.stdout.read() == b"one\n"
                model.update(taken(update))
        assert dying.wait() == -9
    assert_is_right(model)


def test_what_is_no_update_is_refused(trainer, rank, name):
    with pytest.raises(NotFound):
        Update(rank, name)
    with trainer.register(name, [b"bytes"]):
        with pytest.raises(lunette.Invalid, match="no update"):
            Update(rank, name)
        with pytest.raises(NameTaken):
            offer(trainer, name)
    assert trainer.objects(name) == []
    with offer(trainer, name):
        for how in ({"slots": 1}, {"slots": 17}, {"staging": [bytearray(100)] * 2}):
            with pytest.raises(lunette.Invalid, match="slots"):
                Update(rank, name, **how)
        with pytest.raises(NameTaken):
            offer(trainer, name)
        with offer(trainer, name, replace=True), Update(rank, name) as update:
            assert_is_right(taken(update))
    with pytest.raises(lunette.Invalid):
        Offer(trainer, name, {})


def test_a_task_takes_buckets_and_is_cancelled(trainer, rank, name):
    async def take():
        model = {}
        async with AsyncUpdate(Update(rank, name, slots=2)) as update:
            # Given up again and again: what was lent meanwhile is lent again.
            for turn in range(20):
                task = asyncio.ensure_future(anext(update))
                for _ in range(turn % 4):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    bucket = await task
                except asyncio.CancelledError:
                    continue
                except StopAsyncIteration:
                    break
                model.update({key: numpy.array(tensor) for key, tensor in bucket.items()})
            async for bucket in update:
                model.update({key: numpy.array(tensor) for key, tensor in bucket.items()})
        return model

    with offer(trainer, name):
        assert_is_right(asyncio.run(take()))


def test_a_child_of_a_fork_is_refused(trainer, rank, name):
    with offer(trainer, name) as offered, Update(rank, name) as update:
        child = os.fork()
        if child == 0:
            refused = 0
            for ask in (lambda: next(update), update.close, offered.close):
                try:
                    ask()
                except lunette.Closed:
                    refused += 1
            os._exit(0 if refused == 3 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert_is_right(taken(update))
