"""Renders the chart with every file of ci/, validates what comes out, and holds it against our own rules.

Run by deploy/check/run, with its own Python. Exit status 1 names every fault.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import helm_python as helm
import yaml
from helm_python import Chart, _native

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import values as documented  # noqa: E402

CHART = pathlib.Path(__file__).resolve().parent.parent / "helm" / "slurm-mesh"
# The oldest of Chart.yaml, and the newest that kubernetes-validate has.
KUBERNETES = ["1.29", "1.37"]
# Values that have to be refused, and a word of the message.
REFUSED = [
    ({"clutser": "x"}, "clutser"),
    ({"cluster": ""}, "cluster"),
    ({"imagePullPolicy": "Sometimes"}, "imagePullPolicy"),
    ({"services": {"ledger": {"replicas": 2}}}, "services.ledger.replicas: 1 with database.kind sqlite"),
    ({"services": {"ledger": {"replicas": "two"}}}, "/services/ledger/replicas"),
    ({"services": {"ingest": {"replicsa": 2}}}, "replicsa"),
    ({"services": {"ingest": {"database": {"kind": "postgres"}}}}, "database"),
    ({"services": {"ingest": {"autoscaling": {"enabled": True}}}}, "autoscaling"),
    ({"services": {"ledgre": {"enabled": True}}}, "ledgre"),
    ({"serviceDefaults": {"nodeselector": {}}}, "nodeselector"),
    ({"services": {"cost-engine": {"database": {"kind": "mysql"}}}}, "'sqlite', 'postgres'"),
    ({"services": {"cost-engine": {"database": {"kind": "postgres"}}}}, "services.cost-engine.database.existingSecret: needed"),
    ({"services": {"ledger": {"database": {"kind": "postgres", "existingSecret": "db"}}}}, "services.ledger.checkpointKeySecret: needed"),
    ({"services": {"webhook-dispatcher": {"database": {"kind": "postgres", "existingSecret": "db"}}}}, "services.webhook-dispatcher.secretsKeySecret: needed"),
    ({"services": {"ledger": {"persistence": {"storageClass": "nfs-client"}}}}, "services.ledger.persistence.storageClass"),
    ({"services": {"ledger": {"persistence": {"size": "10 GB"}}}}, "services.ledger.persistence.size"),
    ({"services": {"ledger": {"autoscaling": {"enabled": True}}}}, "services.ledger.autoscaling: needs database.kind postgres"),
    ({"services": {"pending-explainer": {"autoscaling": {"enabled": True, "maxReplicas": 1}}}}, "services.pending-explainer.autoscaling.maxReplicas"),
    ({"services": {"pending-explainer": {"autoscaling": {"enabled": True, "cpu": 0}}}}, "cpu or metrics"),
    ({"services": {"pending-explainer": {"replicas": 0, "autoscaling": {"enabled": True}}}}, "services.pending-explainer.replicas"),
    ({"services": {"ledger": {"image": {"digest": "sha256:12"}}}}, "services.ledger.image.digest"),
    ({"nats": {"url": "nats://x:4222"}}, "nats.url: only with nats.embedded: false"),
    ({"nats": {"embedded": False}}, "nats.url: needed"),
    ({"nats": {"embedded": False, "url": "nats.example.org"}}, "no nats:// or tls:// address"),
    ({"nats": {"replicas": 2}}, "/nats/replicas"),
    ({"nats": {"replicas": 4}}, "/nats/replicas"),
    ({"nats": {"streamReplicas": 2}}, "streamReplicas"),
    ({"nats": {"streamReplicas": 3}}, "nats.streamReplicas: at most"),
    ({"nats": {"storage": {"size": "10Gi"}}}, "nats.storage.size: 10Gi is too small"),
    ({"slurm": {"restUrl": ""}}, "slurm.restUrl: needed"),
    ({"slurm": {"restUrl": "slurmctld:6820"}}, "slurm.restUrl"),
    ({"ingress": {"enabled": True}}, "ingress.host: needed"),
    ({"metrics": {"podMonitor": True}}, "metrics.tokenSecret.name: needed"),
    ({"migrate": {"enabled": True, "ownerSecret": {"name": "owner"}}}, "services.ledger.database.kind postgres"),
    ({"migrate": {"enabled": True}}, "migrate.ownerSecret.name: needed"),
    ({"backup": {"enabled": True}}, "backup.claim: needed"),
    ({"backup": {"enabled": True, "upload": {"image": "rclone"}}}, "backup.upload.command: needed"),
    ({"services": {"pending-explainer": {"autoscaling": {"keda": {"enabled": True}}}}}, "services.pending-explainer.autoscaling.keda: needs autoscaling.enabled"),
    ({"services": {"pending-explainer": {"autoscaling": {"enabled": True, "keda": {"enabled": True}}}}}, "autoscaling.keda.prometheus: needed"),
    ({"services": {"ledger": {"autoscaling": {"keda": {"enabled": True}}}}}, "keda"),
    ({"certManager": {"enabled": True, "issuer": {"name": "site"}}}, "for which certificate"),
    ({"certManager": {"enabled": True}, "api": {"tlsSecret": "tls"}}, "certManager.issuer.name: needed"),
    ({"externalSecrets": {"enabled": True}}, "externalSecrets.store.name: needed"),
    ({"services": {"workflow-trigger": {"enabled": True, "replicas": 2}}}, "services.workflow-trigger.replicas"),
    ({"services": {"workflow-trigger": {"submiter": {}}}}, "submiter"),
]
# API groups whose schemas no wheel has.
CUSTOM = ("monitoring.coreos.com/", "external-secrets.io/", "cert-manager.io/", "keda.sh/")
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
        spec = thing.get("spec", {})
        template = thing if thing["kind"] == "Pod" else spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template and "spec" in template:
            yield f"{thing['kind']} {thing['metadata']['name']}", thing, template


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def used(spec):
    """Kind and name of the Secrets and ConfigMaps that a pod needs."""
    for volume in spec.get("volumes", []):
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
    for container in containers(spec):
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                yield "Secret", reference["name"]
        yield from (("Secret", source["secretRef"]["name"]) for source in container.get("envFrom", []))


def config(objects):
    """The files that every pod mounts."""
    return next(thing["data"] for thing in objects if thing["kind"] == "ConfigMap" and "mesh.toml" in thing["data"] and not hook(thing))


def hook(thing):
    """Made before everything else. `helm test` is a hook, too, but comes last."""
    return "pre-install" in thing["metadata"].get("annotations", {}).get("helm.sh/hook", "")


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
        mounted = {mount["name"] for container in containers(spec) for mount in container.get("volumeMounts", [])}
        if mounted != declared:
            fault(where, f"volumes {declared ^ mounted} are declared or mounted alone")
        for container in containers(spec):
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
            # The ledger's key is not exchanged while it runs, and has files beside it.
            if any("subPath" in mount and mount["name"] != "checkpoint-key" for mount in container.get("volumeMounts", [])):
                fault(where, "a subPath is never updated")
            # The ledger writes beside its key.
            read_only = [mount["mountPath"] for mount in container.get("volumeMounts", []) if mount.get("readOnly") and "subPath" not in mount]
            if any("KEY_FILE" in variable["name"] and "CHECKPOINT" in variable["name"] and variable.get("value", "").startswith(tuple(read_only))
                   for variable in container.get("env", [])):
                fault(where, "the folder of the checkpoint key is read-only")
            if submits and "trigger-submitter.toml" not in config(objects):
                fault(where, "no trigger-submitter.toml")
            names = [variable["name"] for variable in container.get("env", [])]
            if len(names) != len(set(names)):
                fault(where, "a variable is set twice")
        if thing["kind"] not in ("Job", "CronJob", "Pod") and not all("livenessProbe" in c and "readinessProbe" in c for c in spec["containers"]):
            fault(where, "probes are missing")


def reachable(name, objects):
    """The policies that select a pod have the ports of what it is told of: NATS, slurmrestd, other services."""
    policies = [thing["spec"] for thing in objects if thing["kind"] == "NetworkPolicy"]
    for where, _, template in pods(objects):
        labels = template["metadata"]["labels"].items()
        own = [policy for policy in policies if policy["podSelector"]["matchLabels"].items() <= labels]
        ports = {port["port"] for policy in own for rule in policy.get("egress", []) for port in rule["ports"]}
        container = template["spec"]["containers"][0]
        addresses = [one["value"] for one in container.get("env", []) if one["name"] in ("MESH_MESH__NATS__URL", "MESH_SLURM__REST_URL")]
        addresses += [argument for argument in container.get("args", []) if "=http" in argument]
        for address in addresses:
            port = re.search(r":(\d+)/?$", address)
            if int(port[1] if port else 443 if "https:" in address else 80) not in ports:
                faults.append(f"{name}: {where} cannot reach {address}: {ports}")


def tested(name, objects):
    """`helm test` asks every service of the release, with what it needs to trust it."""
    test, = [thing for thing in objects if thing["kind"] == "Pod"]
    container, = test["spec"]["containers"]
    scheme = "https" if any(one["name"] == "MESH_CA_FILE" for one in container["env"]) else "http"
    ports = [(thing["metadata"]["name"], port["port"]) for thing in objects if thing["kind"] == "Service" for port in thing["spec"]["ports"] if port["name"] == "http"]
    expected = {f"{scheme}://{service}:{port}" for service, port in ports}
    asked = {argument.split("=")[-1] for argument in container["args"] if argument.startswith("--service=")}
    if asked != expected or not asked:
        faults.append(f"{name}: helm test asks {asked}, but the services are {expected}")
    if test["metadata"]["annotations"]["helm.sh/hook"] != "test":
        faults.append(f"{name}: {test['metadata']['name']} is no test")


def wired(name, objects):
    """Objects that name each other: hooks, autoscalers, secrets."""

    def fault(where, problem):
        faults.append(f"{name}: {where}: {problem}")

    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    for twice in {one for one in names if names.count(one) > 1}:
        fault(twice, "is there twice")
    by_name = dict(zip(names, objects))
    made = {thing["metadata"]["name"] for thing in objects if thing["kind"] == "ExternalSecret"}
    made_by_certificates = {thing["spec"]["secretName"] for thing in objects if thing["kind"] == "Certificate"}
    if made & made_by_certificates:
        fault(made & made_by_certificates, "has two makers")
    for where, thing, template in pods(objects):
        spec = template["spec"]
        needed = set(used(spec))
        # A hook runs before everything else of the release exists.
        if hook(thing):
            late = {one for one in needed | {("ServiceAccount", spec.get("serviceAccountName"))} if one in by_name and not hook(by_name[one])}
            if late:
                fault(where, f"a hook that waits for {late}")
        missing = {secret for kind, secret in needed if kind == "Secret"} - made - made_by_certificates
        if made and missing:
            fault(where, f"no ExternalSecret for {missing}")
    for thing in objects:
        if thing["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = thing["spec"]["scaleTargetRef"]
            deployment = by_name.get((target["kind"], target["name"]))
            if not deployment or "replicas" in deployment["spec"]:
                fault(target["name"], "is no Deployment, or sets the number of replicas besides its autoscaler")


def backed_up(name, objects):
    """Each database of the three services is in the backup: its URL, or its volume on the same node."""

    def fault(problem):
        faults.append(f"{name}: backup: {problem}")

    job = next((thing for thing in objects if thing["kind"] == "CronJob"), None)
    if job is None:
        return
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    container = next(container for container in containers(pod) if container["name"] == "backup")
    variables = {one["name"]: one for one in container["env"]}
    claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume}
    mounts = {mount["mountPath"]: claims.get(mount["name"]) for mount in container["volumeMounts"]}
    near = [term["labelSelector"]["matchLabels"] for term in pod.get("affinity", {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])]
    for where, thing, template in pods(objects):
        labels = template["metadata"]["labels"]
        service = labels["app.kubernetes.io/component"]
        if thing["kind"] not in ("Deployment", "StatefulSet") or service not in ("ledger", "cost-engine", "webhook-dispatcher"):
            continue
        url = variables.get(f"MESH_{service.upper().replace('-', '_')}__DB__URL")
        if url is None:
            fault(f"{where} is not in it")
        elif thing["kind"] == "StatefulSet":
            existing = [volume["persistentVolumeClaim"]["claimName"] for volume in template["spec"]["volumes"] if volume["name"] == "data"]
            claim, = existing or [f"data-{thing['metadata']['name']}-0"]
            folder = url["value"].removeprefix("sqlite:").rpartition("/")[0]
            if mounts.get(folder) != claim:
                fault(f"{url['value']} is not on the volume {claim} of {where}")
            if not any(term.items() <= labels.items() for term in near):
                fault(f"{where} may be on another node")
            together = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"]["matchLabels"]
            if not together.items() <= labels.items():
                fault(f"{where} is not near {together}")
        elif "secretKeyRef" not in url.get("valueFrom", {}):
            fault(f"the URL of {where} is no secret")


def images(objects):
    """Ours and others' that the chart names; those of a site (registry.example.org) are its own."""
    return {container["image"] for _, _, template in pods(objects) for container in containers(template["spec"])
            if not container["image"].startswith("registry.example.org/")}


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


def trivy(folder):
    """Its own rules, over what all files render, and over the Dockerfile. Offline: the rules are in the program."""
    program = [pathlib.Path(sys.executable).parent / "trivy", "config", "--skip-check-update", "--skip-version-check", "--disable-telemetry", "--quiet"]
    for what in (folder, CHART.parents[1] / "docker" / "Dockerfile"):
        done = subprocess.run([*program, "--severity", "HIGH,CRITICAL", "--format", "json", what], capture_output=True, text=True)
        if done.returncode:
            faults.append(f"trivy: {done.stderr}")
            continue
        results = json.loads(done.stdout).get("Results", [])
        # Without a result it has read nothing.
        if len(results) < (len(list(pathlib.Path(folder).iterdir())) if what == folder else 1):
            faults.append(f"trivy has read only {[result['Target'] for result in results]}")
        faults.extend(f"trivy: {result['Target']}: {found['ID']}: {found['Message']}" for result in results for found in result.get("Misconfigurations", []))


def check(path, folder):
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
        tested(path.name, objects)
        backed_up(path.name, objects)
        wired(path.name, objects)
        known = [thing for thing in objects if not thing["apiVersion"].startswith(CUSTOM)]
        validate(path.name, yaml.safe_dump_all(known), kubernetes)
        (pathlib.Path(folder) / path.name).write_text(yaml.safe_dump_all(known))
    return objects


def main():
    old = [path.name for path in documented.outdated()]
    if old:
        sys.exit(f"fault: {', '.join(old)}: not what deploy/check/values.py makes of values.yaml")
    files = sorted((CHART / "ci").glob("*.yaml"))
    named = set()
    with tempfile.TemporaryDirectory() as folder:
        for path in files:
            objects = check(path, folder)
            named |= images(objects)
            print(f"{path.name}: {len(objects)} objects")
        trivy(folder)
    # For sites without a way out: what to copy into their registry.
    listed = set((CHART / "images.txt").read_text().split())
    if named != listed:
        faults.append(f"images.txt: {sorted(named ^ listed)}")
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
