"""Memory of devices: `on_device.py` and its likes in processes whose CUDA driver is the one that tests of `gpu` build, and
where this machine has a GPU, also with that.

Memory of the driver that is built is where no thread may touch it, so a forgotten access ends that process.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parents[1] / "gpu/tests/driver/stub.c"
COMPILER = shutil.which("cc")

ON_DEVICES = ["on_device.py", "engines_on_device.py", "objects_on_device.py"]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def has_gpu():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One in which the loader finds that driver."""
    folder = tmp_path_factory.mktemp("driver")
    how = ["-shared", "-fPIC", "-O1", "-pthread", "-Wno-unused-function"]
    library = folder / "libcuda.so.1"
    subprocess.run([COMPILER, *how, "-o", library, SOURCE], check=True)
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("what", ON_DEVICES)
def test_bytes_come_from_devices_and_go_to_them(environment, what):
    all_pass(what, environment)


@pytest.mark.parametrize("what", ON_DEVICES)
@pytest.mark.skipif(not has_gpu(), reason="no GPU")
def test_bytes_come_from_the_gpu_of_this_machine_and_go_to_it(what):
    all_pass(what, os.environ)


@pytest.mark.parametrize("is_growing", [False, True])
@pytest.mark.skipif(not has_gpu(), reason="no GPU")
def test_tensors_of_torch_are_values_and_room(is_growing):
    pytest.importorskip("torch")
    settings = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{is_growing}"}
    all_pass("on_torch.py", {**os.environ, **settings})


def all_pass(what, environment):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", what]
    ran = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = re.search(r"(\d+) passed", ran.stdout)
    wanted = len(re.findall(r"^def test_", (TESTS / what).read_text(), re.MULTILINE))
    assert passed and int(passed[1]) >= wanted and "skipped" not in ran.stdout, ran.stdout


LOST = """
import lunette
from lunette.p2p import ObjectStore
from on_device import Memory, Tensor, cuda
size = 64 << 20
with lunette.Coordinator() as coordinator:
    with ObjectStore([coordinator.address]) as origin, ObjectStore([coordinator.address]) as other:
        room = Memory(size)
        with origin.register("weights", [bytearray(b"weights!" * (size // 8))], chunk_bytes=65536):
            held = other.begin_receive("weights", [Tensor(room, size)])
            cuda.stub_poison(719)
            try:
                held.wait(60)
            except lunette.StoreError as error:
                assert "a chunk is not copied to its device" in str(error), error
            else:
                raise AssertionError("nothing was said")
            held.close()
            # The host's memory is as good as ever.
            with other.receive("weights", timeout_s=60) as again:
                assert bytes(again.buffers[0]) == b"weights!" * (size // 8)
            # A device that is lost takes nothing more.
            try:
                other.begin_receive("weights", [room.shown((size // 4,))])
            except lunette.StoreError as error:
                assert "poisoned" in str(error), error
            else:
                raise AssertionError("nothing was said")
"""


def test_a_device_that_is_lost_is_told_and_the_store_goes_on(environment):
    subprocess.run([sys.executable, "-c", LOST], cwd=TESTS, env=environment, check=True)


def test_an_access_by_the_host_ends_the_process(environment):
    program = "import ctypes, on_device; ctypes.string_at(on_device.Memory(8).at, 8)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=TESTS, env=environment, check=False)
    assert ran.returncode == -signal.SIGSEGV


def test_without_a_driver_no_address_is_of_a_device(tmp_path):
    program = (
        "import ctypes, lunette._native as native\n"
        "room = ctypes.create_string_buffer(8)\n"
        "assert not native.is_of_device(ctypes.addressof(room)) and not native.is_of_device(0)\n"
        # Also of one that is there, and that nobody uses.
        "assert native.is_of_device((1 << 64) - 1) is False\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_torch_or_a_device_its_figures_are_pending(tmp_path):
    program = TESTS.parent / "bench/gpu.py"
    # Whatever is installed here: one that cannot be imported, and one that finds no device.
    blind = "import types\ncuda = types.SimpleNamespace(is_available=lambda: False)\n"
    for name, text in {"none": "raise ImportError('not here')\n", "blind": blind}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "torch.py").write_text(text)
        for device in ("0", "fake"):
            command = [sys.executable, program, device, "256", "65536"]
            environment = {**os.environ, "PYTHONPATH": str(folder)}
            ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            (line,) = ran.stdout.splitlines()
            reason = json.loads(line)["pending"]
            expected = {"none": "no torch: not here", "blind": "torch finds no such device"}[name]
            assert reason == ("torch has no fake device" if device == "fake" else expected)
