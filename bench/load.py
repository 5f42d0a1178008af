#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/load.py (make bench-load) - a reactive request while the background's load rises, on models of the sizes that people run.

The 1B shape (random weights, `troika synth`): capacity in proactive requests (435 tokens in, 81 out) a second, measured first; then these
arrive (Poisson) at 0.32, 0.56 and 0.80 of it, 6 minutes each, beside a reactive request (160 in, 16 out) every 12 s. Wanted: mean
end-to-end of the reactive ones at 0.80 <= 1.15 x that at 0.32.
The 8B shape: 3 proactive requests always in flight, the same reactive ones. Wanted: from the arrival of a reactive request to its first
launch P95 < 100 ms; activation slots <= 64 MiB.
"""
import random
import sys
import time

import common
import servers
import stats

PROACTIVE, REACTIVE, PERIOD_S = (435, 81), (160, 16), 12.0
LEVELS = (0.32, 0.56, 0.80)
PARALLEL, CONTEXT, IN_FLIGHT = 16, 1024, 3
GROWTH, PENDING_MS, SLOTS_MIB = 1.15, 100, 64


def reactive_times(rng, settle, seconds):
    return [settle + PERIOD_S * (i + rng.uniform(0.1, 0.6)) for i in range(int((seconds - settle) / PERIOD_S))]


def run(load, seconds, settle, rng, progress, say, rate=None):
    """Proactive requests at that rate, or always so many in flight; (calls, begin of counting, end)."""
    begin = time.perf_counter() + 0.02
    if rate is None:
        load.closed(IN_FLIGHT, "proactive", *PROACTIVE)
    else:
        common.open_load(load, begin, common.poisson(rng, rate, seconds), "proactive", *PROACTIVE)
    common.open_load(load, begin, reactive_times(rng, settle, seconds), "reactive", *REACTIVE)
    return common.watch(load, begin, begin + seconds, settle, progress, say)


def rows(figures, name, calls, begin, end):
    """Of one run; answers the reactive ones' mean end-to-end."""
    reactive, proactive = (common.outcome(calls, kind, begin, end) for kind in ("reactive", "proactive"))
    e2e = [common.ms(a.e2e) for a in reactive.ok]
    figures.answers(reactive.ok, run=name)
    figures.figure(f"{name}: reactive end-to-end mean, ms", stats.mean(e2e),
                   spread=stats.spread([stats.mean(third) for third in stats.thirds(e2e)]))
    figures.figure(f"{name}: reactive TTFT mean, ms", stats.mean(common.ms(a.ttft) for a in reactive.ok))
    figures.figure(f"{name}: reactive end-to-end P95, ms", stats.quantile_if_enough(e2e, 0.95))
    figures.figure(f"{name}: reactive requests answered", len(reactive.ok))
    figures.figure(f"{name}: requests that failed", len(reactive.failed) + reactive.open + reactive.refused + len(proactive.failed), "== 0")
    figures.figure(f"{name}: proactive end-to-end mean, s", stats.mean(a.e2e for a in proactive.ok))
    tokens = sum(begin <= t < end for call in calls if call.tag.kind == "proactive" for t in call.token_times())
    figures.figure(f"{name}: proactive tokens/s out", tokens / (end - begin))
    for error in (reactive.failed + proactive.failed)[:2]:
        print(error, file=sys.stderr)
    return stats.mean(e2e), reactive.ok


def small(options, label, path, seconds, figures, progress):
    rng = random.Random(options.seed)
    engine = servers.Troika(path, options.threads, PARALLEL, CONTEXT)
    means = {}
    with engine, common.Load(engine, options.seed) as load:
        load.warm_up()
        aside = min(seconds, 180.0)
        capacity = common.capacity(load, IN_FLIGHT if options.quick else PARALLEL, PROACTIVE, aside, aside / 2)
        progress.say(f"{label}: capacity {capacity * 60:.2f} proactive requests a minute", aside)
        figures.figure(f"{label}, {engine.label}: capacity, proactive requests a minute", capacity * 60)
        for level in LEVELS:
            name = f"{label}, {engine.label}, load {level:.2f}"
            calls, begin, end = run(load, seconds, min(30.0, seconds / 6), rng, progress, name, level * capacity)
            means[level], _ = rows(figures, name, calls, begin, end)
    figures.figure(f"{label}, {engine.label}: reactive end-to-end mean, load {LEVELS[-1]:.2f} / load {LEVELS[0]:.2f}",
                   stats.ratio(means[LEVELS[-1]], means[LEVELS[0]]), f"<= {GROWTH}")


def large(options, label, path, seconds, figures, progress):
    engine = servers.Troika(path, options.threads, 4, CONTEXT)
    with engine, common.Load(engine, options.seed) as load:
        load.warm_up()
        name = f"{label}, {engine.label}, {IN_FLIGHT} in flight"
        calls, begin, end = run(load, seconds, min(30.0, seconds / 6), random.Random(options.seed), progress, name)
        metrics, bound = engine.metrics(), engine.bound_ms()
        figures.figure(f"{label}, {engine.label}: peak memory, MiB", engine.peak_bytes() / 2**20)
    _, answers = rows(figures, name, calls, begin, end)
    waits = [w for a in answers if (w := a.timings.get("first_launch_ms", a.timings.get("queue_ms"))) is not None]
    enough = "" if len(waits) >= stats.SAMPLES_MIN[0.95] else f" (of {len(waits)} only)"
    figures.figure(f"{name}: arrival of a reactive request to its first launch, P95, ms{enough}", stats.quantile(waits, 0.95),
                   f"< {PENDING_MS}", stats.spread([stats.quantile(third, 0.95) for third in stats.thirds(waits)]))
    figures.figure(f"{name}: the same, median, ms", stats.median(waits))
    figures.figure(f"{name}: bound of preemption as printed, ms", bound)
    slots = servers.metric(metrics, "slot_bytes")
    figures.figure(f"{name}: activation slots, MiB", None if slots is None else slots / 2**20, f"<= {SLOTS_MIB}")


def main():
    parser = common.parser_of(__doc__, models=["the 1B and the 8B shape"], seconds="of each load (default: 360; --quick: 24)")
    parser.add_argument("--only", choices=["1b", "8b"], help="one of the two parts")
    parser.add_argument("--type", default="q4_0", help="of the weights that troika synth makes (default: %(default)s)")
    options = parser.parse_args()
    seconds = options.seconds or (24 if options.quick else 360)
    parts = [options.only] if options.only else ["1b"] if options.quick else ["1b", "8b"]
    if options.model and len(options.model) != len(parts):
        parser.error(f"{len(parts)} models are measured here ({' and '.join(parts)}), {len(options.model)} given")
    models = [common.model_of(name) for name in options.model] if options.model else \
        [common.synth({"1b": "llama-3.2-1b", "8b": "llama-3.1-8b"}[part], options.type) for part in parts]
    figures = common.Figures("bench-load")
    progress = common.Progress(sum({"1b": min(seconds, 180) + 3 * seconds, "8b": seconds}[part] for part in parts))
    for part, (label, path) in zip(parts, models):
        (small if part == "1b" else large)(options, label, path, seconds, figures, progress)
    return figures.finish()


if __name__ == "__main__":
    sys.exit(common.run_main(main))
