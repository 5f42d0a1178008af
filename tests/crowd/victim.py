# SPDX-License-Identifier: Apache-2.0
"""victim.py PORT STAGE N - opens N connections, brings each to a stage of a request, the first half as background (else that would wait
for the other half), prints a line with the streams' names, and waits to be killed."""
import json
import re
import socket
import sys
import time

BODY = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 3000, "ignore_eos": True, "stream": True}
PATH = "/v1/chat/completions"


def post(reactive, body, more=""):
    data = json.dumps(body).encode()
    class_ = "reactive" if reactive else "proactive"
    return f"POST {PATH} HTTP/1.1\r\nHost: v\r\nx-troika-class: {class_}\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data


def until(s, *words):
    seen = b""
    while not all(word in seen for word in words):
        more = s.recv(65536)
        assert more, seen
        seen += more
    return seen


def patch(port, name, body):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        data = json.dumps(body).encode()
        s.sendall(f"PATCH /v1/streams/{name} HTTP/1.1\r\nHost: v\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        assert b" 200 " in until(s, b"\r\n\r\n").split(b"\r\n")[0]


def bring(port, stage, i, reactive):
    """A connection, and its stream's name if it has one."""
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    body = dict(BODY)
    if stage == "prefill":
        body["messages"] = [{"role": "user", "content": f"{i} " + "many words that it has to read " * 500}]
    if stage == "whole":
        body["stream"] = False
    data = post(reactive, body, "x-stainless-retry-count: 1\r\n" if stage == "retry" and i else "")
    cut = {"connected": 0, "head": 30, "body": len(data) - 10}.get(stage, len(data))
    s.sendall(data[:cut])
    if cut < len(data) or stage in ("sent", "whole"):
        return s, None
    head = until(s, b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head + s.recv(65536)
    name = re.search(rb"^x-troika-stream: (\S+)", head, re.MULTILINE)[1].decode()
    if stage in ("streaming", "suspended", "retry"):
        until(s, b"content")
    if stage in ("suspended", "suspended early"):
        patch(port, name, {"state": "suspended"})
    return s, name


def main(port, stage, n):
    brought = [bring(port, stage, i, i >= n // 2) for i in range(n)]
    print(json.dumps([name for _, name in brought if name]), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
