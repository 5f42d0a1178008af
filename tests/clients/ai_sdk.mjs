// SPDX-License-Identifier: Apache-2.0
// The Vercel AI SDK with its provider for OpenAI-compatible servers; run by check_ai_sdk.py.
import { ASK, CUT, FOREVER, KEY, MODEL, TELL, TOO_LONG, busyUrl, counting, deepEqual, equal, isGone, isRunning, keyUrl, load, middleOf,
  ok, raises, runChecks, url, whileFull } from "./support.mjs";

const { APICallError, Output, RetryError, generateObject, generateText, streamObject, streamText } = load("ai");
const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
const { z } = load("zod");

const providerOf = (base, more = {}) => createOpenAICompatible({ name: "troika", baseURL: base + "/v1", apiKey: "any", includeUsage: true,
  supportsStructuredOutputs: true, ...more });
const model = providerOf(url)(MODEL);
const GREEDY = { model, messages: ASK, maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
const LONG = { model, messages: ASK, maxOutputTokens: FOREVER, maxRetries: 0, providerOptions: { troika: { ignore_eos: true } } };
const extra = (fields) => ({ providerOptions: { troika: fields } });
const silent = { onError: () => {} };
const withBody = { include: { responseBody: true } };

const Friend = z.object({ name: z.string().max(8), kind: z.enum(["dog", "cat"]) });
const Animal = z.object({ name: z.string().max(8), age: z.number().int().min(0).max(30), size: z.enum(["small", "large"]),
  owner: Friend.nullable(), friends: z.array(Friend).max(1) });

async function gather(iterable) {
  const all = [];
  for await (const part of iterable) all.push(part);
  return all;
}
const wholeText = async () => (await generateText(GREEDY)).text;

async function check_chat() {
  const a = await generateText(GREEDY);
  ok(a.text.length > 5 && ["stop", "length"].includes(a.finishReason), a.text);
  equal(a.response.modelId, MODEL);
  equal(a.usage.totalTokens, a.usage.inputTokens + a.usage.outputTokens);
  ok(a.usage.outputTokens > 0 && a.usage.outputTokens <= 16 && a.usage.inputTokens > 5);
  const { messages, ...rest } = GREEDY;
  equal((await generateText({ ...rest, prompt: ASK[0].content })).text, a.text);
  const french = await generateText({ ...rest, system: "Answer in French.", prompt: ASK[0].content });
  ok(french.text && french.text !== a.text);
  const talk = [...ASK, { role: "assistant", content: a.text }, { role: "user", content: [{ type: "text", text: "Go on." }] }];
  ok((await generateText({ ...GREEDY, messages: talk })).text);
}

async function check_stream() {
  const whole = await generateText(GREEDY), stream = streamText(GREEDY);
  const pieces = await gather(stream.textStream);
  equal(pieces.join(""), whole.text);
  ok(pieces.length > 4, `${pieces.length} pieces`);
  equal(await stream.finishReason, whole.finishReason);
  deepEqual([(await stream.usage).inputTokens, (await stream.usage).outputTokens], [whole.usage.inputTokens, whole.usage.outputTokens]);
}

async function check_stop() {
  const [stop, cut] = middleOf(await wholeText());
  for (const stopSequences of [[stop], ["never in here", stop]]) {
    const a = await generateText({ ...GREEDY, stopSequences });
    deepEqual([a.text, a.finishReason], [cut, "stop"]);
    equal((await gather(streamText({ ...GREEDY, stopSequences }).textStream)).join(""), cut);
  }
}

// The SDK has no setting for logprobs: they are asked for as a field of the provider's, and read from the body of the answer.
async function check_logprobs() {
  const a = await generateText({ ...GREEDY, maxOutputTokens: 6, ...withBody, ...extra({ logprobs: true, top_logprobs: 3 }) });
  const content = a.response.body.choices[0].logprobs.content;
  equal(content.length, a.usage.outputTokens);
  equal(Buffer.from(content.flatMap((c) => c.bytes)).toString(), a.text);
  for (const c of content) ok(c.top_logprobs.length === 3 && c.top_logprobs[0].logprob === c.logprob && c.logprob <= 0, JSON.stringify(c));
}

async function check_seed() {
  const texts = [];
  for (const seed of [7, 8, 9]) {
    const asked = { ...GREEDY, messages: TELL, maxOutputTokens: 16, temperature: 1, seed };
    const first = (await generateText(asked)).text;
    equal((await generateText(asked)).text, first);
    equal((await gather(streamText(asked).textStream)).join(""), first);
    texts.push(first);
  }
  equal(new Set(texts).size, 3, texts.join("|"));
}

// The SDK knows one answer only: n is a field of the provider's; the text that it shows is that of choice 0.
async function check_n() {
  const asked = { ...GREEDY, messages: TELL, maxOutputTokens: 12, temperature: 1, seed: 5 };
  const one = await generateText({ ...asked, ...extra({ ignore_eos: true }) });
  for (const n of [2, 3]) {
    const a = await generateText({ ...asked, ...withBody, ...extra({ ignore_eos: true, n }) }), choices = a.response.body.choices;
    deepEqual(choices.map((c) => c.index), [...Array(n).keys()]);
    equal(new Set(choices.map((c) => c.message.content)).size, n);
    equal(a.text, choices[0].message.content);
    deepEqual([a.usage.inputTokens, a.usage.outputTokens], [one.usage.inputTokens, 12 * n]);
  }
}

async function check_schema_generate_object() {
  for (let seed = 0; seed < 3; seed++) {
    const a = await generateObject({ model, schema: Animal, messages: CUT, seed, temperature: seed / 2, maxOutputTokens: 400, maxRetries: 0 });
    Animal.parse(a.object);
    equal(a.finishReason, "stop");
  }
}

async function check_schema_stream_object() {
  const asked = { model, schema: Animal, messages: CUT, temperature: 0, maxOutputTokens: 400, maxRetries: 0 };
  const stream = streamObject(asked), partial = await gather(stream.partialObjectStream);
  deepEqual(await stream.object, (await generateObject(asked)).object);
  ok(partial.length > 3, `${partial.length} parts`);
}

async function check_schema_output() {
  const a = await generateText({ model, messages: CUT, temperature: 0, maxOutputTokens: 400, maxRetries: 0,
    output: Output.object({ schema: Animal }) });
  Animal.parse(a.output);
  const list = await generateText({ model, messages: CUT, temperature: 0, maxOutputTokens: 400, maxRetries: 0,
    output: Output.choice({ options: ["dog", "cat"] }) });
  ok(["dog", "cat"].includes(list.output), list.output);
}

async function check_errors_wrong_field() {
  for (const [fields, param] of [[{ temperature: 9 }, "temperature"], [{ topP: 3 }, "top_p"], [extra({ n: 0 }), "n"],
    [extra({ top_logprobs: 2 }), "top_logprobs"]]) {
    const count = counting(), patient = providerOf(url, { fetch: count.fetch })(MODEL);
    const error = await raises(APICallError, generateText({ ...GREEDY, model: patient, maxRetries: 3, ...fields }));
    deepEqual([error.statusCode, error.isRetryable, count.n], [400, false, 1]);
    const said = JSON.parse(error.responseBody).error;
    deepEqual([said.param, said.type], [param, "invalid_request_error"]);
    equal(error.message, said.message);
  }
}

async function check_errors_too_long() {
  const error = await raises(APICallError, generateText({ ...GREEDY, messages: TOO_LONG }));
  deepEqual([error.statusCode, JSON.parse(error.responseBody).error.code], [400, "context_length_exceeded"]);
  let heard;
  await gather(streamText({ ...GREEDY, messages: TOO_LONG, onError: ({ error }) => (heard = error) }).textStream).catch(() => {});
  equal(heard?.statusCode, 400);
}

async function check_errors_key() {
  ok(keyUrl, "there is no server with a key");
  ok((await generateText({ ...GREEDY, model: providerOf(keyUrl, { apiKey: KEY })(MODEL) })).text);
  for (const apiKey of ["sk-wrong", KEY + "x", undefined]) {
    const count = counting(), locked = providerOf(keyUrl, { apiKey, fetch: count.fetch })(MODEL);
    const error = await raises(APICallError, generateText({ ...GREEDY, model: locked, maxRetries: 2 }));
    deepEqual([error.statusCode, JSON.parse(error.responseBody).error.code, count.n], [401, "invalid_api_key", 1]);
  }
}

async function check_errors_queue_full() {
  await whileFull(async (free) => {
    const busy = providerOf(busyUrl)(MODEL);
    const error = await raises(APICallError, generateText({ ...GREEDY, model: busy }));
    deepEqual([error.statusCode, error.isRetryable, JSON.parse(error.responseBody).error.code], [429, true, "queue_full"]);
    const tired = await raises(RetryError, generateText({ ...GREEDY, model: busy, maxRetries: 1 }));
    equal(tired.errors.length, 2);
    const count = counting(), begun = performance.now();
    setTimeout(free, 2300);
    ok((await generateText({ ...GREEDY, model: providerOf(busyUrl, { fetch: count.fetch })(MODEL), maxRetries: 6 })).text);
    // Two waits of a second or two, as the server has said; the SDK's own would be two seconds and then four.
    const took = performance.now() - begun;
    ok(took >= 1990 && took < 5500 && count.n >= 3 && count.n <= 5, `${count.n} tries in ${took} ms`);
  });
}

async function check_timeouts() {
  const begun = performance.now();
  const error = await raises(Error, generateText({ ...LONG, timeout: 500 }));
  ok(/TimeoutError|AbortError/.test(error.name), error.name);
  ok(performance.now() - begun < 3000);
  await isGone();
  const other = await raises(Error, generateText({ ...LONG, abortSignal: AbortSignal.timeout(500) }));
  equal(other.name, "TimeoutError");
  await isGone();
}

async function check_abort_stream() {
  const leave = new AbortController(), kinds = [];
  for await (const part of streamText({ ...LONG, ...silent, abortSignal: leave.signal }).fullStream) {
    kinds.push(part.type);
    if (kinds.length === 8) {
      await isRunning();
      leave.abort();
    }
  }
  ok(kinds.includes("text-delta") && kinds.at(-1) === "abort", kinds.join(" "));
  await isGone();
}

async function check_abort_whole_answer() {
  const leave = new AbortController();
  const asked = raises(Error, generateText({ ...LONG, abortSignal: leave.signal }));
  await isRunning();
  leave.abort();
  equal((await asked).name, "AbortError");
  await isGone();
}

await runChecks(check_chat, check_stream, check_stop, check_logprobs, check_seed, check_n, check_schema_generate_object,
  check_schema_stream_object, check_schema_output, check_errors_wrong_field, check_errors_too_long, check_errors_key,
  check_errors_queue_full, check_timeouts, check_abort_stream, check_abort_whole_answer);
