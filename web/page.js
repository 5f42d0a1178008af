// SPDX-License-Identifier: Apache-2.0
// The chat page. Text of people and models only ever becomes text nodes: nothing here parses HTML.

const $ = (id) => document.getElementById(id);
const count = (n) => n.toLocaleString("en");
const seconds = (ms) => `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)}\u00a0s`;

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function button(text, className, run) {
  const node = make("button", className, text);
  node.type = "button";
  node.addEventListener("click", () => run(node));
  return node;
}

// --- what is kept. A browser may refuse to keep anything (private windows): then it lives in memory.

const CHAT = "troika.chat", SETTINGS = "troika.settings", KEY = "troika.key";

function keep(store, name, value) {
  try {
    if (value === "") window[store].removeItem(name);
    else window[store].setItem(name, value);
  } catch { /* full, or not allowed */ }
}

function kept(store, name) {
  try {
    return window[store].getItem(name) ?? "";
  } catch {
    return "";
  }
}

function keptObject(name) {
  try {
    return JSON.parse(kept("localStorage", name)) ?? {};
  } catch {
    return {};
  }
}

function loadTurns() {
  const { turns } = keptObject(CHAT);
  if (!Array.isArray(turns)) return [];
  return turns
    .filter((t) => t && (t.role === "user" || t.role === "assistant") && typeof t.content === "string")
    .map((t) => ({ role: t.role, content: t.content, note: typeof t.note === "string" ? t.note : "" }));
}

function loadSettings() {
  const s = keptObject(SETTINGS);
  const numberOr = (value) => (Number.isFinite(value) ? value : null);
  return {
    system: typeof s.system === "string" ? s.system : "",
    temperature: numberOr(s.temperature),
    maxTokens: numberOr(s.maxTokens),
  };
}

let turns = loadTurns(); // {role, content, note}: all that is said, and what stands below an answer
let settings = loadSettings();
let key = kept("sessionStorage", KEY);
let model = null; // of /v1/models
let running = null; // {controller, turn, turns, view} while an answer is under way

function saveTurns() {
  keep("localStorage", CHAT, turns.length ? JSON.stringify({ turns }) : "");
}

// --- Markdown, the part of it that models write: text becomes blocks, blocks become nodes.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:-(?: *-){2,}|\*(?: *\*){2,}|_(?: *_){2,}) *$/;
const DEPTH_MAX = 8;

function readFence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  const indent = lines[at].length - lines[at].trimStart().length;
  const body = [];
  const closes = (line) => {
    const end = line.trim();
    return end.length >= mark.length && end === mark[0].repeat(end.length);
  };
  for (at++; at < lines.length && !closes(lines[at]); at++) {
    body.push(lines[at].replace(new RegExp(`^ {0,${indent}}`), ""));
  }
  return [{ kind: "code", language, text: body.join("\n") }, at + 1];
}

// Items end where a line is indented less than their text; a blank line belongs to the list only if
// the list goes on behind it.
function readList(lines, at) {
  const [, first, firstMark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(firstMark);
  const items = [];
  let width = 0;
  for (; at < lines.length; at++) {
    const line = lines[at];
    const item = ITEM.exec(line);
    const indent = line.length - line.trimStart().length;
    if (item && item[1].length < first.length + 2 && !RULE.test(line)) {
      if (item[1].length < first.length || /\d/.test(item[2]) !== ordered) break;
      width = first.length + 2;
      items.push([line.slice(item[0].length)]);
    } else if (!line.trim()) {
      const next = lines.slice(at + 1, at + 4).find((l) => l.trim());
      const after = next === undefined ? null : ITEM.exec(next);
      const goesOn = next !== undefined && (next.length - next.trimStart().length >= width ||
        (after && after[1].length >= first.length && /\d/.test(after[2]) === ordered));
      if (!goesOn) break;
      items.at(-1).push("");
    } else if (indent >= width) {
      items.at(-1).push(line.slice(Math.min(indent, width + (ordered ? 1 : 0))));
    } else if (!items.at(-1).at(-1).trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line)) {
      break;
    } else {
      items.at(-1).push(line);
    }
  }
  const start = ordered ? Number.parseInt(firstMark, 10) : 0;
  return [{ kind: "list", ordered, start, items: items.map((i) => i.join("\n")) }, at];
}

function readWhile(lines, at, test) {
  const begun = at;
  while (at < lines.length && test(lines[at], at === begun)) at++;
  return [lines.slice(begun, at), at];
}

function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n");
  const blocks = [];
  let taken;
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const heading = HEADING.exec(line);
    if (!line.trim()) {
      at++;
      continue;
    } else if (FENCE.test(line)) {
      [taken, at] = readFence(lines, at);
    } else if (heading) {
      [taken, at] = [{ kind: "heading", level: heading[1].length, text: heading[2].trim().replace(/ #+$/, "") }, at + 1];
    } else if (RULE.test(line)) {
      [taken, at] = [{ kind: "rule" }, at + 1];
    } else if (ITEM.test(line)) {
      [taken, at] = readList(lines, at);
    } else if (/^ {0,3}>/.test(line)) {
      [taken, at] = readWhile(lines, at, (l) => /^ {0,3}>/.test(l));
      taken = { kind: "quote", text: taken.map((l) => l.replace(/^ {0,3}> ?/, "")).join("\n") };
    } else {
      [taken, at] = readWhile(lines, at, (l, isFirst) => l.trim() && (isFirst ||
        !(FENCE.test(l) || HEADING.test(l) || RULE.test(l) || ITEM.test(l) || /^ {0,3}>/.test(l))));
      taken = { kind: "text", text: taken.join("\n").trim() };
    }
    blocks.push(taken);
  }
  return blocks;
}

// `code`, **bold**, *slanted*. A mark that nothing closes is remembered, so a long text of unclosed
// marks is read once and not once for each mark.
function inline(node, text, depth = 0) {
  const unclosed = new Set();
  const mark = /`+|\*\*|\*/g;
  let plain = 0;
  const closing = (opener, from) => {
    if (opener[0] === "`") {
      const runs = /`+/g;
      runs.lastIndex = from;
      for (let m; (m = runs.exec(text));) if (m[0] === opener) return m.index;
      return -1;
    }
    for (let i = text.indexOf(opener, from); i >= 0; i = text.indexOf(opener, i + 1)) {
      const single = text[i + 1] !== "*" && text[i - 1] !== "*";
      const last = text[i + 2] !== "*"; // of three, one closes what is inside
      if (i > from && (opener === "*" ? single : last) && /\S/.test(text[i - 1])) return i;
    }
    return -1;
  };
  for (let m; (m = mark.exec(text));) {
    const opener = m[0];
    const from = m.index + opener.length;
    const code = opener[0] === "`";
    if (unclosed.has(opener) || depth > 3 || (!code && !/\S/.test(text[from] ?? " "))) continue;
    const end = closing(opener, from);
    if (end < 0) {
      unclosed.add(opener);
      continue;
    }
    node.append(text.slice(plain, m.index));
    const inner = text.slice(from, end);
    const child = make(code ? "code" : opener === "**" ? "strong" : "em");
    if (code) child.append(/^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner);
    else inline(child, inner, depth + 1);
    node.append(child);
    plain = mark.lastIndex = end + opener.length;
  }
  node.append(text.slice(plain));
  return node;
}

function blockNode(block, depth) {
  switch (block.kind) {
    case "code": {
      const copy = button("Copy", "link", (self) => copyText(block.text, self));
      copy.setAttribute("aria-label", "Copy code");
      const pre = make("pre", "", make("code", "", block.text));
      pre.tabIndex = 0;
      return make("figure", "", make("figcaption", "", make("span", "", block.language || "code"), copy), pre);
    }
    case "heading":
      return inline(make(block.level < 3 ? "h3" : "h4"), block.text);
    case "rule":
      return make("hr");
    case "quote":
      return fill(make("blockquote"), block.text, depth + 1);
    case "list": {
      const list = make(block.ordered ? "ol" : "ul");
      if (block.ordered && block.start !== 1) list.start = block.start;
      for (const item of block.items) list.append(fill(make("li"), item, depth + 1));
      return list;
    }
    default:
      return inline(make("p"), block.text);
  }
}

// While an answer grows, blocks that stay as they were keep their nodes: a selection lives on, and a
// screen reader is not told them again.
function fill(node, text, depth = 0) {
  const blocks = depth > DEPTH_MAX ? [{ kind: "text", text }] : blocksOf(text);
  const prints = blocks.map((b) => JSON.stringify(b));
  const old = node.prints ?? [];
  let same = 0;
  while (same < old.length && old[same] === prints[same]) same++;
  while (node.childNodes.length > same) node.lastChild.remove();
  for (const block of blocks.slice(same)) node.append(blockNode(block, depth));
  node.prints = prints;
  return node;
}

async function copyText(text, self) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // plain http from another machine has no clipboard
    const area = make("textarea", "unseen");
    area.value = text;
    self.after(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    self.focus();
  }
  self.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => (self.textContent = "Copy"), 1500);
}

// --- the conversation on screen

const scroller = $("scroller"), list = $("turns"), box = $("box"), send = $("send"), notice = $("notice");

// Whoever reads at the end is kept there, whatever grows or shrinks; whoever has scrolled up stays.
let atEnd = true;

function toEnd() {
  scroller.scrollTop = scroller.scrollHeight;
  atEnd = true;
}

function watchEnd() {
  scroller.addEventListener("scroll", () => {
    atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 8;
  });
  const sizes = new ResizeObserver(() => atEnd && toEnd());
  sizes.observe(scroller);
  sizes.observe(list);
}

function turnNode(turn) {
  const node = make("article", `turn ${turn.role}`);
  node.setAttribute("aria-label", turn.role === "user" ? "You" : "Answer");
  const text = make("div", "text");
  node.append(text);
  if (turn.role === "user") {
    text.textContent = turn.content;
    return { node, text };
  }
  const stats = make("span", "stats", turn.note);
  stats.setAttribute("aria-live", "off");
  const foot = make("div", "foot", stats);
  node.append(foot);
  if (turn.content) fill(text, turn.content);
  return { node, text, stats, foot };
}

// Only the last answer can be asked again; each can be copied.
function showActions() {
  for (const old of list.querySelectorAll(".foot .link")) old.remove();
  turns.forEach((turn, i) => {
    const foot = list.children[i]?.querySelector(".foot");
    if (!foot || turn === running?.turn) return;
    if (turn.content) foot.append(button("Copy", "link", (self) => copyText(turn.content, self)));
    if (i === turns.length - 1 && !running) foot.append(button("Retry", "link", retry));
  });
}

function showAll() {
  list.replaceChildren(...turns.map((t) => turnNode(t).node));
  showActions();
  toEnd();
}

function showNotice(text, action = "Close", run = () => {}, plain = false) {
  const [words, act] = notice.children;
  words.textContent = text;
  act.textContent = action;
  act.onclick = () => {
    hideNotice();
    run();
  };
  notice.classList.toggle("plain", plain);
  notice.hidden = false;
}

function hideNotice() {
  notice.hidden = true;
}

function fitBox() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
  showSend();
}

function showSend() {
  send.textContent = running ? "Stop" : "Send";
  send.dataset.does = running ? "stop" : "send";
  send.disabled = !running && !box.value.trim();
}

// --- asking the server

class Failure extends Error {
  constructor(message, more = {}) {
    super(message);
    Object.assign(this, more);
  }
}

function failureOf(error, status = 0, retryAfter = "") {
  const { message, code, n_prompt_tokens: prompt, n_ctx: context } = error ?? {};
  if (status === 401) return new Failure("The server wants a valid API key.", { wantsKey: true });
  if (code === "context_length_exceeded") {
    const numbers = prompt && context
      ? `This chat has ${count(prompt)} tokens, and the model has room for ${count(context)}.`
      : message;
    return new Failure(`${numbers} Write less, or start a new chat.`);
  }
  if (status === 429) {
    const when = /^\d+$/.test(retryAfter) ? `in ${retryAfter} s` : "in a moment";
    return new Failure(`The server is busy. Try again ${when}.`);
  }
  return new Failure(message || `The server answered with status ${status}.`);
}

function headers() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// The data of each event, as the format has it: lines end in LF, CR or CRLF, an event in an empty
// line, and a read may end anywhere, also inside a character or between CR and LF.
async function* eventsOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "", data = [], ended = false;
  try {
    while (!ended) {
      const { done, value } = await reader.read();
      ended = done;
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split(ended ? /\r\n|\n|\r/ : /\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line && data.length) {
          yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } // comments keep the connection alive and say nothing
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function requestBody(asked) {
  const messages = asked.map(({ role, content }) => ({ role, content }));
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  const body = { model: model?.id ?? "default", messages, stream: true, stream_options: { include_usage: true } };
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens;
  return body;
}

// Calls `piece(text)` for each piece of the answer; resolves to {usage, timings, finish}.
async function stream(asked, signal, piece) {
  const answer = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(requestBody(asked)),
    signal,
  });
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw failureOf(error, answer.status, answer.headers.get("Retry-After") ?? "");
  }
  const end = { usage: null, timings: null, finish: null };
  for await (const data of eventsOf(answer.body)) {
    if (data === "[DONE]") return end;
    const chunk = JSON.parse(data);
    if (chunk.error) throw failureOf(chunk.error);
    if (chunk.usage) end.usage = chunk.usage;
    if (chunk.timings) end.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (choice?.finish_reason) end.finish = choice.finish_reason;
    if (choice?.delta?.content) piece(choice.delta.content);
  }
  throw new Failure("The connection ended before the answer did.");
}

// What stands below an answer. Speed is of decoding alone, so the first token does not count.
function speedOf(run, end) {
  const own = (run.pieces - 1) / ((run.lastAt - run.firstAt) / 1000);
  const speed = end?.timings?.decode_per_second || own;
  return Number.isFinite(speed) && speed > 0 ? speed : 0;
}

function noteOf(run, end) {
  const tokens = end?.usage?.completion_tokens ?? run.pieces;
  const speed = speedOf(run, end);
  const parts = [`${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`];
  if (speed) parts.push(`${speed.toFixed(1)} tokens/s`);
  if (!end) return parts.join(" · ");
  if (run.firstAt) parts.push(`first token after ${seconds(run.firstAt - run.begun)}`);
  if (end.usage) {
    const cached = end.usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${count(end.usage.prompt_tokens)}${cached ? ` (${count(cached)} cached)` : ""}`);
  }
  if (end.finish === "length") parts.push("cut at the limit");
  if (end.finish === "stopped") parts.push("stopped");
  if (end.finish === "broken") parts.push("not finished");
  return parts.join(" · ");
}

function beginRun() {
  const turn = { role: "assistant", content: "", note: "" };
  const run = { controller: new AbortController(), turn, turns, view: turnNode(turn), begun: performance.now(),
    firstAt: 0, lastAt: 0, pieces: 0, frame: 0, savedAt: performance.now() };
  run.view.text.append(make("p", "wait", "Reading …"));
  run.view.node.setAttribute("aria-busy", "true");
  list.append(run.view.node);
  turns.push(turn);
  running = run;
  showActions();
  showSend();
  toEnd();
  return run;
}

function draw(run) {
  run.frame = 0;
  fill(run.view.text, run.turn.content);
  run.view.stats.textContent = noteOf(run, null);
}

function onPiece(run, text) {
  const now = performance.now();
  run.firstAt ||= now;
  run.lastAt = now;
  run.pieces++;
  if (!run.turn.content) run.view.text.replaceChildren();
  run.turn.content += text;
  run.frame ||= requestAnimationFrame(() => draw(run));
  if (now - run.savedAt > 1000) {
    run.savedAt = now;
    run.turn.note = noteOf(run, { finish: "broken" }); // what a reload would find
    if (run.turns === turns) saveTurns();
  }
}

function endRun(run, end) {
  cancelAnimationFrame(run.frame);
  run.turn.note = noteOf(run, end);
  if (running === run) running = null;
  if (run.turns !== turns) return;
  if (!run.turn.content) run.view.text.replaceChildren();
  fill(run.view.text, run.turn.content);
  run.view.stats.textContent = run.turn.note;
  showActions();
  run.view.node.removeAttribute("aria-busy");
  saveTurns();
  showSend();
}

// An answer that never began leaves nothing behind: the message goes back into the box. False if
// there was no room for it.
function takeBack() {
  turns.pop();
  const message = turns.pop();
  list.lastChild.remove();
  list.lastChild.remove();
  const free = !box.value.trim();
  if (free) {
    box.value = message.content;
  } else { // a new one is being written there
    turns.push(message);
    list.append(turnNode(message).node);
  }
  saveTurns();
  showActions();
  fitBox();
  return free;
}

async function ask() {
  hideNotice();
  const asked = [...turns];
  const run = beginRun();
  let failure = null, end;
  try {
    end = await stream(asked, run.controller.signal, (text) => onPiece(run, text));
  } catch (error) {
    const stopped = run.controller.signal.aborted;
    end = { finish: stopped ? "stopped" : "broken" };
    if (!stopped) failure = error instanceof Failure ? error : new Failure(lostText(error));
  }
  const silent = !run.turn.content && !end.usage;
  endRun(run, end);
  if (run.turns !== turns) return;
  const again = silent ? !takeBack() : true;
  if (failure?.wantsKey) openSettings(true);
  else if (failure && !again) showNotice(failure.message);
  else if (failure && silent) showNotice(failure.message, "Retry", retry);
  else if (failure) showNotice(`${failure.message} The text so far is kept.`, "Retry", retry);
  checkHealth();
}

function lostText(error) {
  return error instanceof SyntaxError ? "The server sent something that is no answer."
    : "The connection to the server is lost.";
}

function stop() {
  running?.controller.abort();
}

function sendBox() {
  const content = box.value.trim();
  if (running || !content) return;
  const turn = { role: "user", content, note: "" };
  turns.push(turn);
  list.append(turnNode(turn).node);
  box.value = "";
  fitBox();
  saveTurns();
  ask();
}

function retry() {
  if (running || !turns.length) return;
  if (turns.at(-1).role === "assistant") {
    turns.pop();
    list.lastChild.remove();
  }
  if (turns.length) ask();
  box.focus();
}

function newChat() {
  const old = turns;
  stop();
  running = null;
  turns = [];
  saveTurns();
  showAll();
  showSend();
  hideNotice();
  box.focus();
  if (!old.length) return;
  showNotice("Chat cleared.", "Undo", () => {
    stop();
    running = null;
    turns = old.filter((t) => t.content);
    saveTurns();
    showAll();
    showSend();
  }, true);
}

// --- settings

const dialog = $("settings");

function openSettings(wantsKey = false) {
  $("wanted").hidden = !wantsKey;
  if (dialog.open) return; // and is being filled in
  $("key").value = key;
  $("system").value = settings.system;
  $("temperature").value = settings.temperature ?? "";
  $("max-tokens").value = settings.maxTokens ?? "";
  dialog.showModal();
  $(wantsKey ? "key" : "system").focus();
}

function saveSettings() {
  const number = (id) => ($(id).value === "" ? null : $(id).valueAsNumber);
  settings = { system: $("system").value, temperature: number("temperature"), maxTokens: number("max-tokens") };
  keep("localStorage", SETTINGS, JSON.stringify(settings));
  key = $("key").value.trim();
  keep("sessionStorage", KEY, key);
  dialog.close();
  box.focus();
  loadModel();
}

// --- the server: which model, and is it there

async function loadModel() {
  try {
    const answer = await fetch("/v1/models", { headers: headers() });
    if (answer.status === 401) {
      $("model").textContent = "locked";
      openSettings(true);
      return;
    }
    model = (await answer.json()).data?.[0] ?? null;
  } catch {
    return; // the health dot says it
  }
  if (!model) return;
  const context = model.meta?.context;
  const room = context ? ` · ${count(context)} tokens of context` : "";
  $("model").replaceChildren(model.id, make("span", "", room));
  $("model").title = model.id + room;
  document.title = `${model.id} · troika`;
  if (model.meta?.chat === false) showNotice("This model has no chat template, so it cannot chat.");
}

function showHealth(state, text) {
  const health = $("health");
  if (health.dataset.state === "lost" && state === "ok") loadModel();
  health.dataset.state = state;
  health.firstElementChild.textContent = text;
  health.title = text;
}

let healthTimer = 0;

async function checkHealth() {
  clearTimeout(healthTimer);
  let next = 15000;
  try {
    const answer = await fetch("/health", { signal: AbortSignal.timeout(5000) });
    const { status, queued } = await answer.json();
    if (status === "ok") showHealth("ok", queued ? `ready, ${count(queued)} waiting` : "ready");
    else showHealth("draining", "stopping");
  } catch {
    showHealth("lost", "no connection");
    next = 3000;
  }
  if (!document.hidden) healthTimer = setTimeout(checkHealth, next);
}

// --- events

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) sendBox();
  else if (performance.now() - running.begun > 350) stop(); // not by the second half of a double click
});
box.addEventListener("keydown", (event) => {
  // While an input method composes, Enter chooses a word. Safari says so by 229 only.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  sendBox();
});
box.addEventListener("input", fitBox);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !dialog.open) stop();
});
$("new").addEventListener("click", newChat);
$("open-settings").addEventListener("click", () => openSettings());
$("close-settings").addEventListener("click", () => dialog.close());
dialog.firstElementChild.addEventListener("submit", (event) => {
  event.preventDefault();
  saveSettings();
});
document.addEventListener("visibilitychange", () => document.hidden || checkHealth());
addEventListener("pagehide", () => {
  if (!running || running.turns !== turns) return;
  running.turn.note = noteOf(running, { finish: "broken" });
  saveTurns();
});

// A reload may have come before the answer did.
if (turns.at(-1)?.role === "assistant" && !turns.at(-1).content) turns.pop();
if (turns.at(-1)?.role === "user") box.value = turns.pop().content;
watchEnd();
showAll();
fitBox();
loadModel();
checkHealth();
