# Debian's Prometheus with what compose.observability.yaml uses of the official image's interface.
FROM slurm-mesh-test/base
COPY usr/bin/prometheus /bin/prometheus
COPY --chown=65534:65534 data /prometheus
ENTRYPOINT ["/bin/prometheus"]
