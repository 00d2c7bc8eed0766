"""[producers]: what each member of an ensemble is given, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpips.config.producers import ProducersConfig
from mpips.config.schema import load_config, parse_assignment
from mpips.errors import ConfigError


def loaded(**options: Any) -> ProducersConfig:
    job = [("task", "mlp"), ("data.train", "digits")]
    return load_config(None, [*job, ("producers", options)]).producers


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mpirun -n 4 --host a,b ./solver 'a b'", ["mpirun", "-n", "4", "--host", "a,b", "./solver", "a b"]),
        (["./solver", "a b", "{member}"], ["./solver", "a b", "1"]),
        ("./solver --id={member} {x} '{{x}}'", ["./solver", "--id=1", "fast", "{x}"]),
        ("./solver {x}{member}{x}", ["./solver", "fast1fast"]),
    ],
)  # fmt: skip
def test_a_command_is_text_of_a_shell_or_a_list_of_words(command: Any, words: list[str]) -> None:
    config = loaded(command=command, members=2, parameters={"x": ["slow", "fast"]})
    assert config.member(1)[0] == words


def test_a_command_line_gives_the_same_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        '[run]\nscript = "x.py"\n[producers]\ncommand = "mpirun -n 4 ./solver, {member}"\nmembers = 3\n'
    )
    given = ["run.script=x.py", "producers.command=mpirun -n 4 ./solver, {member}"]
    set_ = [*map(parse_assignment, given), ("producers.members", 3)]
    assert load_config(str(file), []).producers == load_config(None, set_).producers
    assert load_config(str(file), []).producers.member(2)[0][-1] == "2"


def test_members_have_producers_of_their_own() -> None:
    config = loaded(command="x", members=3, queues=4, at_once=2)
    assert [n for member in range(3) for n in config.numbers(member)] == [*range(12)]
    assert (config.n_producers, config.n_at_once, loaded(command="x", members=3).n_at_once) == (
        12,
        2,
        3,
    )


def test_values_are_a_latin_hypercube_of_the_seed() -> None:
    ranges = {"a": {"low": 0.0, "high": 1.0}, "b": {"low": 0.0, "high": 1.0}}
    n = 20

    def drawn(seed: int) -> dict[str, list[float]]:
        config = loaded(command="x", members=n, seed=seed, parameters=ranges)
        return {name: [float(config.values(k)[name]) for k in range(n)] for name in ranges}

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert first == again
    assert first != other
    for values in (*first.values(), *other.values()):
        assert sorted(int(value * n) for value in values) == [*range(n)], "one in each n-th"
        assert values != sorted(values)
    assert first["a"] != first["b"]


def test_whole_numbers_stay_whole_and_logarithms_are_uniform() -> None:
    parameters = {
        "k": {"low": 1, "high": 4},
        "log": {"low": 1e-4, "high": 1e4, "log": True},
        "both": {"low": 1, "high": 1000, "log": True},
        "flag": [True, False] * 4,
    }
    config = loaded(command="x", members=8, parameters=parameters)
    found = [config.values(member) for member in range(8)]
    assert sorted(int(values["k"]) for values in found) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert sum(float(values["log"]) < 1 for values in found) == 4
    assert all(1 <= int(values["both"]) <= 1000 for values in found)
    assert sum(int(values["both"]) < 32 for values in found) == 4
    assert [values["flag"] for values in found[:2]] == ["true", "false"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"members": 2}, "producers.command is missing"),
        ({"command": "a 'b"}, r"producers.command = \"a 'b\": cannot be split into words: No closing"),
        ({"command": ["", "x"]}, "must begin with a program"),
        ({"command": 3}, "producers.command = 3: must be text or a list"),
        ({"command": "x {y}"}, r"producers.command: \{y\} has no value; names with values are member\."),
        ({"command": "x", "folder": "{y}"}, r"producers.folder: \{y\} has no value"),
        ({"command": "awk {print}"}, "Write {{ and }} for braces"),
        ({"command": "x", "members": 0}, "producers.members = 0: must be 1 or more"),
        ({"command": "x", "on_failure": "ignore"}, "must be one of continue, end, restart"),
        ({"command": "x", "log_mib": 0.01}, "producers.log_mib = 0.01: must be 0 or at least 0.015625"),
        ({"command": "x", "end_s": 0}, "producers.end_s = 0: must be greater than 0"),
        ({"command": "x", "stream": "a/b"}, "producers.stream = 'a/b': must have 1 to 64 letters"),
        ({"command": "x", "environment": {"MPIPS_STREAM": "y"}}, "does not begin with MPIPS_"),
        ({"command": "x", "environment": {"A B": "y"}}, "must be a variable with a name"),
        ({"command": "x", "members": 3, "parameters": {"y": [1, 2]}}, "y has 2 values: must be 3, one for"),
        ({"command": "x", "parameters": {"member": [1]}}, "parameters.member: the name must"),
        ({"command": "x", "parameters": {"y": [[1]]}}, "must be a list of numbers or texts"),
        ({"command": "x", "parameters": {"y": 4}}, "y = 4: must be a list with 1 values, or {low"),
        ({"command": "x", "parameters": {"y": {"low": 1}}}, "must be a list with 1 values"),
        ({"command": "x", "parameters": {"y": {"low": 2, "high": 1}}}, "low less than high"),
        ({"command": "x", "parameters": {"y": {"low": 0, "high": 1, "log": True}}}, "0 with log = true"),
        ({"commands": "x"}, "unknown key 'producers.commands'.*did you mean 'producers.command'"),
    ],
)  # fmt: skip
def test_what_is_refused_is_a_sentence(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        loaded(**options)
