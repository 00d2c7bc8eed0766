"""[options] of the task `mf`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from mpips.tasks.options import Count, Penalty, Rate


class MfOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[options] of the task `mf`."""

    implicit: Annotated[
        bool,
        Meta(
            description="Learn from which items each user has (BPR) and report NDCG@10; else predict "
            "ratings and report RMSE."
        ),
    ] = False
    least_rating: Annotated[
        float | None,
        Meta(
            description="implicit: only lines with at least this rating count, in training and test."
        ),
    ] = None
    dim: Annotated[Count, Meta(description="Length of a factor.")] = 32
    learning_rate: Annotated[Rate, Meta(description="Learning rate of Adagrad.")] = 0.05
    l2: Annotated[
        Penalty | None,
        Meta(
            description="The loss of a line has l2 / 2 times the squares of its biases and factors added. "
            "By default 0.1, more where users have fewer than 64 ratings; with implicit 0.01."
        ),
    ] = None
    init_std: Annotated[
        Rate, Meta(description="Standard deviation of the initial biases and factors.")
    ] = 0.1
    user: Annotated[str, Meta(description="Name of the column of users. Empty: a usual one.")] = ""
    item: Annotated[str, Meta(description="Name of the column of items. Empty: a usual one.")] = ""
    rating: Annotated[
        str, Meta(description="Name of the column of ratings. Empty: a usual one.")
    ] = ""
    top: Annotated[
        Count, Meta(description="mpips predict: items for a line without an item, or with ?.")
    ] = 10

    def idle(self) -> dict[str, str]:
        """Return why an option has no effect beside the others, by its name."""
        if not self.implicit:
            return {"least_rating": "it applies only with options.implicit = true"}
        if self.least_rating is None:
            return {
                "rating": "options.implicit = true reads ratings for options.least_rating alone"
            }
        return {}

    @property
    def penalty(self) -> float:
        """The value of `l2`, or its default."""
        if self.l2 is not None:
            return self.l2
        return 0.01 if self.implicit else 0.1
