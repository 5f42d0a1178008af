#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/chart.py [--input JSON] [--output SVG] - the README's picture, from what make bench-mixed measured.

A reactive request alone and beside background work, for each engine: mean time to first token and mean end-to-end, on one linear axis
that begins at 0, since bars stand for amounts. Light and dark by a media query inside; no script, no font and no file from elsewhere.
"""
import argparse
import html
import json
import math
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import report  # noqa: E402

ROW = re.compile(r"^(?P<model>[^,]+), (?P<engine>[^,]+), (?P<mode>alone|company): (?P<what>.+)$")
PANELS = (("TTFT mean, ms", "Time to the first word"), ("end-to-end mean, ms", "The whole answer, 48 tokens"))
COUNT = "reactive requests counted"
MODES = (("alone", "alone"), ("company", "beside background"))
WIDTH, LEFT, RIGHT, TOP = 760, 226, 104, 78
BAR, GAP, ENGINE_GAP, HEAD, PANEL_GAP, AXIS = 15, 4, 10, 26, 20, 34

STYLE = """
 .ground { fill: #ffffff; stroke: #d5d9de }
 text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1c2228 }
 .title { font-size: 17px; font-weight: 600 }
 .head { font-weight: 600 }
 .quiet { fill: #57606a; font-size: 12px }
 .line { stroke: #d5d9de; stroke-width: 1 }
 .ours { fill: #0b6e75 }
 .theirs { fill: #8a5a1c }
 .alone { opacity: 0.5 }
 @media (prefers-color-scheme: dark) {
  .ground { fill: #12171c; stroke: #39424b }
  text { fill: #e6eaee }
  .quiet { fill: #9aa5b0 }
  .line { stroke: #39424b }
  .ours { fill: #35c0c9 }
  .theirs { fill: #dba45a }
 }
"""


class ChartError(Exception):
    """What is missing, in a sentence."""


def read(rows, model=None):
    """(model, {engine: {(mode, what): value}}), engines in the order of the report."""
    engines = {}
    for row in rows:
        found = ROW.match(row["name"])
        if found and (model is None or found["model"] == model):
            model = found["model"]
            engines.setdefault(found["engine"], {})[found["mode"], found["what"]] = row["measured"]
    for engine, values in engines.items():
        for what in [what for what, _ in PANELS] + [COUNT]:
            for mode, _ in MODES:
                if values.get((mode, what)) is None:
                    raise ChartError(f"the report says nothing of {model}, {engine}, {mode}: {what}")
    if not engines:
        raise ChartError("the report has no row of make bench-mixed")
    return model, engines


def seconds(value_ms):
    """For people: two digits that matter below 10 s."""
    value = value_ms / 1000
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"


def ticks(most):
    """Round steps up to `most` and a little beyond: about five."""
    step = 10 ** math.floor(math.log10(most))
    for factor in (0.2, 0.5, 1, 2):
        if most / (step * factor) <= 6:
            step *= factor
            break
    return [i * step for i in range(math.ceil(most / step - 1e-9) + 1)]


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, words, kind="", anchor="start"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>')

    def bar(self, x, y, width, kind):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{BAR}" class="{kind}"/>')

    def line(self, x1, y1, x2, y2):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:g}" x2="{x2:.1f}" y2="{y2:g}" class="line"/>')


def short(engine):
    """"troika 2be48bd" -> "troika", "xllamacpp 2026.10 (AVX2)" -> "llama.cpp"."""
    name = engine.split(" ")[0]
    return "llama.cpp" if name in ("xllamacpp", "llama-server") else name


def draw(model, engines, note):
    most = max(values[mode, what] for values in engines.values() for mode, _ in MODES for what, _ in PANELS)
    marks = ticks(most / 1000)
    scale = (WIDTH - LEFT - RIGHT) / (marks[-1] * 1000)
    drawing, y = Drawing(), TOP
    bottom_of_axis = TOP + len(PANELS) * (HEAD + len(engines) * (2 * BAR + GAP) + (len(engines) - 1) * ENGINE_GAP) + \
        (len(PANELS) - 1) * PANEL_GAP + 6
    for mark in marks:
        x = LEFT + mark * 1000 * scale
        drawing.line(x, TOP + HEAD - 8, x, bottom_of_axis)
        drawing.text(x, bottom_of_axis + 16, f"{mark:g} s", "quiet", "middle")
    for what, title in PANELS:
        drawing.text(24, y + 13, title, "head")
        y += HEAD
        for index, (engine, values) in enumerate(engines.items()):
            for mode, words in MODES:
                value = values[mode, what]
                drawing.text(LEFT - 10, y + 12, f"{short(engine)}, {words}", "", "end")
                drawing.bar(LEFT, y, value * scale, f"{'ours' if index == 0 else 'theirs'} {mode}")
                label = seconds(value)
                if mode == "company":
                    label += f"  ({value / values['alone', what]:.{1 if value < 9.95 * values['alone', what] else 0}f} x)"
                drawing.text(LEFT + max(value * scale, 1) + 7, y + 12, label)
                y += BAR + GAP
            y += ENGINE_GAP - GAP if index < len(engines) - 1 else 0
        y += PANEL_GAP - GAP
    y = bottom_of_axis + AXIS + 8
    counted = list(engines.values())[0]
    builds = " and ".join(engines)
    for line in (f"{model}; {builds}.",
                 f"Means of {counted['alone', COUNT]:g} requests alone and {counted['company', COUNT]:g} in company of troika, "
                 + ", ".join(f"{v['alone', COUNT]:g} and {v['company', COUNT]:g} of {short(e)}" for e, v in list(engines.items())[1:])
                 + "." if len(engines) > 1 else f"Means of {counted['alone', COUNT]:g} and {counted['company', COUNT]:g} requests.",
                 note):
        drawing.text(24, y, line, "quiet")
        y += 17
    height = y + 4
    first, whole = PANELS[0][0], PANELS[1][0]
    said = "; ".join(f"{engine}: first word after {seconds(v['alone', first])} alone and {seconds(v['company', first])} in company, "
                     f"whole answer after {seconds(v['alone', whole])} and {seconds(v['company', whole])}" for engine, v in engines.items())
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" role="img" '
            'aria-labelledby="title desc">',
            '<!-- SPDX-License-Identifier: Apache-2.0; drawn by bench/chart.py from make bench-mixed -->',
            '<title id="title">How long a person waits, alone and beside background work</title>',
            f'<desc id="desc">{html.escape(f"Bars, mean seconds, {model}. {said}.")}</desc>', f"<style>{STYLE}</style>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8" class="ground"/>',
            '<text x="24" y="34" class="title">How long a person waits, alone and beside background work</text>',
            '<text x="24" y="56" class="quiet">A request of 160 tokens every 4 s; beside it 3 background requests of 1,000 tokens, always '
            'in flight. Shorter is better.</text>']
    return "\n".join([*head, *drawing.parts, "</svg>"]) + "\n"


def processor():
    found = re.search(r"^model name\s*:\s*(.+)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found[1].strip() if found else "unknown processor"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=pathlib.Path, default=report.FOLDER / "bench-mixed.json")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/mixed.svg")
    parser.add_argument("--model", help="the model of a report that has several (default: its first)")
    parser.add_argument("--note", help="the last line (default: day, processor and threads)")
    options = parser.parse_args()
    try:
        rows = json.loads(options.input.read_text())
        model, engines = read(rows, options.model)
    except FileNotFoundError:
        print(f"chart: there is no {options.input}: make bench-mixed", file=sys.stderr)
        return 2
    except (OSError, ValueError, KeyError, TypeError, ChartError) as problem:
        print(f"chart: {options.input}: {problem}", file=sys.stderr)
        return 2
    threads = next((row["measured"] for row in rows if row["name"] == "all: threads of each engine"), None)
    day = time.strftime("%Y-%m-%d", time.localtime(options.input.stat().st_mtime))
    note = options.note or f"{day}, {processor()}" + (f", {threads:g} threads" if threads else "")
    options.output.write_text(draw(model, engines, note))
    print(f"{options.output}: {model}, {', '.join(engines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
