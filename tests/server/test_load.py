"""The short form of `benchmarks/load.py`: 64 clients on the real server, every fifth hangs up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "load.py"


@pytest.mark.model
def test_half_a_minute_of_load(default_model_path: Path) -> None:
    command = (sys.executable, str(SCRIPT), "--minutes", "0.5", "--rounds", "0", "--no-peer", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    soak = json.loads(done.stdout)["soak"]
    assert soak["answers"] > 0 and soak["hung_up"] > 0
    assert (soak["errors"], soak["different"], soak["kv_bytes_after"]) == (0, 0, 0)
    assert soak["open_files"][1] <= soak["open_files"][0] + 2
    assert soak["cached_tokens"] > 0
    assert 1.0 <= soak["predicted_over_measured"] <= 1.15
