//! The ingest process.

use std::process::ExitCode;

fn main() -> ExitCode {
    mesh_runtime::restart_with_bounded_malloc(1);
    mesh_runtime::main::<ingest::IngestService>()
}
