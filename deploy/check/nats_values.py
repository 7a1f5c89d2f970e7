"""Has a nats-server read the configuration that the official chart makes of deploy/helm/nats-values.yaml, with users.conf of `smesh nats config`.

    nats_values.py NATS_SERVER SMESH

Run by deploy/check/run. The chart itself is in no package registry that every site has, so what it does with these values is written down here, as its
documentation says: `config.merge` is merged into nats.conf, `<< X >>` is X without quotes, and `$include` becomes an include.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

VALUES = pathlib.Path(__file__).resolve().parents[1] / "helm" / "nats-values.yaml"


def nats_conf(values):
    config = values["config"]
    store, memory, cluster = config["jetstream"]["fileStore"], config["jetstream"]["memoryStore"], config["cluster"]
    routes = [f"nats://nats-{number}.nats-headless:6222" for number in range(cluster["replicas"])]
    made = {
        "server_name": "<< $POD_NAME >>", "lame_duck_duration": "30s", "pid_file": "/var/run/nats/nats.pid", "port": 4222, "http_port": 8222,
        "cluster": {"name": "nats", "port": 6222, "no_advertise": True, "routes": routes},
        "jetstream": {"store_dir": store["dir"], "max_file_store": f"<< {store['maxSize']} >>", "max_memory_store": f"<< {memory['maxSize']} >>",
                      **config["jetstream"]["merge"]},
        **config["merge"],
    }  # fmt: skip
    text = re.sub(r'".*\$include": "(.*)",?', r"include \1;", json.dumps(made, indent=2))
    return re.sub(r'"<<\s+(.*)\s+>>"', r"\1", text)


def main(nats_server, smesh):
    values = yaml.safe_load(VALUES.read_text())
    mounts = {mount["value"]["name"]: mount["value"]["mountPath"] for mount in values["container"]["patch"]}
    volumes = {volume["value"]["name"] for volume in values["podTemplate"]["patch"]}
    assert mounts.keys() == volumes, "a volume is declared or mounted alone"
    size = int(values["config"]["jetstream"]["fileStore"]["maxSize"].removesuffix("Gi"))
    assert 20 <= size < int(values["config"]["jetstream"]["fileStore"]["pvc"]["size"].removesuffix("Gi")), "too small for the streams and buckets"
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        made = root / "etc" / "nats-config"
        made.mkdir(parents=True)
        text = nats_conf(values)
        # /data and /etc are those of a container.
        text = text.replace('"/data"', json.dumps(f"{root}/data"))
        (made / "nats.conf").write_text(text)
        users = root / mounts["users"].lstrip("/")
        subprocess.run([smesh, "nats", "config", "-M", "hpc1", "--add-cluster", "hpc2", "-o", users], check=True, capture_output=True)
        environment = os.environ | {"POD_NAME": "nats-0"}
        done = subprocess.run([nats_server, "-t", "-c", made / "nats.conf"], env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"fault: nats-values.yaml: {done.stdout}{done.stderr}")
        # Without its users the server would take everybody.
        (users / "users.conf").unlink()
        if not subprocess.run([nats_server, "-t", "-c", made / "nats.conf"], env=environment, capture_output=True).returncode:
            sys.exit("fault: nats-values.yaml: users.conf is not included")
    print("nats-server takes it, with the users of `smesh nats config`")


if __name__ == "__main__":
    main(*sys.argv[1:])
