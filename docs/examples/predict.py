"""Load a trained model, predict, and look at its tables."""

import sys

import numpy as np

import mpips

model = mpips.load(sys.argv[1] if len(sys.argv) > 1 else "model")
print(model)
print("labels", model.classes)
print("accuracy", round(model.evaluate("digits")["accuracy"], 2))

images = np.zeros((2, 64))
images[1, 20:44] = 16.0
print("predictions", model.predict(images))
print("probabilities", model.predict_proba(images).shape)
print("weights", model.tables["weight"].shape)
