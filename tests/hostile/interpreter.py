"""The Python of a hostile host: it runs no module, it returns the prepared answers.

Ansible starts it as `ansible_python_interpreter` with the file of a module, whose name and arguments it reads. It uses the
standard library only.
"""

import ast
import base64
import hashlib
import json
import re
import sys
from pathlib import Path


def main() -> None:
    place = Path(__file__).parent
    with open(sys.argv[1], encoding="utf-8") as source:
        module, arguments = called(source.read(), (place / "library").exists())
    with open(place / "asked", "a", encoding="utf-8") as asked:
        asked.write(module + "\n")
    if module == "library_call":
        print(json.dumps({"library_missing": True, "as_root": (place / "root").exists()}))
        return
    if module == "host_library":
        (place / "library").touch()
    answers = json.loads((place / "answers.json").read_text())
    answer = answers.get(module, answers["any"])
    if module == "adoption":
        # One module, three questions
        answer = answer[next((entry for entry in ("piece", "requests") if arguments["_request"].get(entry)), "look")]
    if module == "support_bundle" and "raw" in answer:
        raw = base64.b64decode(answer.pop("raw"))
        Path(arguments["_request"]["archive"]).write_bytes(raw)
        answer["sha256"] = hashlib.sha256(raw).hexdigest()
    print(json.dumps(answer))


def called(text: str, keeps_library: bool) -> tuple[str, dict]:
    """Return the module that Ansible sends, and its arguments."""
    carried = re.search(r'^ *text = r"""(.*)"""$', text, re.MULTILINE)
    if carried:
        call = json.loads(carried[1])
        return (call["module"], call["parameters"]) if keeps_library else ("library_call", call)
    # The last one is the call: the wrapper itself passes names of the same kind on.
    module = ast.literal_eval(re.findall(r"^ *module_fqn=('.*'),$", text, re.MULTILINE)[-1]).rpartition(".")[2]
    params = re.findall(r"^ *params=(['\"].*['\"]),$", text, re.MULTILINE)[-1]
    return module, json.loads(ast.literal_eval(params))["ANSIBLE_MODULE_ARGS"]


if __name__ == "__main__":
    main()
