"""A network on images of digits in JAX: values and gradients go around the jitted function."""

import mpips

mpips.init()  # servers and the scheduler serve in this call; workers go on

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import mpips.jax

images, labels = load_digits(return_X_y=True)
x, y = np.float32(images / 16), np.int32(labels)
test = np.arange(len(x)) % 5 == 0
train_x, train_y = x[~test], y[~test]


def init_layer(key, n_in, n_out):
    return {"w": jax.random.normal(key, (n_in, n_out)) / n_in**0.5, "b": jnp.zeros(n_out)}


def logits(params, x, key=None):
    hidden = jax.nn.relu(x @ params["first"]["w"] + params["first"]["b"])
    if key is not None:
        hidden = hidden * jax.random.bernoulli(key, 0.8, hidden.shape) / 0.8
    return hidden @ params["last"]["w"] + params["last"]["b"]


@jax.jit
@jax.value_and_grad
def loss_and_gradients(params, x, y, key):
    chosen = jax.nn.log_softmax(logits(params, x, key))
    return -jnp.take_along_axis(chosen, y[:, None], axis=1).mean()


first, last = jax.random.split(jax.random.key(1))
params = {"first": init_layer(first, 64, 256), "last": init_layer(last, 256, 10)}
model = mpips.jax.declare(params, optimizer=mpips.Adam(0.003))

for step in range(mpips.jax.steps(), 600):  # a restart continues at its step
    batch = np.random.default_rng((1, step)).choice(len(train_x), 48, replace=False)
    batch = batch[mpips.rank() :: mpips.world_size()]  # this worker's share
    loss, gradients = loss_and_gradients(
        model.pull(), train_x[batch], train_y[batch], mpips.jax.key()
    )
    model.push(gradients)
    mpips.jax.step()

accuracy = (logits(model.pull(), x[test]).argmax(1) == y[test]).mean()
if mpips.rank() == 0:  # one worker prints
    print(f"test accuracy {accuracy:.3f}")
