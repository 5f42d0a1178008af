# SPDX-License-Identifier: Apache-2.0
"""Who asks: by header, tier, priority, hint, path, session, parent or key, and the class that this has to give."""
from wire import KEY, request

# What the server's key file says of each; crowd.py writes it. All clients of a key share its limits.
KEYS = {KEY: "", "sk-crowd-capped": "cap=proactive name=capped", "sk-crowd-greedy": "reactive-max=2 max=5 name=greedy",
        "sk-crowd-nightly": "class=proactive name=nightly", "sk-crowd-agents": "may-react name=agents"}
CAPPED, GREEDY, NIGHTLY, AGENTS = list(KEYS)[1:]
GREEDY_REACTIVE_MAX = 2
SESSIONS = 24  # names that turns and their children share


class Who:
    def __init__(self, class_, headers=(), body=None, prefix="", key=KEY):
        self.class_ = class_  # None: it depends on what others do
        self.headers = list(headers)
        self.body = body or {}
        self.prefix = prefix
        self.key = key

    def ask(self, path, body):
        return request("POST", self.prefix + path, body | self.body, self.headers, key=self.key)


def explicit(c, reactive_share=0.2):
    """A client that says itself what it is, in one of many ways."""
    reactive = c.random.random() < reactive_share
    size = c.random.choice([1, 5, 1 << 40])
    hint = {"priority": min(size, 9) if reactive else -min(size, 9), "osl": c.random.randint(0, 100)}
    name = "reactive" if reactive else "proactive"
    return Who(name, **c.random.choice([
        {"headers": [f"x-troika-class: {name}"]}, {"headers": [f"X-TROIKA-CLASS: {name.upper()}"]},
        {"body": {"service_tier": c.random.choice(["priority", "fast"]) if reactive else "flex"}},
        {"body": {"priority": -size if reactive else size}}, {"body": {"nvext": {"agent_hints": hint}}},
        {"body": {"troika": {"class": name, "expected_tokens": c.random.randint(0, 50)}}},
        {"headers": [f"x-troika-class: {name}"], "body": {"service_tier": "priority", "priority": 3}},
        {"headers": [f"x-troika-class: {name}"], "prefix": "/bg"}]))


def silent(c):
    return Who("reactive", **c.random.choice([
        {}, {}, {"body": {"service_tier": c.random.choice(["auto", "default"]), "priority": 0}},
        {"headers": ["x-troika-class:"]}, {"body": {"nvext": {"agent_hints": {"priority": 0}}}}]))


def by_path_or_key(c):
    return c.random.choice([
        Who("proactive", prefix="/bg"), Who("proactive", key=NIGHTLY), Who("proactive", key=CAPPED),
        Who("proactive", ["x-troika-class: reactive"], key=CAPPED), Who("proactive", body={"service_tier": "priority"}, key=CAPPED),
        Who("reactive", ["x-troika-class: reactive"], key=NIGHTLY)])


def in_session(c):
    """A turn of a session, or a child's: as urgent as others make it, unless it says so itself."""
    session, parent = (f"crowd-{c.random.randrange(SESSIONS)}" for _ in range(2))
    headers = c.random.choice([
        [f"X-Session-Id: {session}"], [f"X-Session-Id: {session}-child", f"X-Parent-Session-Id: {parent}"],
        [f"x-claude-code-session-id: {session}", f"x-claude-code-agent-id: {parent}"],
        [f"thread-id: {session}-thread", f"x-codex-parent-thread-id: {parent}"],
        [f"traceparent: 00-{c.random.getrandbits(127) + 1:032x}-{c.random.getrandbits(63) + 1:016x}-01"]])
    who = Who(None, headers, key=c.random.choice([KEY, KEY, AGENTS]))
    if c.random.random() < 0.3:
        who.class_ = c.random.choice(["reactive", "proactive"])
        who.headers.append(f"x-troika-class: {who.class_}")
    return who


def somebody(c):
    """Mostly background: else there would be no room for it beside 200 who cannot wait."""
    return c.random.choice([explicit, explicit, explicit, silent, by_path_or_key, by_path_or_key, in_session])(c)


def hardly_anybody(c):
    """Who asks for a lot: a person seldom waits for it."""
    return explicit(c, 0.1) if c.random.random() < 0.7 else by_path_or_key(c)
