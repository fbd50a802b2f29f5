"""tests/words.py reports words of the dialect and hidden names, and leaves plain texts alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, load_program

words = load_program("tests/words.py")
EXEMPT = '[tool.ruff.lint.per-file-ignores]\n"plugins/waiting/**" = ["A", "D"]\n"plugins/**" = ["E402"]\n'


def messages(text: str, kind: str = "text") -> list[str]:
    return [message for _line, message in words.word_problems(words.Text(1, text, kind))]


def checkout(root: Path, **texts: str) -> list[str]:
    """Return the problems of a checkout with these files below plugins/."""
    (root / "pyproject.toml").write_text(EXEMPT)
    for name, text in texts.items():
        path = root / "plugins" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(words.problems(root))


@pytest.mark.parametrize(
    "text",
    [
        "The image is built anew.",
        "Whoever calls this holds the lock.",
        "A server that hands have started",
        "Left to hands, as before: ends by hands.",
        "A config that is none is refused.",
        "Raises Stop where the way back fails.",
        "It is put back.",
        "Put the old link back first.",
        "Puts them back.",
        "The draft is taken away.",
        "Take it away.",
        "The host is as wanted.",
        "found 3 cards, wanted 4",
        "found 3 cards, expected 4",
        "The failure is told at once.",
        "The engine is asked again.",
        "The engine is\nasked again.",
        "Status says so.",
        "The file lies in tmp/.",
        "The reason stands beside it.",
        "Nothing happens while it is there.",
        "The container of its turn",
        "Answers of before do not count.",
        "for nobody's eyes",
    ],
)
def test_words_of_the_dialect_are_reported(text: str) -> None:
    assert messages(text)


@pytest.mark.parametrize(
    "text",
    [
        "Run it by hand.",
        "It hands over the file.",
        "A stand-in that stands for the driver stands in for it.",
        "Raise an error if there is a file.",
        "Is there a file?",
        "The lines say what differs.",
        "Each host in turn.",
        "Turn a test red.",
        "The host is drained, expected in sync.",
        "Clients ask the server.",
        "Unwanted, untold, newly",
    ],
)
def test_plain_texts_are_not_reported(text: str) -> None:
    assert messages(text) == []


@pytest.mark.parametrize("opening", ["What", "Whether", "Why", "Who", "How", "Of", "Where"])
@pytest.mark.parametrize("kind", ["function", "docstring"])
def test_docstrings_do_not_open_with_a_riddle(opening: str, kind: str) -> None:
    assert messages(f"{opening} the engine has.", kind)
    assert messages(f"{opening} the engine has.") == []


def test_docstrings_of_functions_open_with_a_verb() -> None:
    assert messages("The names of all models.", "function")
    assert messages("(name, digest) of all models.", "function")
    assert messages("The names of all models.", "docstring") == []
    assert messages("Return the names of all models.", "function") == []
    assert messages("Whitelist the models.", "function") == []


def test_a_file_of_python_is_read_with_its_lines(tmp_path: Path) -> None:
    source = (
        '"""A file."""\n\n# It is\n# asked anew.\nx = "found {}, wanted {}".format(1, 2)  # told\n\n\n'
        'class Y:\n    """What it is."""\n\n    def f(self):\n        """Line one.\n\n        Done anew.\n        """\n'
        '        raise ValueError(f"{x} is asked anew")\n\n    @property\n    def g(self):\n        """The names."""\n'
    )
    assert [problem.partition(": write")[0] for problem in checkout(tmp_path, a_dot_py=source)] == [
        'plugins/a.py:3: "is # asked"',
        'plugins/a.py:4: "anew"',
        'plugins/a.py:5: "found {}, wanted"',
        'plugins/a.py:5: "told"',
        'plugins/a.py:5: "wanted"',
        'plugins/a.py:9: the docstring starts with "What", expected a noun phrase',
        'plugins/a.py:14: "anew"',
        'plugins/a.py:16: "anew"',
        'plugins/a.py:16: "is asked"',
    ]


def test_files_of_yaml_and_pages_are_read_with_their_lines(tmp_path: Path) -> None:
    tasks = "# Told\n- name: Put it back\n  fail:\n    msg: |\n      One line.\n      Not as wanted.\n"
    tasks += "  when: anew # Told\n  vars: {told: !x anew}\n"
    page = "# Anew\n\n```sh\nanew\n```\n\nA `told` word\nis\ntold.\n"
    assert [
        problem.partition(": write")[0] for problem in checkout(tmp_path, a_dot_yml=tasks, b_dot_md=page, c_dot_ko_dot_md="anew")
    ] == [
        'plugins/a.yml:1: "Told"',
        'plugins/a.yml:2: "Put it back"',
        'plugins/a.yml:6: "as wanted"',
        'plugins/a.yml:6: "wanted"',
        'plugins/a.yml:7: "Told"',
        'plugins/b.md:1: "Anew"',
        'plugins/b.md:9: "told"',
    ]


def test_exempt_files_are_read_when_they_are_named(tmp_path: Path) -> None:
    assert checkout(tmp_path, waiting__a_dot_py="# anew\n", b_dot_py="# anew\n") == [
        'plugins/b.py:1: "anew": write again, or re-...'
    ]
    assert list(words.problems(tmp_path, ["plugins/waiting"])) == ['plugins/waiting/a.py:1: "anew": write again, or re-...']


@pytest.mark.parametrize(
    "body",
    ["{} = 1", "for {} in []: pass", "[{} for {} in []]", "with open('x') as {}: pass", "lambda {}: 1", "def {}(): pass",
     "try: pass\n  except OSError as {}: pass", "({} := 1)"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["os", "system", "helper", "Kind"])
def test_local_names_that_hide_others_are_reported(body: str, name: str) -> None:
    head = "import os\nfrom x import y as system\ndef helper(): pass\nclass Kind: pass\n"
    found = list(words.hidden_names(f"{head}def f():\n  {body.replace('{}', name)}\n"))
    assert {message for _line, message in found} == {f"the local name {name} hides an import or a definition of this file"}
    assert {line for line, _message in found} <= {6, 7}
    assert list(words.hidden_names(f"{head}def f():\n  os.x = 1\n  import sys\n  helper()\n")) == []


def test_the_command_exits_with_the_result() -> None:
    done = subprocess.run([sys.executable, ROOT / "tests/words.py", "tests/unit/fixtures"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
