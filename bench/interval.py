# SPDX-License-Identifier: Apache-2.0
"""The ratio of two things that were timed in turns, and how sure it is: Wilcoxon's signed-rank interval of the paired log
ratios, with its estimate (Hodges and Lehmann).

For two versions of equal speed the noise alone decides, so the logarithm of a ratio is above zero as often as below, by the same
amounts. The interval assumes nothing else of the noise, and its confidence is never below 95 %, for any number of turns from LEAST on.
From 12 turns on both ends lie among the means of the other turns, however far out a single outlier is."""
import itertools
import math

CONFIDENCE = 0.95
LEAST = 6  # turns; with fewer no interval is that sure


def _below(turns: int) -> int:
    """How many of the smallest means of pairs are outside of the interval at either end."""
    ways = [1]  # to get each sum of ranks out of the first ranks
    for rank in range(1, turns + 1):
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    tails = itertools.accumulate(ways)
    return sum(1 for tail in tails if tail <= (1 - CONFIDENCE) / 2 * 2 ** turns)


def of_ratios(ratios: list[float]) -> tuple[float, float, float]:
    """Lower end, estimate and upper end. ValueError: fewer turns than LEAST."""
    if len(ratios) < LEAST:
        raise ValueError(f"{len(ratios)} turns are too few for an interval of {CONFIDENCE:.0%}, which takes {LEAST}")
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    outside, half = _below(len(ratios)), len(means) // 2
    middle = (means[half] + means[-1 - half]) / 2
    return math.exp(means[outside - 1]), math.exp(middle), math.exp(means[-outside])
