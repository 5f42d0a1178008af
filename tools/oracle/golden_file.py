#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The golden files of the oracle: how they lie on disk, written, read and checked.

Why a format of our own: the consumer is a test in C, so the file must be readable by pointing at it.
Everything is little-endian; every array starts at a multiple of 8 bytes; offsets count from the
start of the file. This module needs nothing but Python's standard library, so that the files can be
checked where torch is not installed:  python3 tools/oracle/golden_file.py FILE...

Common head, 448 bytes
    0   char[8]   magic            "TRKLOGIT" or "TRKGREED"
    8   u32       version          1
    12  u32       head_bytes       448
    16  u8[32]    model_sha256     of the GGUF
    48  u64       model_bytes      size of the GGUF
    56  char[16]  architecture     general.architecture, NUL-padded
    72  u32       vocabulary_count
    76  u32       counts[3]        meaning below
    88  u64       offsets[6]       meaning below
    136 u8[8]     zero
    144 char[128] command          that made the file, NUL-padded
    272 char[176] made_with        versions of the reference, NUL-padded

"TRKLOGIT": next-token logits
    counts   = chunk_count, position_count (of all chunks together), best_count (64)
    offsets  = chunks, tokens, log_sum, log_sum_rest, best_ids, best_logits
    chunks       { char name[24]; u32 first_position; u32 position_count; } [chunk_count]
    tokens       u32 [position_count]               what the model read; a chunk starts afresh at 0
    log_sum      f64 [position_count]               log sum exp over the whole vocabulary
    log_sum_rest f64 [position_count]               the same over all but the best_count best
    best_ids     u32 [position_count][best_count]   by falling logit, equal logits by rising id
    best_logits  f32 [position_count][best_count]
  Position p of a chunk holds the logits after its tokens 0..p, the prediction of its token p + 1.

"TRKGREED": greedy continuations
    counts   = prompt_count, step_limit, end_id
    offsets  = prompts, ids, steps, text, 0, 0
    prompts  { char name[24]; u32 text_first, text_bytes, answer_first, answer_bytes,
               id_first, id_count, step_first, step_count; } [prompt_count]   (56 bytes each)
    ids      u32 []                                 prompt tokens; id_first and id_count index it
    steps    { u32 best_id, second_id; f32 best_logit, second_logit; } []
    text     u8 []                                  UTF-8: what the user wrote, what came out
  A step's best_id is the token emitted. A prompt stops after step_limit steps or with end_id, which
  is then its last step and not part of the answer's text.

Divergence of ours (q) from the reference (p) at a position, in nats:
    p_i   = exp(best_logit_i - log_sum)                 i over the 64 best of the reference
    p_r   = exp(log_sum_rest - log_sum)
    q_i   = exp(our_logit[best_id_i] - our_log_sum)
    q_r   = sum of our other probabilities (summed as such, not 1 - sum q_i: that cancels)
    KL64  = sum_i p_i (log p_i - log q_i)  +  p_r (log p_r - log q_r)
The rest is one bucket, so KL64 <= KL over the whole vocabulary; README.md says by how much.
"""

import math
import struct
import sys
from array import array

BEST_COUNT = 64
HEAD_BYTES = 448
LOGIT_MAGIC = b"TRKLOGIT"
GREEDY_MAGIC = b"TRKGREED"
HEAD = struct.Struct("<8sII32sQ16sI3I6Q8x128s176s")
CHUNK = struct.Struct("<24sII")
PROMPT = struct.Struct("<24s8I")
STEP = struct.Struct("<IIff")
assert HEAD.size == HEAD_BYTES


def text_field(text, size):
    data = text.encode()
    if len(data) >= size:
        raise ValueError(f"{len(data)} bytes of text do not fit in {size} with their NUL: {text}")
    return data


def file_write(path, magic, model, counts, sections):
    """model: dict of sha256 (hex), bytes, architecture, vocabulary_count, command, made_with."""
    offsets, body, end = [], b"", HEAD_BYTES
    for section in sections:
        offsets.append(end + len(body))
        body += section + b"\0" * (-len(section) % 8)
    offsets += [0] * (6 - len(offsets))
    head = HEAD.pack(magic, 1, HEAD_BYTES, bytes.fromhex(model["sha256"]), model["bytes"],
                     text_field(model["architecture"], 16), model["vocabulary_count"],
                     *counts, *offsets, text_field(model["command"], 128),
                     text_field(model["made_with"], 176))
    with open(path, "wb") as out:
        out.write(head + body)


def logits_write(path, model, chunks, log_sum, log_sum_rest, best_ids, best_logits):
    """chunks: list of (name, ids); the arrays: little-endian numpy of f64, f64, u32, f32."""
    table, tokens = b"", array("I")
    for name, ids in chunks:
        table += CHUNK.pack(text_field(name, 24), len(tokens), len(ids))
        tokens.extend(ids)
    file_write(path, LOGIT_MAGIC, model, (len(chunks), len(tokens), BEST_COUNT),
               [table, tokens.tobytes(), log_sum.tobytes(), log_sum_rest.tobytes(),
                best_ids.tobytes(), best_logits.tobytes()])


def greedy_write(path, model, step_limit, end_id, prompts):
    """prompts: list of dict of name, text, answer, ids, steps (tuples as in STEP)."""
    table, ids, steps, text, step_count = b"", array("I"), b"", b"", 0
    for prompt in prompts:
        user, answer = prompt["text"].encode(), prompt["answer"].encode()
        table += PROMPT.pack(text_field(prompt["name"], 24), len(text), len(user),
                             len(text) + len(user), len(answer), len(ids), len(prompt["ids"]),
                             step_count, len(prompt["steps"]))
        text += user + answer
        ids.extend(prompt["ids"])
        steps += b"".join(STEP.pack(*step) for step in prompt["steps"])
        step_count += len(prompt["steps"])
    file_write(path, GREEDY_MAGIC, model, (len(prompts), step_limit, end_id),
               [table, ids.tobytes(), steps, text])


def file_read(path):
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < HEAD_BYTES:
        raise ValueError(f"{path}: shorter than a head")
    (magic, version, head_bytes, sha256, model_bytes, architecture, vocabulary_count,
     *numbers, command, made_with) = HEAD.unpack_from(data)
    if magic not in (LOGIT_MAGIC, GREEDY_MAGIC) or version != 1 or head_bytes != HEAD_BYTES:
        raise ValueError(f"{path}: not a golden file of version 1")
    counts, offsets = numbers[:3], numbers[3:]
    golden = {
        "magic": magic, "sha256": sha256.hex(), "bytes": model_bytes,
        "architecture": architecture.rstrip(b"\0").decode(), "vocabulary_count": vocabulary_count,
        "command": command.rstrip(b"\0").decode(), "made_with": made_with.rstrip(b"\0").decode(),
    }

    def section(kind, index, count):
        values = array(kind)
        size = count * values.itemsize
        if offsets[index] + size > len(data):
            raise ValueError(f"{path}: section {index} ends after the file")
        values.frombytes(data[offsets[index]:offsets[index] + size])
        return values

    if magic == LOGIT_MAGIC:
        chunk_count, position_count, best_count = counts
        table = [CHUNK.unpack_from(data, offsets[0] + i * CHUNK.size) for i in range(chunk_count)]
        golden.update(
            chunks=[(name.rstrip(b"\0").decode(), first, count) for name, first, count in table],
            position_count=position_count, best_count=best_count,
            tokens=section("I", 1, position_count), log_sum=section("d", 2, position_count),
            log_sum_rest=section("d", 3, position_count),
            best_ids=section("I", 4, position_count * best_count),
            best_logits=section("f", 5, position_count * best_count))
        return golden
    golden.update(step_limit=counts[1], end_id=counts[2], prompts=[])
    for i in range(counts[0]):
        (name, text_first, text_bytes, answer_first, answer_bytes, id_first, id_count, step_first,
         step_count) = PROMPT.unpack_from(data, offsets[0] + i * PROMPT.size)
        text, ids = offsets[3], section("I", 1, id_first + id_count)
        golden["prompts"].append({
            "name": name.rstrip(b"\0").decode(),
            "text": data[text + text_first:text + text_first + text_bytes].decode(),
            "answer": data[text + answer_first:text + answer_first + answer_bytes].decode(),
            "ids": ids[id_first:].tolist(),
            "steps": [STEP.unpack_from(data, offsets[2] + (step_first + s) * STEP.size)
                      for s in range(step_count)]})
    return golden


def logits_faults(golden):
    """Everything that must hold of next-token logits whatever the model: a list of sentences."""
    faults, best = [], golden["best_count"]
    ends = 0
    for name, first, count in golden["chunks"]:
        if first != ends or count == 0:
            faults.append(f"chunk {name} does not start where the one before it ends")
        ends = first + count
    if ends != golden["position_count"]:
        faults.append("the chunks do not cover the positions")
    if any(token >= golden["vocabulary_count"] for token in golden["tokens"]):
        faults.append("a token is outside the vocabulary")
    for p in range(golden["position_count"]):
        ids = golden["best_ids"][p * best:(p + 1) * best]
        logits = golden["best_logits"][p * best:(p + 1) * best]
        if len(set(ids)) != best or max(ids) >= golden["vocabulary_count"]:
            faults.append(f"position {p}: ids repeat or are outside the vocabulary")
        if any(a < b or (a == b and i > j)
               for a, b, i, j in zip(logits, logits[1:], ids, ids[1:])):
            faults.append(f"position {p}: logits are not in order")
        total = math.fsum(math.exp(logit - golden["log_sum"][p]) for logit in logits)
        total += math.exp(golden["log_sum_rest"][p] - golden["log_sum"][p])
        if not abs(total - 1) < 1e-9:
            faults.append(f"position {p}: probabilities add to {total!r}")
        # No token of the rest may be likelier than the last of the best.
        rest = golden["vocabulary_count"] - best
        if golden["log_sum_rest"][p] > logits[-1] + math.log(rest) + 1e-6:
            faults.append(f"position {p}: the rest is larger than {rest} times the last of the best")
    return faults


def greedy_faults(golden):
    faults = []
    for prompt in golden["prompts"]:
        name, steps = prompt["name"], prompt["steps"]
        emitted = [step[0] for step in steps]
        if not prompt["ids"] or not 0 < len(steps) <= golden["step_limit"]:
            faults.append(f"{name}: no prompt, no step, or too many steps")
        if golden["end_id"] in emitted[:-1]:
            faults.append(f"{name}: goes on after its end")
        if len(steps) < golden["step_limit"] and emitted[-1:] != [golden["end_id"]]:
            faults.append(f"{name}: stops early without its end")
        if any(best < second or i == j for i, j, best, second in steps):
            faults.append(f"{name}: the second logit is larger than the best")
        if any(i >= golden["vocabulary_count"] for i in emitted + prompt["ids"]):
            faults.append(f"{name}: a token is outside the vocabulary")
    return faults


def main(paths):
    failed = 0
    for path in paths:
        golden = file_read(path)
        is_logits = golden["magic"] == LOGIT_MAGIC
        faults = logits_faults(golden) if is_logits else greedy_faults(golden)
        size = (f"{golden['position_count']} positions" if is_logits
                else f"{len(golden['prompts'])} prompts")
        print(f"{path}: {golden['architecture']}, {size}, {'bad' if faults else 'good'}")
        for fault in faults[:20]:
            print(f"  {fault}")
        failed += bool(faults)
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
