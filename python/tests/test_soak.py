"""A short soak: `soak.py` runs as long as one likes."""

import json
import subprocess
import sys
from pathlib import Path


def test_members_are_killed_while_threads_put_and_get():
    soak = Path(__file__).parent / "soak.py"
    command = [sys.executable, str(soak), "--seconds", "25", "--seed", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert told["killed"] > 0 and told["hits"] > 100
