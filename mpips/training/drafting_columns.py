"""Choose the options of [data] for a CSV file, so that it can be read without an edit."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from mpips.data import ReadOptions, files_of, read
from mpips.data.column_needs import Need, Wanted, need_of
from mpips.data.columns import LABEL_NAMES, as_json, exactly, listed
from mpips.data.compressed import beginning
from mpips.data.conversions import parts_of
from mpips.data.csv_dialect import number
from mpips.data.csv_survey import Survey, SurveyedColumn, surveys
from mpips.data.csv_table import UTF16_MARKS, not_utf8
from mpips.data.headers import lacks_header
from mpips.data.missing import USUAL
from mpips.data.options import Conversion
from mpips.data.readers import choose_reader
from mpips.data.words import is_missing
from mpips.errors import DataError

# Names that the column of labels often has, beside those that the readers find themselves; in small letters.
_OFTEN = frozenset(
    {
        *(
            "click",
            "clicked",
            "is_click",
            "is_clicked",
            "converted",
            "conversion",
            "purchased",
            "bought",
        ),
        *(
            "churn",
            "churned",
            "exited",
            "attrition",
            "survived",
            "diagnosis",
            "species",
            "outcome",
            "result",
        ),
        *(
            "response",
            "income",
            "fraud",
            "is_fraud",
            "default",
            "defaulted",
            "approved",
            "subscribed",
        ),
        *("spam", "is_spam", "sentiment", "quality", "medv", "targets", "labels", "classes"),
    }
)


_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:\.[0-9]{3})*|0")
_MOST_NOTED = 100  # distinct labels in which missing ones and two ways of writing are sought


@dataclass
class DraftColumns:
    """The options of [data] for a CSV file.

    Attributes:
        options: The options of the readers.
        label_why: Why the label's column is that one.
        words: Columns of words, and why; "": they are text.
        notations: Columns with a notation, and an example.
        left_out: Columns that are left out, and why.
        has_targets: The labels are numbers to be predicted.
        odd: Texts that are read as empty cells and do not usually mean it, and a column that has them.
        notes: Sentences on the labels.
    """

    options: ReadOptions
    label_why: str = ""
    words: dict[str, str] = field(default_factory=dict)
    notations: dict[str, tuple[Conversion, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    has_targets: bool = False
    odd: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, train: str, label: str | None) -> DraftColumns | None:
        """Return the options for training data; None for another format. Blocks for reading some of it.

        Args:
            train: A file, a pattern or a list of files.
            label: The label's column; None: it is sought.

        Raises:
            DataError: The file cannot be read, or which column has the labels is not clear.
            ConfigError: Its format is unknown.
        """
        path = files_of(train)[0]
        if choose_reader(path, "auto").name != "csv":
            return None
        try:
            if beginning(path, 2) in UTF16_MARKS:
                raise DataError(not_utf8(path))
            options = ReadOptions(header=not lacks_header(path))
            survey = next(surveys(path, options), None)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
        if survey is None or not survey.n_rows:
            # A record with too many cells has a better sentence.
            read(path, options=replace(options, label="", labelled=False))
            raise DataError(f"{path}: contains no samples")
        name, why = _label(path, survey, label)
        found = cls(replace(options, label=name), why)
        found._decide(path, survey)
        return found

    def _decide(self, path: str, survey: Survey) -> None:
        """Choose options from the beginning of the file."""
        missing: list[str] = []
        has_empty = is_hashed = False
        for own in survey.columns:
            need = need_of(own)
            if own.name == self.options.label:
                self._decide_label(own, need)
                continue
            if need.kind == "nothing":
                self.left_out[own.name] = need.why
                continue
            has_empty = has_empty or need.has_empty
            missing += [text for text in need.missing if text not in missing]
            self.odd |= dict.fromkeys(need.odd, own.name)
            if need.kind == "words":
                self.words[own.name] = need.why
            elif need.notation:
                self.notations[own.name] = need.notation, need.why
                is_hashed = is_hashed or bool(parts_of(need.notation))
        self._decide_thousands(survey)
        if len(self.left_out) == len(survey.columns) - 1:
            why = "; ".join(f"'{name}' {why}" for name, why in list(self.left_out.items())[:3])
            raise DataError(
                f"{path}: has no column to learn from beside the label '{self.options.label}'"
                f"{f': {why}' if why else ''}"
            )
        zero = has_empty and not self.words and not is_hashed
        self.options = replace(self.options, empty="zero" if zero else "error")
        self._set(missing)

    def _decide_thousands(self, survey: Survey) -> None:
        """Read 1.234 as 1234 in columns of such numbers alone, if other columns have decimal commas."""
        if all(notation != "decimal_comma" for notation, _ in self.notations.values()):
            return
        chosen = {*self.notations, *self.words, *self.left_out, self.options.label}
        for own in survey.columns:
            there = [
                text for text in own.counts if not is_missing(text) and text.lower() not in USUAL
            ]
            points = [text for text in there if "." in text]
            if own.name not in chosen and points and all(map(_THOUSANDS.fullmatch, there)):
                why = f"such as {points[0]}: thousands, since other columns have decimal commas"
                self.notations[own.name] = "decimal_comma", why

    def _decide_label(self, own: SurveyedColumn, need: Need) -> None:
        """Choose the notation of labels that are numbers; add notes on labels that are text."""
        self.notes += _label_notes(own)
        if need.notation and not parts_of(need.notation):
            self.notations[own.name] = need.notation, need.why
            self.has_targets = True

    def widened(self, files: Sequence[str]) -> bool:
        """Choose options for all that the files have; return True if something has changed. Blocks."""
        wanted = Wanted()
        has_empty = False
        for path in files:
            for survey in surveys(path, self.options):
                wanted.add(survey, self.options, self.options.label)
                has_empty = has_empty or any(
                    any(map(is_missing, own.counts)) for own in survey.columns
                )
        before = self.options
        self.words |= wanted.words
        for name in wanted.words:
            self.notations.pop(name, None)
        self.notations |= {name: (notation, "") for name, notation in wanted.notations.items()}
        is_hashed = self.words or any(parts_of(notation) for notation, _ in self.notations.values())
        self.odd |= wanted.odd
        if (has_empty or wanted.missing) and not is_hashed:
            self.options = replace(self.options, empty="zero")
        self._set([*self.options.missing, *wanted.missing])
        return self.options != before

    def _set(self, missing: Sequence[str]) -> None:
        """Set the options from what was found."""
        self.options = replace(
            self.options,
            missing=tuple(missing),
            categorical=tuple(map(exactly, self.words)),
            convert=tuple((exactly(name), own[0]) for name, own in self.notations.items()),
            ignore=tuple(map(exactly, self.left_out)),
            wants="targets" if self.has_targets else "classes",
        )

    def lines(self) -> list[str]:
        """Return the lines of [data] about the columns."""
        options = self.options
        lines = []
        if not options.header:
            lines.append("header = false  # the first line is a sample: columns are c1, c2, ...")
        why = f"  # {self.label_why}" if self.label_why else ""
        lines.append(f"label = {as_json(options.label)}{why}")
        if options.missing:
            odd = [f"{as_json(text)} of column '{name}'" for text, name in self.odd.items()]
            more = f"; correct {', '.join(odd)} if it means another value" if odd else ""
            lines.append(
                f"missing = {as_json(list(options.missing))}  # read as empty cells{_line(more)}"
            )
        if options.empty == "zero":
            lines.append('empty = "zero"  # an empty cell counts as 0')
        if self.words:
            lines += _listed("categorical", self.words, "hashed; other columns are numbers")
        if self.left_out:
            lines += _listed("ignore", self.left_out, "")
        else:
            lines.append('# ignore = ["id"]  # columns to leave out, as names or patterns')
        return lines

    def section(self) -> list[str]:
        """Return the section [data.convert]; []: none is needed."""
        if not self.notations:
            return []
        return [
            "",
            "[data.convert]  # notations of columns",
            *(
                f"{as_json(exactly(name))} = {as_json(notation)}{f'  # {_line(why)}' if why else ''}"
                for name, (notation, why) in self.notations.items()
            ),
        ]


def _label_notes(own: SurveyedColumn) -> list[str]:
    """Return sentences on classes that are rather missing labels, or written in two ways."""
    texts = [text for text in own.counts if not _is_plain(text)]
    if len(texts) < len(own.counts) or len(texts) > _MOST_NOTED:
        return []
    notes = [
        f"label '{text}', of {own.counts[text]:,} samples, is a class here: remove these lines if their "
        "label is missing"
        for text in texts
        if is_missing(text) or text.lower() in USUAL
    ]
    first: dict[str, str] = {}
    for text in texts:
        other = first.setdefault(text.casefold(), text)
        if other != text:
            notes.append(
                f"labels '{other}' and '{text}' are two classes here: write them alike if they mean the same"
            )
    return notes


def _is_plain(text: str) -> bool:
    """Return True for an empty label, and for a number."""
    return not text or not math.isnan(number(text))


def _listed(option: str, names: dict[str, str], remark: str) -> list[str]:
    """Return the lines of a list of columns, with the reasons behind them."""
    if not any(names.values()):
        shown = ", ".join(as_json(exactly(name)) for name in names)
        return [f"{option} = [{shown}]{f'  # {remark}' if remark else ''}"]
    return [
        f"{option} = [{f'  # {remark}' if remark else ''}",
        *(
            f"    {as_json(exactly(name))},{f'  # {_line(why)}' if why else ''}"
            for name, why in names.items()
        ),
        "]",
    ]


def _line(text: str) -> str:
    """Return a text as one line without control characters, which comments of TOML cannot have."""
    return "".join(c if c.isprintable() else " " for c in text)


def _label(path: str, survey: Survey, label: str | None) -> tuple[str, str]:
    """Return the label's column and why it is that one.

    Raises:
        DataError: There is no such column, or several may be.
    """
    names = [own.name for own in survey.columns]
    if label is not None:
        if label not in names:
            raise DataError(
                f"{path}: no label column '{label}'; set data.label to one of {listed(names)}"
            )
        return label, ""
    if len(names) == 1:
        raise DataError(
            f"{path}: has one column, '{names[0]}': samples need a label and features beside it; if its "
            "cells are divided by other characters than , ; | or tabs, change these"
        )
    if LABEL_NAMES[0] in names:
        return LABEL_NAMES[0], ""
    for group, why in ((LABEL_NAMES, ""), (_OFTEN, "by its name; --label names another")):
        likely = [name for name in names if name.lower() in group]
        if len(likely) > 1:
            raise DataError(
                f"{path}: which column holds the label is not clear: name one with --label: {listed(likely)}"
            )
        if likely:
            return likely[0], why
    # A delimiter at the end of each line gives an empty column.
    last = next(
        (own for own in reversed(survey.columns) if not all(map(is_missing, own.counts))),
        survey.columns[-1],
    )
    if need_of(last).kind == "nothing":
        raise DataError(
            f"{path}: which column holds the label is not clear: none has a usual name, and the last one, "
            f"'{last.name}', {need_of(last).why}: name one with --label: {listed(names)}"
        )
    return last.name, "the last column, since none has a usual name; --label names another"
