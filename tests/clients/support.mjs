// SPDX-License-Identifier: Apache-2.0
// What the checks of clients in JavaScript share: see support_clients.py, whose counterpart this is.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import net from "node:net";

export const load = createRequire(process.env.TROIKA_NODE_MODULES + "/");
export const url = process.env.TROIKA_URL, keyUrl = process.env.TROIKA_KEY_URL, busyUrl = process.env.TROIKA_BUSY_URL;
export const KEY = process.env.TROIKA_KEY, MODEL = "smollm2";
export const ASK = [{ role: "user", content: "Name three colours." }];
export const TELL = [{ role: "user", content: "Write one line about a dog." }];
export const CUT = [{ role: "user", content: "Tell me about a young dog called Rex, and his three friends. Answer as JSON." }];
export const TOO_LONG = [{ role: "user", content: "word ".repeat(3000) }];
export const FOREVER = 1900; // tokens: with ignore_eos longer than any check waits for one that it leaves
const HOLD = 8000; // the same for one that keeps a place
const GONE_MS = 2000;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const { ok, equal, deepEqual } = assert;

// Sockets reach loopback only; the last check demands that none tried more.
const outside = [];
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...given) {
  const first = Array.isArray(given[0]) ? given[0][0] : given[0];
  const host = (typeof first === "object" ? first.host : given[1]) ?? "localhost";
  if (!["127.0.0.1", "::1", "localhost"].includes(host)) {
    outside.push(host);
    throw new Error(`this test may not reach ${host}`);
  }
  return connect.apply(this, given);
};

async function check_nothing_left_this_machine() {
  deepEqual(outside, []);
}

// A fetch that counts: count.n is how often the client asked.
export function counting() {
  const count = { n: 0, fetch: (...given) => (count.n++, fetch(...given)) };
  return count;
}

export async function health(base = url) {
  return (await fetch(base + "/health")).json();
}

async function until(field, want, base, ms) {
  const begun = performance.now();
  while (performance.now() - begun < ms) {
    if ((await health(base))[field] === want) return performance.now() - begun;
    await sleep(10);
  }
  return null;
}

export async function isRunning(base = url) {
  ok((await until("running", 1, base, 10000)) !== null, "the request does not run");
}

// The client has just left: the server must notice, and still serve.
export async function isGone(base = url) {
  const took = await until("running", 0, base, 10000);
  ok(took !== null && took <= GONE_MS, `still running ${took} ms after the client has gone`);
  const answer = await post({ messages: ASK, max_tokens: 1 }, base);
  equal(answer.status, 200);
  equal((await answer.json()).usage.completion_tokens, 1);
}

export function post(body, base = url, more = {}) {
  return fetch(base + "/v1/chat/completions", {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, ...more });
}

// Takes both places of the busy server, calls `inside` with a function that gives them back, and gives them back.
export async function whileFull(inside) {
  const leave = new AbortController();
  const body = { messages: ASK, stream: true, ignore_eos: true, max_tokens: HOLD };
  ok((await until("running", 0, busyUrl, 10000)) !== null);
  try {
    // Kept: the connection of an answer that nobody holds is closed when it is collected.
    const held = [await post(body, busyUrl, { signal: leave.signal })];
    await isRunning(busyUrl);
    held.push(await post(body, busyUrl, { signal: leave.signal }));
    ok((await until("queued", 1, busyUrl, 10000)) !== null, "the second request does not wait");
    await inside(() => leave.abort());
    equal(held.length, 2);
  } finally {
    leave.abort();
  }
}

// The error that a promise is rejected with, which is of this class.
export async function raises(Class, promise) {
  let got;
  try {
    got = await promise;
  } catch (error) {
    ok(error instanceof Class, `${error?.constructor?.name}: ${error?.message} is no ${Class.name}`);
    return error;
  }
  throw new Error(`no ${Class.name} but ${JSON.stringify(got)}`);
}

export function middleOf(text) {
  const half = Math.floor(text.length / 2), stop = text.slice(half, half + 4), cut = text.slice(0, text.indexOf(stop));
  ok(stop && cut, text);
  return [stop, cut];
}

export async function runChecks(...checks) {
  let failed = 0;
  for (const check of [...checks, check_nothing_left_this_machine]) {
    const name = check.name.replace(/^check_/, "");
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      failed++;
      console.log(`not ok ${name}: ${error?.name}: ${String(error?.message).replace(/\s+/g, " ").slice(0, 600)}`);
      console.error(error);
    }
  }
  process.exitCode = failed ? 1 : 0;
  setTimeout(() => process.exit(), 500).unref(); // kept connections must not hold it up
}
