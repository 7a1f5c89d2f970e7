//! The process of ingest.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<ingest::IngestService>()
}
