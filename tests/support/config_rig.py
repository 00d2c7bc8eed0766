"""Configurations from assignments alone, and the text of a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from mpips import ConfigError
from mpips.config.schema import JobConfig, load_config, parse_assignment


def load(*assignments: str) -> JobConfig:
    pairs = [parse_assignment(text) for text in assignments]
    return load_config(None, [("task", "logistic"), ("data.train", "a.svm"), *pairs])


def sentence(call: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **keywords)
    assert caught.value.exit_code == 2
    return str(caught.value)
