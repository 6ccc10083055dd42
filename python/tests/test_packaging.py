"""What the wheel needs of the machine that it is installed on."""

import subprocess
import sys
from pathlib import Path

import lunette

# What every Linux of manylinux_2_28 has (PEP 600).
SYSTEM = {
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
}


def test_no_library_is_needed_beyond_those_of_the_system():
    shown = subprocess.run(
        ["readelf", "--dynamic", "--wide", lunette._native.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needed = {line.split("[")[1].split("]")[0] for line in shown.splitlines() if "(NEEDED)" in line}
    assert "libc.so.6" in needed
    assert needed <= SYSTEM


def test_both_faces_are_imported_where_nothing_else_is_installed(tmp_path):
    folder = Path(lunette.__file__).parents[1]
    for package in ("lunette", "mooncake"):
        (tmp_path / package).symlink_to(folder / package)
    # Neither the environment's packages nor the user's.
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import lunette, lunette.aio, lunette.engine, lunette.p2p, lunette.updates\n"
        "import mooncake, mooncake.store, mooncake.engine\n"
        "import mooncake.master, mooncake.http_metadata_server\n"
        "assert not any('site-packages' in path for path in sys.path), sys.path\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(tmp_path)], check=True)
