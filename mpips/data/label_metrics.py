"""Metrics of several labels of a sample, each 0 or 1.

Each label is evaluated as two classes (`mpips.data.metrics`), so all sums are exact, and a metric has the
same bits for any number of workers. With TP, FP and FN of label l for probabilities of 0.5 or more:

    micro_f1        2 sum TP / sum (2 TP + FP + FN), sums over all labels; 0 if all are 0
    macro_f1        mean over the labels of 2 TP / (2 TP + FP + FN), each 0 if no TP, FP or FN
    mean_auc        mean of the AUC over the labels of which samples have both values; nan without one
    hamming_loss    share of the n k labels that are wrong
    log_loss        mean over the n k labels of the negative log-likelihood, in nats

Tsoumakas and Vlahavas, "Random k-Labelsets: An Ensemble Method for Multilabel Classification", ECML 2007.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpips.data.exact import ExactSum, ratio
from mpips.data.metrics import Totals
from mpips.data.ranking import Pairs


def label_metrics(totals: Sequence[Totals], pairs: Sequence[Pairs]) -> dict[str, float]:
    """Return the value of each metric by its name; nan if there are no samples or a score is nan.

    Args:
        totals: The totals of each label; at least one label.
        pairs: The pairs of each label.
    """
    n = totals[0].n * len(totals)
    known = n and not any(own.n_nan for own in totals)
    found = sum(own.n_found for own in totals)
    both = sum(own.n_guessed + own.n_positive for own in totals)
    each = [ratio(2 * t.n_found, max(t.n_guessed + t.n_positive, 1)) for t in totals]
    areas = [own.area() for own in pairs]
    areas = [area for area in areas if not math.isnan(area)]
    values = {
        "micro_f1": ratio(2 * found, max(both, 1)),
        "macro_f1": math.fsum(each) / len(each),
        "mean_auc": math.fsum(areas) / len(areas) if areas else math.nan,
        "hamming_loss": ratio(n - sum(own.n_right for own in totals), max(n, 1)),
        "log_loss": sum((own.losses for own in totals), ExactSum()).over(n) if n else math.nan,
    }
    return {name: value if known else math.nan for name, value in values.items()}
