"""Pytrees on the servers: names, values, updates, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from script_rig import script_job

pytest.importorskip("jax", reason="jax is not installed")

import jax
import jax.numpy as jnp

import mpips
import mpips.jax
from mpips.errors import ConfigError


class Layer(NamedTuple):
    w: Any
    b: Any


def values(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def test_leaves_have_their_paths_as_names_and_structure_shapes_and_dtypes_come_back() -> None:
    tree = {
        "layers": [
            Layer(jnp.ones((2, 3)), jnp.zeros(3)),
            Layer(np.full((3, 1), 2.0, np.float32), jnp.ones(1)),
        ],
        "scale": jnp.float32(3.0),
        "half": jnp.full((2, 2), 1.5, jnp.bfloat16),
        "none": None,
    }
    with script_job() as script:
        handle = mpips.jax.declare(tree, optimizer=mpips.SGD(1.0))
        found = handle.pull()
        assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(tree)
        for got, wanted in zip(values(found), values(tree), strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            np.testing.assert_array_equal(got, wanted)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(found))
        names = ["half", "layers.0.w", "layers.0.b", "layers.1.w", "layers.1.b", "scale"]
        assert script.worker is not None
        for name in names:
            script.worker.table(name)


def test_an_array_alone_and_two_pytrees() -> None:
    with script_job() as script:
        alone = mpips.jax.declare(jnp.arange(3.0), optimizer=mpips.SGD(1.0))
        other = mpips.jax.declare([jnp.ones(2)], optimizer=mpips.SGD(1.0), name="other")
        np.testing.assert_array_equal(alone.pull(), [0, 1, 2])
        np.testing.assert_array_equal(other.pull()[0], [1, 1])
        assert script.worker is not None
        assert script.worker.table("value").shape == (3,)
        assert script.worker.table("other.0").shape == (2,)


@pytest.mark.parametrize("servers_name", ["bsp", "ssp", "asp", "local_sgd"])
def test_steps_of_a_jitted_gradient_are_those_of_jax_alone(servers_name: str) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(64, 5)).astype(np.float32), rng.normal(size=64).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] + params["b"] - y) ** 2)

    start = {
        "w": jnp.asarray(rng.normal(size=(5, 8)), jnp.float32),
        "v": jnp.asarray(rng.normal(size=8), jnp.float32),
        "b": jnp.float32(0.0),
    }
    rate = 0.125  # exact, so that one rounding is left in each update
    alone = start
    with script_job():
        handle = mpips.jax.declare(start, optimizer=mpips.SGD(rate), consistency=servers_name)
        for _ in range(20):
            handle.push(gradient(handle.pull(), x, y))
            mpips.jax.step()
            alone = jax.tree_util.tree_map(lambda p, g: p - rate * g, alone, gradient(alone, x, y))
        for got, wanted in zip(values(handle.pull()), values(alone), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


def test_pushes_of_a_step_add_up_and_pulled_arrays_never_change() -> None:
    with script_job():
        handle = mpips.jax.declare({"w": jnp.zeros(1000)}, optimizer=mpips.SGD(1.0))
        first = handle.pull()
        handle.push({"w": jnp.full(1000, -1.0)})
        handle.push({"w": np.full(1000, -2.0, np.float16)})
        mpips.jax.step()
        second = handle.pull()
        handle.push({"w": jnp.full(1000, -4.0)})
        mpips.jax.step()
        np.testing.assert_array_equal(handle.pull()["w"], np.full(1000, 7.0))
        np.testing.assert_array_equal(second["w"], np.full(1000, 3.0))
        np.testing.assert_array_equal(first["w"], np.zeros(1000))


def test_half_precision_has_float32_values_on_the_server() -> None:
    with script_job():
        handle = mpips.jax.declare({"w": jnp.ones(4, jnp.bfloat16)}, optimizer=mpips.SGD(1.0))
        for _ in range(8):  # each is below the spacing of bfloat16 at 1
            handle.push({"w": jnp.full(4, -(2.0**-10), jnp.bfloat16)})
            mpips.jax.step()
        np.testing.assert_array_equal(np.asarray(handle.pull()["w"], np.float32), 1 + 2.0**-7)


def test_rules_by_name_and_changed_hyperparameters() -> None:
    with script_job():
        handle = mpips.jax.declare(
            {"w": jnp.zeros(2), "b": jnp.zeros(2)},
            optimizer=lambda name: mpips.SGD(1.0 if name == "w" else 0.5),
        )
        ones = {"w": -jnp.ones(2), "b": -jnp.ones(2)}
        handle.push(ones)
        mpips.jax.step()
        found = handle.pull()
        assert found["w"][0] == 1.0
        assert found["b"][0] == 0.5
        for _ in range(2):
            handle.set_optimizer(mpips.SGD(4.0))
            handle.push(ones)
            mpips.jax.step()
        assert handle.pull()["w"][0] == 9.0
        with pytest.raises(ConfigError):
            handle.set_optimizer(mpips.Adam(0.1))


NAN = {"w": jnp.ones(2), "v": jnp.array([1.0, jnp.nan])}
LARGE = {"w": jnp.ones(2), "v": jnp.array([3e38, 3e38])}


def test_nothing_is_pushed_of_gradients_with_nan() -> None:
    with script_job():
        handle = mpips.jax.declare(
            {"w": jnp.zeros(2), "v": jnp.zeros(2)}, optimizer=mpips.SGD(2.0**-64)
        )
        handle.pull()
        with pytest.raises(ValueError, match=r"gradient of 'v' has 1 values that are NaN.*nothing"):
            handle.push(NAN)
        mpips.jax.step()
        for leaf in values(handle.pull()):
            np.testing.assert_array_equal(leaf, 0)
        handle.push(LARGE)  # their sum is infinite, and they are not
        mpips.jax.step()
        np.testing.assert_allclose(handle.pull()["v"], -3e38 * 2.0**-64)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ({"w": jnp.ones(3), "x": jnp.ones(3)}, "have the structure"),
        ({"w": jnp.ones(3)}, "have the structure"),
        ({"w": jnp.ones(3), "b": jnp.ones((3, 1))}, r"gradient of 'b' has shape \(3, 1\)"),
        ({"w": jnp.ones(3, jnp.int32), "b": jnp.ones(3)}, "gradient of 'w' is int32"),
        ({"w": np.ones(3), "b": jnp.ones(3)}, "gradient of 'w' is float64"),
    ],
)
def test_gradients_that_are_refused(gradients: Any, message: str) -> None:
    with script_job():
        handle = mpips.jax.declare({"w": jnp.zeros(3), "b": jnp.zeros(3)}, optimizer=mpips.SGD(1.0))
        with pytest.raises(ConfigError, match=message):
            handle.push(gradients)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "no leaves"),
        ({"w": jnp.ones(2, jnp.int32)}, "leaf 'w' is int32"),
        ({"w": np.ones(2)}, "leaf 'w' is float64"),
        ({"w": jnp.ones(2, jnp.complex64)}, "leaf 'w' is complex64"),
        ({"w": 1.0}, "leaf 'w' is float: must be an array"),
        ({"w": jnp.ones((0, 3))}, "without elements"),
        ({"a": {"b": jnp.ones(1)}, "a.b": jnp.ones(1)}, "a.b"),
    ],
)
def test_pytrees_that_are_refused(tree: Any, message: str) -> None:
    with script_job(), pytest.raises(ConfigError, match=message):
        mpips.jax.declare(tree, optimizer=mpips.SGD(1.0))


def test_calls_within_traced_functions_are_refused() -> None:
    with script_job():
        handle = mpips.jax.declare({"w": jnp.zeros(2)}, optimizer=mpips.SGD(1.0))
        items = mpips.jax.embedding("items", 2, optimizer=mpips.SGD(1.0))
        lookup = items.pull(np.arange(3))
        for call in (
            lambda x: handle.pull()["w"] + x,
            lambda x: handle.push({"w": x}),
            lambda x: items.pull(x),
            lambda x: lookup.push(x),
        ):
            with pytest.raises(ConfigError, match=r"function that JAX (traces|compiles)"):
                jax.jit(call)(jnp.ones(2))
        with pytest.raises(ConfigError, match=r"function that JAX (traces|compiles)"):
            jax.grad(lambda w: handle.push({"w": w}) or w.sum())(jnp.ones(2))


def test_a_declaration_after_the_first_pull_and_a_script_without_init_are_refused() -> None:
    with script_job():
        mpips.jax.declare({"w": jnp.zeros(2)}, optimizer=mpips.SGD(1.0)).pull()
        with pytest.raises(ConfigError, match="comes too late"):
            mpips.jax.declare({"v": jnp.zeros(2)}, optimizer=mpips.SGD(1.0))
    with pytest.raises(ConfigError, match=r"call mpips\.init"):
        mpips.jax.declare({"v": jnp.zeros(2)}, optimizer=mpips.SGD(1.0))


def test_keys_with_slashes_and_rules_by_name() -> None:
    tree = {"mlp/~/linear_0": {"w": jnp.zeros(2)}}
    with script_job() as script:
        handle = mpips.jax.declare(
            tree, optimizer=lambda name: "adagrad" if "linear" in name else ""
        )
        handle.push({"mlp/~/linear_0": {"w": jnp.ones(2)}})
        mpips.jax.step()
        np.testing.assert_allclose(handle.pull()["mlp/~/linear_0"]["w"], [-0.01, -0.01], rtol=1e-5)
        assert script.worker is not None
        assert script.worker.table("mlp.~.linear_0.w").shape == (2,)


@pytest.mark.parametrize("optimizer", ["newton", 3, lambda name: None])
def test_what_is_no_rule_is_refused_in_one_sentence(optimizer: Any) -> None:
    with script_job(), pytest.raises(ConfigError, match="optimizer"):
        mpips.jax.declare({"w": jnp.zeros(2)}, optimizer=optimizer)


def test_a_script_with_two_libraries_that_end_clocks_is_refused() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import torch

    import mpips.torch

    with script_job():
        mpips.jax.declare({"w": jnp.zeros(2)}, optimizer="sgd")
        model = torch.nn.Linear(2, 1)
        words = r"the script uses mpips\.jax and mpips\.torch"
        with pytest.raises(ConfigError, match=words):
            mpips.torch.prepare(model, torch.optim.SGD(model.parameters(), 0.1))


def test_leaves_with_codecs_are_pushed_and_pulled_in_them() -> None:
    tree = {"w": np.linspace(-1, 1, 300, dtype=np.float32), "b": np.zeros(3, np.float32)}
    with script_job() as script:
        codecs: Any = {"compression": "fp16", "pull_compression": "bf16"}
        handle = mpips.jax.declare(tree, optimizer=mpips.SGD(1.0), **codecs)
        found = np.asarray(handle.pull()["w"])
        assert (found.view(np.uint32) & 0xFFFF == 0).all()  # bfloat16 has 16 bits of float32
        np.testing.assert_allclose(found, tree["w"], rtol=2**-8)
        handle.push({"w": jnp.ones(300), "b": jnp.ones(3)})
        mpips.jax.step()
        assert script.worker is not None
        assert script.worker.table("w").paths == ["encoded"]
        np.testing.assert_allclose(np.asarray(handle.pull()["w"]), tree["w"] - 1, rtol=0.01)


def test_replicated_leaves_have_the_bits_of_leaves_on_servers() -> None:
    tree = {"w": np.linspace(-1, 1, 300, dtype=np.float32), "b": np.zeros(3, np.float32)}
    found = {}
    for placement in ("servers", "replicated", mpips.Replicated(check_every=2)):
        with script_job() as script:
            handle = mpips.jax.declare(tree, optimizer=mpips.Adam(0.1), placement=placement)
            for step in range(3):
                pulled = handle.pull()
                handle.push({"w": pulled["w"] * step, "b": jnp.ones(3)})
                mpips.jax.step()
            found[str(placement)] = b"".join(value.tobytes() for value in values(handle.pull()))
            assert script.worker is not None
            replicated = script.worker.table("w").paths == ["replicated"]
            assert replicated == (placement != "servers")
    assert len(set(found.values())) == 1


def test_a_placement_that_does_not_fit_is_refused() -> None:
    for options, message in (
        ({"placement": "here"}, "placement = 'here': must be 'servers'"),
        ({"placement": "replicated", "consistency": "asp"}, "a replicated table needs consistency"),
    ):
        with script_job(), pytest.raises(ConfigError, match=message):
            mpips.jax.declare(jnp.ones(3), optimizer=mpips.SGD(0.1), **options)  # type: ignore[arg-type]
