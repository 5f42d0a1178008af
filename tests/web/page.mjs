// SPDX-License-Identifier: Apache-2.0
// What a person does with the page, done by Chromium. check_page.py starts the servers and runs this.
// Prints "ok NAME" or "not ok NAME: why", and lines "figure NAME | WANTED | MEASURED".
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const env = process.env;
const { chromium } = createRequire(path.join(env.TROIKA_NODE_MODULES, "x.js"))("playwright-core");
const URL_ = env.TROIKA_URL, BUSY = env.TROIKA_BUSY_URL, LOCKED = env.TROIKA_KEY_URL;
const CHAT = "**/v1/chat/completions";
const PATIENCE = 120000; // ms; an instrumented server is slow
const GREEDY = { system: "", temperature: 0, maxTokens: 40 };
const CODE = "Here is a **small** program in `C`:\n\n```c\n#include <stdio.h>\n\nint main(void) {\n  puts(\"hello\");\n}\n```\n\n" +
  "1. Save it as `hello.c`.\n2. Compile it:\n   - with gcc: `gcc -O2 hello.c`\n   - with clang\n3. Run it.\n\nThat is all.";

const browser = await chromium.launch({ executablePath: env.TROIKA_CHROMIUM, args: ["--no-sandbox"] });
const seen = { errors: [], violations: [], foreign: [] };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// A page of its own: nothing is shared between checks. An answer that is an error is also a line of
// the console; where a check provokes one, it says so.
async function open(url, { turns, settings = GREEDY, provokes = false, setup, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1080, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", (m) => {
    if (m.type() !== "error" && m.type() !== "warning") return;
    if (!(provokes && m.text().startsWith("Failed to load resource"))) seen.errors.push(m.text());
  });
  page.on("pageerror", (e) => seen.errors.push(String(e)));
  page.on("request", (r) => new URL(r.url()).origin !== new URL(url).origin && seen.foreign.push(r.url()));
  await page.exposeFunction("tellViolation", (what) => seen.violations.push(what));
  await page.addInitScript(({ turns, settings, mark }) => {
    document.addEventListener("securitypolicyviolation", (e) => window.tellViolation(`${e.violatedDirective} ${e.blockedURI}`));
    if (window.name === mark) return; // a reload finds what the page itself has kept
    window.name = mark;
    if (turns) localStorage.setItem("troika.chat", JSON.stringify({ turns }));
    localStorage.setItem("troika.settings", JSON.stringify(settings));
  }, { turns, settings, mark: "begun" });
  if (setup) await page.addInitScript(setup);
  await page.goto(url);
  return page;
}

const answers = (page) => page.locator(".assistant .text");
const lastAnswer = (page) => answers(page).last();
const textOf = (page) => lastAnswer(page).evaluate((n) => n.textContent);
const noteOf = (page) => page.locator(".stats").last().textContent();
const idle = (page) => page.waitForFunction(() => document.querySelector("#send").dataset.does === "send");
const kept = (page) => page.evaluate(() => JSON.parse(localStorage.getItem("troika.chat") ?? "{}").turns ?? []);

async function say(page, text) {
  await page.fill("#box", text);
  await page.keyboard.press("Enter");
}

async function askAndWait(page, text) {
  const before = await answers(page).count();
  await say(page, text);
  await page.waitForFunction((n) => document.querySelectorAll(".assistant").length > n, before);
  await idle(page);
  return textOf(page);
}

async function makeEndless(page) {
  await page.route(CHAT, (route) => {
    const { max_tokens, ...body } = route.request().postDataJSON();
    return route.continue({ postData: JSON.stringify({ ...body, ignore_eos: true }) });
  });
}

async function growsTo(page, characters) {
  await page.waitForFunction((n) => [...document.querySelectorAll(".assistant .text")].at(-1)?.textContent.length > n, characters);
}

async function health(url) {
  return (await fetch(`${url}/health`)).json();
}

// ms until nothing runs on the server
async function msUntilFree(url, limit = 20000) {
  const begun = performance.now();
  while ((await health(url)).running) {
    assert(performance.now() - begun < limit, "the request goes on");
    await pause(5);
  }
  return performance.now() - begun;
}

// Stands in for the server: the bytes of an answer, one at a time or all at once, then the end.
function fakeServer({ text, status = 200, headers = {}, step = 1 }) {
  const real = window.fetch;
  window.fetch = (url, options) => {
    if (!String(url).endsWith("/chat/completions")) return real(url, options);
    const bytes = new TextEncoder().encode(text);
    let at = 0;
    const body = new ReadableStream({
      pull(c) {
        if (at >= bytes.length) return c.close();
        c.enqueue(bytes.slice(at, at += step));
      },
    });
    return Promise.resolve(new Response(body, { status, headers }));
  };
}

const delta = (content) => JSON.stringify({ choices: [{ index: 0, delta: { content }, finish_reason: null }] });

// --- checks

async function check_files_and_headers() {
  const files = { "/": "text/html; charset=utf-8", "/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8",
    "/icon.svg": "image/svg+xml", "/favicon.ico": "image/svg+xml" };
  let bytes = 0;
  for (const [file, type] of Object.entries(files)) {
    const answer = await fetch(URL_ + file);
    assert.equal(answer.status, 200, file);
    assert.equal(answer.headers.get("content-type"), type);
    assert.equal(answer.headers.get("x-content-type-options"), "nosniff");
    assert.equal(answer.headers.get("cache-control"), "no-cache");
    const policy = answer.headers.get("content-security-policy");
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'",
      "form-action 'none'", "frame-ancestors 'none'"]) assert(policy.includes(part), `${file}: ${policy}`);
    assert(!/unsafe|\*|http/.test(policy), policy);
    bytes += (await answer.arrayBuffer()).byteLength;
    const again = await fetch(URL_ + file, { headers: { "If-None-Match": `"other", ${answer.headers.get("etag")}` } });
    assert.equal(again.status, 304, `${file} with its tag`);
    assert.equal(again.headers.get("etag"), answer.headers.get("etag"));
    assert.equal((await fetch(URL_ + file, { headers: { "If-None-Match": '"other"' } })).status, 200);
  }
  assert(bytes < 48 * 1024, `${bytes} bytes`);
}

async function check_loads() {
  const page = await open(URL_);
  await page.waitForFunction(() => document.querySelector("#health").dataset.state === "ok");
  await page.waitForFunction(() => /2,048 tokens/.test(document.querySelector("#model").textContent));
  assert(await page.locator("#empty").isVisible());
  assert(await page.locator("#send").isDisabled());
  assert.equal(await page.evaluate(() => document.activeElement.id), "box");
  return page;
}

async function check_send_streams() {
  const page = await open(URL_);
  await page.evaluate(() => {
    window.lengths = new Set();
    new MutationObserver(() => {
      const text = [...document.querySelectorAll(".assistant .text > :not(.wait)")].map((n) => n.textContent).join("");
      if (text) window.lengths.add(text.length);
    }).observe(document.querySelector("#turns"), { subtree: true, childList: true, characterData: true });
  });
  await say(page, "Name three colours.");
  await page.waitForFunction(() => parseFloat(/([\d.]+) tokens\/s/.exec(document.querySelector(".stats")?.textContent)?.[1]) > 0);
  await idle(page);
  const text = await textOf(page), note = await noteOf(page);
  const steps = await page.evaluate(() => window.lengths.size);
  assert(steps >= 3, `${steps} steps`);
  assert(text.length > 5, text);
  const found = /^(\d+) tokens · ([\d.]+) tokens\/s · first token after ([\d.]+)\s*s · prompt (\d+)/.exec(note);
  assert(found && found.slice(1).every((n) => Number(n) > 0), note);
  assert(Number(found[1]) <= GREEDY.maxTokens, note);
  console.log(`figure steps seen while an answer of ${found[1]} tokens streams | >= 3 | ${steps}`);
  console.log(`figure tokens/s that the page shows | > 0 | ${found[2]}`);
  const whole = await fetch(`${URL_}/v1/chat/completions`, { method: "POST", body: JSON.stringify({ temperature: 0,
    max_tokens: GREEDY.maxTokens, messages: [{ role: "user", content: "Name three colours." }] }) });
  assert.equal((await kept(page))[1].content, (await whole.json()).choices[0].message.content);
}

// Stopped by the button, then by Esc; the conversation goes on after each, and after a reload.
async function check_cancel_reload_go_on() {
  const page = await open(URL_);
  await makeEndless(page);
  const took = [];
  for (const stop of [() => page.click("#send"), () => page.keyboard.press("Escape")]) {
    await say(page, "Tell me a very long story about a ship.");
    await growsTo(page, 60);
    await page.waitForTimeout(400); // the button does not take the second half of a double click
    assert.equal((await health(URL_)).running, 1);
    await stop();
    took.push(await msUntilFree(URL_));
    await idle(page);
    const text = await textOf(page);
    assert(text.length > 60 && /tokens\/s · .*stopped$/.test(await noteOf(page)), await noteOf(page));
    await pause(300);
    assert.equal(await textOf(page), text, "the text stays as it was");
  }
  console.log(`figure ms until the server has seen a cancel (worse of 2) | <= 2000 ms | ${Math.max(...took).toFixed(0)}`);
  assert(Math.max(...took) <= 2000, `${took} ms`);
  await page.unroute(CHAT);
  assert((await askAndWait(page, "Name three colours.")).length > 5);

  const before = await page.locator("#turns").evaluate((n) => n.textContent);
  await page.reload();
  assert.equal(await page.locator("#turns").evaluate((n) => n.textContent), before);
  assert.equal(await page.locator(".turn").count(), 6);
  assert((await askAndWait(page, "And three more.")).length > 5);
  const messages = (await kept(page)).map((t) => t.role);
  assert.deepEqual(messages, Array(4).fill(["user", "assistant"]).flat());
}

async function check_reload_while_streaming() {
  const page = await open(URL_);
  await makeEndless(page);
  await say(page, "Tell me a very long story about a ship.");
  await growsTo(page, 60);
  const before = await textOf(page);
  await page.reload();
  await msUntilFree(URL_);
  assert((await textOf(page)).startsWith(before.trimEnd().slice(0, 40)), await textOf(page));
  assert(/not finished$/.test(await noteOf(page)), await noteOf(page));
  await page.unroute(CHAT);
  await page.getByRole("button", { name: "Retry" }).click();
  await idle(page);
  assert.equal(await page.locator(".turn").count(), 2);
  assert(/ · prompt \d+/.test(await noteOf(page)), await noteOf(page));
}

async function check_new_chat_undo_copy() {
  const page = await open(URL_, { turns: [{ role: "user", content: "Hello" }, { role: "assistant", content: CODE }],
    permissions: ["clipboard-read", "clipboard-write"] });
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  await page.waitForFunction(async (code) => (await navigator.clipboard.readText()) === code, CODE);
  await page.getByRole("button", { name: "Copy code" }).click();
  await page.waitForFunction(async () => (await navigator.clipboard.readText()).startsWith("#include <stdio.h>\n\nint"));
  await page.click("#new");
  assert.equal(await page.locator(".turn").count(), 0);
  assert.deepEqual(await kept(page), []);
  await page.getByRole("button", { name: "Undo" }).click();
  assert.equal(await page.locator(".turn").count(), 2);
  assert.equal((await kept(page)).length, 2);
  await makeEndless(page); // a chat that is thrown away in mid-answer stops its answer
  await say(page, "Tell me a very long story.");
  await growsTo(page, 20);
  await page.click("#new");
  await msUntilFree(URL_);
  assert.equal(await page.locator(".turn").count(), 0);
}

async function check_keyboard_and_composing() {
  const page = await open(URL_);
  await page.locator("#box").pressSequentially("one");
  await page.keyboard.press("Shift+Enter");
  await page.locator("#box").pressSequentially("two");
  assert.equal(await page.inputValue("#box"), "one\ntwo");
  await page.locator("#box").evaluate((box) => {
    box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true, cancelable: true }));
  });
  assert.equal(await page.locator(".turn").count(), 0, "Enter of an input method sends nothing");
  await page.keyboard.press("Enter");
  await idle(page);
  assert.deepEqual((await kept(page))[0], { role: "user", content: "one\ntwo", note: "" });
  const reached = new Set();
  for (let i = 0; i < 9; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.textContent));
    const ring = await page.evaluate(() => document.activeElement === document.body ||
      getComputedStyle(document.activeElement).outlineStyle !== "none" || document.activeElement.matches("#box"));
    assert(ring, "what has the focus shows it");
  }
  for (const name of ["new", "open-settings", "scroller", "box", "Copy", "Retry"]) assert(reached.has(name), [...reached].join());
  await page.focus("#open-settings");
  await page.keyboard.press("Enter");
  assert(await page.locator("dialog").evaluate((d) => d.open));
  await page.keyboard.press("Escape");
  assert(!(await page.locator("dialog").evaluate((d) => d.open)));
}

async function check_settings_reach_the_server() {
  const page = await open(URL_);
  await page.click("#open-settings");
  await page.fill("#system", "You are a pirate.");
  await page.fill("#temperature", "0.3");
  await page.fill("#max-tokens", "7");
  await page.click("dialog button[type=submit]");
  const sent = page.waitForRequest(CHAT);
  const shown = askAndWait(page, "Hello");
  const body = (await sent).postDataJSON();
  assert.deepEqual(body.messages, [{ role: "system", content: "You are a pirate." }, { role: "user", content: "Hello" }]);
  assert.equal(body.temperature, 0.3);
  assert.equal(body.max_tokens, 7);
  assert.deepEqual(body.stream_options, { include_usage: true });
  await shown;
  assert(/cut at the limit$/.test(await noteOf(page)), await noteOf(page));
  await page.reload();
  await page.click("#open-settings");
  assert.equal(await page.inputValue("#system"), "You are a pirate.");
}

async function check_stays_where_the_reader_is() {
  const long = Array.from({ length: 60 }, (_, i) => `Paragraph ${i}.`).join("\n\n");
  const page = await open(URL_, { turns: [{ role: "user", content: "Hello" }, { role: "assistant", content: long }] });
  const fromEnd = () => page.locator("#scroller").evaluate((n) => n.scrollHeight - n.scrollTop - n.clientHeight);
  assert((await fromEnd()) < 2, "opened at the end");
  await makeEndless(page);
  await say(page, "Tell me a very long story about a ship.");
  await growsTo(page, 300);
  assert((await fromEnd()) < 40, "follows the answer");
  await page.mouse.move(500, 400);
  await page.mouse.wheel(0, -700);
  while ((await fromEnd()) < 500) await pause(20); // the wheel turns smoothly
  const top = await page.locator("#scroller").evaluate((n) => n.scrollTop);
  await growsTo(page, (await textOf(page)).length + 60);
  const now = await page.locator("#scroller").evaluate((n) => n.scrollTop);
  assert(now <= top, `moved from ${top} to ${now}`);
  await page.keyboard.press("Escape");
  await msUntilFree(URL_);
}

async function check_markup_is_text() {
  const evil = '<img src=x onerror="window.hacked=1"> **<script>window.hacked=2</script>** `<b>` [x](javascript:hacked=3)\n\n' +
    "```html onload=x\n<iframe srcdoc='<script>parent.hacked=4</script>'></iframe>\n```\n\n- <svg onload=hacked=5>\n\n# <u>head</u>";
  const page = await open(URL_, { turns: [{ role: "user", content: evil }, { role: "assistant", content: evil, note: evil }] });
  await page.waitForFunction(() => document.querySelectorAll(".assistant .text > *").length === 4);
  assert.equal(await page.locator("#turns :is(img, script, iframe, svg, b, u, a)").count(), 0);
  const text = await textOf(page);
  for (const part of ['<img src=x onerror="window.hacked=1">', "<script>window.hacked=2</script>", "<iframe", "<svg", "<u>head</u>"]) {
    assert(text.includes(part), part);
  }
  await say(page, 'Repeat after me: <img src=x onerror="window.hacked=6">');
  await idle(page);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
}

async function check_markdown() {
  const turn = (content) => [{ role: "user", content: "x" }, { role: "assistant", content }];
  const shape = async (content) => {
    const page = await open(URL_, { turns: turn(content) });
    const html = await lastAnswer(page).evaluate((n) => n.innerHTML);
    await page.context().close();
    return html.replace(/<figcaption>.*?<\/figcaption>/g, "").replace(/ tabindex="0"/g, "");
  };
  assert.equal(await shape("a **b *c*** `d**e` f\ng"), "<p>a <strong>b <em>c</em></strong> <code>d**e</code> f\ng</p>");
  assert.equal(await shape("2 * 3 * 4 ** 5 `x and **y"), "<p>2 * 3 * 4 ** 5 `x and **y</p>");
  assert.equal(await shape("- a\n- b\n  1. c\n  2. d\n\n     more\n- e\n\nend"),
    "<ul><li><p>a</p></li><li><p>b</p><ol><li><p>c</p></li><li><p>d</p><p>more</p></li></ol></li><li><p>e</p></li></ul><p>end</p>");
  assert.equal(await shape("3. a\n4. b"), '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>');
  assert.equal(await shape("# A #\ntext\n```\nopen <i>\n\n  end"),
    "<h3>A</h3><p>text</p><figure><pre><code>open &lt;i&gt;\n\n  end</code></pre></figure>");
  assert.equal(await shape("~~~~js\n```\n~~~~\n> q\n> r\n\n---"),
    "<figure><pre><code>```</code></pre></figure><blockquote><p>q\nr</p></blockquote><hr>");
  for (const hostile of ["**`*".repeat(20000), "- ".repeat(20000), ">".repeat(20000), "# ".repeat(20000), "1. a\n".repeat(4000),
    "`".repeat(300) + "` ``".repeat(9000), "*a ".repeat(20000), "\n- \n".repeat(9000), " ".repeat(60000) + "x"]) {
    const begun = performance.now();
    await (await open(URL_, { turns: turn(hostile) })).context().close();
    assert(performance.now() - begun < 8000, `${hostile.slice(0, 8)}: ${performance.now() - begun} ms`);
  }
}

async function check_event_stream_in_any_pieces() {
  const end = JSON.stringify({ choices: [], usage: { prompt_tokens: 1234, completion_tokens: 2 }, timings: { decode_per_second: 12.34 } });
  const text = `: hello\r\n\r\nevent: x\r\ndata: ${delta("Grüße ")}\r\n\r\n: keep-alive\n\ndata:${delta("😀\n\n")}\n\ndata: ${delta("日本")}\r\r` +
    `data: {"choices":[{"index":0,"delta":{},\ndata: "finish_reason":"stop"}]}\n\ndata: ${end}\n\ndata: [DONE]\n\n`;
  for (const step of [1, 7, 100000]) {
    const page = await open(URL_);
    await page.evaluate(fakeServer, { text, step });
    await askAndWait(page, "Hello");
    assert.equal((await kept(page))[1].content, "Grüße 😀\n\n日本");
    assert(/^2 tokens · 12.3 tokens\/s · first token after .*s · prompt 1,234$/.test(await noteOf(page)), await noteOf(page));
    await page.context().close();
  }
}

async function check_errors_in_the_stream() {
  const broken = { message: "the device is lost", type: "server_error", code: null };
  const cases = [
    [`data: ${delta("Once upon")}\n\ndata: ${JSON.stringify({ error: broken })}\n\ndata: [DONE]\n\n`, "the device is lost"],
    [`data: ${delta("Once upon")}\n\n`, "The connection ended before the answer did."],
    [`data: ${delta("Once upon")}\n\ndata: {"choi\n\n`, "The server sent something that is no answer."],
  ];
  for (const [text, notice] of cases) {
    const page = await open(URL_);
    await page.evaluate(fakeServer, { text });
    await askAndWait(page, "Tell me a story.");
    const shown = await page.locator("#notice p").textContent();
    assert(shown.includes(notice) && shown.includes("kept"), shown);
    assert.equal(await textOf(page), "Once upon");
    await page.reload();
    assert.equal(await textOf(page), "Once upon");
    assert(/not finished$/.test(await noteOf(page)), await noteOf(page));
    await page.context().close();
  }
}

async function check_too_long_shows_numbers() {
  const page = await open(URL_, { provokes: true });
  const long = "word ".repeat(3000).trim();
  await say(page, long);
  await page.locator("#notice").waitFor();
  const notice = await page.locator("#notice p").textContent();
  assert(/has [23],\d{3} tokens.*room for 2,048/.test(notice), notice);
  assert.equal(await page.inputValue("#box"), long, "the message is in the box again");
  assert.equal(await page.locator(".turn").count(), 0);
}

async function check_busy_shows_when() {
  const body = JSON.stringify({ messages: [{ role: "user", content: "x" }], stream: true, ignore_eos: true });
  const taken = [new AbortController(), new AbortController()];
  for (const { signal } of taken) await fetch(`${BUSY}/v1/chat/completions`, { method: "POST", body, signal });
  const page = await open(BUSY, { provokes: true });
  await say(page, "Hello");
  await page.locator("#notice").waitFor();
  assert(/^The server is busy\. Try again in \d+ s\.$/.test(await page.locator("#notice p").textContent()));
  assert.equal(await page.inputValue("#box"), "Hello");
  for (const one of taken) one.abort();
  await msUntilFree(BUSY);
  await page.focus("#box");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".assistant .stats")?.textContent.includes("prompt"));
  assert(await page.locator("#notice").isHidden());
}

async function check_key_is_asked_for() {
  const page = await open(LOCKED, { provokes: true });
  const asked = () => page.waitForFunction(() => document.querySelector("dialog").open && !document.querySelector("#wanted").hidden);
  await asked();
  assert.equal(await page.evaluate(() => document.activeElement.id), "key");
  await page.keyboard.press("Escape");
  await say(page, "Hello");
  await asked();
  assert.equal(await page.inputValue("#box"), "Hello");
  await page.fill("#key", "a-wrong-key");
  await page.keyboard.press("Enter");
  await asked();
  await page.fill("#key", env.TROIKA_KEY);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /tokens/.test(document.querySelector("#model").textContent));
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".assistant .stats")?.textContent.includes("prompt"));
  const stores = await page.evaluate(() => [JSON.stringify(localStorage), JSON.stringify(sessionStorage)]);
  assert(!stores[0].includes(env.TROIKA_KEY) && stores[1].includes(env.TROIKA_KEY), "kept for the session only");
}

async function check_connection_lost() {
  const page = await open(BUSY, { provokes: true });
  await makeEndless(page);
  await say(page, "Tell me a very long story about a ship.");
  await growsTo(page, 60);
  process.kill(Number(env.TROIKA_BUSY_PID), "SIGKILL");
  await page.locator("#notice").waitFor();
  assert(/connection/i.test(await page.locator("#notice p").textContent()));
  assert((await textOf(page)).length > 60, "the text so far stays");
  await page.waitForFunction(() => document.querySelector("#health").dataset.state === "lost");
  await say(page, "Are you there?");
  await page.waitForFunction(() => document.querySelector("#box").value === "Are you there?");
  assert.equal(await page.locator(".turn").count(), 2);
}

async function check_nothing_can_be_kept() {
  const page = await open(URL_, { setup: () => {
    for (const name of ["getItem", "setItem", "removeItem"]) {
      Storage.prototype[name] = () => { throw new DOMException("no", "SecurityError"); };
    }
  } });
  await makeEndless(page);
  await say(page, "Name three colours.");
  await growsTo(page, 20);
  await page.keyboard.press("Escape");
  await idle(page);
  assert((await textOf(page)).length > 20);
  await msUntilFree(URL_);
}

// WCAG's contrast of a text with what lies behind it
function contrastsOf(selectors) {
  const rgb = (text) => text.match(/[\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  return selectors.map((selector) => {
    const node = document.querySelector(selector);
    let behind = node;
    while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const pair = [light(rgb(getComputedStyle(node).color)), light(rgb(getComputedStyle(behind ?? document.body).backgroundColor))];
    return [selector, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05)];
  });
}

async function check_light_dark_narrow() {
  const page = await open(URL_, { turns: [{ role: "user", content: "Show me a program in C." }, { role: "assistant", content: CODE,
    note: "84 tokens · 51.3 tokens/s · first token after 0.21\u00a0s · prompt 38 (32 cached)" }], viewport: { width: 1080, height: 960 } });
  await page.waitForFunction(() => document.querySelector("#health").dataset.state === "ok" && document.title !== "troika");
  await askAndWait(page, "Thank you. Name three colours.");
  await page.fill("#box", "And what about Rust?");
  let worst = 99;
  const grounds = [];
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    await page.screenshot({ path: path.join(env.TROIKA_SCREENSHOTS, `page-${colorScheme}.png`) });
    const texts = ["h1", "#model", "#health span", "#new", ".user .text", ".assistant p", ".assistant code", "figcaption span", "pre code",
      ".stats", ".link", "#send", "#keys", "#box"];
    for (const [selector, value] of await page.evaluate(contrastsOf, texts)) {
      assert(value >= 4.5, `${colorScheme}: ${selector} has contrast ${value.toFixed(2)}`);
      worst = Math.min(worst, value);
    }
  }
  console.log(`figure least contrast of a text, light and dark | >= 4.5 | ${worst.toFixed(2)}`);
  assert.notEqual(grounds[0], grounds[1]);
  await page.setViewportSize({ width: 360, height: 720 });
  await page.screenshot({ path: path.join(env.TROIKA_SCREENSHOTS, "page-narrow.png") });
  const wide = await page.evaluate(() => [...document.querySelectorAll("body *")]
    .filter((n) => n.checkVisibility() && !n.closest("pre, dialog") && n.getBoundingClientRect().right > 361)
    .map((n) => n.id || n.className || n.tagName));
  assert.deepEqual(wide, []);
  await page.click("#open-settings");
  await page.screenshot({ path: path.join(env.TROIKA_SCREENSHOTS, "page-settings.png") });
  assert(await page.locator("dialog").evaluate((d) => d.getBoundingClientRect().right <= 361 && d.scrollWidth <= d.clientWidth));
}

// Over all that was done above.
async function check_no_errors_no_violations_no_other_origin() {
  console.log(`figure errors and warnings in the console | == 0 | ${seen.errors.length}`);
  console.log(`figure violations of the content policy | == 0 | ${seen.violations.length}`);
  console.log(`figure requests to other origins | == 0 | ${seen.foreign.length}`);
  assert.deepEqual(seen, { errors: [], violations: [], foreign: [] });
}

const checks = [check_files_and_headers, check_loads, check_send_streams, check_cancel_reload_go_on, check_reload_while_streaming,
  check_new_chat_undo_copy, check_keyboard_and_composing, check_settings_reach_the_server, check_stays_where_the_reader_is,
  check_markup_is_text, check_markdown, check_event_stream_in_any_pieces, check_errors_in_the_stream, check_too_long_shows_numbers, check_busy_shows_when,
  check_key_is_asked_for, check_connection_lost, check_nothing_can_be_kept, check_light_dark_narrow,
  check_no_errors_no_violations_no_other_origin];
let failed = 0;
const wanted = process.argv.slice(2);
for (const check of checks) {
  const name = check.name.replace("check_", "");
  if (wanted.length && !wanted.includes(name)) continue;
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${name}: ${String(error.message).split("\n").slice(0, 3).join(" ")}`);
    console.error(error.stack);
  }
  for (const context of browser.contexts()) await context.close();
}
await browser.close();
process.exitCode = failed ? 1 : 0;
