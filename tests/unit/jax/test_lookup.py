"""Rows by id: lookups around a differentiated function, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from script_rig import script_job

pytest.importorskip("jax", reason="jax is not installed")

import jax
import jax.numpy as jnp

import mpips
import mpips.jax
from mpips.errors import ConfigError


def test_rows_and_places_of_any_ids() -> None:
    ids = np.array([[2**60, -5, 7], [7, 7, 2**60]])
    with script_job() as script:
        items = mpips.jax.embedding("items", 3, optimizer=mpips.SGD(1.0), init="normal(1)")
        found = items.pull(ids)
        assert found.rows.shape == (8, 3)
        assert found.places.shape == (2, 3)
        assert found.places.dtype == jnp.int32
        np.testing.assert_array_equal(found.rows[3:], 0)
        assert script.worker is not None
        rows = script.worker.table("items").pull(ids.reshape(-1))
        np.testing.assert_array_equal(found.rows[found.places], rows.reshape(2, 3, 3))


@pytest.mark.parametrize(("n", "n_rows"), [(0, 8), (1, 8), (8, 8), (9, 16), (16, 16), (17, 32)])
def test_a_lookup_has_a_power_of_two_of_rows(n: int, n_rows: int) -> None:
    with script_job():
        items = mpips.jax.embedding("items", 2, optimizer=mpips.SGD(1.0))
        found = items.pull(np.arange(n))
        assert found.rows.shape == (n_rows, 2)
        found.push(jnp.ones((n_rows, 2)))
        mpips.jax.step()
        assert items.pull(np.arange(n)).places.shape == (n,)


def test_training_gives_the_rows_of_a_dense_table() -> None:
    rng = np.random.default_rng(5)
    n_ids, dim = 20, 4
    w = jnp.asarray(rng.normal(size=dim), jnp.float32)

    def loss(rows: Any, places: Any, w: Any) -> Any:
        return jnp.mean(jnp.tanh(rows[places].sum(1) @ w) ** 2)

    gradient = jax.jit(jax.grad(loss))
    keys = rng.choice(2**40, n_ids, replace=False)
    with script_job():
        items = mpips.jax.embedding("items", dim, optimizer=mpips.SGD(0.5), init="uniform(1)")
        first = items.pull(keys)
        dense = first.rows[first.places]
        for _ in range(10):
            bags = rng.integers(0, n_ids, size=(6, 3))
            found = items.pull(keys[bags])
            found.push(gradient(found.rows, found.places, w))
            mpips.jax.step()
            dense = dense - 0.5 * gradient(dense, bags, w)
        last = items.pull(keys)
        np.testing.assert_allclose(last.rows[last.places], dense, rtol=0, atol=1e-6)


def test_two_lookups_of_one_step_add_up_and_looking_creates_no_rows() -> None:
    with script_job():
        items = mpips.jax.embedding("items", 1, optimizer=mpips.SGD(1.0), init="constant(1)")
        for ids in ([3, 4], [4, 4, 5]):
            found = items.pull(np.array(ids))
            found.push(-jnp.ones_like(found.rows))
        unused = items.pull(np.array([6]))
        mpips.jax.step()
        after = items.pull(np.array([3, 4, 5, 6]))
        np.testing.assert_array_equal(after.rows[:4, 0], [2, 3, 2, 1])
        np.testing.assert_array_equal(unused.rows[:1], 1)


def test_lookups_that_are_refused() -> None:
    with script_job():
        items = mpips.jax.embedding("items", 2, optimizer=mpips.SGD(1.0))
        for ids in (np.ones(2), np.array([2**63], np.uint64), np.array(["a"])):
            with pytest.raises(ConfigError, match="ids of the embedding 'items' are"):
                items.pull(ids)
        found = items.pull(np.array([1, 2], np.uint64))
        with pytest.raises(ConfigError, match=r"has shape \(2, 2\): must be \(8, 2\)"):
            found.push(jnp.ones((2, 2)))
        with pytest.raises(ValueError, match="NaN or infinite; nothing was pushed"):
            found.push(jnp.full((8, 2), jnp.inf))
        found.push(jnp.ones((8, 2)))
        with pytest.raises(ConfigError, match="has been pushed already"):
            found.push(jnp.ones((8, 2)))
        mpips.jax.step()


def test_rows_with_codecs_are_pushed_and_pulled_in_them() -> None:
    keys = np.arange(6)
    with script_job() as script:
        codecs: Any = {"compression": "int8", "pull_compression": "bf16"}
        items = mpips.jax.embedding(
            "items", 32, optimizer=mpips.SGD(1.0), init="normal(1)", **codecs
        )
        found = items.pull(keys)
        rows = np.asarray(found.rows)[np.asarray(found.places)]
        assert (rows.view(np.uint32) & 0xFFFF == 0).all()  # bfloat16 has 16 bits of float32
        found.push(jnp.ones(found.rows.shape))
        mpips.jax.step()
        assert script.worker is not None
        np.testing.assert_allclose(script.worker.table("items").pull(keys), rows - 1, atol=0.02)
