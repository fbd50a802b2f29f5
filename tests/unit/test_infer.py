"""npufleet-infer against a server that is played: what it asks, what it prints, and how it ends."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from ansible_collections.npufleet.triton.plugins.module_utils.inference import clients, questions
from ansible_collections.npufleet.triton.plugins.module_utils.inference.check import unpack_check
from ansible_collections.npufleet.triton.plugins.plugin_utils.checks import check_files, request_inputs
from helpers import ROOT
from PIL import Image
from small_triton import certificates
from tritonclient.utils import InferenceServerException

COMMAND = ROOT / "bin/npufleet-infer"
IMAGE = {"name": "IN", "datatype": "FP32", "shape": [-1, 3, 224, 224]}
TEXTS = [
    {"name": "TEXT", "datatype": "BYTES", "shape": [-1]},
    {"name": "LIMIT", "datatype": "INT32", "shape": [1]},
]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def infer() -> Any:
    """The command as a module."""
    loader = SourceFileLoader("npufleet_infer", str(COMMAND))
    spec = importlib.util.spec_from_loader("npufleet_infer", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["npufleet_infer"] = module
    before = sys.dont_write_bytecode, list(sys.path)
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    sys.dont_write_bytecode, sys.path[:] = before
    return module


class Server:
    """What a service is asked and answers."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str, float, Any]] = []
        self.asked: list[questions.Question] = []
        self.inputs: list[dict[str, Any]] = [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}]
        self.labels: list[str] = []
        self.gone = ""
        self.answers: Callable[[questions.Question], list[Any]] = lambda question: [{"OUT": question.inputs["IN"][1]}]


def output(array: Any) -> questions.Output:
    return questions.Output(questions.triton_dtype(array), list(array.shape), array)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    played = Server()

    class Service:
        def __init__(self, protocol: str, url: str, timeout: float, tls: Any) -> None:
            played.made.append((protocol, url, timeout, tls))
            self.timeout, self.protocol, self.url = timeout, protocol, url

        def unreachable(self) -> str:
            return played.gone

        def metadata(self, model: str, version: str) -> Any:
            if model == "unknown":
                raise InferenceServerException("Request for unknown model: 'unknown' is not found", "400")
            if version == "7":
                raise InferenceServerException(f"Request for unknown model: '{model}' version 7 is not found", "400")
            return {"inputs": played.inputs, "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [-1, 4]}]}

        def config(self, model: str, version: str) -> Any:
            return {"output": [{"name": "OUT", "label_filename": "labels.txt" if played.labels else ""}]}

        def index(self) -> Any:
            return [{"name": "m", "version": entry, "state": "READY"} for entry in ("10", "9")]

        def index_entry(self, model: str, version: str) -> str:
            return clients.Service.index_entry(self, model, version)  # type: ignore[arg-type]

        def explain(self, error: Exception) -> str:
            return clients.Service.explain(self, error)  # type: ignore[arg-type]

        def answers(self, question: questions.Question, timeout: float) -> Any:
            played.asked.append(question)
            for answer in played.answers(question):
                if isinstance(answer, Exception):
                    raise answer
                yield {name: self.classes(array, question.classes.get(name)) for name, array in answer.items()}

        def classes(self, array: Any, count: int | None) -> Any:
            if not count:
                return output(array)
            best = [np.argsort(-row)[:count] for row in array]
            named = [
                [f"{row[place]}:{place}:{played.labels[place]}".encode() for place in places] for row, places in zip(array, best)
            ]
            return output(np.array(named, object))

        def infer(self, question: questions.Question) -> Any:
            return questions.Answer(questions.join_outputs(list(self.answers(question, 1))), 1, 1.0, None)

    services = {name: lambda url, timeout, tls, name=name: Service(name, url, timeout, tls) for name in clients.PROTOCOLS}
    monkeypatch.setattr(clients, "SERVICES", services)
    return played


@pytest.fixture
def run(infer: Any, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """(exit code, lines of standard output, the one of standard error) of a command line."""

    def call(*arguments: str) -> tuple[int, list[str], str]:
        code = infer.main(arguments)
        out, err = capsys.readouterr()
        assert err.count("\n") == (code != 0), "a failure is one line, and nothing else is said there"
        return code, out.splitlines(), err.strip().removeprefix("npufleet-infer: ")

    return call


# Where and what


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ([], ("http", "localhost:8000", None)),
        (["--protocol", "grpc"], ("grpc", "localhost:8001", None)),
        (["--url", "npu1"], ("http", "npu1:8000", None)),
        (["--url", "grpc://npu1:9"], ("grpc", "npu1:9", None)),
        (["--url", "grpc://npu1", "--protocol", "stream"], ("stream", "npu1:8001", None)),
        (["--url", "http://npu1/triton/"], ("http", "npu1:8000/triton", None)),
        (["--url", "[::1]:9"], ("http", "[::1]:9", None)),
        (["--url", "https://t.example"], ("http", "t.example:443", {"insecure": False})),
        (["--url", "https://t.example", "--insecure"], ("http", "t.example:443", {"insecure": True})),
        (["--url", "grpcs://t.example:8001", "--protocol", "raw"], ("raw", "t.example:8001", {"insecure": False})),
    ],
)
def test_where_it_asks(run: Any, server: Server, arguments: list[str], made: Any) -> None:
    assert run("m", "--input", "IN=numbers:1,2,3,4", *arguments)[0] == 0
    protocol, url, _timeout, tls = server.made[0]
    assert (protocol, url) == made[:2]
    assert tls == (made[2] if made[2] is None else {"ca": None, "cert": None, "key": None, **made[2]})


def test_files_of_tls_are_handed_on(run: Any, server: Server, tls: dict[str, str]) -> None:
    files = {"ca": tls["ca"], "cert": tls["client"], "key": tls["client_key"]}
    words = [word for name, path in files.items() for word in (f"--{name}", path)]
    assert run("m", "--input", "IN=numbers:1,2,3,4", "--protocol", "grpc", "--timeout", "2.5", *words)[0] == 0
    assert server.made == [("grpc", "localhost:8001", 2.5, {**files, "insecure": False})]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--url", "ftp://a"], "--url is ftp://, expected one of http, https, grpc, grpcs"),
        (["--url", "http://a", "--protocol", "raw"], "--url is http://, expected one of grpc, grpcs"),
        (["--url", "grpc://a", "--protocol", "http"], "--url is grpc://, expected one of http, https"),
        (["--url", ""], "--url has no host, expected host:port"),
        (["--url", ":8000"], "--url has no host, expected host:port"),
        (["--url", "http://"], "--url has no host, expected host:port"),
        (["--url", "http://me:pw@a"], "--url has a login, expected host:port"),
        (["--url", "a:b"], "--url has port 'b', expected a number from 1 to 65535"),
        (["--url", "a:70000"], "--url has port '70000', expected a number from 1 to 65535"),
        (["--url", "::1"], "--url is ::1, expected an IPv6 address in brackets, [::1]"),
        (["--url", "a b"], "--url is 'a b', expected host:port"),
        (["--url", "grpc://a/path"], "--url is a:8001/path with a path, expected host:port, as gRPC has no paths"),
        (["--protocol", "tcp"], "--protocol: invalid choice: 'tcp'"),
        (["--model-version", "x"], "--model-version is 'x', expected a whole number of at least 1; see --help"),
        (["--model-version", "0"], "--model-version is '0', expected a whole number of at least 1"),
        (["--ca", "/none"], "--ca is '/none', expected a file"),
        (["--ca", __file__], f"--ca is {__file__}, expected certificates as PEM"),
        (["--insecure", "--protocol", "grpc"], "--insecure is set, but gRPC always verifies certificates. Set "),
        (["--insecure", "--url", "http://a"], "--insecure: --url begins with http://, expected https://, which has TLS"),
        (["--cert", __file__], "--cert or --key is missing, expected both"),
        (["--key", __file__], "--cert or --key is missing, expected both"),
        (["--cert", __file__, "--key", __file__], "--cert and --key are "),
        (["--ca", "{ca}", "--url", "grpc://a"], "--ca: --url begins with grpc://, expected grpcs://, which has TLS"),
        (["--labels", "/none"], "--labels is /none (No such file or directory), expected a file that can be read"),
        (["--labels", ""], "--labels is no name (Is a directory), expected a file that can be read"),
        (["--labels", "{bytes}"], "--labels is "),
        (["--expect", " "], "--expect is ' ', expected a label"),
        (["--class-count", "0"], "--class-count is '0', expected a whole number of at least 1"),
        (["--top", "-1"], "--top is '-1', expected a whole number of at least 1"),
        (["--top", "many"], "--top is 'many', expected a whole number of at least 1"),
        (["--repeat", "0"], "--repeat is '0', expected a whole number of at least 1; see --help"),
        (["--repeat", "1.5"], "--repeat is '1.5', expected a whole number of at least 1"),
        (["--timeout", "-1"], "--timeout is '-1', expected seconds above 0 and at most 86400 (a day); see --help"),
        (["--timeout", "inf"], "--timeout is 'inf', expected seconds above 0"),
        (["--timeout", "soon"], "--timeout is 'soon', expected seconds above 0"),
        (["--json=yes"], "--json: ignored explicit argument 'yes'"),
        (["--js"], "unrecognized arguments: --js"),
        (["another"], "unrecognized arguments: another"),
        (["--output", "A"], "--output is A, expected some of OUT"),
        (["--output", ""], "--output is '', expected a name without / ? #"),
        (["--input", "IN"], "--input is IN, expected NAME=KIND:VALUE with a KIND of npy, text, "),
        (["--input", "IN=many:1"], "--input is IN=many:1, expected NAME=KIND:VALUE with a KIND of npy, text, "),
        (["--input", "A=numbers:1"], "--input is for A, expected one of the model's inputs: IN FP32 [-1, 4]"),
        (["--input", "IN=numbers:1"], "IN is set with 2 values, expected one value, or several of text, image or file"),
        (["--npy", "x"], "--npy is for the only input without a value, but 0 inputs have no value: IN FP32 [-1, 4]"),
        (["--text", "x"], "--text is for the only input without a value, but 0 inputs have no value: IN FP32 [-1, 4]"),
        (["--image", "x"], "--image is for the only input without a value, but 0 inputs have no value: IN FP32 [-1, 4]"),
    ],
)
def test_wrong_use_is_one_line_and_nothing_is_asked(
    run: Any, server: Server, tls: dict[str, str], tmp_path: Path, arguments: list[str], why: str
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    words = [argument.format(**tls, bytes=tmp_path / "bytes") for argument in arguments]
    code, out, err = run("m", "--input", "IN=numbers:1,2,3,4", *words)
    assert (code, out, server.asked) == (2, [], [])
    assert err.startswith(why), err


@pytest.mark.parametrize("model", ["", " ", "a/b", "a?b", "a\nb"])
def test_a_model_that_no_request_can_name(run: Any, server: Server, model: str) -> None:
    code, out, err = run(model, "--npy", "x")
    assert (code, out, server.made) == (2, [], [])
    assert err.startswith(f"MODEL is {model!r}, expected a name without / ? #")


def test_without_an_input_it_says_what_the_model_takes(run: Any, server: Server) -> None:
    server.inputs = TEXTS
    assert run("m") == (2, [], "no input is set, expected the inputs of the model: TEXT BYTES [-1]; LIMIT INT32 [1]")


def test_every_mistake_in_inputs_at_once(run: Any, server: Server) -> None:
    server.inputs = TEXTS
    code, _out, err = run("m", "--input", "TEXT=numbers:1", "--input", "LIMIT=numbers:0.5")
    assert (code, err) == (
        2,
        "TEXT is BYTES, expected a dtype of numbers, or text; LIMIT is 0.5, expected numbers that INT32 can represent",
    )


# Inputs


@pytest.mark.parametrize(
    ("shape", "dtype", "given", "sent"),
    [
        ([-1, 4], "FP32", ["numbers:1,2,3,4"], [[1, 2, 3, 4]]),
        ([-1, 2], "INT64", ["numbers:[[1,2],[3,4]]"], [[1, 2], [3, 4]]),
        ([1], "BOOL", ["numbers:true"], [True]),
        ([-1], "BYTES", ["text:a=b:c", "text:나"], [b"a=b:c", "나".encode()]),
        ([-1, 1], "BYTES", ["text:a", "text:b"], [[b"a"], [b"b"]]),
        ([-1, -1], "BYTES", ["text:a", "text:b"], [[b"a", b"b"]]),
        ([-1], "UINT8", ["file:{four}"], [0, 1, 2, 3]),
        ([-1, -1], "UINT8", ["image:{four}"], [[0, 1, 2, 3]]),
        ([-1, 1], "BYTES", ["image:{four}"], [[bytes(range(4))]]),
        ([-1, 2], "UINT16", ["raw:{four}"], [[0x0100, 0x0302]]),
        ([-1, 4], "FP32", ["npy:{npy}"], [[0, 1, 2, 3]]),
        ([-1, 4], "BF16", ["npy:{npy}"], [[0, 1, 2, 3]]),
    ],
)
def test_inputs_take_the_models_dtype_and_shape(
    run: Any, server: Server, tmp_path: Path, shape: list[int], dtype: str, given: list[str], sent: Any
) -> None:
    (tmp_path / "four").write_bytes(bytes(range(4)))
    np.save(tmp_path / "npy.npy", np.arange(4, dtype=np.float32))
    server.inputs = [{"name": "IN", "datatype": dtype, "shape": shape}]
    places = {"four": tmp_path / "four", "npy": tmp_path / "npy.npy"}
    code, _out, err = run("m", *(part for entry in given for part in ("--input", "IN=" + entry.format(**places))))
    assert (code, err) == (0, "")
    found, array = server.asked[0].inputs["IN"]
    assert (found, array.tolist()) == (dtype, sent)


def test_a_shorthand_is_for_the_input_that_is_left(run: Any, server: Server) -> None:
    server.inputs = TEXTS
    server.answers = lambda question: [{"OUT": question.inputs["TEXT"][1]}]
    code, out, _err = run("m", "--text", "a", "--text", "나", "--input", "LIMIT=numbers:3")
    assert (code, out[0]) == (0, "OUT BYTES [2]: a, 나")


def test_made_up_values_fill_the_shape(run: Any, server: Server) -> None:
    assert run("m", "--input", "IN=generated:7")[0] == run("m", "--input", "IN=generated:7")[0] == 0
    first, second = (question.inputs["IN"][1] for question in server.asked)
    assert first.shape == (1, 4) and first.tolist() == second.tolist()


@pytest.mark.parametrize(
    ("shape", "given", "why"),
    [
        ([-1, 4], "numbers:1,2", "IN is of shape [1, 2], expected [-1, 4], where -1 is any size"),
        ([-1, 4], "npy:{ints}", "IN is INT64, expected FP32"),
        ([-1, 4], "file:{ints}", "IN is file for FP32 [-1, 4], expected BYTES or UINT8 [-1]"),
        ([-1, 4], "raw:{ints}", "IN is "),
        ([-1, 4], "npy:/none", "IN is /none (No such file or directory), expected an array of rows, as numpy.save writes it"),
        ([-1, 4], "npy:", "IN is empty after npy:, expected a value"),
        ([-1, 4], "npy:{npz}", "IN is {npz}, an .npz of the arrays a, b, expected one array in an .npy"),
        ([-1, 4], "npy:{text}", "IN is {text}, which is not an .npy file, expected "),
        ([-1, 4], "npy:{objects}", "IN is {objects}, which contains Python objects or is truncated ("),
        ([-1, 4], "npy:{cut}", "IN is {cut}, which contains Python objects or is truncated ("),
        ([-1, 4], "npy:{one}", "IN is {one}, a single value without rows, expected "),
        ([-1, 4], "npy:{dates}", "IN is datetime64[D] in {dates}, expected numbers or bytes"),
        ([-1, 4], "raw:/none", "IN is /none (No such file or directory), expected a file that can be read"),
        ([-1, 4], "generated:x", "IN is x, expected a whole number as the seed, from 0 to 4294967295"),
        ([-1, 4], "generated:4294967296", "IN is 4294967296, expected a whole number as the seed, from 0 to 4294967295"),
        ([-1, 4], "numbers:1,", "IN is 1,, expected numbers with commas between them, such as 1,2.5 or [[1,2],[3,4]]"),
        ([-1, 4], "numbers:a,b", "IN is a,b, expected numbers with commas between them, such as 1,2.5 or [[1,2],[3,4]]"),
        ([-1, 4], "numbers:" + "[" * 100000, "IN is [[["),
        ([-1, 4], 'numbers:"a"', "IN is 'a', expected numbers"),
        ([-1, 4], "numbers:[[1],[2,3]]", "IN is nested lists of different lengths, expected numbers in lists of equal lengths"),
        ([-1, 4], "text:\udcff", "IN is a text that is not UTF-8, expected a text in UTF-8, or a file of bytes"),
        ([-1, 3, 8, 8], "image:/none", "IN is /none (No such file or directory), expected a file that can be read"),
        ([-1, 3, 8, 8], "image:{text}", "IN is {text} (UnidentifiedImageError), expected a picture that Pillow reads"),
        ([-1, 4, 8, 8], "image:{text}", "IN is image for FP32 [-1, 4, 8, 8], expected BYTES or UINT8 [-1], or FP32 [3, H, W]"),
    ],
)
def test_inputs_that_do_not_fit(run: Any, server: Server, tmp_path: Path, shape: list[int], given: str, why: str) -> None:
    names = ("ints", "npz", "text", "objects", "cut", "one", "dates")
    files = {name: tmp_path / f"{name}.npy" for name in names}
    np.save(files["ints"], np.arange(4))
    np.savez(tmp_path / "npz.npz", a=np.arange(4), b=np.arange(3))
    (tmp_path / "npz.npz").rename(files["npz"])
    files["text"].write_text("words")
    np.save(files["objects"], np.array([object()], object), allow_pickle=True)
    files["cut"].write_bytes(files["ints"].read_bytes()[:100])
    np.save(files["one"], np.float32(1))
    np.save(files["dates"], np.zeros(4, "datetime64[D]"))
    if given == "raw:{ints}":
        files["ints"].write_bytes(bytes(7))
    server.inputs = [{"name": "IN", "datatype": "FP32", "shape": shape}]
    code, _out, err = run("m", "--input", "IN=" + given.format(**files))
    assert (code, server.asked) == (2, [])
    assert err.startswith(why.format(**files)), err


class Picture:
    """Pillow's image as far as it is used: keeps what was done with it."""

    done: ClassVar[list[Any]] = []

    def __init__(self, width: int, height: int) -> None:
        self.size = self.width, self.height = width, height

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *_any: Any) -> None:
        pass

    def convert(self, mode: str) -> Picture:
        assert mode == "RGB"
        return self

    def resize(self, size: tuple[int, int], _filter: Any) -> Picture:
        self.done.append(size)
        return Picture(*size)

    def crop(self, box: tuple[int, int, int, int]) -> np.ndarray:
        self.done.append(box)
        array = np.zeros((box[3] - box[1], box[2] - box[0], 3), np.uint8)
        array[..., 1] = 255
        return array


@pytest.mark.parametrize(
    ("shape", "size", "resized", "box"),
    [
        ([-1, 3, 224, 224], (640, 480), (341, 256), (58, 16, 282, 240)),
        ([-1, 3, 224, 224], (300, 500), (256, 426), (16, 101, 240, 325)),
        ([-1, 3, -1, -1], (100, 100), (256, 256), (16, 16, 240, 240)),
        ([3, 112, 112], (448, 448), (128, 128), (8, 8, 120, 120)),
    ],
)
def test_pixels_as_imagenets_models_take_them(
    run: Any, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: list[int], size: Any, resized: Any, box: Any
) -> None:
    pillow = SimpleNamespace(open=lambda file: Picture(*size) if file.read() == b"picture" else None)
    pillow.Resampling = SimpleNamespace(BILINEAR=2)
    monkeypatch.setitem(sys.modules, "PIL.Image", pillow)
    (tmp_path / "a.jpg").write_bytes(b"picture")
    monkeypatch.setattr(Picture, "done", [])
    server.inputs = [{**IMAGE, "shape": shape}]
    server.answers = lambda _question: [{"OUT": np.array([[0.1, 0.9]], np.float32)}]
    code, out, _err = run("m", "--image", str(tmp_path / "a.jpg"))
    assert (code, out[0]) == (0, "1  probability 0.9000")
    assert Picture.done[:2] == [resized, box]
    sent = server.asked[0].inputs["IN"][1]
    assert sent.dtype == np.float32 and list(sent.shape) == [1] * (len(shape) == 4) + [3, box[3] - box[1], box[2] - box[0]]
    pixel = sent.reshape(3, -1)[:, 0]
    np.testing.assert_allclose(pixel, [-0.485 / 0.229, (1 - 0.456) / 0.224, -0.406 / 0.225], rtol=1e-6)


@pytest.mark.parametrize(
    ("takes", "given"),
    [
        (("BYTES", [-1, 1]), {"image": [["p.png"]]}),
        (("UINT8", [-1, -1]), {"image": ["p.png"], "dtype": "UINT8"}),
        (("FP32", [-1, 3, 12, 10]), {"image": ["p.png"], "dtype": "FP32", "shape": [3, 12, 10]}),
    ],
)
def test_a_picture_is_the_same_as_in_a_check(
    run: Any, server: Server, tmp_path: Path, takes: tuple[str, list[int]], given: dict[str, Any]
) -> None:
    (tmp_path / "m").mkdir()
    levels = np.random.RandomState(7).randint(0, 256, (40, 30, 3)).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "m/p.png")
    check = {"name": "row", "protocols": ["http"], "inputs": {"IN": given}, "expect": {"OUT": {"finite": True}}}
    (tmp_path / "m.yml").write_text(json.dumps({"model": "m", "checks": [check]}))
    (found,) = check_files.read_checks(["m"], [str(tmp_path)], [str(tmp_path)], 0)["checks"]
    (request,) = questions.requests("m", found["checks"][0], 0)
    checked = unpack_check("m", found["checks"][0]).question(request).inputs["IN"]
    server.inputs = [{"name": "IN", "datatype": takes[0], "shape": takes[1]}]
    server.answers = lambda _question: [{"OUT": np.array([[0.1, 0.9]], np.float32)}]
    assert run("m", "--image", str(tmp_path / "m/p.png"))[0] == 0
    dtype, sent = server.asked[0].inputs["IN"]
    assert (dtype, sent.shape) == (checked[0], checked[1].shape)
    assert sent.tolist() == checked[1].tolist()
    assert sent.size > 0 and (dtype == "BYTES" or len(np.unique(sent)) > 50)


# Answers


SCORES = np.array([[0.1, 0.7, 0.2], [3, 1, -5]], np.float32)


def test_label_probability_and_time(run: Any, server: Server, tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("red\ngreen\nblue\n")
    server.answers = lambda _question: [{"OUT": SCORES}]
    code, out, _err = run("m", "--input", "IN=numbers:1,2,3,4", "--labels", str(tmp_path / "labels"), "--repeat", "4")
    soft = np.exp(3) / np.exp([3, 1, -5]).sum()
    assert (code, out[:2]) == (0, ["green  probability 0.7000  class 1", f"red  probability {soft:.4f}  class 0"])
    assert out[2].startswith("4 requests: p50 ") and len(server.asked) == 4


def test_the_servers_own_names_where_it_has_them(run: Any, server: Server) -> None:
    server.labels = ["red", "green", "none: at all"]
    server.answers = lambda _question: [{"OUT": SCORES}]
    code, out, _err = run("m", "--input", "IN=numbers:1,2,3,4", "--top", "2")
    assert (code, [line.split("  ")[0] for line in out[:4]]) == (0, ["green", "none: at all", "red", "green"])
    # One request for the answer, one for the names: the time is that of the first alone.
    assert [dict(question.classes) for question in server.asked] == [{}, {"OUT": 2}]


def test_classes_counted_by_the_server(run: Any, server: Server) -> None:
    server.labels = ["red", "green", "blue"]
    server.answers = lambda _question: [{"OUT": SCORES[:1]}]
    code, out, _err = run("m", "--input", "IN=numbers:1,2,3,4", "--class-count", "2")
    assert (code, out[:2]) == (0, ["green  score 0.7  class 1", "blue  score 0.2  class 2"])


@pytest.mark.parametrize(("label", "code"), [("green", 0), ("red", 1)])
def test_an_expected_label(run: Any, server: Server, label: str, code: int) -> None:
    server.labels = ["red", "green", "blue"]
    server.answers = lambda _question: [{"OUT": SCORES[:1]}]
    found, _out, err = run("m", "--input", "IN=numbers:1,2,3,4", "--expect", label, "--repeat", "3")
    assert (found, err) == (code, "" if code == 0 else "3 of 3 labels are not red, the first is green")


def test_every_one_of_the_repeated_answers_has_to_be_the_expected(run: Any, server: Server) -> None:
    server.answers = lambda _question: [{"OUT": SCORES[:1] if len(server.asked) != 2 else SCORES[1:]}]
    assert run("m", "--input", "IN=numbers:1,2,3,4", "--expect", "1", "--repeat", "3")[::2] == (
        1,
        "1 of 3 labels are not 1, the first is 0",
    )


def test_an_answer_that_is_not_finite_has_no_label(run: Any, server: Server) -> None:
    server.answers = lambda _question: [{"OUT": np.array([[np.nan, 1]], np.float32)}]
    assert run("m", "--input", "IN=numbers:1,2,3,4", "--top", "1")[::2] == (1, "OUT: 1 of 2 values are not finite")


def test_json_is_one_document(run: Any, server: Server) -> None:
    server.answers = lambda _question: [{"OUT": np.array([[1, np.inf]], np.float32), "T": np.array(["나".encode()], object)}]
    code, (line,), _err = run("m", "--input", "IN=numbers:1,2,3,4", "--json", "--repeat", "2", "--model-version", "3")
    found = json.loads(line)
    assert (code, found["model"], found["version"], found["protocol"], found["requests"]) == (0, "m", "3", "http", 2)
    assert found["responses"] == [
        {
            "OUT": {"dtype": "FP32", "shape": [1, 2], "data": [[1.0, None]]},
            "T": {"dtype": "BYTES", "shape": [1], "data": ["나"]},
        }
    ]
    assert sorted(found["ms"]) == ["first", "first_response", "p50", "p99"]
    assert server.asked[0].version == "3"


def test_a_stream_is_shown_as_it_comes(run: Any, server: Server) -> None:
    server.answers = lambda _question: [{"OUT": np.array([number], np.int32)} for number in (3, 4)]
    code, out, _err = run("m", "--protocol", "stream", "--input", "IN=numbers:1,2,3,4")
    assert (code, out[:2]) == (0, ["1: OUT 3", "2: OUT 4"])
    assert out[2].startswith("2 responses, the first after ")


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (TimeoutError("x"), 3, "localhost:8000: m did not answer within 30 s"),
        (ConnectionResetError(104, "reset"), 3, "localhost:8000: [Errno 104] reset"),
        (
            InferenceServerException("Request for unknown model: 'm' has no available versions", "400"),
            3,
            "localhost:8000: Request for ",
        ),
        (InferenceServerException("Exceeds maximum queue size", "503"), 3, "localhost:8000: Exceeds maximum queue size"),
        (InferenceServerException("on\nfire", "500"), 1, "localhost:8000: on fire"),
        (
            InferenceServerException("doesn't support models with decoupled transaction policy", "500"),
            1,
            "localhost:8000: doesn't support models with decoupled transaction policy; the model answers in streams: "
            "use the protocol stream",
        ),
        (
            InferenceServerException("exceeds the maximum allowed value. Use --http-max-input-size to increase the limit.", "400"),
            1,
            "localhost:8000: exceeds the maximum allowed value. Use --http-max-input-size to increase the limit.; or use gRPC",
        ),
        (questions.TooLarge("found 2.2 GiB of inputs"), 2, "found 2.2 GiB of inputs"),
    ],
)
def test_no_answer_is_one_line(run: Any, server: Server, error: Exception, code: int, why: str) -> None:
    server.answers = lambda _question: [error]
    found, out, err = run("m", "--input", "IN=numbers:1,2,3,4")
    assert (found, out) == (code, [])
    assert err.startswith(why)


@pytest.mark.parametrize(
    ("gone", "todo"),
    [
        ("no Triton answers http at h:1: refused", "Start the server, or name another one with --url"),
        ("no Triton answers http at h:1: CERTIFICATE_VERIFY_FAILED", "Set --ca to the CA certificate of the server"),
        (
            "no Triton answers http at h:1: what listens there does not speak HTTP",
            "Name the other port with --url, or use --protocol grpc",
        ),
    ],
)
def test_a_server_that_is_not_there(run: Any, server: Server, gone: str, todo: str) -> None:
    server.gone = gone
    assert run("m", "--input", "IN=numbers:1,2,3,4") == (3, [], f"{gone}. {todo}")


def test_an_unknown_model_and_what_there_is(run: Any) -> None:
    words = "localhost:8000: Request for unknown model: 'unknown' is not found; it serves m"
    assert run("unknown", "--npy", "x") == (3, [], words)


def test_a_version_that_is_not_there_and_those_that_are(run: Any) -> None:
    words = "Request for unknown model: 'm' version 7 is not found; version 7 of m is not ready, expected one of 9, 10"
    assert run("m", "--model-version", "7", "--npy", "x") == (3, [], f"localhost:8000: {words}")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("an exception occurred in the client while decoding the response: Expecting value: line 1 column 1 (char 0)", "404"),
        ("Parse error at offset 0: The document is empty.", ""),
    ],
)
def test_what_listens_and_is_no_triton(run: Any, server: Server, said: str, status: str) -> None:
    """The words would be those of parsers of JSON."""
    server.answers = lambda _question: [InferenceServerException(said, status)]
    _code, _out, err = run("m", "--input", "IN=numbers:1,2,3,4")
    why = "localhost:8000: the port answers without Triton's JSON, as a proxy or Triton's metrics port would"
    assert err.startswith(why)


# The command itself


def test_it_runs_from_anywhere_and_tells_how_to_get_a_client(tmp_path: Path) -> None:
    """Without the site's packages there is no client, which is one line and no traceback."""
    done = subprocess.run(
        [sys.executable, "-S", str(COMMAND), "m", "--npy", "x"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("npufleet-infer: the client is not installed (")
    assert done.stderr.count("\n") == 1 and 'pip install "tritonclient[http,grpc]' in done.stderr
    told = subprocess.run([str(COMMAND), "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "NAME=KIND:VALUE" in told.stdout


@pytest.mark.parametrize("page", ["docs/infer.md", "docs/infer.ko.md"])
def test_the_commands_of_the_page_are_ones_that_it_takes(infer: Any, page: str) -> None:
    lines = [part for line in (ROOT / page).read_text().splitlines() for part in line.split("`")[1::2]]
    commands = [line for line in lines if line.startswith(("npufleet-infer ", "... "))]
    assert len(commands) == 13
    for line in commands:
        words = shlex.split(line.replace("...", "npufleet-infer m"))[1:]
        given = infer.parser().parse_args(words)
        assert given.model and all(entry.partition("=")[2].split(":")[0] in request_inputs.KINDS for entry in given.input), line
