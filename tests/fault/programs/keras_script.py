"""A Keras script on the parameter server; each worker prints a line of JSON with its result."""

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
options.add_argument("--epochs", type=int, default=3)
options.add_argument("--noise", action="store_true")
options.add_argument("--kill", default="", help="a place of a worker's death in each launch")
options.add_argument("--other-order", action="store_true")
options = options.parse_args()

os.environ["KERAS_BACKEND"] = "torch"
mpips.init(servers=options.servers, transport=options.transport, timeout_s=40, verbose=False)

import keras  # noqa: E402
import numpy as np  # noqa: E402

import mpips.keras  # noqa: E402
from mpips.session.init import current  # noqa: E402

rng = np.random.default_rng(7)
x = rng.normal(size=(100, 6)).astype(np.float32)
y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64)
# Worker 0's values count.
keras.utils.set_random_seed(5 + mpips.rank())
layers = [keras.layers.Dense(12, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3))]
if options.noise:
    layers += [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
model = keras.Sequential([*layers, keras.layers.Dense(2)])
model.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model = mpips.keras.prepare(model, consistency=options.consistency, placement=options.placement)

deaths = options.kill.split(",")
launch = int(os.environ.get("MPIPS_GENERATION", "0"))
death = deaths[launch] if launch < len(deaths) else ""


class Deaths(keras.callbacks.Callback):
    """Ends this worker at a place: a step, with b; the end of an epoch of the second fit, with e."""

    def on_train_batch_begin(self, batch, logs=None):
        self.die(f"b{mpips.keras.steps()}")

    def on_epoch_end(self, epoch, logs=None):
        self.die(f"e{epoch}")

    def die(self, place):
        if f"{mpips.rank()}{place}" == death:
            os.kill(os.getpid(), signal.SIGKILL)


# The job starts before a fit has built the metrics.
model.build((None, 6))
model.predict(x[:2], verbose=0)
# 100 rows in batches of 14: the last one has 2, fewer than there are workers.
rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)
first = model.fit(x, y, batch_size=14, epochs=2, verbose=0, callbacks=[rate])
if options.other_order and mpips.rank() == 1:
    x, y = x[::-1], y[::-1]
fitted = model.fit(
    x,
    y,
    batch_size=14,
    epochs=options.epochs,
    verbose=0,
    validation_data=(x[:30], y[:30]),
    callbacks=[Deaths(), keras.callbacks.EarlyStopping(monitor="loss", patience=2)],
)
digest = hashlib.sha256()
for value in model.get_weights():
    digest.update(value.tobytes())
result = {
    "worker": mpips.rank(),
    "digest": digest.hexdigest(),
    "first": first.history,
    "paths": current("the test").worker.table(model.weights[0].path.replace("/", ".")).paths,
    "history": fitted.history,
    "rate": float(model.optimizer.learning_rate.numpy()),
    "steps": mpips.keras.steps(),
    "values": [value.astype(float).ravel().tolist() for value in model.get_weights()],
}
# One write, so that lines of ranks do not mix.
os.write(1, (json.dumps(result) + "\n").encode())
