#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/tidy/tidy.py [--root DIR] [--build DIR] [RULE...] - the rules of this house that a program can check.

Each rule prints "ok RULE" or "not ok RULE: N findings" after its findings, one a line: file:line: what. The exit code is 1 if any failed.
Rules that look at what was built (exports, options) run only with --build, and then only they. The rules themselves are tested, each on
a tree that breaks it, by test_tidy.py beside this file. Standard library only.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import built_rules  # noqa: E402
import code_rules  # noqa: E402
import text_rules  # noqa: E402
from tree import Tree  # noqa: E402

RULES = {**code_rules.RULES, **text_rules.RULES}


def run(tree, rules, out):
    failed = 0
    for name, rule in rules.items():
        findings, advice = [], []
        for finding in rule(tree):
            (advice if finding.soft else findings).append(finding)
        for finding in advice:
            print(f"# {finding} (advice)", file=out)
        for finding in findings:
            print(f"  {finding}", file=out)
        failed += bool(findings)
        print(f"not ok {name}: {len(findings)} findings" if findings else f"ok {name}", file=out)
    return failed


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path, help="a folder that cmake and ninja have filled")
    parser.add_argument("rules", nargs="*", metavar="RULE", help=" ".join([*RULES, *built_rules.RULES]))
    options = parser.parse_args(arguments)
    rules = built_rules.RULES if options.build else RULES
    unknown = set(options.rules) - set(rules)
    if unknown:
        parser.error(f"no such rule here: {' '.join(sorted(unknown))}")
    chosen = {name: rule for name, rule in rules.items() if not options.rules or name in options.rules}
    return 1 if run(Tree(options.root, options.build), chosen, sys.stdout) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
