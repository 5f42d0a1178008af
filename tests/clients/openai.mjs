// SPDX-License-Identifier: Apache-2.0
// The official openai client for Node; run by check_openai_node.py.
import { ASK, CUT, FOREVER, KEY, MODEL, TELL, TOO_LONG, busyUrl, counting, deepEqual, equal, isGone, isRunning, keyUrl, load, middleOf,
  ok, raises, runChecks, sleep, url, whileFull } from "./support.mjs";

const OpenAI = load("openai").OpenAI;
const { zodResponseFormat } = load("openai/helpers/zod");
const { z } = load("zod");
const { APIConnectionTimeoutError, APIUserAbortError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError } = OpenAI;

const clientOf = (base, more = {}) => new OpenAI({ baseURL: base + "/v1", apiKey: "any", maxRetries: 0, timeout: 120000, ...more });
const client = clientOf(url);
const chat = (body, more) => client.chat.completions.create({ model: MODEL, ...body }, more);
const GREEDY = { messages: ASK, max_tokens: 16, temperature: 0 };
const LONG = { messages: ASK, max_tokens: FOREVER, ignore_eos: true };

const Friend = z.object({ name: z.string().max(8), kind: z.enum(["dog", "cat"]) });
const Animal = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(30), size: z.enum(["small", "large"]),
  owner: Friend.nullable(), friends: z.array(Friend).max(1) });

async function gather(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}
const joined = (chunks, index = 0) => chunks.flatMap((c) => c.choices).filter((c) => c.index === index)
  .map((c) => c.delta.content ?? "").join("");
const wholeText = async () => (await chat(GREEDY)).choices[0].message.content;

async function check_chat() {
  const a = await chat(GREEDY), choice = a.choices[0];
  equal(a.object, "chat.completion");
  equal(a.model, MODEL);
  equal(a._request_id, a.id);
  equal(choice.message.role, "assistant");
  ok(choice.message.content.length > 5 && ["stop", "length"].includes(choice.finish_reason), JSON.stringify(choice));
  equal(a.usage.total_tokens, a.usage.prompt_tokens + a.usage.completion_tokens);
  const all = await Promise.all(Array.from({ length: 5 }, wholeText));
  deepEqual(new Set(all), new Set([choice.message.content]));
  const parts = [{ type: "text", text: "Name three " }, { type: "text", text: "colours." }];
  equal((await chat({ ...GREEDY, messages: [{ role: "user", content: parts }] })).choices[0].message.content, choice.message.content);
}

async function check_stream() {
  const whole = await chat(GREEDY);
  const chunks = await gather(await chat({ ...GREEDY, stream: true }));
  equal(joined(chunks), whole.choices[0].message.content);
  deepEqual(chunks.map((c) => c.choices[0].delta.role), ["assistant", ...Array(chunks.length - 1).fill(undefined)]);
  equal(chunks.at(-1).choices[0].finish_reason, whole.choices[0].finish_reason);
  ok(chunks.every((c) => c.object === "chat.completion.chunk" && c.id === chunks[0].id && c.usage === undefined) && chunks.length > 4);
}

async function check_stream_usage() {
  const whole = await chat(GREEDY);
  const chunks = await gather(await chat({ ...GREEDY, stream: true, stream_options: { include_usage: true } }));
  ok(chunks.slice(0, -1).every((c) => c.usage === null && c.choices.length === 1));
  deepEqual(chunks.at(-1).choices, []);
  equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  equal(chunks.at(-1).usage.prompt_tokens, whole.usage.prompt_tokens);
}

async function check_stream_events() {
  const whole = await wholeText(), [stop, cut] = middleOf(whole);
  let heard = "";
  const stream = client.chat.completions.stream({ model: MODEL, ...GREEDY, stop });
  stream.on("content", (delta) => (heard += delta));
  const final = await stream.finalChatCompletion();
  equal(heard, cut);
  equal(final.choices[0].message.content, cut);
  equal(final.choices[0].finish_reason, "stop");
}

async function check_stop() {
  const [stop, cut] = middleOf(await wholeText());
  for (const given of [stop, [stop], ["never in here", stop]]) {
    const choice = (await chat({ ...GREEDY, stop: given })).choices[0];
    deepEqual([choice.message.content, choice.finish_reason], [cut, "stop"]);
  }
  equal(joined(await gather(await chat({ ...GREEDY, stop: [stop], stream: true }))), cut);
}

async function check_logprobs() {
  const asked = { ...GREEDY, max_tokens: 6, logprobs: true, top_logprobs: 3 };
  const a = await chat(asked), content = a.choices[0].logprobs.content;
  equal(content.length, a.usage.completion_tokens);
  equal(Buffer.from(content.flatMap((c) => c.bytes)).toString(), a.choices[0].message.content);
  for (const c of content) ok(c.top_logprobs.length === 3 && c.top_logprobs[0].logprob === c.logprob && c.logprob <= 0, JSON.stringify(c));
  const chunks = await gather(await chat({ ...asked, stream: true }));
  deepEqual(chunks.flatMap((c) => c.choices[0].logprobs?.content ?? []), content);
}

async function check_seed() {
  const texts = [];
  for (const seed of [7, 8, 9]) {
    const asked = { messages: TELL, max_tokens: 16, temperature: 1, seed };
    const [first, second] = [await chat(asked), await chat(asked)].map((a) => a.choices[0].message.content);
    equal(first, second);
    texts.push(first);
  }
  equal(new Set(texts).size, 3, texts.join("|"));
}

async function check_n() {
  const asked = { messages: TELL, max_tokens: 12, temperature: 1, seed: 5, ignore_eos: true };
  const one = await chat(asked);
  for (const n of [2, 3]) {
    const a = await chat({ ...asked, n }), texts = a.choices.map((c) => c.message.content), indexes = [...Array(n).keys()];
    deepEqual(a.choices.map((c) => c.index), indexes);
    equal(new Set(texts).size, n, texts.join("|"));
    deepEqual([a.usage.prompt_tokens, a.usage.completion_tokens], [one.usage.prompt_tokens, 12 * n]);
    const chunks = await gather(await chat({ ...asked, n, stream: true, stream_options: { include_usage: true } }));
    deepEqual(indexes.map((i) => joined(chunks, i)), texts);
    deepEqual(chunks.flatMap((c) => c.choices).filter((c) => c.finish_reason).map((c) => c.index).sort(), indexes);
    equal(chunks.at(-1).usage.completion_tokens, 12 * n);
    const runner = client.chat.completions.stream({ model: MODEL, ...asked, n });
    deepEqual((await runner.finalChatCompletion()).choices.map((c) => c.message.content), texts);
  }
}

async function check_schema_zod() {
  const response_format = zodResponseFormat(Animal, "animal");
  for (let seed = 0; seed < 3; seed++) {
    const a = await client.chat.completions.parse({ model: MODEL, messages: CUT, response_format, seed, temperature: seed / 2,
      max_tokens: 400 });
    equal(a.choices[0].finish_reason, "stop");
    Animal.parse(a.choices[0].message.parsed);
  }
}

async function check_schema_stream() {
  const stream = client.chat.completions.stream({ model: MODEL, messages: CUT, response_format: zodResponseFormat(Animal, "animal"),
    temperature: 0, max_tokens: 400 });
  Animal.parse((await stream.finalChatCompletion()).choices[0].message.parsed);
}

async function check_schema_json_object() {
  const messages = [{ role: "user", content: 'Answer with the JSON object {"colour": "red"} and nothing else.' }];
  const a = await chat({ messages, response_format: { type: "json_object" }, temperature: 0, max_tokens: 300 });
  equal(a.choices[0].finish_reason, "stop");
  const value = JSON.parse(a.choices[0].message.content);
  ok(value && typeof value === "object" && !Array.isArray(value));
}

async function check_errors_wrong_field() {
  for (const [bad, param] of [[{ temperature: 9 }, "temperature"], [{ n: 0 }, "n"], [{ stop: [""] }, "stop"],
    [{ logit_bias: { 5: 200 } }, "logit_bias"], [{ messages: [{ role: "nobody", content: "" }] }, "messages"]]) {
    const count = counting();
    const patient = clientOf(url, { maxRetries: 3, fetch: count.fetch });
    const error = await raises(BadRequestError, patient.chat.completions.create({ model: MODEL, ...GREEDY, ...bad }));
    deepEqual([error.status, error.type, count.n], [400, "invalid_request_error", 1]);
    ok(error.param.startsWith(param) && "code" in error.error && error.requestID, JSON.stringify(error.error));
  }
}

async function check_errors_too_long() {
  for (const stream of [false, true]) {
    const error = await raises(BadRequestError, chat({ ...GREEDY, messages: TOO_LONG, stream }));
    equal(error.code, "context_length_exceeded");
  }
}

async function check_errors_not_found() {
  deepEqual((await gather(client.models.list())).map((m) => m.id), [MODEL]);
  equal((await client.models.retrieve(MODEL)).object, "model");
  equal((await raises(NotFoundError, client.models.retrieve("gpt-9"))).code, "model_not_found");
}

async function check_errors_key() {
  ok(keyUrl, "there is no server with a key");
  equal((await clientOf(keyUrl, { apiKey: KEY }).chat.completions.create({ model: MODEL, ...GREEDY })).object, "chat.completion");
  for (const more of [{ apiKey: "sk-wrong" }, { apiKey: KEY.slice(0, -1) }, { defaultHeaders: { Authorization: null } }]) {
    const count = counting();
    const c = clientOf(keyUrl, { maxRetries: 2, fetch: count.fetch, ...more });
    const error = await raises(AuthenticationError, c.chat.completions.create({ model: MODEL, ...GREEDY, stream: true }));
    deepEqual([error.status, error.code, count.n], [401, "invalid_api_key", 1]);
  }
}

async function check_errors_queue_full() {
  await whileFull(async (free) => {
    const error = await raises(RateLimitError, clientOf(busyUrl).chat.completions.create({ model: MODEL, ...GREEDY }));
    equal(error.code, "queue_full");
    ok(Number(error.headers.get("retry-after")) >= 1);
    const count = counting(), begun = performance.now();
    setTimeout(free, 2300);
    const c = clientOf(busyUrl, { maxRetries: 6, fetch: count.fetch });
    equal((await c.chat.completions.create({ model: MODEL, ...GREEDY })).object, "chat.completion");
    // Two waits of a second or two, as the server has said; the client's own would be half a second.
    ok(performance.now() - begun >= 1990 && count.n >= 3 && count.n <= 5, `${count.n} tries`);
  });
}

async function check_timeouts() {
  const begun = performance.now();
  await raises(APIConnectionTimeoutError, chat(LONG, { timeout: 500 }));
  ok(performance.now() - begun < 3000);
  await isGone();
}

async function check_abort_stream() {
  for (const leave of [(stream) => stream.controller.abort(), null]) {
    const stream = await chat({ ...LONG, stream: true });
    let n = 0;
    for await (const _ of stream) {
      if (++n < 4) continue;
      await isRunning();
      if (!leave) break; // leaving the loop closes the stream
      leave(stream);
    }
    equal(n >= 4, true);
    await isGone();
  }
}

async function check_abort_whole_answer() {
  const leave = new AbortController();
  const asked = raises(APIUserAbortError, chat(LONG, { signal: leave.signal }));
  await isRunning();
  await sleep(100);
  leave.abort();
  await asked;
  await isGone();
}

await runChecks(check_chat, check_stream, check_stream_usage, check_stream_events, check_stop, check_logprobs, check_seed, check_n,
  check_schema_zod, check_schema_stream, check_schema_json_object, check_errors_wrong_field, check_errors_too_long,
  check_errors_not_found, check_errors_key, check_errors_queue_full, check_timeouts, check_abort_stream, check_abort_whole_answer);
