#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/mixed.py (make bench-mixed) - does a person wait for the background? troika beside llama.cpp, in one run.

Both engines are up with the same model, threads and sequences; one at a time gets work, in windows that alternate between engines and
between three modes:
    alone        a reactive request (160 tokens in, 48 out) every 4 s
    company      the same, and 3 proactive requests (1,000 in, 64 out) always in flight
    background   the proactive ones without the reactive ones
A request counts in the window it arrives in, none in a window's first 5 s. Times are a client's, on a raw socket; what is called the
engine's own comes from the `timings` of its answers. Spread is (highest - lowest) / median over the windows, of a P95 over the three
thirds of the run. The full run takes about 45 minutes for both models; --quick two.
"""
import contextlib
import math
import random
import sys

import common
import servers
import stats

REACTIVE, PROACTIVE, IN_FLIGHT, PERIOD_S = (160, 48), (1000, 64), 3, 4.0
PARALLEL, CONTEXT = 4, 2048
# Windows of troika by mode: 7 reactive requests each in 25 s make 154 in company and 77 alone.
WINDOWS = {"company": 22, "alone": 11, "background": 4}
PEER_SHARE = 0.5  # of troika's windows that go to the peers, in sum
SLACK_LIMIT, MARGIN_MS, KEPT = 1.25, 2.0, 0.8
COMPANY, ALONE, BACKGROUND = "company", "alone", "background"


def plan(engines, fraction, windows, seconds):
    """[(engine index, mode)]: each engine's windows of each mode spread evenly over the run, and so mixed with the others'."""
    result = []
    for index in range(engines):
        share = fraction * (1 if index == 0 else PEER_SHARE / (engines - 1))
        for mode, count in windows.items():
            number = max(math.ceil(count * share), 1)
            result += [((i + 0.5) / number, index, mode) for i in range(number)]
    return [(index, mode) for _, index, mode in sorted(result)]


def planned_s(mode, kind, seconds):
    return seconds + (9 if mode == COMPANY and kind != "troika" else 1)


def windows_figure(figures, name, windows, value, wanted="", of=stats.mean):
    """One row over all requests of these windows: the mean of all, its spread between windows."""
    values = [[value(a) for a in w.reactive if value(a) is not None] for w in windows]
    measured = of([v for one in values for v in one])
    figures.figure(name, measured, wanted, stats.spread([of(one) for one in values if one]))
    return measured


def p95_figure(figures, name, windows, value, wanted=""):
    values = [v for w in windows for a in w.reactive if (v := value(a)) is not None]
    measured = stats.quantile(values, 0.95)
    figures.figure(name + ("" if len(values) >= stats.SAMPLES_MIN[0.95] else f" (of {len(values)} only)"), measured, wanted,
                   stats.spread([stats.quantile(third, 0.95) for third in stats.thirds(values)]))
    if len(values) >= stats.SAMPLES_MIN[0.99]:
        figures.figure(name.replace("P95", "P99"), stats.quantile(values, 0.99))


def client_rows(figures, name, windows):
    """What a client sees, alone and in company; answers (mean end-to-end, mean TPOT) by mode."""
    result = {}
    for mode in (ALONE, COMPANY):
        mine = [w for w in windows if w.mode == mode]
        head = f"{name}, {mode}: "
        windows_figure(figures, head + "TTFT mean, ms", mine, lambda a: common.ms(a.ttft))
        p95_figure(figures, head + "TTFT P95, ms", mine, lambda a: common.ms(a.ttft))
        tpot = windows_figure(figures, head + "TPOT mean, ms", mine, lambda a: common.ms(a.tpot))
        gap = windows_figure(figures, head + "largest gap, median, ms", mine, lambda a: common.ms(a.gap), of=stats.median)
        e2e = windows_figure(figures, head + "end-to-end mean, ms", mine, lambda a: common.ms(a.e2e))
        p95_figure(figures, head + "end-to-end P95, ms", mine, lambda a: common.ms(a.e2e))
        result[mode] = e2e, tpot, gap
    return result


def rate(windows, field):
    """Tokens a second over all of these windows, and by window."""
    seconds = sum(w.seconds for w in windows)
    return (sum(getattr(w, field) for w in windows) / seconds if seconds else None,
            [getattr(w, field) / w.seconds for w in windows])


def background_rows(figures, name, windows):
    result = {}
    for mode in (COMPANY, BACKGROUND):
        mine = [w for w in windows if w.mode == mode]
        for field, what in (("tokens_out", "proactive tokens/s out"), ("tokens_in", "proactive tokens/s in")):
            measured, by_window = rate(mine, field)
            figures.figure(f"{name}, {mode}: {what}", measured, spread=stats.spread(by_window))
            result[mode, field] = measured
    return result


def show(label, engines, windows):
    """The figures that matter, side by side."""
    header, rows = ["ms unless said"], [["time to first token, mean"], ["time per token, mean"], ["largest gap, median"],
                                        ["end-to-end, mean"], ["end-to-end, P95"], ["background, tokens/s out"]]
    for index, engine in enumerate(engines):
        for mode in (ALONE, COMPANY, BACKGROUND):
            mine = [w for w in windows[index] if w.mode == mode]
            answers = [a for w in mine for a in w.reactive]
            header.append(f"{engine.label.split(' ')[0]} {mode}")
            for row, value in zip(rows, (
                    stats.mean(common.ms(a.ttft) for a in answers), stats.mean(common.ms(a.tpot) for a in answers),
                    stats.median(common.ms(a.gap) for a in answers), stats.mean(common.ms(a.e2e) for a in answers),
                    stats.quantile_if_enough([common.ms(a.e2e) for a in answers], 0.95),
                    rate(mine, "tokens_out")[0] if mode != ALONE else None)):
                row.append(value)
    common.grid(label, header, rows)


def count_rows(figures, name, windows, counts):
    for mode in (COMPANY, ALONE):
        mine = [w for w in windows if w.mode == mode]
        wanted = f">= {counts[mode]}" if counts else ""
        figures.figure(f"{name}, {mode}: reactive requests counted", sum(len(w.reactive) for w in mine), wanted)
    lost = sum(w.unfinished + len(w.failed) for w in windows)
    figures.figure(f"{name}: reactive requests that failed or took over {common.DRAIN_S} s", lost, "== 0" if "troika" in name else "")
    figures.figure(f"{name}: proactive requests that failed", sum(len(w.proactive_failed) for w in windows),
                   "== 0" if "troika" in name else "")
    for w in windows:
        for error in (w.failed + w.proactive_failed)[:1]:
            print(f"{name}, {w.mode}: {error}", file=sys.stderr)


def paired(company, alone):
    """End-to-end in company over that of the window alone nearest in time: by window."""
    means = [(w.counted, stats.mean(a.e2e for a in w.reactive)) for w in alone if w.reactive]
    for w in company:
        if w.reactive and means:
            near = min(means, key=lambda m: abs(m[0] - w.counted))
            yield stats.mean(a.e2e for a in w.reactive) / near[1]


def troika_rows(figures, name, windows, client, background, bound):
    """What the issue wants of us."""
    company = [w for w in windows if w.mode == COMPANY]
    e2e_alone, tpot_alone, _ = client[ALONE]
    e2e_company, _, gap_company = client[COMPANY]
    figures.figure(f"{name}: bound of preemption as printed, ms" + ("" if bound is not None else " (not reported, taken as 0)"), bound)
    bound = bound or 0.0
    figures.figure(f"{name}: end-to-end mean, company / alone", stats.ratio(e2e_company, e2e_alone), f"<= {SLACK_LIMIT}",
                   stats.spread(list(paired(company, [w for w in windows if w.mode == ALONE]))))
    p95_figure(figures, f"{name}, company: wait for the first launch + preempted, P95, ms (engine's clock)", company,
               common.first_launch_wait_ms, f"<= {bound + MARGIN_MS:.3f}")
    limit = 2 * (tpot_alone or 0) + bound
    windows_figure(figures, f"{name}, company: largest gap, median, ms (2 x TPOT alone + bound)", company, lambda a: common.ms(a.gap),
                   f"<= {limit:.3f}", of=stats.median)
    windows_figure(figures, f"{name}, company: given to the background within the slack, mean, ms (engine's clock)", company,
                   lambda a: a.timings.get("slack_ms"))
    windows_figure(figures, f"{name}, company: blocked mean, ms (engine's clock)", company, lambda a: a.timings.get("blocked_ms"))
    p95_figure(figures, f"{name}, company: blocked P95, ms (engine's clock)", company, lambda a: a.timings.get("blocked_ms"))
    shares = [w.reactive_share for w in company if w.reactive_share is not None]
    share = stats.mean(shares)
    figures.figure(f"{name}, company: share of the time with reactive launches", share, spread=stats.spread(shares))
    left = (background[BACKGROUND, "tokens_out"] or 0) * (1 - share) if share is not None and share < 1 else None
    figures.figure(f"{name}: proactive tokens/s out, company / (background x (1 - share))",
                   stats.ratio(background[COMPANY, "tokens_out"], left), f">= {KEPT}",
                   stats.spread([w.tokens_out / w.seconds / left for w in company]) if left else None)


def measure(label, engines, options, fraction, figures, progress):
    """All windows of one model."""
    rng = random.Random(options.seed)
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(common.Load(stack.enter_context(engine), options.seed)) for engine in engines]
        for load in loads:
            load.warm_up()
        windows = [[] for _ in engines]
        idle = [0.0 for _ in engines]
        idle_s = 0.0
        for index, mode in plan(len(engines), fraction, options.windows, options.seconds):
            before = [engine.cpu_seconds() for engine in engines]
            window = common.run_window(loads[index], mode, options.seconds, options.settle, PERIOD_S, REACTIVE, PROACTIVE, IN_FLIGHT, rng)
            for i, engine in enumerate(engines):
                idle[i] += engine.cpu_seconds() - before[i] if i != index else 0
            idle_s += options.seconds
            windows[index].append(window)
            figures.answers(window.reactive, model=label, engine=engines[index].label, mode=mode, window=len(windows[index]))
            e2e, ttft = stats.mean(a.e2e for a in window.reactive), stats.mean(a.ttft for a in window.reactive)
            seen = f"{len(window.reactive)} reactive" + (f", TTFT {ttft * 1000:.0f} ms, end-to-end {e2e * 1000:.0f} ms" if e2e else "")
            seen += f", background {window.tokens_out / window.seconds:.1f} tokens/s out" if mode != ALONE else ""
            progress.say(f"{label}, {engines[index].label}, {mode}: {seen}", planned_s(mode, engines[index].kind, options.seconds))
        bound = engines[0].bound_ms()
        counts = {COMPANY: round(150 * fraction), ALONE: round(75 * fraction)} if options.full else None
        show(label, engines, windows)
        for index, engine in enumerate(engines):
            name = f"{label}, {engine.label}"
            client = client_rows(figures, name, windows[index])
            background = background_rows(figures, name, windows[index])
            if index == 0:
                troika_rows(figures, name, windows[index], client, background, bound)
            else:
                figures.figure(f"{name}: end-to-end mean, company / alone", stats.ratio(client[COMPANY][0], client[ALONE][0]))
            count_rows(figures, name, windows[index], counts if index == 0 else None)
            figures.figure(f"{name}: peak memory, MiB", engine.peak_bytes() / 2**20)
            if len(engines) > 1:
                figures.figure(f"{name}: processor time while it had no work, %", 100 * idle[index] / idle_s, "<= 2")


def main():
    parser = common.parser_of(__doc__, models=["smollm2", "gemma3"], peers=True, seconds="of a window (default: 30; --quick: 14)")
    parser.add_argument("--windows", type=common.positive, metavar="N",
                        help="in company on the first model (default: 22); other modes, models and peers in proportion")
    options = parser.parse_args()
    names = options.model or (["smollm2"] if options.quick else ["smollm2", "gemma3"])
    options.full = not options.quick and not options.windows and (options.seconds or 30) >= 30
    count = options.windows or (1 if options.quick else WINDOWS[COMPANY])
    options.seconds = options.seconds or (14 if options.quick else 30)
    options.settle = 5 if options.seconds >= 15 else 2
    options.windows = {mode: max(round(n * count / WINDOWS[COMPANY]), 1) for mode, n in WINDOWS.items()}
    models = [common.model_of(name) for name in names]
    runs = []
    for index, (label, path) in enumerate(models):
        arguments = (path, options.threads, PARALLEL, CONTEXT)
        runs.append((label, [servers.Troika(*arguments), *common.peers_of(options, *arguments)], 1 if index == 0 else 1 / 3))
    planned = sum(planned_s(mode, engines[i].kind, options.seconds) for _, engines, fraction in runs
                  for i, mode in plan(len(engines), fraction, options.windows, options.seconds))
    progress = common.Progress(planned)
    progress.say(f"{' and '.join(label for label, _ in models)} on {', '.join(e.label for e in runs[0][1])}; {options.threads} threads, "
                 f"{PARALLEL} sequences of {CONTEXT} tokens")
    figures = common.Figures("bench-mixed")
    for label, engines, fraction in runs:
        measure(label, engines, options, fraction, figures, progress)
    figures.figure("all: threads of each engine", options.threads)
    figures.figure("all: minutes", progress.elapsed / 60, "<= 45" if options.full and len(runs[0][1]) <= 2 else "")
    return figures.finish()


if __name__ == "__main__":
    sys.exit(common.run_main(main))
