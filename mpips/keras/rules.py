"""The server's rule for a variable of a Keras optimizer.

Definitions that differ from those of Keras in more than rounding:

- Adam, AdamW: Keras adds epsilon to the root of the second moment, rules here to the root of the corrected
  one. In step t epsilon counts 1 / sqrt(1 - beta_2^t) times as much in Keras, which matters for gradients
  about as small as epsilon only.
- SGD with momentum: a velocity of Keras contains the learning rate, so a changed rate acts on later gradients
  only. Here, as in torch, it acts on the whole velocity. With a constant rate both are equal.
- Adagrad: Keras adds epsilon within the root. The sum only grows, so the rule begins with the initial sum
  plus epsilon, and both are equal.
- RMSprop of Keras adds epsilon within the root of a mean that decays. No rule equals it, so it is refused.
- weight_decay of any Keras optimizer multiplies the weight by 1 - rate weight_decay before the step: AdamW
  does so for Adam, and plain SGD by its sum with the gradient. With other optimizers it is refused.
"""

from __future__ import annotations

from typing import Any

import keras

from mpips.errors import ConfigError
from mpips.keras.values import array_of
from mpips.model.optimizer import SGD, Adagrad, Adam, AdamW, Momentum, Nesterov, Optimizer

ACCEPTED = (
    keras.optimizers.AdamW,
    keras.optimizers.Adam,
    keras.optimizers.Adagrad,
    keras.optimizers.SGD,
)

_NO_EPSILON = (
    1e-30  # the least that rules accept; beside a root of at least 1e-15 it changes no bit
)

# Options that no rule has, with the accepted values.
_OFF: dict[str, tuple[Any, ...]] = {
    "amsgrad": (False,),
    "use_ema": (False,),
    "loss_scale_factor": (None,),
    "gradient_accumulation_steps": (None,),
}


def check_optimizer(optimizer: Any) -> None:
    """Check the class and the options that no rule has.

    Raises:
        ConfigError: No rule equals this optimizer; the message names the option and what is accepted.
    """
    kind = type(optimizer)
    base = next((one for one in ACCEPTED if isinstance(optimizer, one)), None)
    names = ", ".join(one.__name__ for one in ACCEPTED)
    if base is None:
        raise ConfigError(
            f"optimizer {kind.__name__}: servers cannot apply it; use one of keras.optimizers: {names}"
        )
    if not kind.__module__.startswith("keras."):
        raise ConfigError(
            f"optimizer {kind.__name__}: its own update cannot run on servers; use one of "
            f"keras.optimizers itself: {names}"
        )
    for option, accepted in _OFF.items():
        value = getattr(optimizer, option, accepted[0])
        if value not in accepted:
            raise ConfigError(
                f"keras.optimizers.{base.__name__}: {option} = {value!r}: must be {accepted[0]}"
            )
    if optimizer.weight_decay and base is not keras.optimizers.AdamW:
        plain_sgd = base is keras.optimizers.SGD and not optimizer.momentum
        if base is not keras.optimizers.Adam and not plain_sgd:
            raise ConfigError(
                f"keras.optimizers.{base.__name__}: weight_decay = {optimizer.weight_decay!r}: must be None; "
                "AdamW, Adam and SGD without momentum have one"
            )


def rule_of(optimizer: Any, variable: Any) -> Optimizer:
    """Return the rule by which servers update a variable now.

    Args:
        optimizer: A checked optimizer; a learning-rate schedule has its value at `optimizer.iterations`.
        variable: A trainable variable, which may be excluded from weight decay.

    Raises:
        ConfigError: A number is not accepted, such as a negative rate.
    """
    where = f"keras.optimizers.{optimizer.__class__.__name__}"
    rate = float(array_of(optimizer.learning_rate))
    decay = 0.0
    if optimizer.weight_decay and optimizer._use_weight_decay(variable):
        decay = float(optimizer.weight_decay)
    try:
        return _rule(optimizer, rate, decay)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _rule(optimizer: Any, rate: float, decay: float) -> Optimizer:
    if isinstance(optimizer, keras.optimizers.SGD):
        momentum = float(optimizer.momentum)
        if not momentum:
            return SGD(rate, weight_decay=decay)
        return (Nesterov if optimizer.nesterov else Momentum)(rate, momentum=momentum)
    if isinstance(optimizer, keras.optimizers.Adagrad):
        initial = float(optimizer.initial_accumulator_value) + float(optimizer.epsilon)
        return Adagrad(rate, eps=_NO_EPSILON, initial_accumulator=initial)
    kind = AdamW if decay else Adam
    return kind(
        rate,
        beta1=float(optimizer.beta_1),
        beta2=float(optimizer.beta_2),
        eps=float(optimizer.epsilon),
        weight_decay=decay,
    )
