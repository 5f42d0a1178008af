# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""`troika chat` as people use it: typed on a terminal of its own, and with lines from a pipe."""
import contextlib
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import tempfile
import termios
import time

from support_chat import BINARY, ENVIRONMENT, MODEL, PROMPT, Terminal, plain
from support_server import run_checks

GREEDY = ("--temp", "0", "-n", "6")
LONG = "Write a very long story about a ship. Use many words."


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


def piped(lines, *options, code=0, directory=None):
    """Answers and notes of a chat whose lines come from a pipe."""
    data = lines if isinstance(lines, bytes) else lines.encode()
    run = subprocess.run([BINARY, "chat", "-m", MODEL, *GREEDY, *options], input=data, capture_output=True, timeout=120,
                         env=ENVIRONMENT, cwd=directory)
    assert run.returncode == code, f"exit code {run.returncode}: {run.stdout[-300:]!r} {run.stderr[-300:]!r}"
    return run.stdout.decode(), run.stderr.decode()


def saved(terminal, directory):
    """The messages as /save writes them: (role, content)."""
    path = directory / "saved.json"
    path.unlink(missing_ok=True)
    assert "saved to" in terminal.say(f"/save {path}")
    return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]


def leave(terminal):
    terminal.send("\x04")
    code = terminal.wait()
    assert code == 0, code


def check_editing_and_history():
    with folder() as d:
        with Terminal(*GREEDY, folder=d) as t:
            assert "context 8192 tokens" in t.start and "/help" in t.start, t.start
            t.say("helo\x1b[Dl\x05 there\x01Say ")  # an arrow and a letter, Ctrl-E, Ctrl-A
            t.say("one twoo\x17two é日x\x7f😀")  # Ctrl-W, backspace
            t.say("gone\x15a\x1b[Hb\x1b[Fc\x01\x1b[3~")  # Ctrl-U, home, end, delete
            t.say("\x1b[A\x1b[A!")  # two lines back
            t.say("\x12there\x05?")  # Ctrl-R
            said = [text for role, text in saved(t, d) if role == "user"]
            assert said == ["Say hello there", "one two é日😀", "ac", "one two é日😀!", "Say hello there?"], said
            leave(t)
        file = d / "troika" / "history"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        lines = file.read_text().split("\n")
        assert lines[0] == "Say hello there" and lines[4] == "Say hello there?" and lines[5].startswith("/save"), lines
        file.write_text("".join(f"old {i}\n" for i in range(1500)))
        with Terminal(*GREEDY, folder=d) as t:
            t.say("\x1b[A!")
            assert saved(t, d)[0] == ("user", "old 1499!")
            leave(t)
        lines = file.read_text().split("\n")[:-1]
        assert len(lines) == 1000 and lines[-2] == "old 1499!" and lines[0] == "old 502", (len(lines), lines[0], lines[-2])


def check_several_lines():
    with folder() as d, Terminal(*GREEDY, folder=d) as t:
        t.send("one\\\r")
        t.expect("... ")
        t.say("two")
        t.send('"""\r/three\r')
        t.expect("... ")
        t.say('four"""')
        t.send("\x1b[200~five\r  six\n\x1b[201~")  # pasted: its newlines send nothing
        t.expect("  six")
        t.say("!")
        t.say("\x1b[A?")  # from the history, with its newline
        t.send('"""\rdropped\r')
        t.expect("... ")
        t.send("\x03")
        t.expect(PROMPT)
        t.send('"""\rdropped too\r')
        t.expect("... ")
        t.send("\x04")
        assert "dropped" in t.expect("\n" + PROMPT)
        t.send('/system """\rBe brief.\rBe kind."""\r')
        t.expect("is set")
        t.expect(PROMPT)
        messages = saved(t, d)
        assert messages[0] == ("system", "Be brief.\nBe kind."), messages
        said = [text for role, text in messages if role == "user"]
        assert said == ["one\ntwo", "/three\nfour", "five\n  six!", "five\n  six!?"], said
        leave(t)


def check_ctrl_c_stops_the_answer():
    with folder() as d, Terminal("--temp", "0", folder=d) as t:
        t.send(LONG + "\r")
        t.expect(LONG)
        t.expect(" ")  # a first word
        begun = time.monotonic()
        t.send("\x03\x03")
        time.sleep(0.05)
        t.send("\x03")
        text = t.expect("\n" + PROMPT)
        assert "[stopped]" in text and time.monotonic() - begun < 10, text
        time.sleep(1)  # the third Ctrl-C ends the answer, or the line after it: a prompt more
        assert "is 5" in t.say("/set max-tokens 5")
        assert len(t.say("Who was on it?").strip().split("\n")) >= 2
        messages = saved(t, d)
        assert [role for role, _ in messages] == ["user", "assistant"] * 2, messages
        story = messages[1][1]
        assert story.split()[0] in plain(t.whole.decode()) and len(story) < 3000, story
        assert messages[2][1] == "Who was on it?" and messages[3][1], messages
        leave(t)


def check_ctrl_c_while_editing():
    with folder() as d, Terminal(*GREEDY, folder=d) as t:
        t.send("not sent")
        t.expect("not sent")
        t.send("\x03")
        t.expect("^C\n" + PROMPT)
        t.send("\x03")
        assert "leaves" not in t.expect("^C\n" + PROMPT)
        t.send("\x03")
        assert "Ctrl-D or /bye leaves" in t.expect("\n" + PROMPT)
        t.say("Hi")
        assert [role for role, _ in saved(t, d)] == ["user", "assistant"]
        t.send("/bye\r")
        assert t.wait() == 0
        mode = termios.tcgetattr(t.fd)[3]
        assert mode & termios.ECHO and mode & termios.ICANON, "the terminal is not as it was"


def check_typed_during_an_answer():
    with folder() as d, Terminal("--temp", "0", "-n", "40", folder=d) as t:
        t.send(LONG + "\r")
        t.expect(LONG)
        t.expect(" ")
        t.send("next\r\x04")  # not shown in the answer, then taken in turn
        text = t.expect("\n" + PROMPT + "next\n")
        assert "next" not in text[:-6] and t.wait() == 0, text


def check_signals():
    with folder() as d:
        for busy in (False, True):
            with Terminal("--temp", "0", folder=d) as t:
                if busy:
                    t.send(LONG + "\r")
                    t.expect(LONG)
                    t.expect(" ")
                os.kill(t.pid, signal.SIGTERM)
                assert t.wait(20) == 130, t.code
                mode = termios.tcgetattr(t.fd)[3]
                assert mode & termios.ECHO and mode & termios.ICANON, "the terminal is not as it was"
        with Terminal(*GREEDY, folder=d) as t:
            t.send("kept")
            t.expect("kept")
            t.send("\x1a")  # Ctrl-Z
            begun = time.monotonic()
            while os.waitpid(t.pid, os.WUNTRACED | os.WNOHANG)[0] == 0:
                assert time.monotonic() - begun < 5, "Ctrl-Z does not stop it"
                t.read(0.02)
            assert termios.tcgetattr(t.fd)[3] & termios.ICANON
            os.kill(t.pid, signal.SIGCONT)
            t.expect("kept")
            t.say("!")
            assert saved(t, d)[0] == ("user", "kept!")
            leave(t)
        process = subprocess.Popen([BINARY, "chat", "-m", MODEL, "--temp", "0", LONG], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
        assert process.stdout.read(5)
        process.send_signal(signal.SIGINT)  # nobody types here: Ctrl-C ends it
        assert process.wait(10) == 130, process.returncode


def check_commands():
    with folder() as d, Terminal(*GREEDY, "--system", "Be brief.", folder=d) as t:
        text = t.say("/help")
        for command in ("/system", "/clear", "/undo", "/retry", "/save", "/load", "/stats", "/set", "/bye", "Ctrl-C"):
            assert command in text, command
        assert "Be brief." in t.say("/system")
        assert "did you mean /system?" in t.say("/sytem x") and "//sytem" in t.say("/sytem")
        assert "nothing to undo" in t.say("/undo") and "no message" in t.say("/retry")
        t.say("//help me")
        assert saved(t, d)[1] == ("user", "/help me")
        first = saved(t, d)[2][1]
        assert "so each try gives the same answer" in t.say("/retry")
        assert saved(t, d)[2][1] == first
        t.say("/set temp 1.5")
        t.say("/set seed 1")
        answers = set()
        for _ in range(4):
            t.say("/retry")
            answers.add(saved(t, d)[2][1])
        assert len(answers) > 1 and len(saved(t, d)) == 3, answers
        assert "2 messages dropped, 0 left" in t.say("/undo")
        t.say("Hi")
        assert "2 messages forgotten" in t.say("/clear") and saved(t, d) == [("system", "Be brief.")]
        assert "removed" in t.say('/system ""') and "no system message" in t.say("/system")
        assert "nothing to save" in t.say("/save")
        assert "takes nothing" in t.say("/clear all")
        text = t.say("/set")
        assert re.search(r"temperature +1\.5 ", text) and re.search(r"seed +1 ", text) and "max-tokens" in text, text
        for line, words in (("/set temp 3", "0 to 2"), ("/set top-p", "needs a value"), ("/set tempp 1", "did you mean temp"),
                            ("/set port 1", "does not know"), ("/set max-tokens x", "whole number"), ("/set seed random", "random"),
                            ("/set top-k = 3", "top-k is 3")):
            assert words in t.say(line), line
        assert re.search(r"seed +random ", t.say("/set"))
        leave(t)


def check_save_and_load():
    with folder() as d:
        (d / "diary").write_text("dear diary")
        with Terminal(*GREEDY, folder=d) as t:
            t.say("Hello, I am Ann.")
            assert "not overwritten" in t.say("/save diary")
            assert "2 messages saved to ~" not in t.say("/save ~/a b.json")
            assert "to a b.json" in t.say("/save a b.json") and "saved to a b.json" in t.say("/save")
            before = json.loads((d / "a b.json").read_text())
            assert before["model"] and stat.S_IMODE((d / "a b.json").stat().st_mode) == 0o600
            for name, text, words in (("json", "{", "not JSON: line 1"), ("role", '[{"role":"king","content":""}]', "messages[0].role"),
                                      ("shape", '{"messages":{}}', "not an array"), ("content", '[{"role":"user"}]', "messages[0].content"),
                                      ("empty", "", "is empty"), ("deep", "[" * 100000, "not JSON")):
                (d / name).write_text(text)
                assert words in t.say(f"/load {name}"), name
            (d / "large").write_text("[]")
            os.truncate(d / "large", (16 << 20) + 1)
            os.mkfifo(d / "fifo")
            for name, words in (("large", "16777217 bytes"), ("fifo", "not a regular file"), (".", "not a regular file"),
                                ("none", "No such file"), ("", "needs a file")):
                assert words in t.say(f"/load {name}"), name
            assert saved(t, d) == [(m["role"], m["content"]) for m in before["messages"]], "a failed /load has changed the chat"
            leave(t)
        assert (d / "diary").read_text() == "dear diary"
        other = before | {"model": "another", "messages": [{"role": "system", "content": "ESC \x1b[31m is shown"}] + before["messages"]}
        (d / "other.json").write_text(json.dumps(other))
        with Terminal(*GREEDY, "--load", "other.json", folder=d) as t:
            assert "2 messages loaded" in t.start and "said with another" in t.start, t.start
            assert "ESC ␛[31m is shown" in t.say("/system") and b"\x1b[31m" not in t.whole
            t.say("Who am I?")
            assert len(saved(t, d)) == 5
            assert "2 messages loaded" in t.say("/load a b.json") and len(saved(t, d)) == 2
            leave(t)
        (d / "open.json").write_text('[{"role":"user","content":"Hi"}]')
        out, noise = piped("/retry\n", "--load", "open.json", directory=d)
        assert out.strip() and "/retry answers it" in noise
        out, noise = piped("x\n", "--load", "none.json", code=1, directory=d)
        assert out == "" and "No such file" in noise


def check_stats():
    with folder() as d, Terminal(*GREEDY, folder=d) as t:
        cached, words = [], "tell me something about boats and the sea and the weather of the north in winter please " * 2
        for i in range(3):
            t.say(f"{i} {words}")
            text = t.say("/stats")
            last = re.search(r"last answer\n +prompt +(\d+) tokens, (\d+) of them cached\n +first token +([\d.]+) s\n"
                             r" +answer +(\d+) tokens, ([\d.]+) tokens/s", text)
            assert last, text
            prompt, hits, first, answer, rate = (float(x) for x in last.groups())
            assert 0 <= hits < prompt < 400 and 0 < first < 30 and answer == 6 and rate > 1, text
            cached.append(hits)
            context = re.search(r"context +(\d+) of 8192", text)
            assert prompt <= int(context[1]) <= prompt + answer + 4 and "memory" in text, text
        assert cached[0] < cached[1] < cached[2], cached
        total = re.search(r"answers +3 in [\d.]+ s\n +prompts +(\d+) tokens, (\d+) of them cached\n +generated +18 tokens", text)
        assert total and int(total[2]) == sum(cached) < int(total[1]), text
        t.say("/clear")
        assert re.search(r"context +0 of 8192", t.say("/stats"))
        leave(t)
    assert re.search(r"\[prompt \d+ tokens, \d+ of them cached; .*context \d+ of 8192\]", piped("Hi\n", "--verbose")[1])


def check_full_context():
    with folder() as d, Terminal("--temp", "0", "--context", "96", "-n", "10", folder=d) as t:
        for turn in range(9):
            text = t.say("Tell me about the sea.")
            if "troika:" in text:
                break
        found = re.search(r"context is full: the chat with this message has (\d+) tokens, and at most 95 leave", text.replace("\n", " "))
        assert found and int(found[1]) > 95 and "not added" in text and "/undo or /clear" in text and "--context" in text, text
        assert len(saved(t, d)) == 2 * turn and turn >= 1
        t.say("/undo")
        assert "troika:" not in t.say("Go on.")
        t.say("/clear")
        t.say("/set max-tokens -1")
        t.send(LONG + "\r")
        assert "[the context is full: 96 of 96 tokens" in t.expect("\n" + PROMPT)
        assert "A shorter message fits" in (t.say("/clear") and t.say("word " * 200))
        assert "troika:" not in t.say("Hi")
        leave(t)


def check_pipe():
    alone = piped("Name a colour.\n")[0]
    out, noise = piped("Name a colour.\n\n  \nAnd another.\r\n")
    assert out.startswith(alone) and len(out) > len(alone) and PROMPT not in out + noise and "\x1b" not in out + noise
    assert piped("Name a\\\ncolour.")[0] == piped('"""Name a\ncolour."""\n')[0] == piped('"""Name a\ncolour.')[0]
    assert piped("", "Name", "a colour.")[0] == alone == piped("/bye\nx\n", "Name a colour.")[0] and piped("")[0] == ""
    assert piped("Name a colour.\n", "--stop", alone[3:5])[0].strip() == alone[:3].strip()
    data = b"bad \xff\xfe\n" + b"x" * 1000000 + b"\nnul \0 here\n/nope\n" + b"y" * (17 << 20) + b"\nName a colour.\n/undo\n/save out.json\n"
    with folder() as d:
        begun = time.monotonic()
        out, noise = piped(data, "--context", "256", code=1, directory=d)
        assert "line 1 is not valid UTF-8 at byte 4" in noise and "the context is full" in noise, noise
        assert "no command /nope" in noise and "line 5 is longer than 16777216 bytes" in noise, noise
        messages = json.loads((d / "out.json").read_text())["messages"]
        assert [m["role"] for m in messages] == ["user", "assistant"] and messages[0]["content"] == "nul \0 here", messages
        assert time.monotonic() - begun < 20


def check_plain_terminals():
    with folder() as d:
        with Terminal(*GREEDY, folder=d, environment={"NO_COLOR": "1"}) as t:
            t.say("Hi")
            t.say("/help")
            assert not re.search(rb"\x1b\[[0-9;]*m", t.whole), t.whole
            leave(t)
        with Terminal(*GREEDY, folder=d, environment={"TERM": "dumb"}) as t:
            t.say("Hx\x7fi")
            assert '"""' in t.say("/help") and b"\x1b" not in t.whole.split(b"%")[-1], t.whole
            assert saved(t, d)[0] == ("user", "Hi")
            leave(t)
        with Terminal(*GREEDY, "First", "words", folder=d, environment={"LC_ALL": "C"}) as t:
            assert "First words\n" in t.start
            t.say("é日")
            assert [text for role, text in saved(t, d) if role == "user"] == ["First words", "é日"]
            leave(t)
        (d / "troika" / "history").unlink()
        os.rmdir(d / "troika")
        (d / "troika").write_text("in the way")
        with Terminal(*GREEDY, folder=d) as t:
            assert "not kept" in t.start
            t.say("Hi \xff")
            leave(t)


def check_unknown_terminal():
    with folder() as d:
        for name in ("no-such-terminal", ""):
            with Terminal(*GREEDY, folder=d, environment={"TERM": name}) as t:
                assert b"no-such-terminal" in t.whole or not name, t.whole  # libedit says that it does not know it
                t.say("Hx\x7fi")
                assert "use it to paste" in t.say("/help")
                t.say("éx日 \x01\x04S\x05!")
                t.say("\x1b[A?")
                assert b"\x1b" not in t.whole, t.whole
                said = [text for role, text in saved(t, d) if role == "user"]
                assert said == ["Hi", "Sx日 !", "Sx日 !?"], said
                leave(t)


def check_answers_to_a_pipe():
    """`troika chat | tee FILE`: typed on the terminal, the answers alone go into the pipe."""
    alone = piped("Name a colour.\n")[0]
    with folder() as d:
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb", 0) as answers, Terminal(*GREEDY, folder=d, stdout=write_end) as t:
            assert "/help" in t.start, t.start
            text = t.say("Name a coll\x7four.")
            assert "[ended after max-tokens: 6]" in text and alone.strip() not in text, text
            assert answers.read(4096).decode() == alone
            assert "/undo" in t.say("/help") and "no command /nope" in t.say("/nope") and "first token" in t.say("/stats")
            t.send("gone\x03")
            t.expect("^C\n" + PROMPT)
            t.say("/clear")
            t.say("\x1b[A" * 5)  # back over /clear, /stats, /nope and /help to the message
            messages = saved(t, d)
            assert messages == [("user", "Name a colour."), ("assistant", alone[:-1])], messages
            leave(t)
            rest = answers.readall().decode()
            assert rest == alone, rest


def check_answers_to_a_pipe_that_closes():
    """Who reads them leaves in the middle of an answer: the chat is still there, and so is the terminal's echo."""
    with folder() as d:
        read_end, write_end = os.pipe()
        with Terminal("--temp", "0", "-n", "60", folder=d, stdout=write_end) as t:
            t.send(LONG + "\r")
            assert os.read(read_end, 1)
            os.close(read_end)
            assert "cannot write to standard output" in t.expect("\n" + PROMPT)
            messages = saved(t, d)
            assert [role for role, _ in messages] == ["user", "assistant"] and len(messages[1][1]) > 100, messages
            t.send("\x04")
            assert t.wait() == 1, t.code
            mode = termios.tcgetattr(t.fd)[3]
            assert mode & termios.ECHO and mode & termios.ICANON, "the terminal is not as it was"


def check_usage():
    def fails(*words, code):
        run = subprocess.run([BINARY, "chat", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENVIRONMENT)
        assert run.returncode == code, (words, run)
        return run.stderr
    assert "did you mean --load?" in fails("--laod", "x", code=2)
    assert "no chat template" in fails("-m", "gemma3", "Hi", code=1)
    assert "not a known name" in fails("-m", "nope", code=1)


if __name__ == "__main__":
    run_checks([(check,) for check in (check_editing_and_history, check_several_lines, check_ctrl_c_stops_the_answer,
                                       check_ctrl_c_while_editing, check_typed_during_an_answer, check_signals, check_commands,
                                       check_save_and_load, check_stats, check_full_context, check_pipe,
                                       check_plain_terminals, check_unknown_terminal, check_answers_to_a_pipe,
                                       check_answers_to_a_pipe_that_closes, check_usage)])
