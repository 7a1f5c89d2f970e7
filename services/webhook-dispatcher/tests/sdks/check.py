"""Reads {"target", ...} lines, checks each as its target would, and writes what is wrong, one line each; at the end the number of lines."""

import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from slack_sdk.models.blocks import Block
from standardwebhooks import Webhook


def slack(line):
    body = line["body"]
    assert isinstance(body["text"], str) and 1 <= len(body["text"]) <= 4000, "text"
    blocks = Block.parse_all(body["blocks"])
    assert 1 <= len(blocks) <= 50, "number of blocks"
    for block, sent in zip(blocks, body["blocks"], strict=True):
        # Raises SlackObjectFormationError; what it does not know it drops.
        understood = block.to_dict()
        assert understood["type"] == sent["type"], "type of block"
        assert set(understood) == set(sent), f"{set(understood)} of {set(sent)}"
        for text in [sent.get("text")] + sent.get("fields", []) + sent.get("elements", []):
            assert text is None or len(text["text"]) >= 1, "empty text"
        assert len(sent.get("fields", [])) <= 10 and len(sent.get("elements", [])) <= 10, "too many parts"
        for field in sent.get("fields", []):
            assert len(field["text"]) <= 2000, "field"


def signature(line):
    Webhook(line["secret"]).verify(line["body"], line["headers"])


def cloudevent(line):
    event = from_http_event(HTTPMessage(headers=line["headers"], body=line["body"].encode()), JSONFormat())
    for name, expected in line["expected"].items():
        found = {"id": event.get_id, "source": event.get_source, "type": event.get_type, "subject": event.get_subject}[name]()
        assert found == expected, f"{name}: {found!r} instead of {expected!r}"
    assert event.get_data()["id"] == line["expected"]["id"], "data"


CHECKS = {"slack": slack, "signature": signature, "cloudevent": cloudevent}

count = 0
for text in sys.stdin:
    count += 1
    line = json.loads(text)
    try:
        CHECKS[line["target"]](line)
    except Exception as error:
        print(f"line {count}, {line['target']}: {type(error).__name__}: {error}")
print(f"checked {count}")
