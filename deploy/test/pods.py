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
        projected(folder, made(spec["secret"]["secretName"]), spec["secret"]["defaultMode"], group)
    elif "configMap" in spec:
        name = spec["configMap"]["name"]
        projected(folder, CONFIG_MAPS.get(name) or made(name), 0o644, group)
    else:  # a claim, at its first mount
        folder.mkdir(parents=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
    return folder


def environment(container):
    for variable in container.get("env", []):
        value = variable.get("value")
        if value is None:
            reference = variable["valueFrom"]["secretKeyRef"]
            value = made(reference["name"])[reference["key"]]
        yield variable["name"], value.replace("$", "$$")


def service(thing, workload):
    pod = thing["spec"]["template"]["spec"]
    container, = pod["containers"]
    security, user = container["securityContext"], pod["securityContext"]
    group = user["fsGroup"]
    volumes = {spec["name"]: spec for spec in pod["volumes"]}
    volumes |= {claim["metadata"]["name"]: {"claim": claim} for claim in thing["spec"].get("volumeClaimTemplates", [])}
    sources = {name: volume(workload, name, spec, group) for name, spec in volumes.items()}
    mounts, memory = [], []
    for mount in container["volumeMounts"]:
        source = sources[mount["name"]]
        if source is None:
            # The kubelet's has no owner and mode 2777, which runc 1.1 takes from the folder below.
            memory.append(f"{mount['mountPath']}:uid={user['runAsUser']},gid={group},mode=2770")
        else:
            mounts.append(f"{source}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}")
    return {
        "image": container["image"],
        "command": container.get("args"),
        "user": f"{user['runAsUser']}:{user['runAsGroup']}",
        "group_add": [str(group)],
        "read_only": security["readOnlyRootFilesystem"],
        "cap_drop": security["capabilities"]["drop"],
        "cap_add": security["capabilities"].get("add", []),
        "security_opt": [] if security["allowPrivilegeEscalation"] else ["no-new-privileges:true"],
        "environment": dict(environment(container)),
        "volumes": mounts,
        "tmpfs": memory,
        "mem_limit": container["resources"]["limits"]["memory"].removesuffix("i").lower(),
        "restart": "on-failure" if thing["kind"] == "Job" else "unless-stopped",
        "stop_grace_period": f"{pod.get('terminationGracePeriodSeconds', 30)}s",
        "scale": thing["spec"].get("replicas", 1),
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
    name = thing["metadata"]["name"]
    if thing["kind"] in ("Deployment", "StatefulSet"):
        services[name] = service(thing, name)
        probes += probe(thing, name)
    elif thing["kind"] == "Job":
        services[name] = service(thing, name)
    elif thing["kind"] == "Ingress":
        services["ingress"] = ingress(thing)
(options.out / "compose.yaml").write_text(json.dumps({"name": "slurm-mesh", "services": services}, indent=1))
(options.out / "probes").write_text(probes)
