"""Writes what the chart renders as a Compose project, because there is no Kubernetes here: each pod's user, capabilities, variables, arguments and
memory; Secrets and ConfigMaps as the kubelet mounts them (links to links, fsGroup); volumes as fsGroup leaves them; an nginx with the Ingress' paths.

    pods.py OUT MADE [--values FILE]… [--set a.b=c]…       MADE has a folder of files for each Secret and ConfigMap that the operator made

OUT/probes has a line for each workload: its name, port and path of readiness. Run by `run`, with the Python of deploy/check.
"""

import argparse
import json
import os
import pathlib
import sys

import helm_python as helm
import yaml

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))
import charts  # noqa: E402

NGINX = "docker.io/nginxinc/nginx-unprivileged:1.29-alpine"

parser = argparse.ArgumentParser()
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("made", type=pathlib.Path)
for name in ("--values", "--set"):
    parser.add_argument(name, action="append", default=[])
options = parser.parse_args()


def objects():
    values = yaml.safe_load((charts.CHART / "values.yaml").read_text())
    for file in options.values:
        charts.merge(values, yaml.safe_load(pathlib.Path(file).read_text()))
    for text in options.set:
        charts.merge(values, helm.parse_set_string(text))
    for document in charts.render(values, charts.KUBERNETES[-1]).values():
        yield from (thing for thing in yaml.safe_load_all(document) if thing)


RENDERED = list(objects())
# Folders of the volumes that the controller of a StatefulSet makes, by the names of their claims.
CLAIMS = {
    f"{claim['metadata']['name']}-{thing['metadata']['name']}-0": f"{thing['metadata']['name']}/{claim['metadata']['name']}"
    for thing in RENDERED if thing["kind"] == "StatefulSet" for claim in thing["spec"].get("volumeClaimTemplates", [])
}  # fmt: skip
CONFIG_MAPS = {thing["metadata"]["name"]: thing["data"] for thing in RENDERED if thing["kind"] == "ConfigMap"}


def made(name):
    return {file.name: file.read_text() for file in (options.made / name).iterdir()}


def projected(folder, files, mode, group):
    """A folder as the kubelet writes it: names are links to `..data`, which is a link to the version in use."""
    version = folder / "..2026_01_01_00_00_00.1"
    version.mkdir(parents=True)
    for name, text in files.items():
        (version / name).write_text(text)
        (version / name).chmod(mode)
        os.chown(version / name, 0, group)
        (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data").symlink_to(version.name)
    os.chown(version, 0, group)
    version.chmod(0o2755)
    os.chown(folder, 0, group)
    folder.chmod(0o3777)


def volume(workload, name, spec, group):
    """What Compose mounts: a path, or nothing for memory."""
    folder = options.out / "volumes" / workload / name
    if "emptyDir" in spec:
        return None
    if "secret" in spec:
        files = made(spec["secret"]["secretName"])
        items = spec["secret"].get("items", [{"key": key, "path": key} for key in files])
        projected(folder, {item["path"]: files[item["key"]] for item in items}, spec["secret"]["defaultMode"], group)
    elif "persistentVolumeClaim" in spec:  # of a site, the same for all that name it
        folder = options.out / "volumes" / CLAIMS.get(spec["persistentVolumeClaim"]["claimName"], spec["persistentVolumeClaim"]["claimName"])
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
    elif "configMap" in spec:
        name = spec["configMap"]["name"]
        projected(folder, CONFIG_MAPS.get(name) or made(name), 0o644, group)
    else:  # a claim, at its first mount
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
    return folder


def environment(container, pod_name):
    for variable in container.get("env", []):
        value = variable.get("value")
        if value is None and "fieldRef" in variable["valueFrom"]:
            value = pod_name
        elif value is None:
            reference = variable["valueFrom"]["secretKeyRef"]
            value = made(reference["name"])[reference["key"]]
        yield variable["name"], value


def expanded(arguments, variables):
    """`$(NAME)` in arguments, as the kubelet does."""
    for name, value in variables.items():
        arguments = [argument.replace(f"$({name})", value) for argument in arguments]
    return [argument.replace("$", "$$") for argument in arguments]


def service(pod, kind, workload, container, claims=(), replicas=1):
    security, user = container["securityContext"], pod["securityContext"]
    group = user["fsGroup"]
    volumes = {spec["name"]: spec for spec in pod["volumes"]}
    volumes |= {claim["metadata"]["name"]: {"claim": claim} for claim in claims}
    variables = dict(environment(container, workload))
    sources = {name: volume(workload, name, spec, group) for name, spec in volumes.items()}
    mounts, memory = [], []
    for mount in container["volumeMounts"]:
        source = sources[mount["name"]]
        if source is None:
            # The kubelet's has no owner and mode 2777, which runc 1.1 takes from the folder below.
            memory.append(f"{mount['mountPath']}:uid={user['runAsUser']},gid={group},mode=2770")
        else:
            # The kubelet follows the links to the file.
            source = (source / mount["subPath"]).resolve() if "subPath" in mount else source
            mounts.append(f"{source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}")
    return {
        "image": container["image"],
        **({"entrypoint": container["command"]} if "command" in container else {}),
        **({"command": expanded(container["args"], variables)} if "args" in container else {}),
        "user": f"{user['runAsUser']}:{user['runAsGroup']}",
        "group_add": [str(group)],
        "read_only": security["readOnlyRootFilesystem"],
        "cap_drop": security["capabilities"]["drop"],
        "cap_add": security["capabilities"].get("add", []),
        "security_opt": [] if security["allowPrivilegeEscalation"] else ["no-new-privileges:true"],
        "environment": {name: value.replace("$", "$$") for name, value in variables.items()},
        "volumes": mounts,
        "tmpfs": memory,
        "mem_limit": container["resources"]["limits"]["memory"].removesuffix("i").lower(),
        "restart": {"Job": "on-failure", "CronJob": "no", "Pod": "no"}.get(kind, "unless-stopped"),
        "stop_grace_period": f"{pod.get('terminationGracePeriodSeconds', 30)}s",
        "scale": replicas,
        "extra_hosts": ["host.docker.internal:host-gateway", "receiver:host-gateway"],
    }


def probe(thing, workload):
    container, = thing["spec"]["template"]["spec"]["containers"]
    get = container["readinessProbe"]["httpGet"]
    port, = [port["containerPort"] for port in container["ports"] if port["name"] == get["port"]]
    return f"{workload} {port} {get['path']}\n"


def ingress(thing):
    """The longest path wins, and ends at a slash."""
    rule, = thing["spec"]["rules"]
    paths = sorted(rule["http"]["paths"], key=lambda path: -len(path["path"]))
    locations = ""
    for number, path in enumerate(paths):
        backend = path["backend"]["service"]["name"]
        locations += f"set $to{number} {backend}:8686; location ~ ^{path['path'].rstrip('/')}(/|$) {{ proxy_pass http://$to{number}; }}\n"
    file = options.out / "nginx.conf"
    file.write_text(
        "pid /tmp/nginx.pid; error_log stderr warn; events {} http { access_log off; resolver 127.0.0.11 valid=5s; proxy_buffering off;\n"
        + "".join(f"{name}_temp_path /tmp/{name};" for name in ("proxy", "fastcgi", "uwsgi", "scgi"))
        + f"client_body_temp_path /tmp/body; server {{ listen 8686; {locations} }} }}\n"
    )
    return {"image": NGINX, "user": "65532:65532", "entrypoint": ["nginx", "-c", "/nginx.conf", "-g", "daemon off;"], "tmpfs": ["/tmp:mode=1777"],
            "volumes": [f"{file}:/nginx.conf:ro"], "ports": ["127.0.0.1:8686:8686"]}


services, probes = {}, ""
for thing in RENDERED:
    name, kind, spec = thing["metadata"]["name"], thing["kind"], thing["spec"] if "spec" in thing else {}
    if kind in ("Deployment", "StatefulSet"):
        pod, claims, replicas = spec["template"]["spec"], spec.get("volumeClaimTemplates", ()), spec.get("replicas", 1)
        container, = pod["containers"]
        if kind == "StatefulSet" and replicas > 1:
            # Each has a name of its own, below that of the governing Service, and a volume.
            for number in range(replicas):
                services[f"{name}-{number}"] = service(pod, kind, f"{name}-{number}", container, claims) | {
                    "networks": {"default": {"aliases": [name, f"{name}-{number}.{spec['serviceName']}"]}}}
                probes += probe(thing, f"{name}-{number}")
            continue
        services[name] = service(pod, kind, name, container, claims, replicas)
        probes += probe(thing, name)
    elif kind in ("Job", "CronJob"):
        pod = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]
        waits = {}
        # One after the other; hooks before everything else. A CronJob runs when it is asked to.
        for container in pod.get("initContainers", []) + pod["containers"]:
            one = f"{name}-{container['name']}"
            services[one] = service(pod, kind, one, container) | {"depends_on": waits} | ({"profiles": ["cron"]} if kind == "CronJob" else {})
            waits = {one: {"condition": "service_completed_successfully"}}
    elif kind == "Pod":  # of `helm test`, run when it is asked for
        container, = spec["containers"]
        services[name] = service(spec, kind, name, container) | {"profiles": ["test"]}
    elif kind == "Ingress":
        services["ingress"] = ingress(thing)
hooks = [f"{thing['metadata']['name']}-{thing['spec']['template']['spec']['containers'][-1]['name']}"
         for thing in RENDERED if thing["kind"] == "Job" and charts.hook(thing)]  # fmt: skip
for name, made_service in services.items():
    if hooks and not any(name.startswith(hook.rpartition("-")[0]) for hook in hooks):
        made_service["depends_on"] = made_service.get("depends_on", {}) | {hook: {"condition": "service_completed_successfully"} for hook in hooks}
(options.out / "compose.yaml").write_text(json.dumps({"name": "slurm-mesh", "services": services}, indent=1))
(options.out / "probes").write_text(probes)
