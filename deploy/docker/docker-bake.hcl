# docker buildx bake -f deploy/docker/docker-bake.hcl
# REGISTRY=registry.example.org/slurm-mesh docker buildx bake -f deploy/docker/docker-bake.hcl --sbom true --provenance mode=max --push
variable "REGISTRY" { default = "slurm-mesh" }
variable "VERSION" { default = "0.1.0" }
variable "REVISION" { default = "unknown" }
# Image with Slurm's commands, for workflow-trigger (deploy/compose/README.md, "Triggers"). Without one its rules submit nothing.
variable "SLURM" { default = "base" }
# Image with pg_dump, not older than the server, for smesh-postgres.
variable "POSTGRES" { default = "docker.io/library/postgres:17" }
# Separated by commas. linux/amd64,linux/arm64 requires a builder for each.
variable "PLATFORMS" { default = "linux/amd64" }

group "default" {
  targets = ["image"]
}

target "image" {
  name       = service
  matrix     = {
    service = ["ingest", "node-watcher", "cost-engine", "pending-explainer", "exporter", "ledger", "webhook-dispatcher", "workflow-trigger", "smesh", "smesh-postgres", "nats"]
  }
  context    = "."
  dockerfile = "deploy/docker/Dockerfile"
  target     = service
  tags       = ["${REGISTRY}/${service}:${VERSION}"]
  platforms  = split(",", PLATFORMS)
  args       = { VERSION = VERSION, REVISION = REVISION, SLURM = SLURM, POSTGRES = POSTGRES }
}

# A Slurm cluster for compose.demo.yaml: docker buildx bake -f deploy/docker/docker-bake.hcl demo-slurm
target "demo-slurm" {
  context    = "."
  dockerfile = "deploy/docker/demo-slurm.Dockerfile"
  tags       = ["${REGISTRY}/demo-slurm:${VERSION}"]
}
