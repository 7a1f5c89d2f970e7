#!/usr/bin/env python3
"""Computes every value of docs/vectors.json from the rules of docs/events.md, sharing no code with the project.

    tests/vectors/check.py [vectors.json]

Prints one line per difference and the number of values that were compared. Exits 1 if anything differs.
Python 3.9 or later, standard library only.
"""

import hashlib
import json
import pathlib
import re
import sys
from datetime import datetime, timezone

PRINTABLE = set(range(0x21, 0x7F)) - set(b'"%')
PLAIN = set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")


# Section 2: runs


def run_key(run):
    key = f"job/{run['job_id']}"
    if run["task_id"] is not None:
        key += f"_{run['task_id']}"
    key += f"/{run['submit_time']}"
    if run["attempt"] > 0:
        key += f"/{run['attempt']}"
    return key


def is_run_key(text):
    number = "(0|[1-9][0-9]*)"
    pattern = f"job/{number}(_{number})?/(-?[1-9][0-9]*|0)(/[1-9][0-9]*)?"
    found = re.fullmatch(pattern, text, re.ASCII)
    return bool(found) and int(found[1]) < 2**32 and int(found[3] or 0) < 2**32


# Section 3: ids


def fact_id(*fields):
    data = b"".join(prefixed(str(field).encode()) for field in fields)
    digest = bytearray(hashlib.sha256(data).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def recorded(run, slot):
    task = "" if run["task_id"] is None else run["task_id"]
    return fact_id("slurm-mesh/recorded/1", run["cluster"], run["job_id"], task, run["submit_time"], run["attempt"], slot)


def sampled(vector):
    return fact_id("slurm-mesh/sampled/1", vector["cluster"], vector["entity"], vector["type"], vector["n"])


def derived(vector):
    return fact_id("slurm-mesh/derived/1", vector["cause"], vector["type"], vector["n"])


def prefixed(data):
    return len(data).to_bytes(4, "big") + data


# Section 4: subjects


def token(name):
    if name == "":
        return "_"
    return "".join(chr(byte) if byte in PLAIN else f"_{byte:02X}" for byte in name.encode())


def name_of(text):
    """The name behind a token, None if no name gives it."""
    if text == "_":
        return ""
    try:
        data = re.sub(rb"_([0-9A-F]{2})", lambda hexadecimal: bytes.fromhex(hexadecimal[1].decode()), text.encode())
        name = data.decode()
    except UnicodeDecodeError:
        return None
    return name if name and token(name) == text else None


def subject(event):
    category, word = event["type"].split(".")
    payload = event[category]
    owner = event.get("owner", {})
    if category in ("job", "queue"):
        names = [payload["job"].get("partition", ""), owner.get("user", "")]
    elif category == "cost":
        names = [owner.get("account", ""), owner.get("user", "")]
    elif category == "node":
        names = [event["entity"]["key"][len("node/"):]]
    elif category == "user":
        names = [payload.get("user", "")]
    else:
        names = [payload.get("source", "")]
    return ".".join(["slurm", token(event["cluster"]), category, word, *map(token, names)])


# Section 5: CloudEvents


def time_text(text):
    """RFC 3339 in UTC; a fraction of 3, 6 or 9 digits if it is not zero."""
    whole, fraction, offset = re.fullmatch(r"([^.]*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", text).groups()
    moment = datetime.fromisoformat(whole + offset.replace("Z", "+00:00")).astimezone(timezone.utc)
    nanos = (fraction or "").ljust(9, "0")
    digits = next((n for n in (0, 3, 6) if not nanos[n:].strip("0")), 9)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + ("." + nanos[:digits] if digits else "") + "Z"


def attributes(event):
    return {
        "id": event["id"],
        "source": f"/clusters/{event['cluster']}",
        "type": f"org.slurm-mesh.{event['type']}.v1",
        "subject": event["entity"]["key"],
        "time": time_text(event["occurredAt"]),
        "dataschema": "urn:slurm-mesh:mesh.event.v1.Event",
    }


def headers(event):
    encoded = {f"ce-{name}": percent(value) for name, value in attributes(event).items()}
    return {"ce-specversion": "1.0", **encoded, "content-type": "application/protobuf"}


def percent(text):
    return "".join(chr(byte) if byte in PRINTABLE else f"%{byte:02X}" for byte in text.encode())


# Section 6: the ledger


def leaf(entry):
    fields = (
        entry["cluster"].encode(),
        entry["seq"].to_bytes(8, "big"),
        entry["id"].encode(),
        entry["subject"].encode(),
        bytes.fromhex(entry["body"]),
    )
    return hashlib.sha256(b"\0" + b"".join(map(prefixed, fields))).digest()


class Comparison:
    def __init__(self):
        self.compared = 0
        self.different = 0

    def equal(self, what, computed, expected):
        self.compared += 1
        if computed != expected:
            self.different += 1
            print(f"{what}: computed {computed!r}, the file has {expected!r}")


def check(vectors):
    compare = Comparison()
    for vector in vectors["run_keys"]:
        compare.equal("run key", run_key(vector["run"]), vector["key"])
        compare.equal(f"run key {vector['key']!r}", is_run_key(vector["key"]), True)
    for text in vectors["no_run_keys"]:
        compare.equal(f"run key {text!r}", is_run_key(text), False)
    for vector in vectors["recorded"]:
        compare.equal(f"recorded {vector}", recorded(vector["run"], vector["slot"]), vector["id"])
    for vector in vectors["sampled"]:
        compare.equal(f"sampled {vector}", sampled(vector), vector["id"])
    for vector in vectors["derived"]:
        compare.equal(f"derived {vector}", derived(vector), vector["id"])
    for vector in vectors["tokens"]:
        compare.equal(f"token of {vector['name']!r}", token(vector["name"]), vector["token"])
        compare.equal(f"name of {vector['token']!r}", name_of(vector["token"]), vector["name"])
    for text in vectors["no_tokens"]:
        compare.equal(f"name of {text!r}", name_of(text), None)
    for vector in vectors["events"]:
        event = vector["event"]
        compare.equal("subject", subject(event), vector["subject"])
        compare.equal("attributes", attributes(event), vector["attributes"])
        compare.equal("headers", headers(event), vector["headers"])
    chain = bytes(32)
    for index, entry in enumerate(vectors["ledger"]):
        compare.equal("seq", index + 1, entry["seq"])
        hashed = leaf(entry)
        chain = hashlib.sha256(chain + hashed).digest()
        compare.equal(f"leaf {entry['seq']}", hashed.hex(), entry["leaf"])
        compare.equal(f"chain {entry['seq']}", chain.hex(), entry["chain"])
    return compare


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "docs" / "vectors.json"
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    compare = check(json.loads(path.read_text(encoding="utf-8")))
    print(f"{compare.compared} compared, {compare.different} different")
    sys.exit(1 if compare.different or not compare.compared else 0)


if __name__ == "__main__":
    main()
