"""A scikit-learn pipeline on images of digits: `fit` as before, on many ranks."""

import mpips

mpips.init()  # servers and the scheduler serve in this call; workers go on

import numpy as np
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mpips.sklearn import MpipsClassifier

images, labels = load_digits(return_X_y=True)
test = np.arange(len(images)) % 5 == 0

model = make_pipeline(
    StandardScaler(),
    MpipsClassifier(hidden=(100,), batch_size=96, max_iter=40, tol=None, random_state=0),
)
model.fit(images[~test], labels[~test])
accuracy = model.score(images[test], labels[test])
if mpips.rank() == 0:  # one worker prints
    print(f"test accuracy {accuracy:.3f}")
