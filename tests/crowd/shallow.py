# SPDX-License-Identifier: Apache-2.0
"""A model of which only the first layers are kept: what it says is of no use, but under a sanitizer it says it many times as often."""
import pathlib
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of GGUF's plain value types
STRING, ARRAY = 8, 9


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode(errors="replace")

    def skip(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, n = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.at += n * SIZES[inner]
            else:
                for _ in range(n):
                    self.skip(inner)
        else:
            self.at += SIZES[kind]


def write(source, target, layers):
    """The GGUF `source` with that many layers, as `target`."""
    data = pathlib.Path(source).read_bytes()
    c = Cursor(data)
    magic, version, n_tensors, n_pairs = (c.number(f) for f in "IIQQ")
    pairs, alignment = b"", 32
    for _ in range(n_pairs):
        begin, name, kind = c.at, c.string(), c.number("I")
        value = c.at
        c.skip(kind)
        if name == "general.alignment":
            alignment, = struct.unpack_from("<I", data, value)
        pairs += data[begin:value] + (struct.pack("<I", layers) if name.endswith(".block_count") else data[value:c.at])
    infos = []
    for _ in range(n_tensors):
        begin, name = c.at, c.string()
        dimensions = c.number("I")
        c.at += 8 * dimensions + 4
        infos.append((name, data[begin:c.at], c.number("Q")))
    base = -(-c.at // alignment) * alignment
    ends = sorted([offset for _, _, offset in infos] + [len(data) - base])
    kept = [x for x in infos if not x[0].startswith("blk.") or int(x[0].split(".")[1]) < layers]
    heads, body = b"", b""
    for _, head, offset in kept:
        heads += head + struct.pack("<Q", len(body))
        body += data[base + offset:base + ends[ends.index(offset) + 1]]
        body += bytes(-len(body) % alignment)
    out = struct.pack("<IIQQ", magic, version, len(kept), n_pairs) + pairs + heads
    pathlib.Path(target).write_bytes(out + bytes(-len(out) % alignment) + body)
