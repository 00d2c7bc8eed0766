"""Changes of hyperparameters that no correct worker writes, and those at the ends of their ranges."""

from __future__ import annotations

import numpy as np
import pytest
from configure_rig import configure
from harness import Rig, dense, make_writer, rows

from mpips import _native
from mpips.model.consistency import BSP
from mpips.model.optimizer import (
    FTRL,
    HYPERPARAMETERS,
    OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    Momentum,
    PythonRule,
)


def config(kind, **values):
    """Return a config that no optimizer of mpips.model would make."""
    names = [*HYPERPARAMETERS, "lr", "weight_decay", "clip_value"]
    zeros = dict.fromkeys(names, 0.0)
    return _native.OptimizerConfig(kind=kind, **{**zeros, **values})


ADAM = {"lr": 0.1, "beta1": 0.5, "beta2": 0.5, "eps": 1e-8}
BAD = {
    "kind": (SGD(), Adam().native(), "optimizer adam, expected sgd"),
    "lr": (SGD(), config("sgd", lr=-1.0), "lr = -1"),
    "NaN": (SGD(), config("sgd", lr=float("nan")), "lr = -?nan"),
    "infinity": (SGD(), config("sgd", weight_decay=float("inf")), "weight_decay = inf"),
    "clip": (SGD(), config("sgd", clip_value=2e18), "clip_value = 2"),
    "not its own": (SGD(), config("sgd", momentum=0.5), "momentum = 0.5"),
    "momentum": (Momentum(), config("momentum", momentum=1.0), "momentum = 1"),
    "beta1": (Adam(), config("adam", **{**ADAM, "beta1": 1.0}), "beta1 = 1"),
    "beta2": (Adam(), config("adam", **{**ADAM, "beta2": -0.5}), "beta2 = -0.5"),
    "eps": (Adam(), config("adam", **{**ADAM, "eps": 0.0}), "eps = 0"),
    "rho": (OPTIMIZERS["rmsprop"](), config("rmsprop", rho=1.5, eps=1.0), "rho = 1.5"),
    "ftrl": (FTRL(), config("ftrl", lr=0.0, beta=1.0), "lr = 0"),
    "beta": (FTRL(), config("ftrl", lr=1.0), "beta = 0"),
    "l1": (FTRL(), config("ftrl", lr=1.0, beta=1.0, l1=-1.0), "l1 = -1"),
    "l2": (FTRL(), config("ftrl", lr=1.0, beta=1.0, l2=-1.0), "l2 = -1"),
    "accumulator": (
        Adagrad(),
        Adagrad(initial_accumulator=1.0).native(),
        "another initial_accumulator, with which state has begun",
    ),
    "python": (PythonRule(print), SGD().native(), "whose rule is a Python function"),
}


@pytest.mark.parametrize("make", [dense, rows])
@pytest.mark.parametrize("name", BAD)
def test_a_change_that_the_rule_cannot_have_is_refused(name, make):
    rule, record, match = BAD[name]
    rig = Rig(make(optimizer=rule))
    assert rig.writers[0].configure(0, 0, 0, record)
    with pytest.raises(_native.ProtocolViolation, match=match):
        rig.drain()


def test_the_ends_of_the_ranges_are_accepted():
    ends = {
        "sgd": {"lr": 0.0, "weight_decay": 1e18, "clip_value": 1e18},
        "momentum": {"momentum": float(np.nextafter(1.0, 0.0))},
        "adam": {"beta1": 0.0, "beta2": float(np.nextafter(1.0, 0.0)), "eps": 1e-30},
        "rmsprop": {"rho": 0.0, "eps": 1e18},
        "adagrad": {"eps": 1e-30},
        "ftrl": {"lr": 1e-18, "beta": 1e-18, "l1": 1e18, "l2": 1e18},
    }
    for name, values in ends.items():
        rig = Rig(dense(optimizer=OPTIMIZERS[name]()))
        configure(rig, OPTIMIZERS[name](**values))
        rig.drain()
        found = rig.core.optimizer(0)
        assert {key: getattr(found, key) for key in values} == values


def test_a_table_that_the_server_does_not_have_is_refused():
    rig = Rig(dense())
    writer = make_writer(rig.region, rig.layout, 0, 3)
    assert writer.configure(2, 0, 0, SGD().native())
    with pytest.raises(
        _native.ProtocolViolation, match="table 2, of which this server has no part"
    ):
        rig.drain()


def test_a_record_of_another_length_is_refused():
    rig = Rig(dense(), checksums=False)
    configure(rig, SGD())
    at = rig.layout.mailbox_offset(0) + rig.layout.geometry.slots_offset
    rig.region.view(at + 52, 4, True).view(np.uint32)[0] -= 8
    with pytest.raises(_native.ProtocolViolation, match="in 104 bytes, expected 112"):
        rig.drain()


def test_a_change_in_the_middle_of_a_bsp_push_is_refused():
    rig = Rig(dense(1000, consistency=BSP("sum")), n_slots=4)
    assert rig.writers[0].push_dense(0, 0, np.ones(1000, np.float32), None, 0) < 1000
    rig.drain()
    configure(rig, SGD())
    with pytest.raises(_native.ProtocolViolation, match="before its last push was complete"):
        rig.drain()


def test_a_change_of_an_ended_clock_is_refused():
    rig = Rig(dense())
    assert rig.writers[0].tick(0)
    configure(rig, SGD(), 0)
    with pytest.raises(_native.ProtocolViolation, match="clock 0 after it had ended clock 0"):
        rig.drain()


def test_without_room_nothing_is_written():
    rig = Rig(dense(), n_slots=2)
    for _ in range(2):
        configure(rig, SGD())
    before = rig.writers[0].next_sequence
    assert not rig.writers[0].configure(0, 0, 0, SGD().native())
    assert rig.writers[0].next_sequence == before
