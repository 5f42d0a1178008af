# SPDX-License-Identifier: Apache-2.0
"""`troika bench kv` as a user types it: the table, the record, what it refuses."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_server import BINARY, ENVIRONMENT, run_checks  # noqa: E402

SHORT = ("-r", "2", "--warm-ups", "0", "--context", "1024")
NAMES = ["contiguous, reserved", "contiguous, doubled", "paged 16", "paged 32", "paged 64"]
TOKEN = 30 * 3 * 64 * 2 * 2  # bytes of keys and values of one token of SmolLM2-135M


def bench(*words, code=0):
    run = subprocess.run([BINARY, "bench", "kv", *words], capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    assert run.returncode == code, f"{words}: exit code {run.returncode}: {run.stdout[-300:]!r} {run.stderr[-300:]!r}"
    return run.stdout, run.stderr


def check_record():
    out, noise = bench("--json", "--batch", "1,4", *SHORT)
    record = json.loads(out)
    assert noise == "" and record["model"] == "smollm2" and record["context"] == 1024 and record["machine"]["cpu"]
    lengths = [1024 * share // 1000 for share in (26, 130, 331, 63)]
    for result, n in zip(record["results"], (1, 4), strict=True):
        assert result["sequences"] == n and result["tokens"] == sum(lengths[:n]), result
        assert result["used_bytes"] == result["tokens"] * TOKEN and result["verdict"] in NAMES, result
        assert [layout["name"] for layout in result["layouts"]] == NAMES, result
        for layout, page in zip(result["layouts"], (1024, None, 16, 32, 64), strict=True):
            us = layout["us_per_token"]
            assert 0 < us["min"] <= us["median"] <= us["max"] and layout["overhead_bytes"] > 0, layout
            if page:
                wasted = sum(-length % page for length in lengths[:n]) * TOKEN
                assert layout["wasted_bytes"] == wasted and layout["copied_bytes"] == 0, (layout, wasted)


def check_table():
    out, noise = bench("--batch", "2", *SHORT)
    assert all(f"\n{name} " in out for name in NAMES) and "\nVerdict, 2 at once: " in out and noise == "", out
    assert out.count("  against ") == 4, out


def check_mistakes():
    assert "--model" in bench("x", code=2)[1]
    assert "--batch" in bench("--batch", "0", code=2)[1]
    assert "--batch" in bench("--batch", "65", code=2)[1]
    assert "9000 tokens" in bench("--context", "9000", code=1)[1]
    assert bench("-m", "nothing-of-that-name", code=1)[1].startswith("troika: ")


if __name__ == "__main__":
    run_checks([(check,) for check in (check_record, check_table, check_mistakes)])
