"""The description of an exported graph: a JSON from which any language makes its inputs.

It is in the file itself (of ONNX in the metadata under "mpips"), and in a file beside it. Its `rules` say in
sentences what `mpips.inference.onnx_inputs` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mpips.checkpoint.record import mpips_version
from mpips.data.columns import KEY_BITS, Column, logarithms_of, notation_of, source_of
from mpips.data.conversions import EPOCHS, NUMBERS, pattern_of
from mpips.data.missing import Missing
from mpips.data.words import MISSING, NUMBER, PANDAS_MISSING, TEXTS
from mpips.errors import ConfigError
from mpips.tasks.base import Task
from mpips.tasks.classifiers import LayeredTask
from mpips.tasks.columns import ColumnFeatures
from mpips.tasks.features import DenseFeatures, SparseFeatures
from mpips.tasks.fm import FactorizationMachine
from mpips.tasks.inputs import EntryInputs, MatrixInputs
from mpips.tasks.linear import LinearMatrix, LinearRows
from mpips.tasks.logistic import Logistic
from mpips.tasks.mixed import MixedTask
from mpips.tasks.registry import TASKS

if TYPE_CHECKING:
    from mpips.inference.content import ModelContent

FORMATS, VERSION = {"onnx": "mpips onnx", "torch": "mpips torch"}, 1
NO_KEY = -1  # in the place of the key of an empty cell, and behind the features of a sample

# Forms of a sample: a row of numbers; a list of (number of a feature, value); cells of named columns.
Form: TypeAlias = Literal["rows", "entries", "columns"]
Facts: TypeAlias = dict[str, Any]


def features_of(model: ModelContent) -> DenseFeatures | SparseFeatures | ColumnFeatures:
    """Return what scales the features of a model.

    Raises:
        ConfigError: The model's task has no graph.
    """
    found = _features_of(model.task)
    if found is not None:
        return found
    name = model.manifest.config["task"]
    forms = "npz, safetensors, parquet, torch" + (
        ", word2vec, word2vec-binary" if name == "word2vec" else ""
    )
    raise ConfigError(
        f"task '{name}' has no graph for ONNX or PyTorch: only softmax, mlp, logistic, fm, wide_deep, "
        f"deepfm and dcnv2 have one; mpips export writes this model as {forms}"
    )


def has_graph(model: ModelContent) -> bool:
    """Return True if `features_of` returns what scales the features."""
    return _features_of(model.task) is not None


def _features_of(task: Task) -> DenseFeatures | SparseFeatures | ColumnFeatures | None:
    if type(task) in TASKS.values():
        if isinstance(task, LayeredTask) and isinstance(task.inputs, MatrixInputs | EntryInputs):
            return task.inputs.features
        if isinstance(task, Logistic) and isinstance(task.model, LinearMatrix | LinearRows):
            return task.model.features
        if isinstance(task, FactorizationMachine | MixedTask):
            return task.features
    return None


def feature_columns(model: ModelContent) -> list[Column]:
    """Return the column of each feature, in their order; [] if the data has no named columns."""
    options, found = model.read_options, []
    for name in model.info.columns:
        source = source_of(name, options)
        found.append(
            Column(
                0,
                name,
                name in model.info.categorical,
                model.info.words,
                notation_of(source, options),
                name[len(source) + 1 :],
                options.missing,
            )
        )
    return found


def form_of(model: ModelContent) -> Form:
    """Return the form of the samples that the graph takes."""
    features = features_of(model)
    if isinstance(features, DenseFeatures):
        return "rows"
    return "columns" if model.info.columns else "entries"


def logarithms(model: ModelContent) -> list[bool]:
    """Return for each column whether its numbers become logarithms; [] without columns."""
    columns = feature_columns(model)
    hashed = model.info.kind == "sparse"
    return list(logarithms_of(columns, model.read_options, hashed)) if columns else []


def needs_float64(model: ModelContent) -> bool:
    """Return True if float32 would lose digits of a sample's numbers before the graph has scaled them."""
    return model.info.wide or form_of(model) == "columns" or any(logarithms(model))


def empty_is_zero(model: ModelContent) -> bool:
    """Return True if an empty cell of a row of numbers means 0."""
    return bool(model.info.columns) and model.read_options.empty == "zero"


def description_of(model: ModelContent, kind: Literal["onnx", "torch"]) -> Facts:
    """Return the description of a model in a kind of file, values of JSON.

    Raises:
        ConfigError: The model's task has no graph.
    """
    info, form = model.info, form_of(model)
    found: Facts = {
        "format": FORMATS[kind],
        "format_version": VERSION,
        "mpips": mpips_version(),
        "task": model.manifest.config["task"],
        "step": model.manifest.step,
        "form": form,
    }
    if form != "columns":
        found["index_base"] = info.index_base
    inputs, columns = _inputs(model, form), _columns(model, form)
    found["inputs"] = inputs
    found["outputs"] = _outputs(model) if kind == "onnx" else _module_outputs(model)
    if info.wants != "targets":
        found["labels" if info.wants == "several" else "classes"] = model.classes.tolist()
    if columns:
        found["columns"] = columns
        found["empty"] = _empty(model)
    if any(column["input"] == "keys" and not column["part"] for column in columns):
        found["words"] = _words(info.words)
    if form == "columns":
        found["key"] = _key()
    notations = sorted({column["convert"] for column in columns if column["convert"]})
    if notations:
        found["notations"] = {name: _notation(name) for name in notations}
    return found


def _inputs(model: ModelContent, form: Form) -> list[Facts]:
    """Return name, dtype, shape and meaning of each input of the graph."""
    n_features = model.info.n_features
    if form == "rows":
        dtype = "float64" if needs_float64(model) else "float32"
        meaning = "A row of numbers for each sample, as in the data: the graph scales them."
        if model.info.columns:
            meaning += " Place j is that of the column with place j."
        else:
            meaning += f" Place j is that of feature j + {model.info.index_base} of the file."
        if model.info.kind == "sparse":
            meaning += " A feature that a sample does not have is 0."
        if empty_is_zero(model):
            meaning += " An empty cell is nan."
        return [_input("features", dtype, n_features, meaning)]
    if form == "entries":
        return [
            _input(
                "keys",
                "int64",
                "most",
                "The numbers of the features that a sample has, as in the file, in any order, each at most "
                f"once; behind them {NO_KEY} up to the length of the longest sample.",
            ),
            _input("values", "float32", "most", "Their values, as in the data; 0 behind them."),
        ]
    features = feature_columns(model)
    n_texts = sum(column.categorical for column in features)
    found = [
        _input(
            "keys",
            "int64",
            n_texts,
            f"The key of the word in each column of words; {NO_KEY} for an empty cell.",
        )
    ]
    if len(features) > n_texts:
        found.append(
            _input(
                "numbers",
                "float64",
                len(features) - n_texts,
                "The number in each column of numbers, as in the data; nan for an empty cell.",
            )
        )
    return found


def _input(name: str, dtype: str, width: int | str, meaning: str) -> Facts:
    return {"name": name, "dtype": dtype, "shape": ["n", width], "meaning": meaning}


def _outputs(model: ModelContent) -> list[Facts]:
    """Return name, dtype, shape and meaning of each output of the graph."""
    wants, classes = model.info.wants, model.classes
    if wants == "targets":
        meaning = "The predicted number."
        return [{"name": "value", "dtype": "float32", "shape": ["n"], "meaning": meaning}]
    several = wants == "several"
    kind = "int64" if several else "string" if classes.dtype.kind == "U" else classes.dtype.name
    shape = ["n", len(classes)]
    label = "1 for each label whose probability is 0.5 or more, else 0."
    label = label if several else "The most probable class."
    each = "label in the order of `labels`" if several else "class in the order of `classes`"
    return [
        {
            "name": "label",
            "dtype": kind,
            "shape": shape if several else shape[:1],
            "meaning": label,
        },
        {
            "name": "probabilities",
            "dtype": "float32",
            "shape": shape,
            "meaning": f"The probability of each {each}.",
        },
    ]


def _module_outputs(model: ModelContent) -> list[Facts]:
    """Return name, dtype, shape and meaning of what the module of PyTorch returns."""
    dtype, wants = "float32", model.info.wants
    if wants == "targets":
        meaning = "The predicted number."
        return [{"name": "forward", "dtype": dtype, "shape": ["n", 1], "meaning": meaning}]
    shape = ["n", len(model.classes)]
    each = (
        "label in the order of `labels`"
        if wants == "several"
        else "class in the order of `classes`"
    )
    meanings = {"forward": "logit", "probabilities": "probability"}
    return [
        {"name": name, "dtype": dtype, "shape": shape, "meaning": f"The {what} of each {each}."}
        for name, what in meanings.items()
    ]


def _columns(model: ModelContent, form: Form) -> list[Facts]:
    """Return for each feature the column, and the input and the place in it."""
    found: list[Facts] = []
    n_of = {"keys": 0, "numbers": 0, "features": 0}
    features = feature_columns(model)
    for column, logarithm in zip(features, logarithms(model), strict=True):
        kind = "features" if form == "rows" else "keys" if column.categorical else "numbers"
        found.append(
            {
                "name": column.name,
                "column": column.source,
                "input": kind,
                "place": n_of[kind],
                "convert": column.convert,
                "part": column.part,
                "logarithm_inside": logarithm and kind != "keys",
            }
        )
        n_of[kind] += 1
    return found


def _empty(model: ModelContent) -> Facts:
    """Return which cells are empty."""
    missing = Missing.of(model.read_options.missing)
    return {
        "texts": sorted(MISSING - {""}),
        "more_texts": sorted(missing.texts),
        "numbers": list(missing.numbers),
        "allowed": model.info.kind == "sparse" or empty_is_zero(model),
        "rules": [
            "Take the text of the cell without white space at its ends. A number of a program is its "
            "shortest decimal text that reads back as the number; a missing value is the empty text.",
            "The cell is empty if the text is, or if the text in small letters is one of `texts` or "
            "`more_texts`.",
            "In a column of numbers, the cell is also empty if its number is one of `numbers`.",
            "In a column of numbers without a notation (`convert`), the text is a decimal number, or true "
            "(1) or false (0) in small or capital letters. A number of a program is taken as it is.",
        ],
    }


def _words(rule: int) -> Facts:
    """Return how a cell becomes a word."""
    if rule == TEXTS:
        rules = [
            "The word is the text of the cell without white space at its ends. Only a cell without text "
            "is empty, and one whose word in small letters is one of `more_texts`."
        ]
        return {"rule": rule, "rules": rules}
    return {
        "rule": rule,
        "missing": sorted(PANDAS_MISSING),
        "number": NUMBER.pattern,
        "rules": [
            "A cell is empty by the rules of `empty`, or if its text is one of `missing`, or if its word "
            "in small letters is one of `more_texts`.",
            "true and false in small or capital letters are the words true and false.",
            "If the whole text matches the regular expression `number` (groups: sign, digits, fraction, "
            "exponent) and its value is a whole number, the word is the decimal digits of this number, "
            "without zeros in front, with - in front if it is less than 0.",
            "Any other text is the word itself.",
        ],
    }


def _key() -> Facts:
    """Return how a word becomes a key."""
    return {
        "hash": "BLAKE2b",
        "digest_bytes": 8,
        "byte_order": "little",
        "shift_right": 64 - KEY_BITS,
        "empty": NO_KEY,
        "rules": [
            "Join the number of characters of the column's `name` in decimal digits, a colon, the `name`, "
            "and the word; encode the text as UTF-8.",
            "Take its BLAKE2b digest of 8 bytes, without a key, as an unsigned number, the first byte being "
            "the least significant, and shift it right by 2 bits.",
        ],
    }


_CALENDAR = [
    "The feature with `part` year is a number, or a word if it is in `keys`; month (1 to 12), weekday "
    "(mon to sun) and hour (0 to 23) are words: decimal digits without zeros in front, or the name.",
    "A cell without a time has an empty hour.",
]


def _notation(name: str) -> Facts:
    """Return how the text of a cell with a notation is read; the parts of a date are words by themselves."""
    if name in EPOCHS:
        unit = "seconds" if EPOCHS[name] == 1 else "milliseconds"
        return {"rules": [f"The text is a number of {unit} since 1970-01-01 in UTC.", *_CALENDAR]}
    pattern = pattern_of(name).pattern
    whole = "The whole text matches the regular expression `pattern`, in the syntax of Python."
    if name in NUMBERS:
        rules = [
            whole,
            "The number is that of the groups digits, without separators of thousands, fraction and "
            "exponent, less than 0 if `sign` or `inner` is a minus, divided by 100 if `percent` is there.",
        ]
    else:
        rules = [
            whole,
            "Years of two digits from 69 on are 1969 to 1999, others 2000 to 2068.",
            "`half` is am or pm: 12 am is hour 0, 12 pm is hour 12.",
            *_CALENDAR,
        ]
    return {"pattern": pattern, "rules": rules}
