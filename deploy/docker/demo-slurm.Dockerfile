# A Slurm cluster in one container, for deploy/compose/compose.demo.yaml and nothing else: Debian's Slurm, started by tests/cluster.
#   docker build -f deploy/docker/demo-slurm.Dockerfile -t slurm-mesh/demo-slurm:0.1.0 .
ARG DEBIAN=docker.io/library/debian:bookworm-slim
# hadolint ignore=DL3006
FROM ${DEBIAN}
# Packages that DEBIAN has already are not asked for.
# hadolint ignore=DL3008
RUN command -v slurmctld slurmrestd munged mariadbd curl >/dev/null || { \
      printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d && apt-get update && \
      apt-get install -y --no-install-recommends slurmctld slurmd slurmdbd slurm-client slurmrestd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin \
        slurm-wlm-jwt-plugin munge mariadb-server curl procps && rm -rf /var/lib/apt/lists/*; }
COPY tests/cluster /opt/cluster
COPY deploy/docker/demo-slurm /usr/local/bin/demo-slurm
ENTRYPOINT ["/usr/local/bin/demo-slurm"]
