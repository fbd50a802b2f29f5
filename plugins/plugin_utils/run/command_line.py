# SPDX-FileCopyrightText: The npufleet developers
# SPDX-License-Identifier: Apache-2.0
"""Exit codes, options and result files of npufleet-infer, npufleet-check and npufleet-lint. An error message is one line.

This module uses only the standard library, so that it can report packages that are missing.
"""

from __future__ import annotations

import argparse
import os
import ssl
import sys
from types import MappingProxyType
from typing import Any, Callable, Dict, Mapping, NoReturn, Optional, Sequence, Tuple

# By default, the core of gRPC writes a log to standard error, between the messages of the command.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Exit codes. CODE_TEXTS has their meanings. 130 and 141 are the codes of a shell for SIGINT and SIGPIPE.
RIGHT, WRONG, USAGE_ERROR, NO_ANSWER, INTERRUPTED, PIPE = 0, 1, 2, 3, 130, 141
CODE_TEXTS = {
    RIGHT: "right: every answer, check or model is correct",
    WRONG: "wrong: an answer, a check or a model is not correct",
    USAGE_ERROR: "wrong use: an argument is invalid, and no request was sent",
    NO_ANSWER: "no answer: the server or the model was not reachable or not ready, or it answered too late",
    INTERRUPTED: "interrupted",
    PIPE: "the program that reads the output closed it",
}
EXIT_CODE_TABLE = "Exit codes\n" + "\n".join(f"  {code:<4} {text}" for code, text in CODE_TEXTS.items())
# {scheme of a URL: True if it uses TLS}
SCHEMES = {"http": False, "https": True, "grpc": False, "grpcs": True}
# Ports of Triton
PORTS = MappingProxyType({"http": 8000, "https": 8000, "grpc": 8001, "grpcs": 8001})


class CommandError(Exception):
    """An error that ends a command: its exit code, and the reason in one line."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Parser(argparse.ArgumentParser):
    """A parser of options that reports an error as one line. Its help ends with the exit codes."""

    def __init__(self, command: str, text: Optional[str]) -> None:
        about, _gap, more = (text or "").partition("\n\n")
        epilog = "\n\n".join(filter(None, [more.strip("\n"), "The default of an option is in parentheses.", EXIT_CODE_TABLE]))
        # An abbreviation could match another option in a later version.
        super().__init__(command, None, about, epilog, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        # argparse writes "argument --option: message".
        text = message[9:].replace(": is ", " is ", 1) if message.startswith("argument ") else message
        raise CommandError(USAGE_ERROR, f"{text}; see --help")


def run(command: str, work: Callable[[], int]) -> int:
    """Run a command and return its exit code. An error is one line on standard error."""
    # Standard output can be closed, or its encoding can lack a character of a file or an answer.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = work()
        except SystemExit as ended:
            # argparse exits after --help.
            code = int(ended.code or 0)
        sys.stdout.flush()
        return code
    except CommandError as end:
        return _ended_with(command, end.code, str(end))
    except KeyboardInterrupt:
        return _ended_with(command, INTERRUPTED, "interrupted")
    except BrokenPipeError:
        _drop_output()
        return PIPE
    except OSError as error:
        # The code that opens other files handles their errors. So this is an error of standard output, such as a full disk.
        _drop_output()
        return _ended_with(command, USAGE_ERROR, f"standard output: {error.strerror or error}")


def _ended_with(command: str, code: int, why: str) -> int:
    print(f"{command}: {' '.join(why.split())}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Discard the buffer of standard output. Python would flush this buffer again at exit and report the error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def index(text: str, least: int = 0) -> int:
    """Return a whole number of at least `least`. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"is {text!r}, expected a whole number of at least {least}")
    return int(text)


def positive(text: str) -> int:
    """Return a whole number of at least 1. Raises ArgumentTypeError."""
    return index(text, 1)


def seconds(text: str) -> float:
    """Return a number of seconds, above 0 and at most a day. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number <= 86400:
        raise argparse.ArgumentTypeError(f"is {text!r}, expected seconds above 0 and at most 86400 (a day)")
    return number


def name(text: str) -> str:
    """Return a name that can be part of the URL of a request. Raises ArgumentTypeError."""
    if not text.strip() or any(entry in text for entry in "/?#") or not text.isprintable():
        raise argparse.ArgumentTypeError(f"is {text!r}, expected a name without / ? #")
    return text


def address(url: str, schemes: Sequence[str], option: str, ports: Mapping[str, int] = PORTS) -> Tuple[str, str]:
    """Return the scheme and the host:port/path of a URL. The default scheme is the first of `schemes`. Raises CommandError."""

    def error(actual: str, expected: str) -> CommandError:
        return CommandError(USAGE_ERROR, f"{option} {actual}, expected {expected}")

    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = schemes[0], url
    if scheme not in schemes:
        raise error(f"is {scheme}://", f"one of {', '.join(schemes)}")
    host, slash, path = rest.rstrip("/").partition("/")
    if "@" in host:
        raise error("has a login", "host:port")
    if any(entry in rest for entry in "?#\\") or not rest.isprintable() or " " in rest:
        raise error(f"is {url!r}", "host:port")
    # Without brackets, the last part of an IPv6 address would be read as the port.
    if host.count(":") > 1 and not host.startswith("["):
        raise error(f"is {host}", f"an IPv6 address in brackets, [{host}]")
    bare, colon, port = host.rpartition(":") if ":" in host.rpartition("]")[2] else (host, "", "")
    if not bare.strip("[]"):
        raise error("has no host", "host:port")
    if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise error(f"has port {port!r}", "a number from 1 to 65535")
    if not colon:
        port = str(443 if separator and SCHEMES[scheme] else ports[scheme])
    return scheme, f"{bare}:{port}{slash}{path}"


def tls_files(options: Any) -> Dict[str, Optional[str]]:
    """Return {"ca", "cert", "key"}: the file of each option, or None if the option is not set. Raises CommandError."""
    files: Dict[str, Optional[str]] = {key: getattr(options, key) for key in ("ca", "cert", "key")}
    reasons = [
        f"--{file} is {path!r}, expected a file" for file, path in files.items() if path is not None and not os.path.isfile(path)
    ]
    if bool(files["cert"]) != bool(files["key"]):
        reasons.append("--cert or --key is missing, expected both")
    if not reasons:
        reasons += _unusable(files)
    if reasons:
        raise CommandError(USAGE_ERROR, "; ".join(reasons))
    return files


def _unusable(files: Mapping[str, Optional[str]]) -> Sequence[str]:
    """Return the reasons why OpenSSL refuses these files."""
    # This context does not load the certificate authorities of the system, because this would take time.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    reasons = []
    if files["ca"]:
        try:
            context.load_verify_locations(files["ca"])
        except (OSError, ValueError):
            reasons.append(f"--ca is {files['ca']}, expected certificates as PEM")
    if files["cert"]:
        try:
            # Without this function, OpenSSL would read a passphrase from the terminal.
            context.load_cert_chain(files["cert"], files["key"], password=lambda: "")
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            reasons.append(
                f"--cert and --key are {files['cert']} and {files['key']} ({why}), "
                "expected a certificate and its own key without a passphrase, as PEM"
            )
    return reasons


def writable(path: str, option: str) -> None:
    """Check that a result can be written to this path later. Raises CommandError."""
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        return
    try:
        if not path or os.path.isdir(path):
            raise IsADirectoryError(0, "it is not a file path")
        existed = os.path.exists(draft_of(path))
        with open(draft_of(path), "a", encoding="utf-8"):
            pass
        if not existed:
            os.unlink(draft_of(path))
    except (OSError, ValueError) as error:
        raise CommandError(
            USAGE_ERROR, f"{option}: {path!r} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from None


def draft_of(path: str) -> str:
    """Return the path of the temporary file of a result. If the path is a link, the file is beside its target."""
    return os.path.realpath(path) + ".draft"


def write(path: str, content: str, option: str) -> None:
    """Write a result atomically, or to standard output. Raises CommandError."""
    if path == "-":
        sys.stdout.write(content)
        return
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            # A device or a pipe must not be replaced by a file.
            with open(path, "w", encoding="utf-8") as target:
                target.write(content)
            return
        with open(draft_of(path), "w", encoding="utf-8") as target:
            target.write(content)
        os.replace(draft_of(path), os.path.realpath(path))
    except OSError as error:
        raise CommandError(USAGE_ERROR, f"{option}: {path!r} cannot be written: {error.strerror or error}") from None
