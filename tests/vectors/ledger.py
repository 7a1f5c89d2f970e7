#!/usr/bin/env python3
"""Computes every id, leaf and chain value of a real ledger from the rules of docs/reference/events.md, sharing no code with the project.

    tests/vectors/ledger.py EXPORT KEYS     an export (`smesh ledger export`), and a file of public keys (`smesh ledger key show`)

Prints one line per difference, how many ids there are by how they come about and by type, and what has none to be computed. Exits 1 if anything differs.
Python 3.9 or later, standard library only.
"""

import base64
import collections
import hashlib
import json
import pathlib
import re
import sys

from check import Comparison, export, fact_id, leaf, prefixed, recorded, token

# Field numbers, from docs/reference/events.md section 3, "Where a reader finds it".
EVENT = {"id": 1, "cluster": 2, "type": 3, "entity": 13, "id_source": 16}
ENTITY = {"key": 2}
ID_SOURCE = {"slot": 1, "n": 2, "cause": 3, "entity": 4}
AUDIT = {"id": 1, "cluster": 2, "kind": 3, "delivery": 10, "read": 11, "key": 14, "retention": 15, "replay": 20, "history": 22}
DELIVERY = {"endpoint": 1, "event_id": 2, "round": 10}
READ = {"phase": 12, "replay_id": 14}
KEY = {"vkey": 1}
RETENTION = {"first": 1, "last": 2, "sha256": 4}
REPLAY = {"replay_id": 1, "phase": 9}
HISTORY = {"what": 1, "origin": 2, "checkpoint": 4, "entries": 5}

SLOTS = {
    "job.baseline": "baseline",
    "job.submitted": "submitted",
    "job.started": "started",
    "job.updated": "updated",
    "cost.estimated": "cost.estimated",
    "cost.finalized": "cost.finalized",
    **dict.fromkeys(
        (
            f"job.{word}"
            for word in "completed failed cancelled timeout out_of_memory node_fail preempted boot_fail deadline revoked requeued".split()
        ),
        "end",
    ),
}
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference/events.md"
# How ids of each type come about, from the table of section 1.
IDENTITY = dict(re.findall(r"^\| `(\w+\.\w+)` \| (recorded|sampled|derived|sampled or derived) \|", PAGE.read_text(encoding="utf-8"), re.M))
RANDOM = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def fields(data, names):
    """The named fields of a protobuf message: bytes or numbers, None if absent."""
    found, at = dict.fromkeys(names), 0
    by_number = {number: name for name, number in names.items()}

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            value = varint()
        else:
            length = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            value = data[at:at + length]
            at += length
        if number in by_number:
            found[by_number[number]] = value
    return found


def text(value):
    return (value or b"").decode()


def run_of(cluster, key):
    job, task, submit, attempt = re.fullmatch(r"job/(\d+)(?:_(\d+))?/(-?\d+)(?:/(\d+))?", key).groups()
    return {"cluster": cluster, "job_id": job, "task_id": task, "submit_time": submit, "attempt": attempt or 0}


def event_id(body):
    """How the id of an event comes about, and the id."""
    event = fields(body, EVENT)
    cluster, kind = text(event["cluster"]), text(event["type"])
    key = text(fields(event["entity"], ENTITY)["key"])
    source = fields(event["id_source"] or b"", ID_SOURCE)
    n = source["n"] or 0
    if source["cause"] is not None:
        return "derived", fact_id("slurm-mesh/derived/1", text(source["cause"]), kind, n)
    if source["n"] is not None:
        return "sampled", fact_id("slurm-mesh/sampled/1", cluster, text(source["entity"]) or key, kind, n)
    slot = text(source["slot"]) or SLOTS[kind]
    return "recorded", recorded(run_of(cluster, key), slot)


# Kinds of audit entries, from the table of section 3: those with an id of fields, and those with a random one.
COMPUTED_KINDS = re.findall(r"^\| `(\w+)`(?:, by a replay)? \| `slurm-mesh/", PAGE.read_text(encoding="utf-8"), re.M)
RANDOM_KINDS = re.findall(r"`(\w+)`", re.search(r"^\| ((?:`\w+`(?:, )?)+) \| none: a random", PAGE.read_text(encoding="utf-8"), re.M)[1])


def audit_id(body):
    """The same of an audit entry; the id is None if it is random."""
    entry = fields(body, AUDIT)
    kind = text(entry["kind"])
    if kind == "delivery":
        act = fields(entry["delivery"], DELIVERY)
        event = text(act["event_id"]) + (f"#{act['round']}" if act["round"] else "")
        return kind, fact_id("slurm-mesh/delivery/1", text(act["endpoint"]), event)
    if kind == "key":
        return kind, fact_id("slurm-mesh/key/1", text(fields(entry["key"], KEY)["vkey"]))
    if kind == "retention":
        act = fields(entry["retention"], RETENTION)
        numbers = [act[name].to_bytes(8, "big") for name in ("first", "last")]
        return kind, uuid8(b"slurm-mesh/retention/1", *numbers, bytes.fromhex(text(act["sha256"])))
    if kind == "history":
        act = fields(entry["history"], HISTORY)
        said = [text(act[name]) for name in ("what", "origin", "checkpoint")]
        return kind, fact_id("slurm-mesh/history/1", *said, act["entries"] or 0)
    if kind in ("replay", "read"):
        act = fields(entry[kind], {"replay": REPLAY, "read": READ}[kind])
        if act["replay_id"] is not None:
            return f"{kind} of a replay", fact_id("slurm-mesh/replay/1", text(act["replay_id"]), kind, text(act["phase"]))
    return kind, None


def uuid8(*parts):
    """As fact_id, of fields that are no texts."""
    digest = bytearray(hashlib.sha256(b"".join(map(prefixed, parts))).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    hexadecimal = digest.hex()
    return "-".join((hexadecimal[:8], hexadecimal[8:12], hexadecimal[12:16], hexadecimal[16:20], hexadecimal[20:]))


def check(lines, vkeys):
    compare, found = Comparison(), collections.Counter()
    compare.equal("size of the signed checkpoint", export(lines, vkeys), json.loads(lines[-1])["seq"])
    for line in lines[1:]:
        entry = json.loads(line)
        if "body" not in entry:
            found["without content"] += 1
            continue
        body = base64.b64decode(entry["body"])
        what = f"entry {entry['seq']}, {entry['subject']}"
        compare.equal(f"leaf of {what}", leaf({**entry, "body": body.hex()}).hex(), entry["leaf"])
        is_audit = entry["subject"].startswith(f"mesh.{token(entry['cluster'])}.audit.")
        kind, computed = audit_id(body) if is_audit else event_id(body)
        carried = text(fields(body, {"id": 1})["id"])
        compare.equal(f"id within {what}", carried, entry["id"])
        if is_audit:
            allowed = RANDOM_KINDS if computed is None else COMPUTED_KINDS
            compare.equal(f"the page has kind {kind} of {what}", kind.split(" ")[0] in allowed, True)
        if computed is None:
            kind += ", random"
            compare.equal(f"random id of {what}", bool(RANDOM.fullmatch(entry["id"])), True)
        else:
            compare.equal(f"id of {what}", computed, entry["id"])
        found["audit: " + kind if is_audit else kind] += 1
        if not is_audit:
            of = text(fields(body, EVENT)["type"])
            compare.equal(f"{kind} is an identity of {of}", kind in IDENTITY[of].split(" or "), True)
            found[f"type {of}: {IDENTITY[of]}"] += 1
    return compare, found


def main():
    path, keys = sys.argv[1:]
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    compare, found = check(lines, pathlib.Path(keys).read_text(encoding="utf-8").split())
    for kind, count in sorted(found.items()):
        print(f"{count:8} {kind}")
    print(f"{compare.compared} compared, {compare.different} different")
    sys.exit(1 if compare.different or not compare.compared else 0)


if __name__ == "__main__":
    main()
