#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/saturation.py (make bench-saturation) - three times more background than the machine can do, for ten minutes.

First the capacity: proactive requests (1,000 tokens in, 64 out) a second when every place is taken. Then reactive requests (160 in, 48
out, one every 4 s) alone, then the same beside proactive ones that arrive at 3 x capacity (Poisson), then alone once more. Wanted: mean
end-to-end of the reactive ones within (1 + e)/(1 - s) x alone + 2 x D, with e = 0.15, s = 0.05, D = 10 ms; and the background goes on: no
silence longer than the age limit (30 s) and one request's work at the share s.
"""
import itertools
import random
import sys
import time

import common
import servers
import stats

REACTIVE, PROACTIVE, PERIOD_S = (160, 48), (1000, 64), 4.0
PARALLEL, CONTEXT = 16, 2048
SLACK, SHARE, BOUND_MS, AGE_LIMIT_S = 0.15, 0.05, 10.0, 30.0
OVERLOAD = 3.0


def reactive_times(rng, settle, seconds):
    """Every period, but not in step with anything."""
    return [when + rng.uniform(0, 0.3) * PERIOD_S for when in (settle + PERIOD_S * i for i in range(int((seconds - settle) / PERIOD_S)))]


def phase(load, options, seconds, settle, rate, rng, progress, say):
    """(calls, begin of counting, end)"""
    begin = time.perf_counter() + 0.02
    if rate:
        common.open_load(load, begin, common.poisson(rng, rate, seconds), "proactive", *PROACTIVE)
    common.open_load(load, begin, reactive_times(rng, settle, seconds), "reactive", *REACTIVE)
    return common.watch(load, begin, begin + seconds, settle, progress, say)


def silences(calls, begin, end):
    """Longest time without any token of the background, and requests that it finished in each whole minute."""
    times = sorted(t for call in calls if call.tag.kind == "proactive" for t in call.token_times() if begin <= t < end)
    longest = max(b - a for a, b in itertools.pairwise([begin, *times, end]))
    minutes = [0] * int((end - begin) // 60)
    for call in calls:
        if call.tag.kind == "proactive" and call.complete:
            index = int((call.ended - begin) // 60)
            if 0 <= index < len(minutes):
                minutes[index] += 1
    return longest, minutes, len(times)


def main():
    parser = common.parser_of(__doc__, models=["smollm2"], seconds="of the overload (default: 600; --quick: 50)")
    options = parser.parse_args()
    seconds = options.seconds or (50 if options.quick else 600)
    settle = min(30.0, seconds / 5)
    aside = min(120.0, max(seconds / 5, 15.0))  # of each measurement alone, and of capacity
    label, path = common.model_of((options.model or ["smollm2"])[0])
    figures = common.Figures("bench-saturation")
    progress = common.Progress(seconds + 3 * aside + 5)
    rng = random.Random(options.seed)
    engine = servers.Troika(path, options.threads, PARALLEL, CONTEXT)
    with engine, common.Load(engine, options.seed) as load:
        progress.say(f"{label} on {engine.label}: capacity, {aside:.0f} s")
        load.warm_up()
        capacity = common.capacity(load, PARALLEL, PROACTIVE, aside, aside / 3)
        progress.say(f"capacity {capacity:.3f} requests/s, so {OVERLOAD * capacity:.3f} arrive", aside)
        runs = [("alone", phase(load, options, aside, 0, 0, rng, progress, "alone")),
                ("overload", phase(load, options, seconds, settle, OVERLOAD * capacity, rng, progress, "overload")),
                ("alone", phase(load, options, aside, 0, 0, rng, progress, "alone again"))]
        metrics = engine.metrics()
    outcomes = [(mode, common.outcome(calls, "reactive", begin, end)) for mode, (calls, begin, end) in runs]
    name = f"{label}, {engine.label}"
    alone_each = [stats.mean(common.ms(a.e2e) for a in o.ok) for mode, o in outcomes if mode == "alone"]
    alone = stats.mean(common.ms(a.e2e) for mode, o in outcomes if mode == "alone" for a in o.ok)
    company = outcomes[1][1]
    for mode, o in outcomes:
        figures.answers(o.ok, engine=engine.label, mode=mode)
    e2e = [common.ms(a.e2e) for a in company.ok]
    limit = (1 + SLACK) / (1 - SHARE) * alone + 2 * BOUND_MS if alone else 0
    figures.figure(f"{name}: capacity, proactive requests/s", capacity)
    figures.figure(f"{name}, alone: reactive end-to-end mean, ms", alone, spread=stats.spread(alone_each))
    figures.figure(f"{name}, overload: reactive end-to-end mean, ms ((1+e)/(1-s) x alone + 2 D)", stats.mean(e2e), f"<= {limit:.1f}",
                   stats.spread([stats.mean(third) for third in stats.thirds(e2e)]))
    figures.figure(f"{name}, overload: reactive end-to-end P95, ms", stats.quantile_if_enough(e2e, 0.95))
    figures.figure(f"{name}, overload: reactive TTFT mean, ms", stats.mean(common.ms(a.ttft) for a in company.ok))
    figures.figure(f"{name}, overload: reactive requests answered", len(company.ok))
    figures.figure(f"{name}, overload: reactive requests that failed", company.arrived - len(company.ok), "== 0")
    calls, begin, end = runs[1][1]
    longest, minutes, tokens = silences(calls, begin, end)
    background = common.outcome(calls, "proactive", begin, end)
    figures.figure(f"{name}, overload: proactive tokens/s out", tokens / (end - begin))
    figures.figure(f"{name}, overload: proactive requests that arrived", background.arrived)
    figures.figure(f"{name}, overload: proactive requests refused", background.refused)
    figures.figure(f"{name}, overload: proactive requests that failed otherwise", len(background.failed) + background.expired, "== 0")
    figures.figure(f"{name}, overload: longest silence of the background, s (age limit + work / s)", longest,
                   f"<= {AGE_LIMIT_S + 1 / capacity / SHARE:.1f}")
    if minutes:
        figures.figure(f"{name}, overload: proactive requests finished in the poorest minute", min(minutes), ">= 1")
    figures.figure(f"{name}: promotions", servers.metric(metrics, "promotions_total"))
    for error in (company.failed + background.failed)[:2]:
        print(error, file=sys.stderr)
    return figures.finish()


if __name__ == "__main__":
    sys.exit(common.run_main(main))
