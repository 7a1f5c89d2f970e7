"""Renders the chart with every file of ci/, validates what comes out, and holds it against our own rules.

Run by deploy/check/run, with its own Python. Exit status 1 names every fault.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import helm_python as helm
import yaml
from helm_python import Chart, _native

CHART = pathlib.Path(__file__).resolve().parent.parent / "helm" / "slurm-mesh"
KUBERNETES = ["1.29", "1.33"]
# Values that have to be refused, and a word of the message.
REFUSED = [
    ({"clutser": "x"}, "clutser"),
    ({"cluster": ""}, "cluster"),
    ({"services": {"ledger": {"replicas": 2}}}, "services.ledger.replicas"),
    ({"services": {"ingest": {"replicsa": 2}}}, "replicsa"),
    ({"services": {"cost-engine": {"database": {"kind": "postgres"}}}}, "existingSecret"),
    ({"services": {"ledger": {"database": {"kind": "postgres"}}}}, "existingSecret"),
    ({"services": {"ledger": {"persistence": {"storageClass": "nfs-client"}}}}, "storageClass"),
    ({"nats": {"url": "nats://x:4222"}}, "nats.url"),
    ({"nats": {"embedded": False}}, "nats.url"),
    ({"nats": {"streamReplicas": 2}}, "streamReplicas"),
    ({"nats": {"streamReplicas": 3}}, "nats.streamReplicas"),
    ({"nats": {"storage": {"size": "10Gi"}}}, "size"),
    ({"slurm": {"restUrl": ""}}, "slurm.restUrl"),
    ({"ingress": {"enabled": True}}, "ingress.host"),
    ({"metrics": {"podMonitor": True}}, "metrics.tokenSecret"),
    ({"services": {"workflow-trigger": {"enabled": True, "replicas": 2}}}, "services.workflow-trigger.replicas"),
    ({"services": {"workflow-trigger": {"submiter": {}}}}, "submiter"),
]
faults = []


def merge(base, over):
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = merge(base[key], value) if both else value
    return base


def render(values, kubernetes):
    report = helm.lint(str(CHART), values, strict=True, with_subcharts=True, namespace="mesh", kube_version=f"v{kubernetes}.0")
    bad = [f"{m['path']}: {m['error']}" for m in report["messages"] if m["severity"] >= 2]
    if bad:
        raise ValueError("; ".join(bad))
    options = {"name": "first", "namespace": "mesh", "kube_version": f"v{kubernetes}.0", "api_versions": []}
    chart = Chart.load(str(CHART))  # a name of its own: a handle that nobody holds is freed
    documents = json.loads(_native.call_string("helm_render", chart._raw(), json.dumps(values), json.dumps(options)))
    return {name: text for name, text in documents.items() if text.strip() and not name.endswith("NOTES.txt")}


def pods(objects):
    for thing in objects:
        template = thing.get("spec", {}).get("template")
        if template:
            yield f"{thing['kind']} {thing['metadata']['name']}", thing, template


def config(objects):
    """The files that every pod mounts."""
    return next(thing["data"] for thing in objects if thing["kind"] == "ConfigMap" and "mesh.toml" in thing["data"])


def rules(name, objects):
    """What Kubernetes' own schemas do not say."""

    def fault(where, problem):
        faults.append(f"{name}: {where}: {problem}")

    for thing in objects:
        if thing["kind"] in ("Secret", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
            fault(thing["kind"], "the chart makes no secrets and needs no rights in Kubernetes")
    for where, thing, template in pods(objects):
        spec = template["spec"]
        security = spec.get("securityContext", {})
        if not security.get("runAsNonRoot") or security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            fault(where, "the pod is not restricted")
        if security.get("fsGroupChangePolicy") != "OnRootMismatch":
            fault(where, "fsGroupChangePolicy re-modes private keys at each mount")
        if spec.get("automountServiceAccountToken") is not False or spec.get("enableServiceLinks") is not False:
            fault(where, "it gets a token of Kubernetes, or service links")
        labels = template["metadata"]["labels"]
        selector = thing["spec"].get("selector", {}).get("matchLabels", {})
        if not selector.items() <= labels.items() or any("version" in key for key in selector):
            fault(where, f"selector {selector} and labels {labels}")
        declared = {volume["name"] for volume in spec.get("volumes", [])}
        declared |= {claim["metadata"]["name"] for claim in thing["spec"].get("volumeClaimTemplates", [])}
        for container in spec["containers"]:
            own = container.get("securityContext", {})
            # trigger-submitter becomes other users. Nobody else gains anything.
            submits = labels["app.kubernetes.io/component"] == "workflow-trigger"
            if own.get("allowPrivilegeEscalation") is not submits or own.get("readOnlyRootFilesystem") is not True:
                fault(where, "the container may write or escalate")
            if own.get("capabilities") != {"drop": ["ALL"], **({"add": ["SETUID", "SETGID"]} if submits else {})}:
                fault(where, "capabilities")
            resources = container.get("resources", {})
            if not resources.get("requests") or "memory" not in resources.get("limits", {}):
                fault(where, "requests, and a limit of memory, are missing")
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            if mounted != declared:
                fault(where, f"volumes {declared ^ mounted} are declared or mounted alone")
            if any("subPath" in mount for mount in container.get("volumeMounts", [])):
                fault(where, "a subPath is never updated")
            if submits and "trigger-submitter.toml" not in config(objects):
                fault(where, "no trigger-submitter.toml")
            names = [variable["name"] for variable in container.get("env", [])]
            if len(names) != len(set(names)):
                fault(where, "a variable is set twice")
        if thing["kind"] != "Job" and not all("livenessProbe" in c and "readinessProbe" in c for c in spec["containers"]):
            fault(where, "probes are missing")


def reachable(name, objects):
    """The default policy has the port of NATS that the pods are told of."""
    default = [thing for thing in objects if thing["kind"] == "NetworkPolicy" and thing["metadata"]["name"].endswith("-default")]
    ports = {port["port"] for policy in default for rule in policy["spec"]["egress"] for port in rule["ports"]}
    for where, _, template in pods(objects):
        for variable in template["spec"]["containers"][0].get("env", []):
            if variable["name"] == "MESH_MESH__NATS__URL" and int(variable["value"].rpartition(":")[2]) not in ports:
                faults.append(f"{name}: {where} cannot reach {variable['value']}: {ports}")


def images(objects):
    """Ours: those of a site are its own."""
    return {template["spec"]["containers"][0]["image"] for _, _, template in pods(objects)
            if template["spec"]["containers"][0]["image"].startswith("slurm-mesh/")}


def validate(name, text, kubernetes):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        program = pathlib.Path(sys.executable).parent / "kubernetes-validate"
        done = subprocess.run([program, "-k", kubernetes, "--strict", "--quiet", file.name], capture_output=True, text=True)
        if done.returncode:
            faults.append(f"{name} on Kubernetes {kubernetes}: {done.stdout}{done.stderr}")


def alerts(name, objects):
    """What the Prometheus operator would load."""
    for thing in objects:
        if thing["kind"] != "PrometheusRule":
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"groups": thing["spec"]["groups"]}, file)
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True)
            if done.returncode:
                faults.append(f"{name}: promtool: {done.stdout}{done.stderr}")


def dashboards(name, objects):
    """What the sidecar of Grafana's chart would load."""
    for thing in objects:
        for file, text in thing.get("data", {}).items():
            if file.endswith(".json") and not (text.startswith("{") and json.loads(text).get("panels")):
                faults.append(f"{name}: {file} is no dashboard: {text[:60]}")


def check(path):
    for kubernetes in KUBERNETES:
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())
        values = merge(defaults, yaml.safe_load(path.read_text()))
        rendered = render(values, kubernetes)
        if rendered != render(values, kubernetes):
            faults.append(f"{path.name}: two renders differ")
        text = "".join(f"---\n{document.strip()}\n" for _, document in sorted(rendered.items()))
        objects = [thing for thing in yaml.safe_load_all(text) if thing]
        rules(path.name, objects)
        alerts(path.name, objects)
        dashboards(path.name, objects)
        reachable(path.name, objects)
        known = [thing for thing in objects if "monitoring.coreos.com" not in thing["apiVersion"]]
        validate(path.name, yaml.safe_dump_all(known), kubernetes)
    return objects


def main():
    files = sorted((CHART / "ci").glob("*.yaml"))
    used = set()
    for path in files:
        objects = check(path)
        used |= images(objects)
        print(f"{path.name}: {len(objects)} objects")
    # For sites without a way out: what to copy into their registry.
    listed = set((CHART / "images.txt").read_text().split())
    if used != listed:
        faults.append(f"images.txt: {sorted(used ^ listed)}")
    base = yaml.safe_load(files[files.index(CHART / "ci" / "beside-slurm.yaml")].read_text())
    for over, word in REFUSED:
        defaults = yaml.safe_load((CHART / "values.yaml").read_text())
        values = merge(merge(defaults, json.loads(json.dumps(base))), over)
        try:
            render(values, KUBERNETES[-1])
            faults.append(f"{over} was taken")
        except Exception as error:  # Helm's own, and ours
            if word not in str(error):
                faults.append(f"{over} is refused, but not in words with {word}: {error}")
    print(f"{len(REFUSED)} wrong values tried")
    for fault in faults:
        print(f"fault: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
