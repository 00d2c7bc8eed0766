"""A Keras model on images of digits: `model.fit` as before, on many ranks."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import mpips

mpips.init()  # servers and the scheduler serve in this call; workers go on

import keras
import numpy as np
from sklearn.datasets import load_digits

import mpips.keras

images, labels = load_digits(return_X_y=True)
x, y = np.float32(images / 16).reshape(-1, 8, 8, 1), labels
test = np.arange(len(x)) % 5 == 0

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.002),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model = mpips.keras.prepare(model)
model.fit(x[~test], y[~test], batch_size=48, epochs=12, verbose=0)
found = model.evaluate(x[test], y[test], verbose=0, return_dict=True)
if mpips.rank() == 0:  # one worker prints
    print(f"test accuracy {found['accuracy']:.3f}")
