"""Follow a page of docs/: write its files and run its commands, with values that replace those of the example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
NAMED = re.compile(r"`([\w./-]+)`:\s*$")
# Languages of blocks that are files. Blocks of `sh` are commands, and blocks of `text` are not used.
FILES = ("yaml", "python", "protobuf")
SECONDS = 1800  # The longest time of a command on a busy machine


@dataclass
class Step:
    """A file to write (`path`) or a command to run, with the line of the page."""

    line: int
    text: str
    path: str = ""


def steps(page: Path) -> Iterator[Step]:
    """Yield the files and commands of a page in their order."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 2
        if block[1] in FILES:
            named = NAMED.search(text[: block.start()].rstrip())
            if not named:
                raise SystemExit(f"{page.name}:{line}: a file has no name, expected `path`: before it")
            yield Step(line, block[2], named[1])
        elif block[1] == "sh":
            yield from (Step(line + number, command) for number, command in enumerate(block[2].splitlines()) if command)


def checkout(target: Path) -> None:
    """Copy the tracked and the new files, as a checkout of a site."""
    target.mkdir(parents=True)
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    copy = ["rsync", "--archive", "--from0", "--files-from=-", f"{ROOT}/", str(target)]
    subprocess.run(copy, input=files, check=True)


def environment(facts: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of an operator: no virtual environment, an empty home, the lab's ssh key and known hosts."""
    home.mkdir()
    kept = {name: os.environ[name] for name in ("LANG", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "SSL_CERT_FILE") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "USER": "root",
        "ANSIBLE_PRIVATE_KEY_FILE": facts["ansible_ssh_private_key_file"],
        "ANSIBLE_SSH_COMMON_ARGS": facts["ansible_ssh_common_args"],
        "ANSIBLE_NOCOLOR": "1",
        # Without the compilation of bytecode, pip takes half of the time. The value 0 turns the compilation off.
        "PIP_NO_COMPILE": "0",
    }


class Reader:
    """A shell that follows a page in a directory. Its output goes to `log`."""

    def __init__(self, directory: Path, variables: Mapping[str, str], log: Path) -> None:
        self.checkout = directory
        self.log = log.open("w")
        self.commands = self.files = 0
        self.shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(variables),
            text=True,
        )

    def follow(self, page: Path, values: Mapping[str, str], extra: Mapping[str, Path]) -> None:
        """Do every step. `values` is {value of the example: value to use}, and `extra` is {path: source} of further files."""
        for step in steps(page):
            text = step.text
            for example, value in values.items():
                text = text.replace(example, value)
            if step.path:
                target = self.checkout / step.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
                self.files += 1
                continue
            for path, source in extra.items():
                if (self.checkout / path).parent.is_dir():
                    shutil.copy(source, self.checkout / path)
            began = time.monotonic()
            code, output = self.run(text)
            self.log.write(f"$ {text}\n{output}")
            self.log.flush()
            print(f"{page.name}:{step.line}: {text} ({time.monotonic() - began:.1f} s)", flush=True)
            if code:
                raise SystemExit(f"{page.name}:{step.line}: `{text}` ended with {code}:\n{output[-6000:]}")
            self.commands += 1

    def run(self, command: str) -> tuple[int, str]:
        """Run a command in the shell, which keeps its variables and directory. Return its exit code and output."""
        assert self.shell.stdin and self.shell.stdout
        mark = f"--- {time.monotonic_ns()} "
        self.shell.stdin.write(f"{{ {command}; }} </dev/null\nprintf '\\n%s%s\\n' '{mark}' \"$?\"\n")
        self.shell.stdin.flush()
        lines = []
        deadline = time.monotonic() + SECONDS
        for line in self.shell.stdout:
            if line.startswith(mark):
                return int(line.removeprefix(mark)), "".join(lines)
            lines.append(line)
            if time.monotonic() > deadline:
                break
        raise SystemExit(f"`{command}` did not end, or ended the shell:\n{''.join(lines)[-3000:]}")

    def close(self) -> None:
        """End the shell. If its command still runs, kill the shell, because the reader has already reported the command."""
        if self.shell.stdin:
            self.shell.stdin.close()
        try:
            self.shell.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.shell.kill()
            self.shell.wait()
        self.log.close()
