"""When tables under DiLoCo have their outer steps, and how far workers may be apart by them."""

import itertools

from mpips.model.local_sgd import OuterSteps


def done(times: OuterSteps, first: int, n: int) -> int:
    """Count the outer steps of `n` inner steps of a worker that has made `first` of its period before."""
    places = [(first + i) % times.steps + 1 for i in range(n)]
    return sum(times.ended(place) is not None for place in places)


def test_no_worker_at_most_n_inner_steps_behind_has_more_outer_steps_less() -> None:
    reached = 0
    for steps, fragments in itertools.product(range(1, 6), range(1, 4)):
        if fragments > steps:
            continue
        times = OuterSteps(steps, fragments, 0)
        for behind, n in itertools.product(range(6), range(6, 18)):
            counts = [
                done(times, mine, n) - done(times, other, n - behind)
                for mine, other in itertools.product(range(steps), repeat=2)
            ]
            bound = times.most_behind(behind)
            assert max(counts) <= bound, (times, behind, n)
            reached += max(counts) == bound
    # The bound is no larger than it must be: workers at other places of a period do reach it.
    assert reached > 100
