"""Measuring `lunette transfer bench` and another transfer engine by turns, in one run.

A script of a rival says how its serving side is started and how its asking side moves a row once; see
`beside_mooncake.py` and `beside_nixl.py`. Both sides have one process that serves memory and one that reads
and writes it, all on the same CPUs. Each row is measured in pairs, one after the other; what is shown is
the median of each side and of the pairs' ratios.
"""
import json
import statistics
import subprocess
import sys
import time

PAIRS = 7
SECONDS = 1
MEMORY = 64 << 20
# Bytes of a request, requests of a batch, and whether it writes.
ROWS = [(4096, 1, False), (4096, 1, True), (4096, 128, False), (4096, 128, True),
        (1 << 20, 1, False), (1 << 20, 1, True), (16 << 20, 1, False), (16 << 20, 1, True)]


def start(script, *arguments, environment=None):
    """A process of the rival's."""
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([sys.executable, script, *arguments], stdin=subprocess.PIPE,
                            env=environment, **quiet)


def answer(process, beginning="["):
    """The next line that is for us: a library may write its own between them."""
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    sys.exit("a process of the rival's ended")


def answer_rows(prepare):
    """In the asking process: answers each line of standard input, a row, with requests per second and the
    p50 of a batch. `prepare(row)` gives what moves the row once."""
    print("ready", flush=True)
    for line in sys.stdin:
        row = json.loads(line)
        once = prepare(row)
        once()
        took, began = [], time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            at = time.perf_counter()
            once()
            took.append(time.perf_counter() - at)
        total = time.perf_counter() - began
        print(json.dumps([len(took) * row[1] / total, statistics.median(took) * 1e6]), flush=True)


def lunette(program, address, row, flags):
    size, batch, writes = row
    command = [program, "transfer", "bench", address, "--size", f"{size}", "--batch", f"{batch}",
               "--seconds", f"{SECONDS}"] + ["--write"] * writes + flags
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [found["requests_per_s"], found["batch_p50_us"]]


def compare(program, name, serve, ask, flags):
    """`serve()` starts the rival's serving process, `ask(process)` the asking one, which says that it is
    ready. `flags` go to `lunette transfer bench`."""
    idle = flags[flags.index("--idle"):][:2] if "--idle" in flags else []
    command = [program, "transfer", "serve", "--json", "--listen", "127.0.0.1:0",
               "--memory", f"{MEMORY}"] + idle
    ours = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    processes = [ours]
    try:
        address = json.loads(ours.stdout.readline())["addresses"][0]
        processes.append(serve())
        processes.append(ask(processes[-1]))
        asking = processes[-1]
        answer(asking, "ready")
        print(f"| row | ours | {name} | requests per second, ratio | p50, ratio |")
        print("|---|---|---|---|---|")
        for row in ROWS:
            pairs = []
            for _ in range(PAIRS):
                mine = lunette(program, address, row, flags)
                asking.stdin.write(json.dumps(row) + "\n")
                asking.stdin.flush()
                pairs.append((mine, json.loads(answer(asking))))
            show(row, pairs)
    finally:
        for process in processes:
            process.kill()


def show(row, pairs):
    size, batch, writes = row
    median = statistics.median
    mine, other = (median(pair[side][0] for pair in pairs) for side in (0, 1))
    p50s = [median(pair[side][1] for pair in pairs) for side in (0, 1)]
    rate = median(pair[0][0] / pair[1][0] for pair in pairs)
    latency = median(pair[0][1] / pair[1][1] for pair in pairs)
    name = f"{'write' if writes else 'read'} {size >> 10} KiB" + f", batches of {batch}" * (batch > 1)
    shown = [f"{value:,.0f}/s, {value * size / 1e9:.2f} GB/s, {p50:,.1f} us"
             for value, p50 in zip((mine, other), p50s)]
    print(f"| {name} | {shown[0]} | {shown[1]} | {rate:.2f} | {latency:.2f} |", flush=True)
