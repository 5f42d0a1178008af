#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what tests/text/test_tokenizer.c compares against: text and the ids that the reference tokenizers give it.

    build/venv/bin/python tools/tokenizer_oracle.py [--force]

Needs what tools/setup.sh test brings: build/venv, the models, the npm packages (tools/fetch.py). Writes to test-data in the cache
folder; does nothing if what is there came from this very script. Nothing of it is committed: the vocabularies have their own
licences.

    tokens-smollm2.bin  tokens-gemma3.bin  tokens-llama2.bin    "TOKORC1\\0", u32 n, then n times
                                             u32 flags | u32 bytes | u32 ids | text | ids (i32), all little-endian
                        flags: 1 control tokens are parsed, 2 decoding gives the text back
    llama2-vocab.gguf   the Llama 2 vocabulary (npm llama-tokenizer-js), for cases T1, T2, T3 of the user reports

References: Gemma's is its published tokenizer.json. SmolLM2's is vocabulary and merges of the model file in BPE after single digits
and ByteLevel. Llama 2's is vocabulary and merges of the npm package in BPE after the published normalizer (a mark before the
text, spaces to marks). Plain text (flag 1 absent) is encoded by a reference that knows no control tokens, so
that a control token's text is literal.
"""
import argparse
import base64
import hashlib
import html.parser
import json
import pathlib
import random
import re
import struct
import sys

import fetch
import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

PARSE_SPECIAL, ROUND_TRIP = 1, 2
CONTROL, USER = 3, 4


class Text(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.out = []

    def handle_data(self, data):
        self.out.append(data)


def declarations(package, most):
    """The declaration of human rights in every language of the package, at most `most` characters each."""
    for path in sorted(package.rglob("*.html"), key=str):
        parser = Text()
        parser.feed(path.read_text(encoding="utf-8"))
        text = re.sub(r"\n\s*\n+", "\n\n", "".join(parser.out)).strip()
        if text:
            yield text[:most]


PIECES = [
    "a", "A", "the", " the", "Hello", " World", "don't", "I'll", "WE'VE", "'s", "1", "12", "2024", "1234567", "½", "Ⅷ", "٣", "一二三",
    " ", "  ", "   ", " " * 7, " " * 33, "\n", "\n\n", "\n" * 5, "\n" * 40, "\r\n",
    "\r", "\t", "\t\t\t", "\v", "\f", "\x00", "\x01", "\x1b[0m",
    "\x7f", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u180e",
    "é", "e\u0301", "ñ", "ß", "ﬁ", "İ", "ſ", "Ω", "Привет", " мир", "שלום",
    "مرحبا", "नमस्ते", "สวัสดี", "你好", "日本語", "カタカナ", "한국어", "ไทย", "አማርኛ", "ᚠᛇᚻ",
    "😀", "🦙", "👨\u200d👩\u200d👧", "🏳️\u200d🌈", "👍🏽", "🇫🇷", "☕️", "𝔘𝔫𝔦", "𐍈", "\U0001f9ff", "\U000e0067", "\U0010ffff", "\ue000", "\ufffd",
    "▁", "▁▁", "▁▁▁", " ▁ ", "<", ">", "<h1>", "</h1>", "<table><tr>", "<b>bold</b>",
    "<0x0A>", "{", "}", "[]", "()", "...", "----", "=====", "!!", "?!", "::", "://",
    "https://example.org/a?b=c&d=%20", "foo_bar", "fooBar", "x=1;", "/* c */",
    "#include <stdio.h>\n", "def f(x):\n    return x", "\\n", "\"q\"", "`", "$$", "@user",
    "AAAA", "aaaaaaa", "us" * 9, "hahaha", "......", "𝓐",
]


def fuzz(rng, count, extra=()):
    pieces = PIECES + list(extra) * 4
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 24)):
            kind = rng.random()
            if kind < 0.72:
                parts.append(rng.choice(pieces))
            elif kind < 0.80:
                parts.append(rng.choice(pieces) * rng.randint(2, 40))
            elif kind < 0.93:
                low, high = rng.choice([(0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x900, 0xdff),
                                        (0x2000, 0x206f), (0x2190, 0x2bff), (0x3040, 0x30ff), (0x4e00, 0x9fff),
                                        (0xac00, 0xd7a3), (0x1f300, 0x1f64f)])
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12))))
            else:
                parts.append("".join(chr(rng.randint(0, 0x1f)) for _ in range(rng.randint(1, 4))))
        yield "".join(parts)


def cases(specials):
    """Named cases of the user reports, and T3's shapes around each special token."""
    plain = ["Hello world", " Hello world", "This is 🦙.cpp", "A" * 10000, "A" * 43000, "\n" * 3000, " \n" * 2000, "us" * 400,
             " " * 5000 + "x", "\r\n" * 500, "1234567", "e\u0301", "", " ", "▁", "x" * 4096 + " " * 4096]
    special = []
    for s in specials:
        special += [f"{s}G", f"{s} hello", f"hi{s}  two spaces{s}\n\nx", f"{s}{s} ", f" {s}", f"{s}user\nHello{s}\n"]
    return plain, special + ["<|im_start|>user", "<s>G", "</s> hello"]


def write(path, plain, special, specials, plain_reference, special_reference, seed):
    """Runs both references over all texts. `special_reference` also gets fuzz strings with control tokens in them."""
    rng = random.Random(seed)
    named_plain, named_special = cases(specials)
    records = []
    plain_texts = plain + named_plain + list(fuzz(rng, 3000, specials))
    plain_texts.append("".join(plain)[:1 << 20])  # one long run
    special_texts = special + named_special + list(fuzz(rng, 1500, specials))
    for texts, reference, flag in ((plain_texts, plain_reference, 0), (special_texts, special_reference, PARSE_SPECIAL)):
        for text in texts:
            ids = reference.encode(text, add_special_tokens=False).ids
            back = reference.decode(ids, skip_special_tokens=False)
            records.append((flag | (ROUND_TRIP if back == text else 0), text.encode("utf-8"), ids))
    with open(path, "wb") as f:
        f.write(b"TOKORC1\0" + struct.pack("<I", len(records)))
        for flags, text, ids in records:
            f.write(struct.pack("<III", flags, len(text), len(ids)) + text + struct.pack(f"<{len(ids)}i", *ids))
    exact = sum(1 for r in records if r[0] & ROUND_TRIP)
    print(f"{path.name}: {len(records)} texts, {sum(len(r[1]) for r in records)} bytes, {sum(len(r[2]) for r in records)} ids, "
          f"{exact} round trips")


def vocabulary(path):
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields[f"tokenizer.ggml.{key}"].contents() if f"tokenizer.ggml.{key}" in fields else None
    return get("tokens"), get("token_type"), get("merges")


def smollm2(path):
    tokens, types, merges = vocabulary(path)
    def make(with_control):
        t = Tokenizer(models.BPE({x: i for i, x in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False)])
        t.decoder = decoders.ByteLevel()
        if with_control:
            t.add_special_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, types) if k == CONTROL])
        return t
    return make(False), make(True), ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<file_sep>"]


def gemma3(path, package):
    tokens, types, _ = vocabulary(path)
    published = json.loads((package / "models/tokenizer.json").read_text(encoding="utf-8"))
    def make(kinds):
        j = dict(published)
        j["added_tokens"] = [a for a in published["added_tokens"] if a["id"] < len(tokens) and types[a["id"]] in kinds]
        j["post_processor"] = None
        return Tokenizer.from_str(json.dumps(j))
    return make({USER}), make({USER, CONTROL}), ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused7>"]


def llama2(package, out):
    """Also writes the vocabulary as a GGUF file. A token's score is minus the place of the first merge that makes it."""
    source = (package / "llama-tokenizer.js").read_text(encoding="utf-8")
    tokens = base64.b64decode(re.search(r'llama_vocab_base64 = "([^"]+)"', source).group(1)).decode("utf-8").split("\n")
    packed = base64.b64decode(re.search(r'llama_merges_binary = "([^"]+)"', source).group(1))
    numbers = struct.unpack(f"<{len(packed) // 2}H", packed)
    merges = [(tokens[a], tokens[b]) for a, b in zip(numbers[::2], numbers[1::2])]
    place = {}
    for i, (a, b) in enumerate(merges):
        place.setdefault(a + b, float(-i))
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([place.get(x, -1e9) for x in tokens])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    def make(with_control):
        t = Tokenizer(models.BPE({x: i for i, x in enumerate(tokens)}, merges, unk_token="<unk>", fuse_unk=True,
                                 byte_fallback=True))
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
        if with_control:
            t.add_special_tokens([AddedToken(x, normalized=False) for x in ("<s>", "</s>")])
        return t
    return make(False), make(True), ["<s>", "</s>"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--force", action="store_true")
    options = parser.parse_args()
    folder = fetch.CACHE / "test-data"
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "tokenizer-oracle.stamp"
    wanted = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    if not options.force and stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"setup: reference token ids of three vocabularies, into {folder} (half a minute)", file=sys.stderr, flush=True)
    texts = list(declarations(fetch.path_of("udhr"), 2600))
    some = texts[::9]
    made = smollm2(fetch.path_of("smollm2"))
    write(folder / "tokens-smollm2.bin", texts, some, *reorder(made), 1)
    made = gemma3(fetch.path_of("gemma3"), fetch.path_of("tokenizer-gemma3"))
    write(folder / "tokens-gemma3.bin", texts, some, *reorder(made), 2)
    made = llama2(fetch.path_of("llama-tokenizer-js"), folder / "llama2-vocab.gguf")
    write(folder / "tokens-llama2.bin", texts, some, *reorder(made), 3)
    stamp.write_text(wanted)


def reorder(made):
    plain, special, specials = made
    return specials, plain, special


if __name__ == "__main__":
    main()
