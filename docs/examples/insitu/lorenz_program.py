"""A member of an ensemble of Lorenz-96: python lorenz_program.py MEMBER FORCING."""

import sys

import numpy as np

import mpips

SITES, STEPS, SPIN_UP, DT = 40, 500, 200, 0.02


def slope(x, forcing):
    """Return dx/dt, shape (SITES,)."""
    return (np.roll(x, -1) - np.roll(x, 2)) * np.roll(x, 1) - x + forcing


def step(x, forcing):
    """Return the state after DT, by the method of Runge and Kutta."""
    a = slope(x, forcing)
    b = slope(x + DT / 2 * a, forcing)
    c = slope(x + DT / 2 * b, forcing)
    d = slope(x + DT * c, forcing)
    return x + DT / 6 * (a + 2 * b + 2 * c + d)


member, forcing = int(sys.argv[1]), float(sys.argv[2])
state = forcing + np.random.default_rng(member).standard_normal(SITES)
for _ in range(SPIN_UP):
    state = step(state, forcing)
with mpips.attach(timeout_s=120.0) as producer:
    for n in range(STEPS):
        after = step(state, forcing)
        if n >= producer.produced:  # after a restart, go on where it ended
            producer.push({"state": state, "next": after, "forcing": forcing})
        state = after
print(f"lorenz: member {member} has pushed {STEPS} samples, forcing {forcing:.3f}")
