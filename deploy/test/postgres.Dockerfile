# Debian's PostgreSQL with what compose.postgres.yaml uses of the official image's interface.
FROM slurm-mesh-test/debian
# The official image gives any user a name, by nss_wrapper.
RUN useradd --uid 65532 --no-create-home mesh && install -d -m 1777 /var/lib/postgresql/data /var/run/postgresql
COPY postgres-entrypoint /usr/local/bin/
ENTRYPOINT ["/usr/local/bin/postgres-entrypoint"]
