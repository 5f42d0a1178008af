#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/batch.py (make bench-batch) - what a row more costs, and how many rows of background a person's answer should carry.

Curve: 1 to 16 answers decode together, each at 512, 2,048 or 8,000 tokens of context of its own; time per token while all of them run.
B_cap: one reactive answer after the other, 8 proactive ones always in flight, at the same contexts, with `--bcap` 1, 2, 3, 4, 8 and
adaptive (no option). Wanted: adaptive keeps the slack, that is mean TPOT <= (1 + e)/(1 - s) x alone with e = 0.15 and s = 0.05, and makes
at least 0.97 of the proactive tokens of the best fixed value that keeps it too, in the time that a token takes alone.
Each value has a server of its own and all take turns, three rounds of them; at 8,000 tokens they need 12 GB together. Prompts are computed
once and then found in the cache, so that what is measured is decode.
"""
import contextlib
import dataclasses
import random
import sys
import time

import common
import servers
import stats

CONTEXTS = (512, 2048, 8000)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
CAPS = ("1", "2", "3", "4", "8", "adaptive")
REACTIVE_OUT, PROACTIVE_OUT, IN_FLIGHT = 96, 64, 8
PARALLEL = 16
SLACK, SHARE, KEPT = 0.15, 0.05, 0.97
OVERLAP_MIN = 8  # tokens of each answer while all of them run, or there is nothing to measure


def together(load, prompts, context, tokens_out):
    """Milliseconds per token while all of these run, the median over the answers; None if they hardly overlapped."""
    calls = [load.post("reactive", context, tokens_out, prompt) for prompt in prompts]
    load.loop.run(lambda: all(c.done for c in calls), time.perf_counter() + common.DRAIN_S)
    load.take()
    for call in calls:
        answer = common.checked(call)
        if not answer.ok:
            raise servers.ServerError(f"{load.server.label}, {len(prompts)} answers at {context} tokens: {answer.error}")
    times = [call.token_times() for call in calls]
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    inside = [[t for t in one if begin <= t <= end] for one in times]
    if min(len(one) for one in inside) < OVERLAP_MIN:
        return None
    return stats.median(1000 * (one[-1] - one[0]) / (len(one) - 1) for one in inside)


def warm(load, context, count, progress, planned_s):
    """That many prompts, computed and so in the cache."""
    prompts = [load.prompts.make(context) for _ in range(count)]
    for prompt in prompts:
        call = load.post("reactive", context, 1, prompt)
        load.loop.run(lambda: call.done, call.begun + common.DRAIN_S)
        if not call.done or not (answer := call.answer()).ok:
            raise servers.ServerError(f"{load.server.label}: a prompt of {context} tokens: {answer.error if call.done else 'no answer'}")
    load.take()
    progress.say(f"{load.server.label}: {count} prompts of {context} tokens are computed", planned_s)
    return prompts


def curve(options, label, path, figures, progress):
    engine = servers.Troika(path, options.threads, PARALLEL, options.context)
    table = []
    with engine, common.Load(engine, options.seed) as load:
        load.warm_up()
        for context in options.contexts:
            prompts = warm(load, context, max(options.batches), progress, max(options.batches) * context / 1000)
            row = [f"{context} tokens of context"]
            for batch in options.batches:
                values = [v for _ in range(options.repeats) if (v := together(load, prompts[:batch], context, REACTIVE_OUT)) is not None]
                row.append(stats.median(values))
                figures.figure(f"{label}, {engine.label}, context {context}, batch {batch}: TPOT, ms", stats.median(values),
                               spread=stats.spread(values))
            progress.say(f"{context} tokens: " + ", ".join(f"{b}: {stats.rounded(v, 3)}" for b, v in zip(options.batches, row[1:])), 10)
            table.append(row)
    common.grid(f"{label}, {engine.label}: ms per token by answers that decode together", ["", *map(str, options.batches)], table)


def chain(load, prompt, context, end):
    """A reactive answer after the other on the same prompt, until that time."""
    def again(call=None):
        if time.perf_counter() < end and (call is None or call.complete):  # one that failed is reported, not repeated
            load.post("reactive", context, REACTIVE_OUT, prompt, after=again)
    again()


def reactive_tpots(calls, begin, end):
    """Of those that began in that time, in ms."""
    answers = [common.checked(c) for c in calls if c.tag.kind == "reactive" and begin <= c.begun < end and not c.stopped]
    failed = [a.error for a in answers if not a.ok]
    if failed:
        raise servers.ServerError(f"a reactive request failed: {failed[0]}")
    return [common.ms(a.tpot) for a in answers]


@dataclasses.dataclass
class Seen:
    """Of one B_cap at one context, an entry for each round: TPOTs in ms, and proactive tokens/s out. The machine's speed changes from
    round to round, so company is set against the alone just before it."""
    alone: list
    company: list
    rates: list

    @property
    def rate(self):
        return stats.mean(self.rates)

    @property
    def growths(self):
        return [stats.ratio(stats.mean(company), stats.mean(alone)) for alone, company in zip(self.alone, self.company)]

    @property
    def growth(self):
        return None if None in self.growths else stats.mean(self.growths)

    @property
    def work(self):
        """Proactive tokens in the time that a token takes alone: what is left of a rate when the machine's speed is taken out."""
        return [rate * stats.mean(alone) / 1000 for rate, alone in zip(self.rates, self.alone) if alone]


def one_round(load, prompts, context, seconds, rng):
    """TPOTs alone, TPOTs in company, proactive tokens/s."""
    begin = time.perf_counter()
    chain(load, prompts[0], context, begin + seconds / 3)
    load.loop.run(lambda: not load.loop.calls, begin + seconds / 3 + common.DRAIN_S)
    alone = reactive_tpots(load.take(), begin, time.perf_counter())
    begin = time.perf_counter()
    counted, end = begin + seconds / 6, begin + seconds
    load.closed(IN_FLIGHT, "proactive", context, PROACTIVE_OUT, lambda: rng.choice(prompts[1:]))
    chain(load, prompts[0], context, end)
    load.loop.sleep_until(end)
    calls = load.take()
    tokens = sum(counted <= t < end for c in calls if c.tag.kind == "proactive" for t in c.token_times())
    return alone, reactive_tpots(calls, counted, end), tokens / (end - counted)


def compare(options, label, path, progress):
    """(engine's label, {cap: {context: Seen}}). All caps have a server each and take turns, so that the machine is the same for all."""
    seen = {cap: {context: Seen([], [], []) for context in options.contexts} for cap in CAPS}
    seconds = options.seconds / options.rounds
    with contextlib.ExitStack() as stack:
        loads = {}
        for cap in CAPS:
            engine = stack.enter_context(servers.Troika(path, options.threads, PARALLEL, options.context,
                                                        *([] if cap == "adaptive" else ["--bcap", cap])))
            loads[cap] = stack.enter_context(common.Load(engine, options.seed))
            loads[cap].warm_up()
        for context in options.contexts:
            prompts = {cap: warm(load, context, IN_FLIGHT + 1, progress, (IN_FLIGHT + 1) * context / 1000) for cap, load in loads.items()}
            for turn in range(options.rounds):
                for cap in CAPS if turn % 2 == 0 else CAPS[::-1]:
                    alone, company, rate = one_round(loads[cap], prompts[cap], context, seconds, random.Random(options.seed + turn))
                    seen[cap][context].alone.append(alone)
                    seen[cap][context].company.append(company)
                    seen[cap][context].rates.append(rate)
                progress.say(f"{label}, {context} tokens, background tokens/s: "
                             + ", ".join(f"B_cap {cap} {seen[cap][context].rates[-1]:.0f}" for cap in CAPS), len(CAPS) * seconds * 4 / 3)
        return loads["adaptive"].server.label, seen


def caps(options, label, path, figures, progress):
    if not servers.Troika(path, options.threads, PARALLEL, options.context).has_option("--bcap"):
        raise servers.ServerError(f"{servers.BINARY} has no option --bcap; is it up to date (make build)? --only curve needs none")
    engine_label, seen = compare(options, label, path, progress)
    limit = (1 + SLACK) / (1 - SHARE)
    for context in options.contexts:
        head, table, keeps = f"{label}, {engine_label}, context {context}", [], {}
        for cap in CAPS:
            one, name = seen[cap][context], f"{head}, B_cap {cap}"
            alone, company = sum(one.alone, []), sum(one.company, [])
            keeps[cap] = one.growth is not None and one.growth <= limit
            figures.figure(f"{name}: reactive TPOT mean, company / alone", one.growth, f"<= {limit:.3f}" if cap == "adaptive" else "",
                           stats.spread(one.growths))
            figures.figure(f"{name}: reactive TPOT P95, ms", stats.quantile_if_enough(company, 0.95))
            figures.figure(f"{name}: proactive tokens/s out", one.rate, spread=stats.spread(one.rates))
            figures.figure(f"{name}: proactive tokens in the time of a token alone", stats.mean(one.work), spread=stats.spread(one.work))
            table.append([f"B_cap {cap}", stats.mean(alone), stats.mean(company), stats.quantile_if_enough(company, 0.95), one.growth,
                          "yes" if keeps[cap] else "no", one.rate, stats.mean(one.work)])
        common.grid(head, ["", "TPOT alone", "in company", "P95", "ratio", "keeps the slack", "background, tokens/s", "per token alone"],
                    table)
        best = max((cap for cap in CAPS[:-1] if keeps[cap]), key=lambda cap: stats.mean(seen[cap][context].work), default=None)
        adaptive = seen["adaptive"][context]
        if best is None:
            figures.figure(f"{head}: proactive tokens/s of adaptive (no fixed value keeps the slack)", adaptive.rate)
        else:
            fixed = seen[best][context]
            figures.figure(f"{head}: proactive tokens in the time of a token alone, adaptive / best fixed that keeps the slack ({best})",
                           stats.ratio(stats.mean(adaptive.work), stats.mean(fixed.work)), f">= {KEPT}",
                           stats.spread([a / b for a, b in zip(adaptive.work, fixed.work) if b]))


def main():
    parser = common.parser_of(__doc__, models=["smollm2"], seconds="of each B_cap and context (default: 45; --quick: 6)")
    parser.add_argument("--only", choices=["curve", "caps"], help="one of the two parts")
    parser.add_argument("--contexts", type=common.positive, nargs="+", metavar="N", help="tokens of context (default: 512 2048 8000)")
    options = parser.parse_args()
    options.seconds = options.seconds or (6 if options.quick else 45)
    options.contexts = options.contexts or ([512] if options.quick else list(CONTEXTS))
    options.batches = (1, 2, 4, 8) if options.quick else BATCHES
    options.repeats, options.rounds = (1, 1) if options.quick else (5, 3)
    options.context = max(options.contexts) + REACTIVE_OUT
    parts = [options.only] if options.only else ["curve", "caps"]
    planned = {"curve": sum(max(options.batches) * c / 1000 + 10 for c in options.contexts),
               "caps": len(CAPS) * sum((IN_FLIGHT + 1) * c / 1000 + options.seconds * 4 / 3 for c in options.contexts)}
    progress = common.Progress(sum(planned[part] for part in parts))
    figures = common.Figures("bench-batch")
    for label, path in map(common.model_of, options.model or ["smollm2"]):
        for part in parts:
            {"curve": curve, "caps": caps}[part](options, label, path, figures, progress)
    return figures.finish()


if __name__ == "__main__":
    sys.exit(common.run_main(main))
