# SPDX-License-Identifier: Apache-2.0
"""prober.py PORT - GET /health every 20 ms, by turns on a kept and on a fresh connection, until its standard input ends.

A process of its own with blocking sockets, and before the others in the queue for a processor where it may be (nice -5), so that what it
measures is the server's delay and not that of the clients' event loop. A probe that waits also stands for those that should have begun
meanwhile: they are counted with the time that they would have waited, else one long stall would be one sample.
Prints {"probes", "p50_ms", "p99_ms", "max_ms", "mistakes", "examples"}.
"""
import json
import os
import select
import socket
import sys
import time

PERIOD_S = 0.020
GIVE_UP_S = 30
REQUEST = b"GET /health HTTP/1.1\r\nHost: probe\r\n\r\n"


def connect(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_S)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def probe(s):
    """One request; what is wrong with its answer, or None."""
    s.sendall(REQUEST)
    data = b""
    while True:
        head, found, body = data.partition(b"\r\n\r\n")
        if found:
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None)
            if length is None:
                return f"no length: {head[:200]!r}"
            if len(body) >= length:
                break
        more = s.recv(4096)
        if not more:
            return f"closed after {len(data)} bytes"
        data += more
    if not head.startswith(b"HTTP/1.1 200 ") or len(body) > length:
        return f"{head[:100]!r} {body[:100]!r}"
    health = json.loads(body)
    if health.get("status") != "ok" or not isinstance(health.get("running"), int) or not isinstance(health.get("queued"), int):
        return f"health {health}"
    return None


def main(port):
    try:
        os.nice(-5)
    except OSError:
        pass  # then its own waiting for a processor counts as well
    times, examples, mistakes = [], [], 0
    kept = connect(port)
    n, at = 0, time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, at - time.monotonic()))[0]:
        n += 1
        begun = time.monotonic()
        fresh = None
        try:
            if n % 2:
                fresh = connect(port)
            problem = probe(fresh or kept)
        except (OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            if fresh:
                fresh.close()
        took = time.monotonic() - begun
        if problem:
            mistakes += 1
            examples.append(f"health ({'fresh' if n % 2 else 'kept'}): {problem}")
            if not n % 2:
                kept.close()
                kept = connect(port)
        while took > 0:
            times.append(took)
            took -= PERIOD_S
        at = max(at + PERIOD_S, time.monotonic())
    times.sort()
    print(json.dumps({
        "probes": n, "p50_ms": times[len(times) // 2] * 1e3 if times else None,
        "p99_ms": times[int(len(times) * 0.99)] * 1e3 if times else None, "max_ms": times[-1] * 1e3 if times else None,
        "mistakes": mistakes, "examples": examples[:10]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
