#!/usr/bin/env python3
"""Runs the programs of a former version, replaces them one by one while jobs run on a real Slurm cluster, goes back and forward again, and
compares the ledger and a webhook receiver with the jobs. Called by `upgrade`, which builds both versions.

    upgrade.py FORMER_DIR PRESENT_DIR sqlite|postgres
"""

import collections
import glob
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Consumers first, hooks last: docs/guide/upgrade.md.
ORDER = ["ledger", "webhook-dispatcher", "pending-explainer", "exporter", "workflow-trigger", "cost-engine", "node-watcher", "ingest"]
SHARED = ["ledger", "webhook-dispatcher", "exporter", "workflow-trigger", "cost-engine"]
PATIENCE = 180


def port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait(what, condition):
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > until:
            raise SystemExit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.2)
    return found


class Receiver(http.server.BaseHTTPRequestHandler):
    ids = collections.Counter()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        Receiver.ids[self.headers["webhook-id"]] += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


class Refused(Exception):
    """A program ended before it was ready."""


class Drill:
    def __init__(self, former, present, database):
        self.programs = {"former": pathlib.Path(former), "present": pathlib.Path(present)}
        # What the former version had.
        self.order = [service for service in ORDER if (self.programs["former"] / service).exists()]
        self.shared = database == "postgres"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="upgrade-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.running = {}
        self.jobs = []
        self.ending = threading.Event()

    # The environment.

    def start(self):
        self.cluster = self.folder / "slurm"
        knobs = {"CLUSTER": "upgrade", "NODES": "2", "GPU_NODES": "0", "CLOUD": "0", "OWNER": str(os.getpid())}
        base = os.environ.get("BASEPORT", "27400")
        subprocess.run([ROOT / "tests/cluster/up", self.cluster, base], env=os.environ | knobs, check=True)
        self.nats_port = port()
        (self.folder / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.nats_port}"\nmax_payload: 1MB\n'
            f'jetstream {{ store_dir: "{self.folder}/jetstream", sync_interval: always, max_file_store: 20GB }}\n'
        )
        nats = os.environ["NATS_SERVER_BIN"]
        self.nats = subprocess.Popen([nats, "-c", self.folder / "nats.conf"], stderr=open(self.folder / "nats.log", "w"))
        receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        urls = dict.fromkeys(SHARED, "")
        if self.shared:
            urls = {name: self.postgres(name.replace("-", "_")) for name in SHARED}
        shutil.copy(ROOT / "services/cost-engine/examples/price-book.toml", self.folder / "prices.toml")
        (self.folder / "secrets.key").write_text("A" * 43 + "=\n")
        data = self.folder / "data"
        data.mkdir()
        (self.folder / "mesh.toml").write_text(
            f'[mesh]\ncluster = "upgrade"\ndata_dir = "{data}"\n'
            f'[mesh.nats]\nurl = "nats://127.0.0.1:{self.nats_port}"\n'
            f'[slurm]\nbin_dir = "{self.cluster}/commands"\nconf = "{self.cluster}/etc/slurm.conf"\n'
            f'[ingest]\npoll_interval = "500ms"\n[cost-engine]\nprice_book = "prices.toml"\n'
            + "".join(f'[{name}.db]\nurl = "{url}"\n' for name, url in urls.items())
            + '[webhook-dispatcher]\nsecrets_key_file = "secrets.key"\n'
            '[[webhook-dispatcher.endpoints]]\nname = "receiver"\n'
            f'url = "http://127.0.0.1:{receiver.server_port}/"\nallow_http = true\nallow_private = ["127.0.0.0/8"]\n'
            'types = ["job.*"]\nsecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"\n'
        )
        for file in ["mesh.toml", "secrets.key"]:
            (self.folder / file).chmod(0o600)

    def postgres(self, name):
        folder = self.folder / "postgres"
        if not folder.exists():
            self.pg_bin = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
            folder.mkdir()
            shutil.chown(folder, "postgres")
            self.pg_port = port()
            self.as_postgres(self.pg_bin / "initdb", "-D", folder / "data", "-A", "trust", "-E", "UTF8")
            options = f"-p {self.pg_port} -k {folder} -c listen_addresses=127.0.0.1"
            self.as_postgres(self.pg_bin / "pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log", "-o", options, "start")
        self.as_postgres("createdb", "-h", folder, "-p", str(self.pg_port), name)
        return f"postgres://postgres@127.0.0.1:{self.pg_port}/{name}"

    def as_postgres(self, *command):
        subprocess.run(["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", *map(str, command)],
                       check=True, stdout=subprocess.DEVNULL, cwd="/")

    # Programs.

    def run(self, version, service, replica=""):
        name = service + replica
        socket_path = self.folder / "data" / f"{name}.sock"
        environment = os.environ | {"MESH_MESH__API__SOCKET": str(socket_path)}
        command = [self.programs[version] / service, "--config", self.folder / "mesh.toml"]
        log = open(self.folder / f"{name}.log", "a")
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.running[name] = process

        def ready():
            if process.poll() is not None:
                raise Refused(f"{version} {name} ended with {process.returncode}:\n{self.tail(name)}")
            probe = subprocess.run([*command, "--probe", "readyz"], env=environment, capture_output=True)
            return probe.returncode == 0

        begun = time.monotonic()
        wait(f"{version} {name} is ready:\n{self.tail(name)}", ready)
        print(f"{version:>8} {name} ready after {time.monotonic() - begun:.1f} s", flush=True)

    def tail(self, name):
        return "".join((self.folder / f"{name}.log").read_text().splitlines(True)[-5:])

    def stop(self, name):
        process = self.running.pop(name)
        process.terminate()
        code = process.wait(60)
        if code != 0:
            raise SystemExit(f"{name} ended with {code}:\n{self.tail(name)}")

    def replace(self, service, version):
        before = len(self.jobs)
        if self.shared and service in SHARED:
            # The new one starts beside the old one.
            self.run(version, service, "-next")
            wait("jobs while both run", lambda: len(self.jobs) > before + 2)
            self.stop(service)
            self.running[service] = self.running.pop(service + "-next")
            # Under its usual name again, for the socket.
            self.stop(service)
        else:
            self.stop(service)
        self.run(version, service)
        wait("jobs after the exchange", lambda: len(self.jobs) > before + 4)

    def roll_back(self, service):
        # Versions before `contract` migrations refuse every newer database: then the present one goes on.
        try:
            self.replace(service, "former")
        except Refused as refused:
            if "migration" not in str(refused):
                raise
            print(refused, flush=True)
            for name in [service, service + "-next"]:
                if name in self.running and self.running[name].poll() is not None:
                    del self.running[name]
            if service not in self.running:
                self.run("present", service)
            return False
        return True

    # Load and oracle.

    def load(self):
        while not self.ending.is_set():
            command = [ROOT / "tests/cluster/as", self.cluster, "alice", "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 1"]
            answer = subprocess.run(command, capture_output=True, text=True)
            if answer.returncode == 0:
                self.jobs.append(int(answer.stdout.split(";")[0]))
            self.ending.wait(0.4)

    def smesh(self, *arguments):
        # The checkpoints that it has seen of a ledger are noted in its user's home: this ledger's with this drill.
        environment = {name: value for name, value in os.environ.items() if name != "XDG_STATE_HOME"} | {"HOME": str(self.folder)}
        command = [self.programs["present"] / "smesh", "--config", self.folder / "mesh.toml", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def events(self):
        answer = self.smesh("--socket", self.folder / "data/ledger.sock", "events", "--json", "--limit", "100000", "--type", "job.*,cost.*")
        if answer.returncode != 0:
            raise SystemExit(answer.stderr)
        return [json.loads(line) for line in answer.stdout.splitlines()]

    def check(self):
        def facts():
            found = collections.Counter()
            for event in self.events():
                job = event["data"]["entity"]["key"].split("/")[1]
                found[event["data"]["type"], job] += 1
            return found

        kinds = ["job.submitted", "job.started", "job.completed"]

        def complete():
            found = facts()
            return all(found[kind, str(job)] for job in self.jobs for kind in kinds)

        wait("every job is in the ledger", complete)
        found = facts()
        twice = [key for key, count in found.items() if key[0] in kinds and count != 1]
        ids = {event["id"] for event in self.events() if event["data"]["type"].startswith("job.")}
        wait("every event is delivered", lambda: ids <= set(Receiver.ids))
        again = sum(count - 1 for count in Receiver.ids.values())
        costs = sum(count for (kind, _), count in found.items() if kind.startswith("cost."))
        print(f"{len(self.jobs)} jobs, {len(ids)} job events, {costs} cost events, {len(twice)} twice; "
              f"{len(Receiver.ids)} webhooks, {again} of them repeated")
        verify = self.smesh("verify")
        print(verify.stdout + verify.stderr)
        if twice or verify.returncode != 0:
            raise SystemExit(f"twice: {twice}; verify: {verify.returncode}")

    def drill(self):
        self.start()
        for service in self.order:
            self.run("former", service)
        load = threading.Thread(target=self.load, daemon=True)
        load.start()
        wait("some jobs", lambda: len(self.jobs) > 5)
        for service in self.order:
            self.replace(service, "present")
        print("all are of the present version; back to the former one", flush=True)
        back = [service for service in reversed(self.order) if self.roll_back(service)]
        print(f"of the former version beside databases of the present one: {', '.join(back)}", flush=True)
        for service in reversed(back):
            self.replace(service, "present")
        self.ending.set()
        load.join()
        self.check()

    def end(self):
        self.ending.set()
        for process in self.running.values():
            process.kill()
        if hasattr(self, "nats"):
            self.nats.kill()
        if hasattr(self, "pg_port"):
            self.as_postgres(self.pg_bin / "pg_ctl", "-D", self.folder / "postgres/data", "-m", "immediate", "stop")
        subprocess.run([ROOT / "tests/cluster/down", self.folder / "slurm", "--wipe"], check=False)
        if "KEEP" in os.environ:
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    drill = Drill(*sys.argv[1:4])
    try:
        drill.drill()
    except Refused as refused:
        raise SystemExit(refused) from None
    finally:
        drill.end()


main()
