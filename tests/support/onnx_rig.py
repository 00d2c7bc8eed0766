"""Models for the export to ONNX: tasks on each storage, and files with what training has not seen."""

from __future__ import annotations

import csv
import datetime
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Writer = Callable[[Path, int, int], Path]

WHEN = datetime.datetime(2023, 11, 3, 22, 15)


def table(path: Path, n: int, seed: int, label: str = "two", words: bool = True) -> Path:
    """Write a CSV: words in many forms, numbers of several notations, dates, cells that are empty.

    Args:
        path: The file.
        n: Samples.
        seed: Of the samples; those of an even seed have words that those of an odd one do not have.
        label: "two" or "three" classes, "text", "number" or "several": columns a, b and c.
        words: With columns of words.
    """
    rng = np.random.default_rng(seed)
    colours = ["red", " green ", "Größe", "", "NA", "unknown", "TRUE", "1e5", "3.10"]
    ids = ["7", "007", "7.0", "+7", "-0", "12e+1", "120", "-999", "n/a", "1.5"]
    strange = ["violet", "New York"] if seed % 2 == 0 else []
    rows = []
    for i in range(n):
        size, price, age = rng.normal(3, 2), rng.uniform(1, 5000), int(rng.integers(1, 90))
        when = WHEN + datetime.timedelta(hours=int(rng.integers(0, 20000)))
        own = {
            "colour": str(rng.choice(colours + strange)),
            "id": str(rng.choice(ids)),
            "size": f"{size:.4f}",
            "price": f"{price:,.2f}".replace(",", "'").replace(".", ",") + rng.choice(["", " €"]),
            "age": str(rng.choice([str(age), str(age), "", "-999", "-999.0", "Unknown"])),
            "when": rng.choice([when.strftime("%d.%m.%y %H:%M"), when.strftime("%d.%m.%Y"), ""]),
            "big": f"{1.7e9 + 60 * rng.normal():.3f}",
            # Its row has received no update.
            "late": f"{rng.normal():.3f}" if strange else "",
        }
        score = size - 3 + (own["id"] in ("7", "007", "7.0", "+7")) + 0.1 * rng.normal()
        if words and strange and i % 5 == 0:
            own["size"] = ""  # which no training sample has
        own |= labels(label, float(score), i)
        if not words:
            own = {
                k: v
                for k, v in own.items()
                if k not in ("colour", "id", "price", "age", "when", "late")
            }
        rows.append(own)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)
    return path


def labels(kind: str, score: float, i: int) -> dict[str, Any]:
    """Return the cells of the label's columns."""
    three = 0 if score < -1 else 1 if score < 1 else 2
    if kind == "several":
        return {"a": int(score > 0), "b": i % 2, "c": int(score > 1)}
    return {
        "y": {
            "two": int(score > 0),
            "three": (-1, 3, 10)[three],
            "text": ("low", "middle", "high")[three],
            "number": 5000 + 300 * score,
        }[kind]
    }


def plain(path: Path, n: int, seed: int, label: str = "two") -> Path:
    """Write a CSV of numbers alone, one of them with differences that float32 would lose."""
    return table(path, n, seed, label, words=False)


def gaps(path: Path, n: int, seed: int) -> Path:
    """Write a CSV of numbers, some of them missing."""
    rng = np.random.default_rng(seed)
    lines = ["a,b,y"]
    for _ in range(n):
        a, b = rng.normal(0, 50), rng.exponential(1000)
        lines.append(f"{rng.choice([f'{a:.3f}', ''])},{b:.3f},{int(a + b / 50 > 20)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def lists(
    path: Path, n: int, seed: int, base: int = 1, widest: int = 12, n_classes: int = 2
) -> Path:
    """Write LIBSVM: features in all samples of an odd seed, rare and unknown ones, samples without any.

    Args:
        path: The file.
        n: Samples.
        seed: Of the samples.
        base: Number of the first feature.
        widest: Number of the last feature.
        n_classes: Number of classes.
    """
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        found = {base: rng.normal(50, 3), base + 1: rng.normal(-4, 0.5)}
        found |= {base + 2 + int(k): float(k + 1) for k in rng.choice(8, 3, replace=False)}
        if i % 7 == 0:
            found[widest] = 1.5
        score = found[base] - 50 + found.get(base + 3, 0)
        if seed % 2 == 0:
            del found[base]
            found[widest + 5] = 3.0
            found = {} if i % 9 == 0 else found
        place = int(np.clip(score // 2 + 1, 0, n_classes - 1))
        lines.append(f"{place} " + " ".join(f"{k}:{v:.6g}" for k, v in sorted(found.items())))
    path.write_text("\n".join(lines) + "\n")
    return path


def with_options(writer: Callable[..., Path], **options: Any) -> Writer:
    """Return a writer with options."""
    return lambda path, n, seed: writer(path, n, seed, **options)


class Case(NamedTuple):
    """A task, its data and its settings."""

    task: str
    write: Writer
    settings: dict[str, Any]
    ending: str = "csv"

    def file(self, folder: Path, n: int, seed: int) -> Path:
        """Write samples."""
        return self.write(folder / f"{n}-{seed}.{self.ending}", n, seed)


NUMBERS = ["size", "price", "age", "when", "big", "late"]
READING = {
    "data.label": "y",
    "data.categorical": ["colour", "id"],
    "data.convert": {"price": "decimal_comma", "when": "time_dmy"},
    "data.missing": ["unknown", "-999"],
}
SEVERAL = {**READING, "data.label": ["a", "b", "c"], "options.labels": "several"}
TARGETS = {**READING, "options.labels": "targets"}
SMALL = {"options.hidden": [4]}
# Large numbers that are not scaled soon make all outputs of ReLU 0.
SLOW = {"options.hidden": [8], "options.learning_rate": 1e-4}
WIDE, HUGE = 1 << 17, 1 << 23


def columns(task: str, settings: dict[str, Any], label: str = "two") -> Case:
    return Case(task, with_options(table, label=label), {**READING, **settings})


def rows(task: str, settings: dict[str, Any], label: str = "two") -> Case:
    return Case(task, with_options(plain, label=label), {"data.label": "y", **settings})


def svm(task: str, settings: dict[str, Any] | None = None, **options: Any) -> Case:
    return Case(task, with_options(lists, **options), settings or {}, "svm")


CASES = {
    "rows, logistic": rows("logistic", {}),
    "rows, logistic, labels of text": rows("logistic", {}, "text"),
    "rows, softmax": rows("softmax", {}, "three"),
    "rows, mlp, a number": rows("mlp", {**SMALL, "options.labels": "targets"}, "number"),
    "rows, mlp, several labels": rows(
        "mlp", {**SMALL, "data.label": ["a", "b", "c"], "options.labels": "several"}, "several"
    ),
    "rows, empty cells, logarithms": Case(
        "mlp", gaps, {**SMALL, "data.label": "y", "data.empty": "zero", "data.numeric": "log"}
    ),
    "rows of LIBSVM, softmax": svm("softmax", n_classes=3),
    "rows of LIBSVM, mlp, base 0": svm("mlp", SMALL, base=0),
    "lists, logistic": svm("logistic"),
    "lists, logistic, three classes, base 0": svm("logistic", base=0, n_classes=3),
    "lists, fm": svm("fm", {"options.dim": 3, "options.init_std": 0.1}),
    "lists, softmax": svm("softmax", widest=WIDE),
    "lists, mlp": svm("mlp", SMALL, widest=WIDE, n_classes=3),
    "lists, mlp without layers": svm("mlp", {"options.hidden": []}, widest=WIDE),
    "lists without scale, logistic": svm("logistic", widest=HUGE),
    "lists without scale, fm": svm("fm", {"options.dim": 3, "options.init_std": 0.1}, widest=HUGE),
    "lists without scale, mlp": svm("mlp", SLOW, widest=HUGE, base=0),
    "words, logistic": columns("logistic", {}),
    "words, logistic, three classes": columns("logistic", {}, "three"),
    "words, fm": columns("fm", {"options.dim": 3, "options.init_std": 0.1}),
    "words, softmax": columns("softmax", {}, "text"),
    "words, mlp, a number": columns("mlp", {**TARGETS, **SMALL}, "number"),
    "words, mlp, several labels": columns("mlp", {**SEVERAL, **SLOW}, "several"),
    "words, wide_deep": columns("wide_deep", SMALL),
    "words, wide_deep, three classes": columns("wide_deep", SMALL, "three"),
    "words, wide_deep, a number": columns("wide_deep", {**TARGETS, **SMALL}, "number"),
    "words, deepfm": columns("deepfm", {**SMALL, "options.init_std": 0.1}),
    "words, deepfm, several labels": columns("deepfm", {**SEVERAL, **SMALL}, "several"),
    "words, dcnv2": columns("dcnv2", SMALL, "text"),
    "words alone, wide_deep": columns(
        "wide_deep",
        {**SMALL, "data.ignore": NUMBERS, "data.convert": {}},
    ),
    "words alone, fm": columns(
        "fm",
        {
            "options.dim": 2,
            "data.ignore": NUMBERS,
            "data.convert": {},
        },
    ),
    "words, numbers as they are": columns(
        "logistic", {"data.numeric": "raw", "data.ignore": ["big"]}
    ),
}


def samples_in(path: Path) -> list[dict[Any, Any]]:
    """Return the samples of a file as mappings: texts by column, or numbers by feature."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    pairs = (line.split()[1:] for line in path.read_text().splitlines())
    return [{int(k): float(v) for k, v in (pair.split(":") for pair in line)} for line in pairs]


# The inputs of a graph from its JSON alone: nothing of mpips is used below.


def inputs_by_json(facts: dict[str, Any], samples: list[dict[Any, Any]]) -> dict[str, Any]:
    """Return the inputs of a graph, as somebody makes them who has read the JSON."""
    if facts["form"] == "entries":
        most = max(map(len, samples))
        keys = [[*map(int, s), *[-1] * (most - len(s))] for s in samples]
        values = [[*s.values(), *[0.0] * (most - len(s))] for s in samples]
        return {"keys": np.array(keys, np.int64), "values": np.array(values, np.float32)}
    if "columns" not in facts:
        (own,) = facts["inputs"]
        x = np.zeros((len(samples), own["shape"][1]), own["dtype"])
        for i, sample in enumerate(samples):
            for key, value in sample.items():
                if key - facts["index_base"] < x.shape[1]:
                    x[i, key - facts["index_base"]] = value
        return {"features": x}
    found = {
        own["name"]: np.full((len(samples), own["shape"][1]), -1, own["dtype"])
        for own in facts["inputs"]
    }
    for column in facts["columns"]:
        for i, sample in enumerate(samples):
            cell = sample[column["column"]].strip()
            if column["input"] == "keys":
                value: float = key_by_json(facts, column, cell)
            else:
                value = number_by_json(facts, column, cell)
            found[column["input"]][i, column["place"]] = value
    return found


def is_empty(facts: dict[str, Any], cell: str) -> bool:
    known = [*facts["empty"]["texts"], *facts["empty"]["more_texts"]]
    return not cell or cell.lower() in known


def key_by_json(facts: dict[str, Any], column: dict[str, Any], cell: str) -> int:
    word = "" if is_empty(facts, cell) else cell
    if word and column["part"]:
        word = str(part_by_json(facts, column, cell))
    elif word in facts["words"]["missing"]:
        word = ""
    elif word.lower() in ("true", "false"):
        word = word.lower()
    elif word and (found := re.fullmatch(facts["words"]["number"], word)):
        sign, digits, fraction, exponent = found.groups(default="")
        scaled = int(digits + fraction) * 10 ** max(int(exponent or 0) + 10, 0)
        whole, rest = divmod(scaled, 10 ** (len(fraction) + 10))
        if not rest:
            word = str(-whole if sign == "-" else whole)
    if not word or word.lower() in facts["empty"]["more_texts"]:
        return int(facts["key"]["empty"])
    text = f"{len(column['name'])}:{column['name']}{word}".encode()
    digest = hashlib.blake2b(text, digest_size=facts["key"]["digest_bytes"]).digest()
    return int.from_bytes(digest, "little") >> int(facts["key"]["shift_right"])


def part_by_json(facts: dict[str, Any], column: dict[str, Any], cell: str) -> int | str:
    found = re.fullmatch(facts["notations"][column["convert"]]["pattern"], cell)
    assert found is not None
    year = int(found["year"])
    if year < 100:
        year += 1900 if year >= 69 else 2000
    day = datetime.date(year, int(found["month"]), int(found["day"]))
    if column["part"] == "hour":
        return "" if found["hour"] is None else int(found["hour"])
    if column["part"] == "weekday":
        return day.strftime("%a").lower()
    return int(getattr(day, column["part"]))


def number_by_json(facts: dict[str, Any], column: dict[str, Any], cell: str) -> float:
    if is_empty(facts, cell):
        return float("nan")
    if column["part"]:
        return float(part_by_json(facts, column, cell))
    if column["convert"]:
        found = re.fullmatch(facts["notations"][column["convert"]]["pattern"], cell)
        assert found is not None
        digits = re.sub(r"[^0-9]", "", found["digits"] or "0")
        value = float(f"{digits}.{found['fraction'] or 0}")
        value = -value if (found["sign"] or found["inner"]) in ("-", "\u2212") else value
        value = value / 100 if found["percent"] else value
    else:
        value = {"true": 1.0, "false": 0.0}.get(cell.lower(), float("nan"))
        value = value if cell.lower() in ("true", "false") else float(cell)
    return float("nan") if value in facts["empty"]["numbers"] else value
