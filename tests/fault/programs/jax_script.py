"""A JAX script on the parameter server; each worker prints a line of JSON with its result."""

import argparse
import hashlib
import json
import os
import signal

import mpips

options = argparse.ArgumentParser()
options.add_argument("--servers", type=int, default=1)
options.add_argument("--transport", default="auto")
options.add_argument("--consistency", default="bsp")
options.add_argument("--placement", default="servers")
options.add_argument("--steps", type=int, default=20)
options.add_argument("--noise", action="store_true")
options.add_argument("--kill", default="", help="worker 0 dies at these steps, one in each launch")
options = options.parse_args()

mpips.init(servers=options.servers, transport=options.transport, timeout_s=40, verbose=False)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import mpips.jax  # noqa: E402
from mpips.session.init import current  # noqa: E402

rng = np.random.default_rng(7)
x = rng.normal(size=(144, 6)).astype(np.float32)
ids = rng.choice(2**60, 9)[rng.integers(0, 9, size=(144, 3))] - 2**59
y = (x[:, 0] > 0).astype(np.float32) + (ids[:, 0] > 0)


@jax.jit
def loss_and_gradients(params, rows, places, x, y, key):
    def loss(params, rows):
        hidden = jnp.tanh(x @ params["w"] + rows[places].mean(1))
        if options.noise:
            hidden = hidden * jax.random.bernoulli(key, 0.7, hidden.shape)
        return jnp.mean((hidden @ params["v"] + params["b"] - y) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(params, rows)


start = {"w": x[:6, :4] * 0.1, "v": x[7, :4], "b": np.float32(0) * x[0, 0]}
# Worker 0's values count.
start = {name: jnp.asarray(value + mpips.rank(), jnp.float32) for name, value in start.items()}
model = mpips.jax.declare(
    start,
    optimizer=mpips.Adam(0.02),
    consistency=options.consistency,
    placement=options.placement,
)
items = mpips.jax.embedding(
    "items", 4, optimizer=mpips.SGD(0.1), init="uniform(0.1)", consistency=options.consistency
)
deaths = [int(death) for death in options.kill.split(",") if death]
launch = int(os.environ.get("MPIPS_GENERATION", "0"))
losses = []
for step in range(mpips.jax.steps(), options.steps):
    batch = np.random.default_rng((1, step)).permutation(144)[:36]
    batch = batch[mpips.rank() :: mpips.world_size()]
    found = items.pull(ids[batch])
    loss, (gradients, of_rows) = loss_and_gradients(
        model.pull(), found.rows, found.places, x[batch], y[batch], mpips.jax.key()
    )
    found.push(of_rows)
    if options.noise:
        model.set_optimizer(mpips.Adam(0.02 / (1 + step // 2 % 2)))
    if mpips.rank() == 0 and launch < len(deaths) and deaths[launch] == step:
        os.kill(os.getpid(), signal.SIGKILL)
    model.push(gradients)
    mpips.jax.step()
    losses.append(float(loss))
rows = items.pull(np.unique(ids))
state = {name: np.asarray(value) for name, value in model.pull().items()}
state["rows"] = np.asarray(rows.rows)
digest = hashlib.sha256()
for name, value in sorted(state.items()):
    digest.update(name.encode() + value.tobytes())
result = {
    "worker": mpips.rank(),
    "digest": digest.hexdigest(),
    "losses": losses,
    "paths": current("the test").worker.table("w").paths,
    "values": {name: value.astype(float).ravel().tolist() for name, value in state.items()},
}
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(result) + "\n").encode())
