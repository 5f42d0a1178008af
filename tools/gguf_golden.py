#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the reference package `gguf` makes of blocks, floats and metadata, for the tests of quant and gguf.

    python3 tools/gguf_golden.py tests

Needs gguf and numpy (tools/requirements-test.txt). Deterministic: another run changes nothing unless the package does.

golden/gguf/reference.gguf  a small file by the package's writer; ours must write the same bytes
fuzz/corpus/gguf/*.gguf     seeds of the fuzzer, by the package's writer

In golden/quant:
decode_TYPE.bin   blocks of random bytes with chosen scales, then the floats they decode to
encode_TYPE.bin   floats, then the blocks they encode to (types for which the package has an encoder)
halves.bin        CRC-32s (little-endian u32) of conversions whose inputs tests/quant/test_halves.c makes itself:
                  16 of F16 -> F32, all 65,536 halves; 62 of F32 -> F16 around every rounding boundary; 16 of F32 -> BF16
"""
import hashlib
import pathlib
import sys
import zlib
from importlib.metadata import version

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFValueType as Value
from gguf.quants import dequantize, quantize

# Where a block's f16 scales lie.
SCALES = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q8_0: [0], Type.Q4_K: [0, 2], Type.Q6_K: [208]}
ENCODED = [Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0]
# zero, minus zero, least and greatest subnormal, least normal, greatest, ordinary ones, one whose products round
SCALE_BITS = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0xBC00, 0x2E66, 0xA4CD, 0x1555]


def decode_case(kind, rng):
    elements, size = GGML_QUANT_SIZES[kind]
    if kind not in SCALES:  # one element a block: signs, subnormals, extremes, and random finite ones
        bits = rng.integers(0, 1 << (8 * size), 512, dtype=np.uint64).astype(f"<u{size}")
        floats = dequantize(bits.view(np.uint8), kind)
        blocks = bits[np.isfinite(floats)].view(np.uint8)
        return blocks.tobytes() + dequantize(blocks, kind).astype("<f4").tobytes()
    n = 40 if elements == 32 else 26
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for place, at in enumerate(SCALES[kind]):
        for i in range(n):
            bits = SCALE_BITS[(i * (1 + 4 * place) + place) % len(SCALE_BITS)]
            if i >= 26:
                bits = int(np.float16(rng.normal() * 0.02).view(np.uint16))
            blocks[i, at:at + 2] = [bits & 255, bits >> 8]
    floats = dequantize(blocks.reshape(-1), kind)
    assert np.isfinite(floats).all()
    return blocks.tobytes() + floats.astype("<f4").tobytes()


def encode_input(rng):
    def rows(n, f):
        return np.array([f() for _ in range(n)], dtype=np.float32)
    spike = np.zeros(32, dtype=np.float32)
    spike[17] = -3.5
    ties = (np.arange(32, dtype=np.float32) - 16) / 2  # Q4_0: every code's midpoint
    return np.concatenate([
        rows(12, lambda: rng.normal(size=32)),
        rows(6, lambda: rng.normal(size=32) * 0.02),
        rows(4, lambda: rng.uniform(-1, 1, 32)),
        rows(2, lambda: rng.normal(size=32) * 3e4),
        rows(2, lambda: rng.normal(size=32) * 1e-6),   # the scale is a subnormal half
        rows(2, lambda: rng.normal(size=32) * 1e-20),  # the scale is rounded to zero
        rows(1, lambda: rng.uniform(1, 2, 32)),
        rows(1, lambda: -rng.uniform(1, 2, 32)),
        [np.zeros(32), np.full(32, 0.75), np.full(32, -0.75), spike, ties, -ties, np.arange(32) - 127 / 2,
         np.round(rng.uniform(-127, 127, 32)) / 2],
    ]).astype(np.float32)


def halves():
    crcs = []
    with np.errstate(all="ignore"):
        wide = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
        bits = np.where(np.isnan(wide), np.uint32(0x7FC00000), wide.view(np.uint32)).astype("<u4")
        crcs += [zlib.crc32(chunk.tobytes()) for chunk in bits.reshape(16, -1)]

        finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
        following = np.append(finite[1:], 65536.0)
        middle = ((finite + following) / 2).astype(np.float32).view(np.uint32)
        plus = np.stack([finite.astype(np.float32).view(np.uint32), middle - 1, middle, middle + 1], axis=-1)
        inputs = np.concatenate([plus, plus | np.uint32(0x80000000)], axis=-1)
        out = inputs.view(np.float32).astype(np.float16).view(np.uint16).astype("<u2")
        crcs += [zlib.crc32(chunk.tobytes()) for chunk in out.reshape(62, -1)]

        state, words = 1, []
        for _ in range(65536):
            state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            words.append(state >> 32)
        floats = np.array(words, dtype=np.uint32).view(np.float32)
        out = quantize(floats, Type.BF16).view("<u2")
        crcs += [zlib.crc32(chunk.tobytes()) for chunk in out.reshape(16, -1)]
    return np.array(crcs, dtype="<u4").tobytes()


def scalars(w):
    for name, kind, value in [
            ("u8", Value.UINT8, 200), ("i8", Value.INT8, -100), ("u16", Value.UINT16, 60000), ("i16", Value.INT16, -30000),
            ("u32", Value.UINT32, 4000000000), ("i32", Value.INT32, -2000000000), ("f32", Value.FLOAT32, 0.1),
            ("bool", Value.BOOL, True), ("u64", Value.UINT64, 2**64 - 1), ("i64", Value.INT64, -2**63),
            ("f64", Value.FLOAT64, 1e300), ("string", Value.STRING, "na\u00efve"), ("empty", Value.STRING, "")]:
        w.add_key_value(f"scalar.{name}", value, kind)


def arrays(w):
    w.add_array("array.i32", [1, -2, 3])
    w.add_array("array.f32", [0.5, -1.5])
    w.add_array("array.bool", [True, False, True])
    w.add_array("array.string", ["one", "", "th\0ree", "\u20ac"])


def nested(w):
    w.add_array("array.nested", [[1, 2], [3]])
    w.add_array("array.deep", [[["a"], ["b", "c"]]])


def tensors(w):
    w.add_tensor("token_embd.weight", np.arange(64 * 5, dtype=np.float32).reshape(5, 64))
    w.add_tensor("blk.0.weight", np.arange(68, dtype=np.uint8).reshape(2, 34), raw_dtype=Type.Q8_0)
    w.add_tensor("norm.weight", np.array([1, 2, 3], dtype=np.float32))


def write_model(path, *parts, alignment=None):
    w = GGUFWriter(path, "sample")
    if alignment:
        w.add_custom_alignment(alignment)
    for part in parts:
        part(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    tests = pathlib.Path(sys.argv[1])
    folder, models, seeds = tests / "golden/quant", tests / "golden/gguf", tests / "fuzz/corpus/gguf"
    for path in (folder, models, seeds):
        path.mkdir(parents=True, exist_ok=True)
    made_by = (f"Made by: python3 tools/gguf_golden.py tests\nwith gguf {version('gguf')}, numpy {version('numpy')}. "
               "What it is: the comment in that program.\n\n")
    rng = np.random.default_rng(20261129)
    files = {}
    for kind in [Type.F32, Type.F16, Type.BF16, *SCALES]:
        with np.errstate(all="ignore"):
            files[f"decode_{kind.name.lower()}.bin"] = decode_case(kind, rng)
    rows = encode_input(rng)
    for kind in ENCODED:
        with np.errstate(all="ignore"):
            blocks = quantize(rows, kind).tobytes()
        files[f"encode_{kind.name.lower()}.bin"] = rows.astype("<f4").tobytes() + blocks
    files["halves.bin"] = halves()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    write_model(models / "reference.gguf", scalars, arrays, tensors)
    write_model(seeds / "scalars.gguf", scalars)
    write_model(seeds / "arrays.gguf", arrays)
    write_model(seeds / "nested.gguf", nested)
    write_model(seeds / "tensors.gguf", tensors)
    write_model(seeds / "aligned.gguf", tensors, alignment=8)
    for made in (folder, models):
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
                 for path in sorted(made.iterdir()) if path.name != "README.txt"]
        (made / "README.txt").write_text(made_by + "\n".join(lines) + "\n")


main()
