#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/stall.py (make bench-stall) - an answer streams to a person and a prompt of 8,000 tokens arrives: how long does the answer stop?

Once the long prompt is background (proactive), once another person's (reactive); a llama.cpp server knows no such difference and has one
row. The gap is the longest time between two emissions of the streaming answer from the arrival of the long prompt to its first token, or
to the end of the answer. In each round an answer streams for as long with nothing arriving. Its largest gap is the machine's own; and its
time per token around the same token is what a gap is set against as well, since a token takes longer the more came before it.
"""
import contextlib
import itertools
import sys
import time

import common
import servers
import stats

STREAM_IN, BIG_OUT, BEFORE_S = 64, 16, 1.5
PARALLEL, CONTEXT = 2, 8192
LIMIT_S = 300
NOTHING = "nothing arrives"
AROUND = 50  # tokens before and behind one, over which its time is taken


class Trial:
    """Milliseconds but for overlap: seconds of the answer while the long prompt waited for its first token (which took ttft)."""

    def __init__(self, load, times, begin, end, ttft=None):
        """times: of the streaming answer's tokens."""
        marks = [when for when, _ in itertools.groupby(times)]
        before = [when for when in times if when < begin]
        if len(before) < 8 or marks[-1] <= begin:
            raise servers.ServerError(f"{load.server.label}: the answer was over before there was anything to see: a longer one is "
                                      "needed: --stream")
        self.tpot = 1000 * (before[-1] - before[0]) / (len(before) - 1)
        self.times = times
        self.gaps, self.places = [], []  # places: tokens before each gap
        place = 0
        for a, b in itertools.pairwise(marks):
            while times[place] <= a and place + 1 < len(times):
                place += 1
            if b > begin and a < end:
                self.gaps.append(1000 * (b - a))
                self.places.append(place)
        self.overlap = min(marks[-1], end) - begin
        self.ttft = ttft

    def tpot_at(self, place):
        """Time per token around that one."""
        low = max(0, min(place, len(self.times) - 1) - AROUND)
        high = min(low + 2 * AROUND, len(self.times) - 1)
        return 1000 * (self.times[high] - self.times[low]) / (high - low)

    def in_limits(self, alone, bound):
        """Each gap by 2 x TPOT + bound, TPOT as in the trial `alone` at the same place."""
        return [gap / (2 * alone.tpot_at(place) + bound) for gap, place in zip(self.gaps, self.places)]


def undisturbed(load, stream_out, seconds):
    """A trial in which nothing arrives."""
    stream = load.post("reactive", STREAM_IN, stream_out)
    load.loop.run(lambda: stream.done or time.perf_counter() > stream.begun + BEFORE_S + seconds, stream.begun + LIMIT_S)
    load.take()
    begin = stream.begun + BEFORE_S
    return Trial(load, stream.token_times(), begin, begin + seconds)


def once(load, kind, big_in, stream_out):
    """A trial in which a long prompt of that class arrives."""
    stream = load.post("reactive", STREAM_IN, stream_out)
    begun = stream.begun
    if not load.loop.run(lambda: stream.done or stream.pieces and time.perf_counter() > begun + BEFORE_S and len(stream.pieces) > 20,
                         begun + LIMIT_S):
        raise servers.ServerError(f"{load.server.label} streamed nothing in {LIMIT_S} s")
    big = load.post(kind, big_in, BIG_OUT)
    load.loop.run(lambda: big.done, big.begun + LIMIT_S)
    load.take()
    for call in (stream, big):
        answer = call.answer()
        if not answer.ok and not call.stopped:
            raise servers.ServerError(f"{load.server.label}: {answer.error}")
    if not big.done or big.stopped:
        raise servers.ServerError(f"{load.server.label} did not answer the prompt of {big_in} tokens in {LIMIT_S} s")
    first = big.token_times()[0]
    return Trial(load, stream.token_times(), big.begun, first, 1000 * (first - big.begun))


def rows(figures, name, kind, trials, alone, bound):
    """trials: of one engine and class; alone: ours of the same rounds in which nothing arrived, None for a peer."""
    gaps = [max(t.gaps) for t in trials]
    head = f"{name}, {kind}: "
    figures.figure(head + "time per token before, ms", stats.median(t.tpot for t in trials), spread=stats.spread([t.tpot for t in trials]))
    limit = 2 * stats.median(t.tpot for t in trials) + bound
    figures.figure(head + "largest gap, median of trials, ms (2 x TPOT before + bound)", stats.median(gaps),
                   f"<= {limit:.3f}" if alone and kind != NOTHING else "", stats.spread(gaps))
    figures.figure(head + "largest gap of all trials, ms", max(gaps))
    figures.figure(head + "gap, P99, ms", stats.quantile([gap for t in trials for gap in t.gaps], 0.99))
    if alone:
        shares = [t.in_limits(a, bound) for t, a in zip(trials, alone)]
        figures.figure(head + "largest gap / (2 x TPOT there + bound), median of trials", stats.median(max(s) for s in shares),
                       "" if kind == NOTHING else "<= 1", stats.spread([max(s) for s in shares]))
        figures.figure(head + "gap / (2 x TPOT there + bound), P99", stats.quantile([share for s in shares for share in s], 0.99))
        figures.figure(head + "gaps longer than 2 x TPOT there + bound, of 1,000",
                       stats.mean(1000 * sum(share > 1 for share in s) / len(s) for s in shares))
    if kind == NOTHING:
        return
    figures.figure(head + "answer and long prompt overlapped, least, s", min(t.overlap for t in trials))
    ttfts = [t.ttft for t in trials]
    figures.figure(head + "TTFT of the long prompt, ms", stats.median(ttfts), spread=stats.spread(ttfts))


def main():
    parser = common.parser_of(__doc__, models=["smollm2"], peers=True, seconds="without effect here")
    parser.add_argument("--trials", type=common.positive, help="of each case (default: 7; --quick: 1)")
    parser.add_argument("--prompt", type=common.positive, help="tokens of the long prompt (default: 8000; --quick: 4000)")
    parser.add_argument("--stream", type=common.positive, default=4000,
                        help="tokens of the streaming answer, at most (default: %(default)s)")
    options = parser.parse_args()
    trials = options.trials or (1 if options.quick else 7)
    big_in = options.prompt or (4000 if options.quick else 8000)
    if big_in + BIG_OUT > CONTEXT or options.stream + STREAM_IN > CONTEXT:
        parser.error(f"a prompt has at most {CONTEXT - BIG_OUT} tokens here and an answer {CONTEXT - STREAM_IN}")
    figures = common.Figures("bench-stall")
    for label, path in map(common.model_of, options.model or ["smollm2"]):
        arguments = (path, options.threads, PARALLEL, CONTEXT)
        engines = [servers.Troika(*arguments), *common.peers_of(options, *arguments)]
        cases = [(0, "proactive"), (0, "reactive"), (0, NOTHING)] + [(i, "any class") for i in range(1, len(engines))]
        cost = {"any class": big_in / 150}
        progress = common.Progress(trials * sum(cost.get(kind, big_in / 800) for _, kind in cases))
        progress.say(f"{label}: {trials} trials of {len(cases)} cases, prompt of {big_in} tokens")
        with contextlib.ExitStack() as stack:
            loads = [stack.enter_context(common.Load(stack.enter_context(engine), options.seed)) for engine in engines]
            for load in loads:
                load.warm_up()
            seen = {case: [] for case in cases}
            for number in range(trials):
                for case in cases:
                    index, kind = case
                    if kind == NOTHING:
                        trial = undisturbed(loads[index], options.stream, seen[0, "proactive"][-1].overlap)
                    else:
                        trial = once(loads[index], "proactive" if kind == "any class" else kind, big_in, options.stream)
                    seen[case].append(trial)
                    figures.sample(model=label, engine=engines[index].label, kind=kind, tpot_ms=trial.tpot, gap_ms=max(trial.gaps),
                                   overlap_s=trial.overlap, ttft_ms=trial.ttft)
                    progress.say(f"{engines[index].label}, {kind}: {trial.tpot:.1f} ms a token before, largest gap "
                                 f"{max(trial.gaps):.1f} ms",
                                 cost.get(kind, big_in / 800))
            bound = engines[0].bound_ms()
            common.grid(f"{label}: an answer streams, a prompt of {big_in} tokens arrives",
                        ["ms", "per token before", "largest gap, median", "worst", "TTFT of the prompt"],
                        [[f"{engines[i].label.split(' ')[0]}, {kind}", stats.median(t.tpot for t in ts),
                          stats.median(max(t.gaps) for t in ts), max(max(t.gaps) for t in ts),
                          "-" if kind == NOTHING else stats.median(t.ttft for t in ts)] for (i, kind), ts in seen.items()])
            figures.figure(f"{label}, {engines[0].label}: bound of preemption as printed, ms"
                           + ("" if bound is not None else " (not reported, taken as 0)"), bound)
            for (index, kind), ts in seen.items():
                rows(figures, f"{label}, {engines[index].label}", kind, ts, seen[0, NOTHING] if index == 0 else None, bound or 0.0)
    return figures.finish()


if __name__ == "__main__":
    sys.exit(common.run_main(main))
