"""The site of documentation: it builds strictly, reads offline, and names what exists, completely."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from documents import DOCS, DOCUMENTS, EXAMPLES, ROOT, blocks, parts

from mpips.config.schema import JobConfig
from mpips.supervisor.verdict import EXIT_CODES
from mpips.tasks import TASKS

PARTS = parts()
SITE = ROOT / "build/site"
PAGES = sorted(DOCS.rglob("*.md"))


def page(name: str) -> str:
    return (DOCS / name).read_text()


# --- The site ------------------------------------------------------------------------------------


class Links(HTMLParser):
    """Links, sources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.found: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.found.append((tag, value))


@pytest.mark.parametrize(
    ("hidden", "arguments", "message"),
    [
        ("zensical", [], "not installed; pip install -e '.[docs]'"),
        ("mkdocstrings", [], "mkdocstrings"),
        ("mpips", ["--parts"], "mpips is not installed for this Python"),
        ("griffe", ["--parts"], "griffe: not installed"),
    ],
)
def test_the_build_names_missing_packages(hidden: str, arguments: list[str], message: str) -> None:
    program = (
        "import importlib.util, runpy, sys\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name: None if name == {hidden!r} else find(name)\n"
        f"sys.argv = ['build.py', *{arguments}]\n"
        f"runpy.run_path({str(DOCS / 'build.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 69
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None
    or importlib.util.find_spec("mkdocstrings") is None,
    reason="the extra docs is not installed: MPIPS_SETUP_TESTS=1 bash jobs/setup.sh",
)
def test_the_site_builds_strictly_and_reads_offline() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "build.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr

    pages = {path.resolve(): Links(path.read_text()) for path in SITE.rglob("*.html")}
    assert len(pages) == len(PAGES)
    for path, links in pages.items():
        for tag, link in links.found:
            parsed = urlsplit(link)
            if parsed.scheme or parsed.netloc:
                # Fonts, scripts and pictures come from the folder; a reader may follow links elsewhere.
                assert tag == "a", f"{path.name} loads {link}"
                continue
            target = (path.parent / unquote(parsed.path)).resolve() if parsed.path else path
            assert target.is_file() or (tag == "a" and target == SITE), f"{path.name}: {link}"
            if parsed.fragment and target in pages:
                anchor = unquote(parsed.fragment)
                assert anchor in pages[target].anchors, f"{path.name}: {link}"
    # The whole text of the pages is in the search index, the Python API included.
    index = (SITE / "search.js").read_text()
    assert all(words in index for words in ("keep_pace", "node_buffers_mib", "mpips ckpt prune"))


@pytest.mark.skipif(
    importlib.util.find_spec("griffe") is None,
    reason="the extra docs is not installed: MPIPS_SETUP_TESTS=1 bash jobs/setup.sh",
)
def test_parts_from_the_code_are_those_of_the_code() -> None:
    old = [str(path) for path in PAGES if PARTS.with_parts(page(str(path))) != page(str(path))]
    assert not old, "python docs/build.py --parts writes them into the pages"
    # Nothing is left for readers of the files to guess.
    assert all("--8<--" not in page(str(path)) for path in PAGES)
    changed = page("reference/cli.md").replace("## mpips train", "## mpips tram")
    assert PARTS.with_parts(changed) == page("reference/cli.md")
    program = page("howto/torch.md").replace("import torch\n", "import numpy\n", 1)
    assert PARTS.with_parts(program) == page("howto/torch.md")


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"(?:^|\s)([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(named) == [str(path.relative_to(DOCS)) for path in PAGES]


def test_every_guide_is_in_one_group_of_their_index() -> None:
    groups = re.split(r"^## (.+)$", page("howto/index.md"), flags=re.M)
    listed: list[str] = []
    for name, text in zip(groups[1::2], groups[2::2], strict=True):
        found = re.findall(r"^\| .+ \| \[[^\]]+\]\(([\w-]+\.md)\) \|$", text, re.M)
        assert found, name
        listed += found
    assert ".md" not in groups[0]
    guides = (path.name for path in DOCS.glob("howto/*.md"))
    assert sorted(listed) == sorted(name for name in guides if name != "index.md")


@pytest.mark.parametrize("path", sorted(DOCS.glob("howto/*.md")), ids=lambda path: path.name)
def test_guides_are_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 520, "divide it: begin, what changes, limits"


# --- What pages name -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_to_files(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:|#", target):
            assert (path.parent / target.partition("#")[0]).exists(), target
    for name in re.findall(r"`((?:mpips|native|jobs|tests|docs)/[\w./-]*\w)`", text):
        assert (ROOT / name).exists() or "NAME" in name, name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_code_blocks_are_not_indented(path: Path) -> None:
    """An indented block would be shown, and tested by nothing."""
    assert not re.search(r"^ +```", path.read_text(), re.M)


def test_no_page_sends_anybody_to_an_index_that_has_no_mpips() -> None:
    for path in DOCUMENTS:
        assert not re.search(r"pip install [^#;,`]*\bmpips\b", path.read_text()), path


def test_every_example_is_on_a_page() -> None:
    shown = {block.argument for path in PAGES for block in blocks(path) if block.kind == "example"}
    assert shown == {path.name for path in EXAMPLES.glob("*.py")}


def test_readme_is_short_and_its_example_is_one_of_the_pages() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 150
    program = (EXAMPLES / "digits_torch.py").read_text().partition('"""\n\n')[2]
    assert program in [block.text for block in blocks(readme)]


# --- The reference is complete -------------------------------------------------------------------


def test_every_command_and_option_has_its_entry() -> None:
    assert "<!-- part cli -->" in page("reference/cli.md")
    text = PARTS.PARTS["cli"]()
    for name, command in PARTS.commands():
        assert re.search(rf"^##+ {name}$", text, re.M), name
        assert command.help, name
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert parameter.opts[0] in text, f"{name} {parameter.opts[0]}"


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of all tables, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_option_of_a_job_has_a_generated_entry() -> None:
    assert "<!-- part options -->" in page("reference/options.md")
    text = PARTS.PARTS["options"]()
    names = [row[0].strip("`") for row in table_rows(text)]
    structs = [
        type(field.default)
        for field in msgspec.structs.fields(JobConfig)
        if isinstance(field.default, msgspec.Struct)
    ]
    assert len(structs) == text.count("\n## ") + 1
    assert names == [name for struct in structs for name in struct.__struct_fields__]
    for row in table_rows(text):
        assert len(row) == 4
        assert row[2], row
        assert len(row[3]) > 5, row


def test_every_option_of_a_task_has_a_generated_entry() -> None:
    assert "<!-- part task_options -->" in page("reference/tasks.md")
    names = {row[0].strip("`") for row in table_rows(PARTS.PARTS["task_options"]())}
    for task in TASKS.values():
        assert names.issuperset(task.Options.__struct_fields__)


def test_every_exit_code_and_error_has_its_entry() -> None:
    rows = re.findall(r"^\| (\d+) \|", page("reference/exit-codes.md"), re.M)
    classes = PARTS.error_classes()
    used = {0, 130, 143, *EXIT_CODES.values(), *(kind.exit_code for kind in classes)}
    assert set(map(int, rows)) == used
    assert "<!-- part errors -->" in page("reference/exit-codes.md")
    errors = PARTS.PARTS["errors"]()
    assert all(f"{kind.__name__}`" in errors for kind in classes)


def test_every_environment_variable_has_its_entry() -> None:
    text = page("reference/environment.md")
    named = set(re.findall(r"MPIPS_\w+", text))
    assert set(re.findall(r"NO_COLOR|COLUMNS|OMP_NUM_THREADS|HDF5_DIR", text))
    sources = [*ROOT.glob("mpips/**/*.py"), *ROOT.glob("jobs/*"), *ROOT.glob("tests/*.sh")]
    sources += [*ROOT.glob("native/src/**/*.?pp"), *ROOT.glob("tests/**/*.py")]
    everything = "\n".join(path.read_text() for path in sources if path.is_file())
    for name in named - {"MPIPS_FAULTS"}:
        assert name in everything, name
    read = set()
    for path in ROOT.glob("mpips/**/*.py"):
        if path.relative_to(ROOT).parts[1] != "testing":
            read |= set(re.findall(r'"(MPIPS_[A-Z_]+)"', path.read_text()))
    for path in ROOT.glob("jobs/*"):
        if path.is_file():
            read |= set(re.findall(r"\$\{(MPIPS_[A-Z0-9_]+):-", path.read_text()))
    assert read <= named


# --- Troubleshooting -----------------------------------------------------------------------------


def strings_of(node: ast.AST) -> str:
    """Return the text of a string expression with "..." for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(value.value) if isinstance(value, ast.Constant) else "..." for value in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return strings_of(node.left) + strings_of(node.right)
    return "..."


def written_messages() -> str:
    """Return all strings of the package and of the native module, a line each."""
    found = []
    for path in ROOT.glob("mpips/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                found.append(strings_of(node))
    for path in ROOT.glob("native/src/**/*.?pp"):
        found += re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r'"\s*\n\s*"', "", path.read_text()))
    return "\n".join(found)


# Messages of others, which users of mpips meet.
FOREIGN = ("there are not enough slots available",)


def test_messages_on_the_troubleshooting_page_are_those_of_the_code() -> None:
    headings = re.findall(r"^### (.*?) \{ #([\w-]+) \}$", page("troubleshooting.md"), re.M)
    assert len(headings) >= 24
    assert len({anchor for _, anchor in headings}) == len(headings)
    written = written_messages()
    for heading, _ in headings:
        for message in re.findall(r"`([^`]+)`", heading):
            for fragment in re.split(r"\.\.\.", message):
                words = fragment.strip(" ;:,()")
                assert not words or words in written or message in FOREIGN, message
