"""Compares the ledger, and what a webhook receiver got, with Slurm's accounting; by code that shares nothing with the services.

oracle.py --api URL --token FILE [--ca FILE] --accounting FILE --received FILE [--costs]

FILE of --accounting: `sacct -D -X -P -n -o JobIDRaw,State,Submit,Start,End,NodeList,ExitCode` with times in seconds. Exit status 1 names what is missing,
twice, wrong or too much.
"""

import argparse
import collections
import json
import ssl
import sys
import urllib.parse
import urllib.request

ENDS = {"COMPLETED": "job.completed", "FAILED": "job.failed", "CANCELLED": "job.cancelled", "TIMEOUT": "job.timeout", "NODE_FAIL": "job.node_fail"}
COMPARED = {"job.submitted", "job.started", "job.updated", "cost.finalized", *ENDS.values()}

parser = argparse.ArgumentParser()
for name in ("--api", "--token", "--accounting", "--received"):
    parser.add_argument(name, required=True)
parser.add_argument("--ca")
parser.add_argument("--costs", action="store_true", help="each run that started has one final cost")
options = parser.parse_args()
faults = []


def ledger():
    """All entries, page by page."""
    context = ssl.create_default_context(cafile=options.ca) if options.ca else None
    cursor = None
    while True:
        query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
        request = urllib.request.Request(f"{options.api}/v1/events?{urllib.parse.urlencode(query)}")
        request.add_header("authorization", "Bearer " + open(options.token, encoding="ascii").read().strip())
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            page = json.load(answer)
        for entry in page["entries"]:
            if "event" in entry:
                yield entry["event"]
        cursor = page["next_cursor"]
        if not cursor:
            return


def expected():
    """Facts by run, from accounting: type -> exit code, or None."""
    runs = {}
    for line in open(options.accounting, encoding="utf-8"):
        job, state, submit, _start, _end, nodes, code = line.rstrip("\n").split("|")
        state = state.split(" ")[0]
        if state not in ENDS:
            faults.append(f"accounting: job {job} is {state}")
            continue
        facts = {"job.submitted": None, ENDS[state]: int(code.split(":")[0])}
        if nodes != "None assigned":
            facts |= {"job.started": None, "job.updated": None}
            if options.costs:
                facts["cost.finalized"] = None
        runs[f"job/{job}/{submit}"] = facts
    return runs


events = list(ledger())
for event, times in collections.Counter(event["id"] for event in events).items():
    if times > 1:
        faults.append(f"twice: {event} is in the ledger {times} times")
seen = collections.defaultdict(lambda: collections.defaultdict(list))
for event in events:
    kind = event["data"]["type"]
    if kind in COMPARED and (options.costs or not kind.startswith("cost.")):
        seen[event["data"]["entity"]["key"]][kind].append(event)
runs = expected()
for run, facts in runs.items():
    for kind, code in facts.items():
        found = seen[run][kind]
        if len(found) != 1:
            faults.append(f"{'missing' if not found else 'twice'}: {kind} of {run}: {len(found)}")
        elif code is not None and found[0]["data"]["job"]["job"].get("exitCode", {}).get("code", 0) != code:
            faults.append(f"wrong: {kind} of {run} says {found[0]['data']['job']['job'].get('exitCode')}, accounting {code}")
for run, kinds in seen.items():
    for kind, found in kinds.items():
        if found and kind not in runs.get(run, {}):
            faults.append(f"too much: {kind} of {run}")

received = [json.loads(line) for line in open(options.received, encoding="utf-8")]
faults += [f"webhook: {line['unverified']}" for line in received if "unverified" in line]
ids = collections.Counter(line["id"] for line in received if "id" in line)
for event in events:
    if event["data"]["type"].startswith("job.") and event["id"] not in ids:
        faults.append(f"missing at the receiver: {event['data']['type']} {event['id']}")
known = {event["id"] for event in events}
faults += [f"too much at the receiver: {event}" for event in ids if event not in known]

print(f"{len(runs)} runs, {sum(len(facts) for facts in runs.values())} facts compared; ledger {len(events)}; "
      f"receiver {len(ids)} events in {sum(ids.values())} requests; {len(faults)} faults")
for fault in faults[:30]:
    print("  " + fault)
sys.exit(bool(faults))
