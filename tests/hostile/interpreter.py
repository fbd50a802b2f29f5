"""The Python of a host in somebody else's hands: it runs no module, it answers what it was prepared to answer.

Ansible starts it as `ansible_python_interpreter` with a module's file, whose name and arguments it reads; or it is asked for a
module of the library that it claims to have. Standard library alone.
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
    if sys.argv[1] == "-IS":
        if not (place / "library").exists():
            sys.exit(2)
        print("npufleet library: called", flush=True)
        module, arguments = sys.argv[4], json.load(sys.stdin)["options"]
    else:
        with open(sys.argv[1], encoding="utf-8") as source:
            text = source.read()
        # The last one: the wrapper itself passes names of the same kind on
        module = ast.literal_eval(re.findall(r"^ *module_fqn=('.*'),$", text, re.MULTILINE)[-1]).rpartition(".")[2]
        arguments = json.loads(ast.literal_eval(re.findall(r"^ *params=(['\"].*['\"]),$", text, re.MULTILINE)[-1]))[
            "ANSIBLE_MODULE_ARGS"
        ]
    with open(place / "asked", "a", encoding="utf-8") as asked:
        asked.write(module + "\n")
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


if __name__ == "__main__":
    main()
