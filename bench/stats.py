# SPDX-License-Identifier: Apache-2.0
"""Figures of samples. Quantiles are nearest rank: a value that was measured, never one in between."""
import math
import statistics

# A quantile needs this many samples, or it is the luck of a few: 5 above a P95, 5 above a P99.
SAMPLES_MIN = {0.95: 20, 0.99: 500}


def quantile(values, q):
    """The smallest value that at least q of all values do not exceed; None of nothing."""
    if not 0 < q <= 1:
        raise ValueError(f"quantile {q} is not in (0, 1]")
    ordered = sorted(values)
    # q * n may be 19.000000000000004 where it is 19.
    return ordered[max(math.ceil(q * len(ordered) - 1e-9), 1) - 1] if ordered else None


def quantile_if_enough(values, q):
    """None where there are too few samples to speak of it."""
    values = list(values)
    return quantile(values, q) if len(values) >= SAMPLES_MIN.get(q, 1) else None


def mean(values):
    values = list(values)
    return statistics.fmean(values) if values else None


def median(values):
    return quantile(values, 0.5)


def spread(values):
    """(highest - lowest) / median of what was measured several times; None of fewer than two."""
    values = [value for value in values if value is not None]
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else None


def ratio(a, b):
    """a / b, or None where one is not known or b is 0."""
    return a / b if a is not None and b else None


def thirds(values):
    """Three runs of neighbours, as even as can be: a quantile's spread is that of its three thirds."""
    values = list(values)
    cuts = [round(i * len(values) / 3) for i in range(4)]
    return [values[cuts[i]:cuts[i + 1]] for i in range(3)]


def rounded(value, digits=4):
    """To that many significant digits, for tables; None stays."""
    if value is None or value != value or value in (math.inf, -math.inf):
        return None
    if value == 0:
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
