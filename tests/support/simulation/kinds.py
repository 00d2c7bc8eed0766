"""Features of a history besides kills, lost nodes and changes of the job; its seed determines them."""

from __future__ import annotations

import random

from simulation.adaptive import ADAPTIVE, is_adaptive
from simulation.chains import CHAINS, has_chains
from simulation.row_limits import LIMITS, is_limited
from simulation.stages import STAGES, is_staged
from simulation.switching import SWITCHING, is_switching

MAY_GATHER = ("reject", "local")
SCALING_SHARE, SCALING_SALT = (
    0.12,
    2,
)  # of the histories; chosen so that no test's seed is one of them
SCALING = "scaling"  # name of these, beside the features
# Histories in which nothing takes the place of a worker that has died: as many ranks continue in memory and
# leave at once for a job with one worker less, which starts from the exchange.
LOSING_SHARE, LOSING_SALT = 0.06, 12
LOSING = "losing"
FEATURES = ("",) * 12 + ("backup", "reject", "local", "gathers")
NAMES = sorted({*FEATURES, SCALING, LOSING, ADAPTIVE, CHAINS, LIMITS, STAGES, SWITCHING} - {""})


def feature_of(seed: int) -> str:
    """Return the feature of a history; "": it has none of those that few histories have."""
    return random.Random(f"feature 299 {seed}").choice(FEATURES)


def has_scaling(seed: int) -> bool:
    """Return True if a job of this history is asked to change its size while it runs."""
    return random.Random(f"scaling {SCALING_SALT} {seed}").random() < SCALING_SHARE


def has_losing(seed: int) -> bool:
    """Return True if a job of this history has a worker less after each death of a rank at work."""
    is_drawn = random.Random(f"losing {LOSING_SALT} {seed}").random() < LOSING_SHARE
    return is_drawn and not has_scaling(seed) and feature_of(seed) in ("", "gathers")


def has(seed: int, feature: str) -> bool:
    """Return True if a history has this feature."""
    if feature == ADAPTIVE:
        return is_adaptive(seed, feature_of(seed))
    if feature == CHAINS:
        return has_chains(seed)
    if feature == LIMITS:
        return is_limited(seed, feature_of(seed))
    if feature == STAGES:
        others = (LOSING, ADAPTIVE, SWITCHING)
        return is_staged(seed, feature_of(seed)) and not any(has(seed, other) for other in others)
    if feature == SWITCHING:
        return is_switching(seed, feature_of(seed))
    if feature in (SCALING, LOSING):
        return has_scaling(seed) if feature == SCALING else has_losing(seed)
    return feature_of(seed) == feature
