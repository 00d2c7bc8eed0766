"""Fits of scikit-learn estimators in one script; each worker prints a line of JSON with its results."""

import argparse
import hashlib
import json
import os
import signal
import warnings

import mpips

options = argparse.ArgumentParser()
options.add_argument("--servers", type=int, default=1)
options.add_argument("--consistency", default="bsp")
options.add_argument("--kill", default="", help="worker and step of a death in each launch")
options.add_argument("--other-data", action="store_true")
options = options.parse_args()

mpips.init(servers=options.servers, timeout_s=40, verbose=False)

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402

from mpips.sklearn import MpipsClassifier, MpipsRegressor  # noqa: E402
from mpips.sklearn.training import Training  # noqa: E402

warnings.simplefilter("ignore", ConvergenceWarning)
deaths = options.kill.split(",")
launch = int(os.environ.get("MPIPS_GENERATION", "0"))
death = deaths[launch] if launch < len(deaths) else ""
step = Training._step
n_steps = 0


def counted(self, epoch, samples):
    """Make a step, or die before its pushes."""
    global n_steps
    n_steps += 1
    if f"{mpips.rank()}b{n_steps}" == death:
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, epoch, samples)


Training._step = counted

rng = np.random.default_rng(7)
# 101 samples in batches of 25: the last one has 1, fewer than there are workers.
x = rng.normal(size=(101, 6)).astype(np.float32)
y = np.array(["no", "yes", "maybe"])[np.int64(x[:, 0] + x[:, 1] * x[:, 2] > 0) + (x[:, 3] > 1)]
z = x @ rng.normal(size=6) + 1
if options.other_data and mpips.rank() == 1:
    x = x[::-1]
given = {"batch_size": 25, "consistency": options.consistency}
found = {}


def note(name, model):
    """Store the learned attributes."""
    arrays = (
        [model.coef_, model.intercept_] if not model.hidden else [*model.coefs_, *model.intercepts_]
    )
    found[name] = {
        "digest": hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest(),
        "values": [float(v) for a in arrays for v in a.ravel()],
        "losses": model.loss_curve_,
    }


linear = MpipsClassifier(optimizer="sgd", max_iter=6, random_state=1, **given)
note("linear", linear.fit(scipy.sparse.csr_matrix(x), y, sample_weight=1 + (z > 0)))
mlp = MpipsClassifier((12,), learning_rate=0.03, max_iter=8, random_state=2, **given)
note("mlp", mlp.fit(x, y))
online = MpipsRegressor(optimizer="adam", random_state=3, **given)
for part in range(6):
    online.partial_fit(x[part::2], z[part::2])
note("online", online)
grid = {"alpha": [0.0, 0.1], "max_iter": [1, 3]}
search = GridSearchCV(MpipsClassifier(optimizer="momentum", **given), grid, cv=2).fit(x, y)
note("search", search.best_estimator_)
found["best"] = search.best_params_
found["scores"] = search.cv_results_["mean_test_score"].tolist()
# One write, so that lines of ranks do not mix.
line = {"worker": mpips.rank(), "generation": launch, "found": found}
os.write(1, (json.dumps(line) + "\n").encode())
