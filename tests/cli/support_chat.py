# SPDX-License-Identifier: Apache-2.0
"""`troika chat` on a terminal of its own (a pty), as somebody who types sees it."""
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "api"))
from support_server import BINARY, ENVIRONMENT  # noqa: E402

import fetch  # noqa: E402  (tools/ is on the path)

MODEL = str(fetch.path_of("smollm2"))

PROMPT = ">>> "
STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\([AB0]")


def plain(text):
    """What is left when styles and cursor movements are taken out."""
    return STYLES.sub("", text).replace("\r", "")


class Terminal:
    """`with Terminal("--temp", "0") as t:` - the chat has printed its first prompt. folder holds the state (history).

    stdout: a descriptor that takes the terminal's place as standard output; closed here."""

    def __init__(self, *options, folder, columns=100, rows=40, environment=None, prompt=PROMPT, stdout=None):
        self.seen = b""  # everything since the last expect()
        self.whole = b""
        self.code = None
        variables = ENVIRONMENT | {"XDG_STATE_HOME": str(folder), "HOME": str(folder), "TERM": "xterm"} | (environment or {})
        variables.pop("NO_COLOR", None) if "NO_COLOR" not in (environment or {}) else None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(folder)
                if stdout is not None:
                    os.dup2(stdout, 1)
                os.execve(BINARY, [BINARY, "chat", "-m", MODEL, *options], variables)
            finally:
                os._exit(127)
        if stdout is not None:
            os.close(stdout)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if prompt:
            self.start = self.expect(prompt, 60)

    def read(self, seconds):
        """Some bytes, or b"" after `seconds`, or None at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return None
        self.seen += data
        self.whole += data
        return data or None

    def expect(self, words, seconds=30):
        """Waits until `words` are there; all plain text up to and with them."""
        begun = time.monotonic()
        while True:
            text = plain(self.seen.decode(errors="replace"))
            at = text.rfind(words) if words.endswith(PROMPT) else text.find(words)
            if at >= 0 and not (words.endswith(PROMPT) and text[at + len(words):].strip("\n ")):
                self.seen = text[at + len(words):].encode()
                return text[:at + len(words)]
            left = begun + seconds - time.monotonic()
            if left <= 0 or self.read(min(left, 1)) is None:
                raise AssertionError(f"waited for {words!r}, saw {text[-600:]!r}")

    def send(self, keys):
        data = keys.encode() if isinstance(keys, str) else keys
        while data:  # a terminal's buffer is small
            _, writable, _ = select.select([], [self.fd], [], 30)
            assert writable, "the chat does not read"
            data = data[os.write(self.fd, data[:1024]):]
            while self.read(0):
                pass

    def say(self, line, seconds=30):
        """Types a line; the plain text up to the next prompt."""
        while self.read(0):  # a prompt that came later than the one that was waited for
            pass
        self.seen = b""
        self.send(line + "\r")
        return self.expect("\n" + PROMPT, seconds)

    def wait(self, seconds=30):
        """The exit code."""
        begun = time.monotonic()
        while self.code is None and time.monotonic() - begun < seconds:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        assert self.code is not None, f"still there: {plain(self.seen.decode(errors='replace'))[-300:]!r}"
        while self.read(0):
            pass
        return self.code

    def close(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.code = -9
        os.close(self.fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
