"""Count constructions that read oddly, in pages and in docstrings of mpips.

    python tests/support/words.py                  # counts by pattern and by folder
    python tests/support/words.py docs mpips/cli   # each place in these folders
    python tests/support/words.py --store          # write words.json: the most of each folder

A pattern is a heuristic: it may also match a good sentence. The count of a folder may only fall.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = Path(__file__).with_name("words.json")

_THINGS = (
    "attempt|checkpoint|code|command|comment|config|connection|doctor|error|file|help|it|job|kernel|launcher|line|loader"
    "|manifest|message|MPI|mpips|mpirun|name|option|page|program|rank|README|record|report|run|scheduler|script"
    "|server|shard|supervisor|system|table|task|test|that|this|title|trace|version|which|worker"
)
_VERBS = "asks?|believes?|hears?|knows?|lives?|say|tells?|thinks?|wants?"

# What is counted, by name. `^` is the begin of a sentence.
PATTERNS = {
    "as ever": r"\bas ever\b",
    "there is none": r"\b[Tt]here (is|are|was|were) none\b",
    "is none": r"(?<![Tt]here )\b(is|are|was|were) none\b",
    "Of ...": r"^Of\b(?! course)",
    "name: Of ...": r"^[\w`*, ]+: (Of|What|Whether|How|Who)\b(?! course)",
    "What ... is": r"^What\b.*[.:]$",
    "Who ...": r"^Who(ever)?\b.*[.:]$",
    "Whether ...": r"^(Whether|How)\b.*[.:]$",
    "a look": r"\b(a|an|any|each|every|first|last|next|no|of|one|per|second|this|two) looks?\b(?!-)",
    "also if": r"\balso (if|when|where|while)\b",
    "too at the end": r",? too(?=[.;:)]|$)|, too,",
    "code that speaks": rf"\bsays\b|\b({_THINGS})s? ({_VERBS})\b",
    "is no ...": r"(?<![Tt]here )\b(is|are|was|were) no "
    r"(?!earlier|faster|fewer|larger|later|less|longer|more|one|slower|worse)\w",
    "the begin": r"\b(at the|its|their) begin\b",
    "all the same": r"\ball the same\b(?! (as|size|length|shape|dtype|type))",
    "nobody": r"\b(any|every|no|some)body\b",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in PATTERNS.items()}


def found(sentence: str) -> list[str]:
    """Return the name of a pattern for each of its matches in a sentence."""
    return [name for name, rule in _PATTERNS.items() for _ in rule.finditer(sentence)]


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each sentence of a prose text; code and comments are left out."""
    for rule in (r"^( *)```.*?^\1```", r"<!--.*?-->"):
        text = re.sub(rule, lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    for number, paragraph in _paragraphs(text):
        # What stands in code is one word.
        for cell in re.sub(r"`[^`]*`", "`x`", paragraph).split("|"):
            for sentence in re.split(r"(?<=[.?!]) +(?=[A-Z`(])", cell):
                if shown := sentence.strip(" *#-"):
                    yield number, shown


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each paragraph, item of a list, row of a table and argument."""
    held: list[str] = []
    first = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begins = re.match(r"\s*([-*|#>]|\d+\. |[\w*`, ]{1,40}: )", line)
        if held and (begins or not line.strip()):
            yield first, " ".join(held)
            held = []
        if line.strip():
            first = number if not held else first
            held.append(line.strip())


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each sentence in the docstrings of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text and isinstance(node.body[0], ast.Expr):
            for number, sentence in sentences(text):
                yield node.body[0].lineno + number - 1, sentence


def files() -> Iterator[tuple[str, Path]]:
    """Yield folder and path of each page and each module."""
    for path in sorted(ROOT.glob("*.md")):
        if path.name != "CHANGELOG.md":
            yield path.name, path
    for path in sorted(ROOT.glob("docs/**/*.md")):
        yield str(path.parent.relative_to(ROOT)), path
    for path in sorted(ROOT.glob("mpips/**/*.py")):
        yield "/".join(path.relative_to(ROOT).parts[:-1][:2]), path


def places() -> Iterator[tuple[str, str, str, str]]:
    """Yield folder, place, pattern and sentence of each match."""
    for folder, path in files():
        texts = docstrings(path) if path.suffix == ".py" else sentences(path.read_text())
        for number, sentence in texts:
            for name in found(sentence):
                yield folder, f"{path.relative_to(ROOT)}:{number}", name, sentence


def counts() -> dict[str, int]:
    """Return the number of matches of each folder that has one."""
    return dict(sorted(Counter(folder for folder, *_ in places()).items()))


def main(arguments: list[str]) -> None:
    """Print counts, or each place in the folders that are named; or store the counts."""
    if arguments == ["--store"]:
        MOST.write_text(json.dumps(counts(), indent=2) + "\n")
    elif arguments:
        for folder, place, name, sentence in places():
            if folder.startswith(tuple(arguments)):
                print(f"{place}: {name}: {sentence}")
    else:
        listed = list(places())
        for column in (2, 0):
            for name, number in Counter(each[column] for each in listed).most_common():
                print(f"{number:5d}  {name}")
            print(f"{len(listed):5d}  all\n")


if __name__ == "__main__":
    main(sys.argv[1:])
