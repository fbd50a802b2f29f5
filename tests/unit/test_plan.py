"""Plan items as people and `--diff` read them."""

from __future__ import annotations

from ansible_collections.npufleet.triton.plugins.module_utils.plan import Refusal, as_diff, item, sentence, short


def test_item_has_five_fields() -> None:
    assert item("driver", "package", None, "1.2.92", "install") == {
        "concern": "driver",
        "name": "package",
        "current": None,
        "desired": "1.2.92",
        "action": "install",
    }


def test_short_is_one_line() -> None:
    assert short(None) == "nothing"
    assert short("two\n  lines") == "two lines"
    assert short({"b": 1, "a": [True]}) == '{"a": [true], "b": 1}'
    assert short(0) == "0"
    assert short("x" * 300) == "x" * 300
    assert short("x" * 301) == "x" * 297 + "..."


def test_sentence_says_found_wanted_and_action() -> None:
    entry = item("server", "digits", None, "version 1 READY 0123456789ab", "load")
    assert sentence(entry) == "server digits is missing, expected version 1 READY 0123456789ab (load)"


def test_diff_has_a_line_for_each_item_on_both_sides() -> None:
    plan = [item("driver", "package", "1.1.67", "1.2.92", "install"), item("models", "faces", "0003-abc", None, "withdraw")]
    assert as_diff(plan) == {
        "before_header": "actual",
        "after_header": "desired",
        "before": "driver package: 1.1.67\nmodels faces: 0003-abc\n",
        "after": "driver package: 1.2.92\nmodels faces: nothing\n",
    }


def test_refusal_keeps_its_reasons_apart() -> None:
    refusal = Refusal(["one", "two"])
    assert refusal.reasons == ["one", "two"]
    assert str(refusal) == "one; two"
