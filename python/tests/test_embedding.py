"""What the store is to the process that it runs in: its end, forks, signals, other threads."""

import os
import subprocess
import sys
import threading

import pytest

import lunette

STARTED = """
import lunette, os, signal, sys, threading
coordinator = lunette.Coordinator()
store = lunette.Store.member([coordinator.address], memory_bytes=64 << 20)
store.put("key", b"value")
"""


def run(program: str) -> str:
    # Later versions of Python warn of forks beside threads, which is what some tests are about.
    quiet = ["-W", "ignore::DeprecationWarning"]
    command = [sys.executable, *quiet, "-c", STARTED + program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    assert ran.stderr == ""
    return ran.stdout.strip()


def test_an_interpreter_ends_with_open_stores():
    assert run("print('end')") == "end"
    assert run("import gc; store = coordinator = None; gc.collect(); print('end')") == "end"
    assert run("print('end', flush=True); os._exit(0)") == "end"


def test_a_child_of_a_fork_is_refused_and_ends():
    child = """
child = os.fork()
if child == 0:
    try:
        store.get("key")
        os._exit(1)
    except lunette.Closed:
        pass
    store = coordinator = None
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(store.get("key").decode())
"""
    assert run(child) == "value"


def test_a_call_that_waits_is_ended_by_a_signal():
    # The member is in a process that stands still, so that nothing comes.
    waits = """
address, member = store.address, str(os.getpid())
child = os.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", '''
import lunette, sys, time
client = lunette.Store.connect([sys.argv[1]], timeout_s=30)
client.get("key")
import os, signal
os.kill(int(sys.argv[2]), signal.SIGSTOP)
tasks = f"/proc/{sys.argv[2]}/task"
def state(task):
    with open(f"{tasks}/{task}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]
while any(state(task) != "T" for task in os.listdir(tasks)):
    time.sleep(0.001)
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
room = bytearray(5)
begun = time.monotonic()
asks = (
    lambda: client.get("key"),
    lambda: client.get_into("key", room),
    lambda: client.put("other", bytes(5)),
    lambda: client.upsert("other", bytes(100_000)),
)
for ask in asks:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        ask()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
# Long before its time is over, and nothing comes into the memory any more.
assert time.monotonic() - begun < 10
os.kill(int(sys.argv[2]), signal.SIGCONT)
time.sleep(0.5)
assert room == bytes(5)
assert client.get("key") == b"value"
os._exit(0)
''', address, member])
os.waitpid(child, 0)
"""
    assert run(waits) == "\n".join(["interrupted"] * 4)


def test_a_closed_store_says_so(coordinator):
    store = lunette.Store.member([coordinator.address], memory_bytes=16 << 20)
    store.close()
    store.close()
    for ask in [lambda: store.get("key"), lambda: store.put("key", b""), lambda: store.address]:
        with pytest.raises(lunette.Closed):
            ask()


def test_calls_during_close_end(coordinator):
    store = lunette.Store.member([coordinator.address], memory_bytes=16 << 20)
    ended = []

    def ask():
        try:
            while True:
                store.upsert("key", b"value" * 1000)
        except lunette.StoreError as error:
            ended.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while store.get("key") is None and all(thread.is_alive() for thread in threads):
        pass
    store.close()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 3


def test_programs_are_started_beside_it(member):
    assert subprocess.run(["true"]).returncode == 0
    assert os.system("true") == 0
