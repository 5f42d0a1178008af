# SPDX-License-Identifier: Apache-2.0
"""The commands as a user types them, with the models of the cache folder."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import gguf
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_server import BINARY, ENVIRONMENT, Server, run_checks  # noqa: E402

import fetch  # noqa: E402  (tools/ is on the path)


def troika(*words, text="", code=0, environment=None):
    """Standard output and error; fails unless the exit code is `code`."""
    run = subprocess.run([BINARY, *words], input=text, capture_output=True, text=True, timeout=300,
                         env=ENVIRONMENT | (environment or {}))
    assert run.returncode == code, f"{words}: exit code {run.returncode}: {run.stdout[-300:]!r} {run.stderr[-300:]!r}"
    return run.stdout, run.stderr


def check_help():
    out, _ = troika("--help")
    commands = re.findall(r"^  ([a-z]+)  +[A-Z]", out, re.M)
    assert commands[:6] == ["run", "chat", "serve", "bench", "inspect", "tokenize"], commands
    for command in commands[:6]:
        text = troika(command, "--help")[0]
        assert text == troika("help", command)[0] != "" and not re.search(r"[ \t]$", text, re.M), text
        options = [line for line in text.split("\n") if re.match(r"  (   |-.,) --", line)]
        assert len(options) > 2 and all(line[28] == " " != line[29] for line in options), text
    assert "$TROIKA_API_KEY, if not empty" in troika("serve", "--help")[0]
    assert re.fullmatch(r"troika \d+\.\d+\.\d+ \((unknown|[0-9a-f]{12}(-changed)?)\)\n", troika("version")[0])
    assert troika("version")[0] == troika("--version")[0]


def check_usage_errors():
    assert "did you mean --temp?" in troika("run", "--tmep", "1", "x", code=2)[1]
    assert "did you mean --port?" in troika("serve", "--prt", "1", code=2)[1]
    assert "needs a value" in troika("run", "--seed", code=2)[1]
    assert "0 to 65535" in troika("serve", "--port", "65536", code=2)[1]
    assert "0 to 2" in troika("run", "--temp", "nan", "x", code=2)[1]
    assert "default|float|int8" in troika("run", "--activations", "fp8", "x", code=2)[1]
    assert "did you mean run?" in troika("rum", code=2)[1] and "which command" in troika(code=2)[1]
    assert "did you mean bench?" in troika("help", "bensh", code=2)[1] and '"troika help" lists' in troika("help", "nonsense", code=2)[1]
    assert troika("help", "help")[0] == troika("help")[0] == troika("help", "version")[0]
    assert "0, or a whole number from 16 to 4096" in troika("run", "--span-rows", "15", "x", code=2)[1]
    assert "all|scalar|avx2" in troika("run", "--cpu-levels", "avx2,mmx", "x", code=2)[1]
    assert "more than the bound of 1\n" in troika("run", "--kv-size", "1", "x", code=1)[1]
    assert "nothing to answer" in troika("run", code=2)[1]
    assert "one file" in troika("inspect", code=2)[1]
    assert "--model" in troika("serve", "smollm2", code=2)[1]
    troika("bench", "--prefill", "64,x", code=2)
    troika("run", "--port", "80", "x", code=2)  # another command's option
    assert "not a known name" in troika("run", "-m", "nope", "x", code=1)[1]
    assert "No such file" in troika("run", "-m", "/nope.gguf", "x", code=1)[1]


def check_settings_file_and_environment():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "config"
        file.write_text("# mine\n\nmodel = gemma3\nport = 9000\n  special = true  \n")
        ids = troika("tokenize", "--ids", "Hello", "--config", str(file))[0]
        assert ids != troika("tokenize", "--ids", "Hello")[0], "the file's model is not used"
        assert troika("tokenize", "--ids", "Hello", "--config", str(file), "-m", "smollm2")[0] != ids
        assert troika("tokenize", "--ids", "Hello", environment={"TROIKA_MODEL": "gemma3"})[0] == ids
        assert troika("tokenize", "--ids", "Hello", "--config", str(file),
                      environment={"TROIKA_MODEL": "smollm2"})[0] == troika("tokenize", "--ids", "Hello")[0]
        home = pathlib.Path(folder) / "troika"
        home.mkdir()
        (home / "config").write_text("model = 'gemma3'\n")
        assert troika("tokenize", "--ids", "Hello", environment={"XDG_CONFIG_HOME": folder})[0] == ids
        for bad, words in (("prot = 1\n", 'line 1: unknown setting "prot"; did you mean port'), ("\nport = x\n", "line 2: port"),
                           ("port\n", "key = value"), ("raw = maybe\n", "true or false"),
                           ("help = true\n", "line 1: help is an option of the command line only"),
                           ("\0port = 1\n", "NUL"), ("port = 1\n\0", "NUL"),
                           ("span-rows = 3\n", "line 1: span-rows"), ("cpu-levels = x\n", "line 1: cpu-levels")):
            file.write_text(bad)
            assert words in troika("tokenize", "x", "--config", str(file), code=2)[1], bad
        assert "cannot open" in troika("tokenize", "x", "--config", folder + "/none", code=2)[1]
        assert troika("tokenize", "--count", "x", environment={"TROIKA_HELP": "1", "TROIKA_CONFIG": "/none"})[0] == "1\n"
        assert "TROIKA_IDS" in troika("tokenize", "x", environment={"TROIKA_IDS": "7"}, code=2)[1]


def check_serve_keys():
    def refused(content, *words, variable=None):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content or b"")
            file.flush()
            given = [] if content is None else ["--api-key-file", file.name]
            variables = {} if variable is None else {"TROIKA_API_KEY": variable}
            out, noise = troika("serve", "--port", "0", *given, environment=variables, code=1)
            assert out == "" and noise.count("\n") == 1 and all(w in noise for w in words), (content, variable, noise)
            assert "secret" not in noise, noise

    for content, words in (("secret\n".encode("utf-16-be"), ("line 1", "0x00")), ("secret\n".encode("utf-16-le"), ("line 1", "0x00")),
                           ("secret\n".encode("utf-16"), ("line 1", "0xFF")), (b"\0", ("line 1", "0x00")),
                           (b"\0secret", ("line 1", "0x00")),
                           (b"one\n# two\0\nsecret\n", ("line 2", "comment", "0x00")), (b"one\nse\0cret\n", ("line 2", "0x00")),
                           (b"one\n\0\nsecret", ("line 2", "0x00")), (b"# Macintosh\rsecret\r", ("line 1", "0x0D")),
                           (b"one\rsecret", ("line 1", "0x0D")), (b"secret key", ("line 1", "0x20")),
                           (b"secret # Ann's", ("line 1", "0x20")),
                           ("secrét".encode(), ("line 1", "0xC3")), (b"\n\nsecret\x7f", ("line 3", "0x7F")), (b"\x0csecret", ("0x0C",)),
                           (b"\xef\xbb\xbf", ("holds no API key",)), (b"\xef\xbb\xbf# secret\n", ("holds no API key",)),
                           (b"one\n\xef\xbb\xbfsecret", ("line 2", "0xEF")), (b"", ("holds no API key",)),
                           (b" \t\r\n\n", ("holds no API key",)), (b"x" * 65537, ("65536 bytes",))):
        refused(content, *words)
        refused(content, *words, variable="key")  # a good variable does not make a bad file good
    for variable, words in (("#x", ("TROIKA_API_KEY", '"#"')), ("  #x", ('"#"',)), (" ", ("only blanks",)), ("\r\n", ("only blanks",)),
                            ("secret two", ("0x20",)), ("secret\nsecret", ("0x0A",)), ("sécret", ("0xC3",)), ("\x01", ("0x01",))):
        refused(None, *words, variable=variable)
        refused(b"key", *words, variable=variable)
    refused(b"x" * 513, "at most 512")
    refused(b"key\n" * 65, "more than 64")
    assert "cannot open" in troika("serve", "--api-key-file", "", code=1)[1]
    assert "cannot read" in troika("serve", "--api-key-file", "/", code=1)[1]


def check_serve_keys_taken():
    with tempfile.NamedTemporaryFile() as file:
        file.write("\ufefffirst\r\n# für Ann\n\n \tsecond \t\nthird".encode())
        file.flush()
        with Server("--context", "256", "--parallel", "1", "--api-key-file", file.name, environment={"TROIKA_API_KEY": " fourth\r\n"}) as s:
            assert "-H 'Authorization: Bearer KEY'" in s.curl, s.curl
            for key in ("first", "second", "third", "fourth"):
                assert s.ask("/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200, key
            for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer fifth"}, {"Authorization": "Bearer KEY"}):
                assert s.ask("/v1/models", headers=headers)[0] == 401, headers
    with Server("--context", "256", "--parallel", "1", environment={"TROIKA_API_KEY": ""}) as s:  # as if it were not set
        assert s.ask("/v1/models")[0] == 200 and "Authorization" not in s.curl, s.curl


def check_tokenize():
    texts = ["Hello world", " two  blanks ", "tab\tand\nline", "naïve 日本語 😀", "<|im_end|> is text", "x" * 5000]
    for model in ("smollm2", "gemma3"):
        for text in texts:
            ids = troika("tokenize", "-m", model, "--ids", "--no-bos", "--", text)[0]
            back = troika("tokenize", "-m", model, "-d", "--", *ids.split())[0]
            assert back == text, (model, text, back)
            assert troika("tokenize", "-m", model, "--count", "--no-bos", text=text)[0].strip() == str(len(ids.split()))
    assert troika("tokenize", "--special", "--ids", "<|im_start|>")[0] == "1\n"
    assert len(troika("tokenize", "--ids", "<|im_start|>")[0].split()) > 1
    whole = json.loads(troika("tokenize", "--json", "é🦙")[0])
    assert b"".join(bytes(t.get("bytes") or t["piece"].encode()) for t in whole["tokens"]).decode() == "é🦙"
    assert "no token" in troika("tokenize", "-d", "49152", code=1)[1]
    assert "expected token numbers" in troika("tokenize", "-d", "abc", code=1)[1]


def write_llama2_vocabulary(path):
    """The Llama 2 vocabulary around one layer of zeros: a model that can be opened."""
    file = gguf.GGUFReader(fetch.CACHE / "test-data" / "llama2-vocab.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in file.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = len(file.fields["tokenizer.ggml.tokens"].contents())
    writer.add_tensor("token_embd.weight", numpy.zeros((tokens, 32), numpy.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", numpy.zeros(32, numpy.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((32, 32), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_dummy_space():
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "llama2.gguf")
        write_llama2_vocabulary(model)
        for text in ("Hello world", " Hello world", "  two"):
            ids, _ = troika("tokenize", "-m", model, "--ids", "--no-bos", text)
            assert troika("tokenize", "-m", model, "--decode-ids", ids.replace("\n", " "))[0] == text, (text, ids)


def check_inspect():
    path = fetch.path_of("smollm2")
    shown = troika("inspect", str(path))[0]
    assert "llama.block_count" in shown and "<|im_start|>" in shown and "Runs here: llama" in shown
    facts = json.loads(troika("inspect", "smollm2", "--json")[0])
    assert len(facts["tensors"]) == 272 and facts["metadata"]["llama.block_count"]["value"] == 30
    assert sum(t["bytes"] for t in facts["totals"]) == sum(t["bytes"] for t in facts["tensors"])
    assert all(path.stat().st_size >= t["offset"] + t["bytes"] for t in facts["tensors"])
    with tempfile.TemporaryDirectory() as folder:
        bad = pathlib.Path(folder) / "bad.gguf"
        with open(path, "rb") as file:
            head = file.read(100000)
        bad.write_bytes(head)
        out, err = troika("inspect", str(bad), code=1)
        assert out == "" and str(bad) in err and "truncated" in err, err
        assert "error" in json.loads(troika("inspect", str(bad), "--json", code=1)[0])
        bad.write_bytes(head.replace(b"llama", b"zzzzz"))
        assert troika("inspect", str(bad), code=1)[1]
        bad.write_bytes(b"")
        assert "empty" in troika("inspect", str(bad), code=1)[1]


def check_run():
    greedy = ["run", "--temp", "0", "-n", "12"]
    answer, noise = troika(*greedy, "Name three colours.")
    assert len(answer) > 10 and answer.endswith("\n") and noise == "", (answer, noise)
    assert troika(*greedy, text="Name three colours.")[0] == answer  # standard input is the prompt
    assert troika(*greedy, "Name", text="three colours.")[0] == troika(*greedy, "Name\n\nthree colours.")[0]
    assert troika(*greedy, "--threads", "1", "Name three colours.")[0] == answer
    assert troika("run", "-n", "12", "--seed", "5", "Hi")[0] == troika("run", "-n", "12", "--seed", "5", "Hi")[0]
    assert troika(*greedy, "--system", "Answer in French.", "Name three colours.")[0] != answer
    raw = troika(*greedy, "--raw", "Once upon a")[0]
    assert raw != troika(*greedy, "Once upon a")[0]
    _, noise = troika(*greedy, "-v", "Hi")
    for line in ("first token after", "tokens/s", "peak memory"):
        assert line in noise, noise
    out, noise = troika(*greedy, "-m", "gemma3", "Once upon a")
    assert "no chat template" in noise and out.strip()
    assert troika(*greedy, "-m", "gemma3", "--raw", "Once upon a") == (out, "")
    assert "the context holds 16" in troika(*greedy, "--context", "16", "word " * 40, code=1)[1]


def check_interrupt():
    process = subprocess.Popen([BINARY, "run", "--ignore-eos", "Count."], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=ENVIRONMENT)
    first = os.read(process.stdout.fileno(), 100)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    rest, noise = process.communicate(timeout=30)
    assert process.returncode == 130 and first and rest.endswith(b"\n") and noise == b"", (process.returncode, noise)
    assert time.monotonic() - begun < 3


def check_interrupt_while_reading():
    process = subprocess.Popen([BINARY, "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=ENVIRONMENT)
    process.stdin.write(b"half a prompt")
    process.stdin.flush()
    time.sleep(0.3)  # it reads on
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130 and process.stdout.read() == b"" and process.stderr.read() == b"", process.returncode
    process.stdin.close()


def check_template_file():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "bad.jinja"
        file.write_text("{% if %}")
        noise = troika("run", "--chat-template", str(file), "x", code=1)[1]
        assert noise.startswith(f"troika: {file}: chat template: ") and ".gguf" not in noise, noise


def check_bench():
    out, noise = troika("bench", "--json", "--prefill", "8,16", "--decode", "4", "--batch", "1,2", "-r", "2", "--warm-ups", "0")
    record = json.loads(out)
    assert [(r["kind"], r["n"]) for r in record["results"]] == [
        ("prefill", 8), ("prefill", 16), ("decode", 4), ("batch", 1), ("batch", 2)]
    for result in record["results"]:
        rate = result["tokens_per_second"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"], result
    assert record["model"]["sha256"] == fetch.MODELS["smollm2"]["sha256"] and noise == ""
    assert record["kernels"] and record["machine"]["cpu"] and record["memory_peak_bytes"] > 50e6


if __name__ == "__main__":
    run_checks([(check,) for check in (check_help, check_usage_errors, check_settings_file_and_environment, check_serve_keys,
                                       check_serve_keys_taken, check_tokenize,
                                       check_dummy_space, check_inspect, check_run, check_interrupt,
                                       check_interrupt_while_reading, check_template_file, check_bench)])
