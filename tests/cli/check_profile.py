# SPDX-License-Identifier: Apache-2.0
"""troika profile: what it shows and keeps, and what serve makes of the file.

ctest: slow
"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

SMALL = ["--parallel", "2", "--span-rows", "16", "--context", "256"]  # few loads, short ones
AUTO = [*SMALL, "--profile", "auto"]


def profile(*words, code=0, environment=None):
    run = subprocess.run([BINARY, "profile", *words], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                         env=ENVIRONMENT | (environment or {}))
    assert run.returncode == code, f"{words}: exit code {run.returncode}: {run.stdout[-300:]!r} {run.stderr[-300:]!r}"
    return run.stdout, run.stderr


def check_table_file_and_json():
    with tempfile.TemporaryDirectory() as folder:
        cache = pathlib.Path(folder)
        models = pathlib.Path(ENVIRONMENT.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "troika" / "models"
        model = ["-m", str(models / "SmolLM2-135M-Instruct.Q4_1.gguf")]
        out, _ = profile(*AUTO, *model, environment={"XDG_CACHE_HOME": folder})
        for word in ("GEN ms", "PROMPT ms", "preemption bound", "B_cap", "prediction error", "KV", "shared"):
            assert word in out, (word, out)
        files = list((cache / "troika" / "profiles").iterdir())
        assert len(files) == 1 and files[0].suffix == ".json", files
        kept = json.loads(files[0].read_text())
        assert kept["measured"] is True and files[0].stem == kept["key"][:32]
        assert kept["gen_measured"] == [True] * 2 + [False] * 12 and kept["prompt_measured"] == [True] * 8 + [False] * 6
        for name in ("gen_ns", "prompt_ns"):
            assert len(kept[name]) == 14 and sorted(kept[name]) == kept[name] and kept[name][0] > 0, kept[name]
        assert 0 < kept["stop_p95_ns"] <= kept["stop_ns"] and 0 < kept["stops"] <= 120, kept
        # The server takes it: no line of its log says that it does not fit. Damaged, it says so and serves nevertheless.
        with Server(*AUTO, *model, environment={"XDG_CACHE_HOME": folder}) as server:
            assert f" stops within {kept['stop_ns'] / 1e6:.2f} ms;" in server.ready, server.ready
            measured = server.metrics()
            assert measured["troika_preempt_bound_measured"] == 1, measured
            assert abs(measured["troika_preempt_bound_seconds"] - kept["stop_ns"] / 1e9) < 1e-9, (measured, kept["stop_ns"])
            assert server.ask("/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200
        assert not any("profiles/" in line for line in server.log), server.log
        files[0].write_text(files[0].read_text()[:200])
        with Server(*AUTO, *model, environment={"XDG_CACHE_HOME": folder}) as server:
            assert server.ask("/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200
        assert any(files[0].name in line and "is no JSON" in line for line in server.log), server.log


def check_json_alone():
    out, _ = profile(*SMALL, "--json", "--profile", "off")
    table = json.loads(out)
    assert table["measured"] and table["parallel"] == 2 and table["span_rows"] == 16
    assert table["error_median"] <= table["error_p90"] <= 16 and len(table["gen_fix"]) == 14


def check_what_cannot_be_kept_is_said():
    out, errors = profile(*SMALL, "--profile", "/nowhere/at/all.json", code=1)
    assert "GEN ms" in out and "could not be written" in errors, (out, errors)
    assert "--model" in profile("smollm2", code=2)[1]
    assert "not a known name" in profile("-m", "nope", code=1)[1]


if __name__ == "__main__":
    run_checks([(check,) for check in (check_table_file_and_json, check_json_alone, check_what_cannot_be_kept_is_said)])
