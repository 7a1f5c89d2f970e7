"""Renders the chart with what `smesh init --kubernetes` writes for each topology, and holds it against the rules of charts.py. Every Secret and key that a pod
uses has to be among what was written.

    installation.py NATS_SERVER SMESH

Run by deploy/check/run.
"""

import json
import pathlib
import stat
import subprocess
import sys
import tempfile

import yaml

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import charts  # noqa: E402

SLINKY = ["--slurmrestd", "http://slurm-restapi.slurm:6820"]
TOKEN = ["--slurm-token-file", "slurm.jwt"]
CASES = {
    "one server": [*SLINKY, *TOKEN],
    "three servers, the token by Slinky": [*SLINKY, "--nats", "3", "--registry", "registry.example.org/slurm-mesh"],
    "the official NATS chart and PostgreSQL": ["--slurmrestd", "https://slurmctld.example.org", *TOKEN, "--nats", "chart", "--postgres", "db.example.org:5433"],
    "ingest on slurmctld's host, NATS and PostgreSQL of the site": ["--nats", "tls://nats.example.org:4443", "--nats-ca", "ca.pem", "--postgres", "db.example.org"],
    "External Secrets": [*SLINKY, *TOKEN, "--nats", "3", "--postgres", "db", "--external-secrets", "ClusterSecretStore/vault"],
}  # fmt: skip
# Made by the operator or by Slinky, if no file with the token was named.
SLURM_TOKEN = "slurm-mesh-slurm-token"
PUBLIC = {"values.yaml", "nats-values.yaml"}


def written(folder):
    """The Secrets, by name."""
    manifest = folder / "secrets.yaml"
    if manifest.exists():
        return {secret["metadata"]["name"]: secret["stringData"] for secret in yaml.safe_load_all(manifest.read_text())}
    return {file.stem: json.loads(file.read_text()) for file in (folder / "secrets").iterdir()}


def keys(spec):
    """Name and key of what a pod reads of Secrets."""
    volumes = {volume["name"]: volume["secret"] for volume in spec.get("volumes", []) if "secret" in volume}
    for container in charts.containers(spec):
        environment = container.get("env", [])
        for variable in environment:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                yield reference["name"], reference["key"]
        for mount in container.get("volumeMounts", []):
            secret = volumes.get(mount["name"])
            if secret is None:
                continue
            yield from ((secret["secretName"], item["key"]) for item in secret.get("items", []))
            if "subPath" in mount:
                yield secret["secretName"], mount["subPath"]
            paths = [variable.get("value", "") for variable in environment] + container.get("args", [])
            below = mount["mountPath"] + "/"
            yield from ((secret["secretName"], path.removeprefix(below)) for path in paths if path.startswith(below))


def private(where, folder):
    """Only the owner may read what has a secret, and the values have none."""
    secrets = {value for secret in written(folder).values() for value in secret.values()}
    values = (folder / "values.yaml").read_text()
    if any(secret.strip() in values for secret in secrets):
        charts.faults.append(f"{where}: values.yaml has a secret")
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_file() and mode != (0o644 if path.name in PUBLIC else 0o600):
            charts.faults.append(f"{where}: {path.name} has mode {mode:o}")
    if stat.S_IMODE(folder.stat().st_mode) != 0o700:
        charts.faults.append(f"{where}: others may list the folder")


def check(where, options, root, rendered, nats_server, smesh):
    name = where.replace(" ", "-")
    done = subprocess.run([smesh, "init", "--kubernetes", "-M", "hpc1", "-o", name, *options], cwd=root, capture_output=True, text=True)
    if done.returncode:
        return charts.faults.append(f"{where}: smesh init: {done.stderr}")
    folder = root / name
    private(where, folder)
    # The rules name their faults by the file.
    values = root / f"{name}.yaml"
    values.write_text((folder / "values.yaml").read_text())
    objects = charts.check(values, rendered)
    secrets = written(folder)
    for pod, _, template in charts.pods(objects):
        named = {name for kind, name in charts.used(template["spec"]) if kind == "Secret"}
        missing = {(name, None) for name in named - secrets.keys()}
        missing |= {(name, key) for name, key in keys(template["spec"]) if key not in secrets.get(name, {})}
        missing = {one for one in missing if one[0] != SLURM_TOKEN or "--slurm-token-file" in options}
        if missing:
            charts.faults.append(f"{where}: {pod} lacks {missing}")
    tried = subprocess.run([nats_server, "-t", "-c", folder / "nats" / "nats.conf"], capture_output=True, text=True)
    if tried.returncode:
        charts.faults.append(f"{where}: {tried.stdout}{tried.stderr}")
    print(f"{where}: {len(objects)} objects, {len(secrets)} Secrets")


def main(nats_server, smesh):
    smesh = pathlib.Path(smesh).resolve()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as rendered:
        root = pathlib.Path(folder)
        for file in ("slurm.jwt", "ca.pem"):
            (root / file).write_text("of the site\n")
            (root / file).chmod(0o600)
        for where, options in CASES.items():
            check(where, options, root, rendered, nats_server, smesh)
        charts.trivy(rendered)
    for fault in charts.faults:
        print(f"fault: {fault}", file=sys.stderr)
    sys.exit(1 if charts.faults else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
