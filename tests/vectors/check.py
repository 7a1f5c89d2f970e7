#!/usr/bin/env python3
"""Computes every value of docs/reference/vectors.json from the rules of docs/reference/events.md, sharing no code with the project.

    tests/vectors/check.py [vectors.json]

Prints one line per difference and the number of values that were compared. Exits 1 if anything differs.
Python 3.9 or later, standard library only.
"""

import base64
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


def root(leaves):
    """RFC 6962, section 2.1: the root over leaf hashes."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return hashlib.sha256(b"\1" + root(leaves[:k]) + root(leaves[k:])).digest()


def split(count):
    """The largest power of two below a count."""
    return 1 << (count - 1).bit_length() - 1


def inclusion(index, leaves):
    """RFC 6962, section 2.1.1: PATH(m, D[n])."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if index < k:
        return [*inclusion(index, leaves[:k]), root(leaves[k:])]
    return [*inclusion(index - k, leaves[k:]), root(leaves[:k])]


def consistency(size, leaves, known=True):
    """RFC 6962, section 2.1.2: SUBPROOF(m, D[n], b)."""
    if size == len(leaves):
        return [] if known else [root(leaves)]
    k = split(len(leaves))
    if size <= k:
        return [*consistency(size, leaves[:k], known), root(leaves[k:])]
    return [*consistency(size - k, leaves[k:], False), root(leaves[:k])]


def edge(leaves):
    """The roots of the complete subtrees, the largest first."""
    roots = []
    while leaves:
        k = 1 << len(leaves).bit_length() - 1
        roots.append(root(leaves[:k]))
        leaves = leaves[k:]
    return roots


# Ed25519, RFC 8032 section 5.1, verification only

P = 2**255 - 19
Q = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def add(a, b):
    (x1, y1), (x2, y2) = a, b
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, P)
    return x % P, y % P


def times(n, point):
    result = (0, 1)
    while n:
        if n & 1:
            result = add(result, point)
        point = add(point, point)
        n >>= 1
    return result


def point(data):
    number = int.from_bytes(data, "little")
    y, sign = number % 2**255, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - square) % P:
        return None
    return (P - x if x % 2 != sign else x), y


BASE = point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def is_signed(key, text, signature):
    public, r, s = point(key), point(signature[:32]), int.from_bytes(signature[32:], "little")
    if public is None or r is None or s >= Q or len(signature) != 64:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + text).digest(), "little") % Q
    return times(s, BASE) == add(r, times(h, public))


def open_note(note, vkeys):
    """The text of a note and how many of the keys have signed it; every signature of one of them must be right."""
    at = note.rindex("\n\n") + 1
    text, signed = note[:at], 0
    for line in note[at + 1:].removesuffix("\n").split("\n"):
        dash, name, encoded = line.split(" ")
        signature = base64.b64decode(encoded, validate=True)
        for vkey in vkeys:
            key_name, key_id, key = vkey.split("+", 2)
            key = base64.b64decode(key, validate=True)
            computed = hashlib.sha256(key_name.encode() + b"\n" + key).digest()[:4]
            if (dash, name, signature[:4]) == ("\u2014", key_name, computed) and key_id == computed.hex() and key[0] == 1:
                if not is_signed(key[1:], text.encode(), signature[4:]):
                    return None, 0
                signed += 1
    return text, signed


def export(lines, vkeys):
    """The size of the checkpoint of an export whose lines fit it, None if one does not."""
    header, entries = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
    text, signed = open_note(header["checkpoint"], vkeys)
    _, size, signed_root = text.splitlines()[:3]
    chain, leaves = bytes.fromhex(header["chain"]), []
    for seq, entry in enumerate(entries, header["from"]):
        hashed = bytes.fromhex(entry["leaf"])
        if "body" in entry and leaf({**entry, "body": base64.b64decode(entry["body"]).hex()}) != hashed:
            return None
        chain = hashlib.sha256(chain + hashed).digest()
        if entry["seq"] != seq or entry["chain"] != chain.hex():
            return None
        leaves.append(hashed)
    # The tree of what is before is known by its edge only.
    stack = list(zip(bits(header["from"] - 1), map(bytes.fromhex, header["edge"])))
    for hashed in leaves:
        stack.append((1, hashed))
        while len(stack) > 1 and stack[-1][0] == stack[-2][0]:
            (count, right), (_, left) = stack.pop(), stack.pop()
            stack.append((2 * count, hashlib.sha256(b"\1" + left + right).digest()))
    computed = stack.pop()[1]
    while stack:
        computed = hashlib.sha256(b"\1" + stack.pop()[1] + computed).digest()
    fits = header["from"] - 1 + len(leaves) == int(size) and base64.b64encode(computed).decode() == signed_root
    return int(size) if signed and fits else None


def bits(number):
    return [1 << bit for bit in range(63, -1, -1) if number >> bit & 1]


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
    tree = vectors["tree"]
    leaves = [bytes.fromhex(text) for text in tree["leaves"]]
    hexes = lambda hashes: [hashed.hex() for hashed in hashes]
    for size, expected in enumerate(tree["roots"]):
        compare.equal(f"root {size}", root(leaves[:size]).hex(), expected)
        compare.equal(f"edge {size}", hexes(edge(leaves[:size])), tree["edges"][size])
    for vector in tree["inclusion"]:
        path = inclusion(vector["index"], leaves[:vector["size"]])
        compare.equal(f"inclusion {vector['index']} in {vector['size']}", hexes(path), vector["path"])
    for vector in tree["consistency"]:
        path = consistency(vector["from"], leaves[:vector["to"]])
        compare.equal(f"consistency {vector['from']} to {vector['to']}", hexes(path), vector["path"])
    for vector in vectors["checkpoints"]:
        text, signed = open_note(vector["note"], vector["vkeys"])
        lines = [vector["origin"], str(vector["size"]), base64.b64encode(bytes.fromhex(vector["root"])).decode()]
        compare.equal(f"checkpoint {vector['size']}", text, "\n".join(lines) + "\n")
        compare.equal(f"signatures of checkpoint {vector['size']}", signed, len(vector["vkeys"]))
    for vector in vectors["exports"]:
        compare.equal("export", export(vector["lines"], vector["vkeys"]), vector["size"])
    return compare


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "vectors.json"
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    compare = check(json.loads(path.read_text(encoding="utf-8")))
    print(f"{compare.compared} compared, {compare.different} different")
    sys.exit(1 if compare.different or not compare.compared else 0)


if __name__ == "__main__":
    main()
