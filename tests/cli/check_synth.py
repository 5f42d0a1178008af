# SPDX-License-Identifier: Apache-2.0
"""`troika synth`: the file is what it says, the same for the same seed, whole or not there; troika and the gguf package read it."""
import json
import math
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

import gguf
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

TYPES = ("q4_0", "q8_0", "q4_k_m")
BIG = "llama-3.2-1b"
WIDTH, HEADS, KV_HEADS, HEAD, FF, LAYERS, VOCAB, CONTROLS = 768, 12, 4, 64, 1024, 2, 1024, 256  # of tiny


def troika(*words, code=0, environment=None, **more):
    """Standard output and error; fails unless the exit code is `code`."""
    run = subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=300,
                         stdin=subprocess.DEVNULL, env=ENVIRONMENT | (environment or {}), **more)
    assert run.returncode == code, f"{words}: exit code {run.returncode}: {run.stdout[-300:]!r} {run.stderr[-300:]!r}"
    return run.stdout, run.stderr


def synth(file, *words, **more):
    return troika("synth", "--shape", "tiny", "-o", file, *words, **more)


class Folder(tempfile.TemporaryDirectory):
    def __enter__(self):
        return pathlib.Path(super().__enter__())


def check_usage():
    with Folder() as folder:
        file = folder / "m.gguf"
        for name, near in (("llama-3.2-1", "llama-3.2-1b"), ("llama-3.1-8B", "llama-3.1-8b"), ("tny", "tiny"),
                           ("llama-3.2-3bb", "llama-3.2-3b")):
            text = troika("synth", "--shape", name, "-o", file, code=2)[1]
            assert f'"{name}"' in text and f"did you mean {near}?" in text, text
        assert "tiny, llama-3.2-1b, llama-3.2-3b, llama-3.1-8b" in troika("synth", "--shape", "zzzzzzzzzzzz", "-o", file, code=2)[1]
        assert "tiny, llama-3.2-1b" in troika("synth", "-o", file, code=2)[1]
        for nothing in ((), ("-o", "")):
            assert "--output FILE" in troika("synth", "--shape", "tiny", *nothing, code=2)[1]
        assert "q4_0|q8_0|q4_k_m" in synth(file, "--type", "q5_k", code=2)[1]
        assert "meant for --output" in synth(file, "other.gguf", code=2)[1]
        assert "seed" in synth(file, "--seed", "x", code=2)[1]
        assert os.listdir(folder) == []


def check_same_seed_same_bytes():
    with Folder() as folder:
        def bytes_of(*words):
            synth(folder / "m.gguf", "--force", *words)
            return (folder / "m.gguf").read_bytes()
        for kind in TYPES:
            one = bytes_of("--type", kind)
            assert one == bytes_of("--type", kind, "--seed", 1) == bytes_of("--type", kind, "-s", "1"), kind
            others = [bytes_of("--type", kind, "--seed", seed) for seed in (0, 2, -1, 2**62)]
            assert len({one, *others}) == 5, kind
            # not only the seed that the metadata names
            same = numpy.frombuffer(one[-200000:], numpy.uint8) == numpy.frombuffer(others[1][-200000:], numpy.uint8)
            assert same.mean() < 0.1, same.mean()
        assert bytes_of() == bytes_of("--type", "q4_0")
        assert os.listdir(folder) == ["m.gguf"]


def wanted_deviation(name):
    if "norm" in name or "rope" in name:
        return None
    added = 36 / LAYERS
    return {"token_embd": 4 / math.sqrt(WIDTH), "attn_q": 3 / math.sqrt(WIDTH), "attn_output": math.sqrt(added * 0.1 / (HEADS * HEAD)),
            "ffn_down": math.sqrt(added * 0.9 / FF) / 0.596}.get(name.split(".")[-2], 1 / math.sqrt(WIDTH))


def check_gguf_package_reads():
    shapes = {"attn_q": [WIDTH, WIDTH], "attn_k": [WIDTH, KV_HEADS * HEAD], "attn_v": [WIDTH, KV_HEADS * HEAD],
              "attn_output": [WIDTH, WIDTH], "ffn_gate": [WIDTH, FF], "ffn_up": [WIDTH, FF], "ffn_down": [FF, WIDTH],
              "attn_norm": [WIDTH], "ffn_norm": [WIDTH]}
    with Folder() as folder:
        for kind, number in zip(TYPES, (2, 7, 15)):
            report = json.loads(synth(folder / kind, "--type", kind, "--seed", 5, "--json")[0])
            file = gguf.GGUFReader(folder / kind)
            value = {key: field.contents() for key, field in file.fields.items()}
            assert value["general.name"] == "synthetic tiny" and value["synthetic.random_weights"] is True, value["general.name"]
            assert "no meaning" in value["general.description"] and value["synthetic.seed"] == 5 and value["synthetic.shape"] == "tiny"
            assert value["general.file_type"] == number and gguf.LlamaFileType(number).name.lower() == f"mostly_{kind}"
            names = [t.name for t in file.tensors]
            assert sorted(names) == sorted(["token_embd.weight", "rope_freqs.weight", "output_norm.weight"]
                                           + [f"blk.{i}.{name}.weight" for i in range(LAYERS) for name in shapes]), names
            parameters = 0
            for t in file.tensors:
                parameters += int(t.n_elements) if t.name != "rope_freqs.weight" else 0
                short = t.name.split(".")[-2]
                if short in shapes:
                    assert list(t.shape) == shapes[short], (t.name, t.shape)
                data = gguf.dequantize(t.data, t.tensor_type).astype(numpy.float64)
                wanted = wanted_deviation(t.name)
                if wanted is None:
                    assert t.tensor_type == gguf.GGMLQuantizationType.F32 and (short == "rope_freqs" or (data == 1).all()), t.name
                    continue
                deviation, mean = data.std(), data.mean()
                assert abs(deviation / wanted - 1) < 0.05 and abs(mean) < 0.03 * wanted, (t.name, deviation, mean, wanted)
                rows = data.reshape(-1, data.shape[-1])
                assert len(numpy.unique(rows, axis=0)) == len(rows), f"{t.name}: two rows are the same"
            assert report["parameters"] == parameters and report["tensors"] == len(names) and report["seed"] == 5
            assert report["bytes"] == (folder / kind).stat().st_size and report["vocab"] == VOCAB and report["shape"] == "tiny"
            assert report["type"].lower() == kind and report["file"] == str(folder / kind)
        # the mix: Q6_K where Q4_K_M has it
        kinds = {t.name: t.tensor_type.name for t in file.tensors}
        assert kinds["token_embd.weight"] == "Q6_K" and kinds["blk.0.attn_q.weight"] == "Q4_K", kinds
        assert [kinds[f"blk.{i}.ffn_down.weight"] for i in range(LAYERS)] == ["Q4_K", "Q6_K"], kinds
        tokens, types = value["tokenizer.ggml.tokens"], value["tokenizer.ggml.token_type"]
        assert len(set(tokens)) == VOCAB and types == [1] * (VOCAB - CONTROLS) + [3] * CONTROLS
        assert tokens[value["tokenizer.ggml.bos_token_id"]] == "<|begin_of_text|>"
        assert tokens[value["tokenizer.ggml.eos_token_id"]] == "<|eot_id|>"
        # rope factors: those that turn often are left alone, the slowest is stretched by 8
        factors = next(t for t in file.tensors if t.name == "rope_freqs.weight").data
        turns = 8192 * 500000.0 ** (-numpy.arange(0, HEAD, 2) / HEAD) / (2 * numpy.pi)
        assert (factors[turns >= 4] == 1).all() and (factors[turns <= 1] == 8).all() and (numpy.diff(factors) >= 0).all(), factors


def check_tokens():
    """A byte is a token, whatever the text; fillers are printed and never read."""
    with Folder() as folder:
        file = folder / "m.gguf"
        synth(file)
        for text in ("Hello world", " two  blanks\n\n\n", "naïve 日本語 😀", "a0 a0ab a0ac b7qx a0", "it's 12345 <|eot_id|>", "x" * 3000):
            ids = troika("tokenize", "-m", file, "--ids", "--", text)[0].split()
            assert ids[0] == str(VOCAB - CONTROLS) and len(ids) == 1 + len(text.encode()), (text, ids[:20])
            assert all(int(i) < 256 for i in ids[1:]), (text, ids)
            assert troika("tokenize", "-m", file, "-d", "--", *ids[1:])[0] == text
        assert troika("tokenize", "-m", file, "--special", "--no-bos", "--ids", "<|eot_id|>")[0] == f"{VOCAB - CONTROLS + 9}\n"
        assert re.fullmatch(r"( [a-z][0-9][a-z]{2}){3}", troika("tokenize", "-m", file, "-d", "257", "400", "767")[0])


def check_it_runs():
    with Folder() as folder:
        for kind in TYPES:
            file = folder / kind
            synth(file, "--type", kind)
            assert "Runs here: llama, 2 layers, width 768, vocabulary 1024" in troika("inspect", file)[0]
            out = [troika("run", "-m", file, "-n", 24, "--temp", 0, "--ignore-eos", "Hello")[0] for _ in range(2)]
            assert out[0] == out[1] and len(set(re.findall(r"a0[a-z]{2}", out[0]))) >= 5, out  # no token repeated for ever
        result = json.loads(troika("bench", "-m", file, "--prefill", 64, "--decode", 8, "--batch", 1, "-r", 1, "--json")[0])
        assert all(r["tokens_per_second"]["median"] > 0 for r in result["results"]), result
        with Server("-m", str(file), "--context", "512", "--parallel", "2") as s:
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32, "logprobs": True, "top_logprobs": 5,
                    "temperature": 1, "seed": 3}
            status, _, answer = s.ask("/v1/chat/completions", body)
            assert status == 200, answer
            content = answer["choices"][0]["logprobs"]["content"]
            values = [t["logprob"] for c in content for t in c["top_logprobs"]]
            assert len(content) > 5 and all(math.isfinite(v) and -60 < v <= 0 for v in values), values
            best = [max(t["logprob"] for t in c["top_logprobs"]) for c in content]
            assert -4 < sum(best) / len(best) < -0.05, best  # neither flat (ln 1024 = 6.9) nor one token for sure


def check_nothing_is_lost():
    with Folder() as folder:
        file = folder / "m.gguf"
        file.write_text("precious")
        assert "--force" in synth(file, code=1)[1] and file.read_text() == "precious"
        (folder / "sub").mkdir()
        for other in (folder / "sub", "/dev/null", "/"):
            assert "is no file" in synth(other, "--force", code=1)[1]
        os.symlink("nowhere", folder / "link")
        assert "--force" in synth(folder / "link", code=1)[1]
        assert sorted(os.listdir(folder)) == ["link", "m.gguf", "sub"] and os.listdir(folder / "sub") == []
        synth(file, "--force")
        assert file.read_bytes()[:4] == b"GGUF"


def check_cannot_be_written():
    with Folder() as folder:
        (folder / "plain").write_text("x")
        for bad, why in ((folder / "none" / "m.gguf", "No such file"), (folder / "plain" / "m.gguf", "Not a directory"),
                         ("/proc/m.gguf", ""), (folder / ("x" * 300), "too long")):
            noise = synth(bad, code=1)[1]
            assert noise.count("\n") == 1 and str(bad) in noise and why in noise, noise
        if os.geteuid():
            folder.chmod(0o500)
            assert "Permission denied" in synth(folder / "m.gguf", code=1)[1]
            folder.chmod(0o700)
        # a full disk: what is written beside the file goes to /dev/full
        os.symlink("/dev/full", folder / "m.gguf.part")
        noise = synth(folder / "m.gguf", code=1)[1]
        assert "No space left on device" in noise and str(folder / "m.gguf") in noise and noise.count("\n") == 1, noise
        # a limit on the size of files, with an old file that must stay
        (folder / "old.gguf").write_text("precious")
        noise = synth(folder / "old.gguf", "--force", code=1,
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)))[1]
        assert "File too large" in noise and (folder / "old.gguf").read_text() == "precious", noise
        assert sorted(os.listdir(folder)) == ["old.gguf", "plain"], os.listdir(folder)


def check_interrupted():
    with Folder() as folder:
        for number in (signal.SIGINT, signal.SIGTERM):
            file, part = folder / "m.gguf", folder / "m.gguf.part"
            process = subprocess.Popen([BINARY, "synth", "--shape", BIG, "-o", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True, env=ENVIRONMENT)
            until = time.monotonic() + 60
            while not (part.exists() and part.stat().st_size > 0) and time.monotonic() < until:
                time.sleep(0.001)
            process.send_signal(number)
            out, noise = process.communicate(timeout=60)
            assert process.returncode == 130 and out == "" and "nothing was kept" in noise, (process.returncode, out, noise)
            assert os.listdir(folder) == [], os.listdir(folder)


if __name__ == "__main__":
    run_checks([(check_usage,), (check_same_seed_same_bytes,), (check_gguf_package_reads,), (check_tokens,), (check_it_runs,),
                (check_nothing_is_lost,), (check_cannot_be_written,), (check_interrupted,)])
