#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/overload.py (make bench-overload) - twice as much work as the machine can do: who is refused, who is late?

Capacity first, in requests a second of each of two kinds: proactive (435 tokens in, 81 out) and reactive (160 in, 128 out). Then, for
`--overload admit-first` (refuse new background before shortening anything) and `--overload degrade-first` (shorten what allows it first),
proactive requests arrive at 1.25 x their capacity and reactive ones at 0.75 x theirs (Poisson), so at 2 x together, all with a deadline,
half of either kind allowing to be shortened to 64 tokens. The two policies take turns, each in half of the time twice.
"""
import random
import sys
import time

import common
import servers
import stats

PROACTIVE, REACTIVE = (435, 81), (160, 128)
LOAD = {"proactive": 1.25, "reactive": 0.75}
PARALLEL, CONTEXT = 16, 1024
POLICIES = ("admit-first", "degrade-first")


def shortened(call):
    """An answer may be shorter than what was asked for; nothing else may differ."""
    answer, tag = call.answer(), call.tag
    if answer.ok and answer.usage.get("completion_tokens", tag.tokens_out) > tag.tokens_out:
        answer.error = f"{answer.usage['completion_tokens']} tokens, asked for {tag.tokens_out}"
    return answer


def headers(deadline_ms, shorten):
    return {"x-troika-deadline-ms": str(deadline_ms)} | ({"x-troika-shorten": "1"} if shorten else {})


def run(load, seconds, settle, rates, options, rng, progress, say):
    begin = time.perf_counter() + 0.02
    for kind, shape, deadline_ms in (("proactive", PROACTIVE, options.deadline_ms), ("reactive", REACTIVE, options.reactive_deadline_ms)):
        for when in common.poisson(rng, LOAD[kind] * rates[kind], seconds):
            common.open_load(load, begin, [when], kind, *shape, headers=headers(deadline_ms, rng.random() < 0.5))
    at, end = begin, begin + seconds
    while at < end:
        step = min(30.0, end - at)
        at += step
        load.loop.sleep_until(at)
        progress.say(f"{say}: {sum(c.tag is not None for c in load.loop.calls)} requests open", step)
    # What has arrived gets its whole time, else nobody could be late.
    longest = max(options.deadline_ms, options.reactive_deadline_ms) / 1000
    load.loop.run(lambda: not any(c.tag for c in load.loop.calls), end + longest + 5)
    return load.take(), begin + settle, end


def total(parts):
    """One outcome of several runs."""
    result = common.Outcome([], 0, 0, [], 0)
    for part in parts:
        result.ok += part.ok
        result.failed += part.failed
        result.refused, result.expired, result.open = (result.refused + part.refused, result.expired + part.expired,
                                                       result.open + part.open)
    return result


def rows(figures, name, kind, parts, deadline_ms, tokens_out):
    """`parts`: outcomes of this policy's runs. Failure: no whole answer. Miss: none by the deadline, refused or not."""
    def failure_rate(o):
        return stats.ratio(o.arrived - len(o.ok), o.arrived)

    def miss_rate(o):
        return stats.ratio(o.arrived - sum(a.e2e * 1000 <= deadline_ms for a in o.ok), o.arrived)

    o = total(parts)
    e2e = [common.ms(a.e2e) for a in o.ok]
    figures.figure(f"{name}, {kind}: requests", o.arrived)
    figures.figure(f"{name}, {kind}: failure rate", failure_rate(o), spread=stats.spread([failure_rate(p) for p in parts]))
    figures.figure(f"{name}, {kind}: refused at arrival (429)", o.refused)
    figures.figure(f"{name}, {kind}: ended by their deadline", o.expired)
    figures.figure(f"{name}, {kind}: neither answered nor ended 5 s after the deadline", o.open, "== 0")
    figures.figure(f"{name}, {kind}: failed otherwise", len(o.failed), "== 0")
    figures.figure(f"{name}, {kind}: end-to-end mean, ms", stats.mean(e2e))
    figures.figure(f"{name}, {kind}: end-to-end P95, ms", stats.quantile_if_enough(e2e, 0.95),
                   spread=stats.spread([stats.quantile_if_enough([common.ms(a.e2e) for a in p.ok], 0.95) for p in parts]))
    figures.figure(f"{name}, {kind}: not answered by the deadline, of all", miss_rate(o),
                   spread=stats.spread([miss_rate(p) for p in parts]))
    figures.figure(f"{name}, {kind}: answers shortened", sum(a.tokens < tokens_out for a in o.ok))
    for error in o.failed[:1]:
        print(f"{name}, {kind}: {error}", file=sys.stderr)
    return [kind, o.arrived, failure_rate(o), o.refused, o.expired, stats.quantile_if_enough(e2e, 0.95), miss_rate(o),
            sum(a.tokens < tokens_out for a in o.ok)]


def main():
    parser = common.parser_of(__doc__, models=["smollm2"], seconds="of each policy (default: 360; --quick: 40)")
    parser.add_argument("--deadline-ms", type=common.positive, default=30_000, help="of proactive requests (default: %(default)s)")
    parser.add_argument("--reactive-deadline-ms", type=common.positive, default=10_000, help="of reactive ones (default: %(default)s)")
    options = parser.parse_args()
    seconds = options.seconds or (40 if options.quick else 360)
    label, path = common.model_of((options.model or ["smollm2"])[0])
    arguments = (path, options.threads, PARALLEL, CONTEXT)
    if not servers.Troika(*arguments).has_option("--overload"):
        raise servers.ServerError(f"{servers.BINARY} has no option --overload; is it up to date? make build")
    figures, aside, half = common.Figures("bench-overload"), min(90.0, max(seconds / 4, 12.0)), seconds / 2
    rates = {}
    progress = common.Progress(2 * aside + 2 * seconds + 4 * options.deadline_ms / 2000)
    with servers.Troika(*arguments) as engine, common.Load(engine, options.seed) as load:
        load.warm_up()
        for kind, shape in (("proactive", PROACTIVE), ("reactive", REACTIVE)):
            rates[kind] = common.capacity(load, PARALLEL, shape, aside, aside / 3)
            progress.say(f"{label} on {engine.label}: capacity {rates[kind]:.3f} {kind} requests/s", aside)
            figures.figure(f"{label}, {engine.label}: capacity, {kind} requests/s", rates[kind])
    seen = {policy: [] for policy in POLICIES}
    for turn in range(2):
        for policy in POLICIES:
            # Both policies see the same arrivals.
            rng = random.Random(f"{options.seed} {turn}")
            with servers.Troika(*arguments, "--overload", policy) as engine, common.Load(engine, options.seed) as load:
                load.warm_up()
                calls, begin, end = run(load, half, min(10.0, half / 4), rates, options, rng, progress, policy)
            seen[policy].append({kind: common.outcome(calls, kind, begin, end, shortened) for kind in ("reactive", "proactive")})
            for kind, o in seen[policy][-1].items():
                figures.answers(o.ok, policy=policy, turn=turn, kind=kind)
    table = []
    for policy, parts in seen.items():
        for kind, deadline_ms, shape in (("reactive", options.reactive_deadline_ms, REACTIVE),
                                         ("proactive", options.deadline_ms, PROACTIVE)):
            row = rows(figures, f"{label}, {engine.label}, {policy}", kind, [p[kind] for p in parts], deadline_ms, shape[1])
            table.append([f"{policy}, {row[0]}"] + row[1:])
    common.grid(f"{label}: 2 x capacity", ["", "requests", "failure rate", "refused", "expired", "P95, ms", "missed deadline",
                                                        "shortened"], table)
    return figures.finish()


if __name__ == "__main__":
    sys.exit(common.run_main(main))
