//! The `exporter` process.

fn main() -> std::process::ExitCode {
    mesh_runtime::main::<exporter::ExporterService>()
}
