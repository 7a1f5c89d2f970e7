//! `smesh`: see the library.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use smesh::cli::{Cli, Command};
use smesh::{Error, commands};

fn main() -> ExitCode {
    let cli = match Cli::of_arguments(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors. Statuses 2 and 3 belong to `wait`, so usage errors take their status from sysexits.h.
            let code = if error.use_stderr() { Error::USAGE } else { 0 };
            if code != 0 && is_json_of_verify() {
                print_unverified(&error.kind().to_string(), None);
            }
            return error
                .print()
                .map_or(ExitCode::FAILURE, |()| ExitCode::from(code));
        }
    };
    // Among its services is ingest, which parses the records of the whole queue, and the webhook-dispatcher, which allocates in many threads.
    if matches!(cli.command, Command::Up(_)) {
        mesh_runtime::restart_with_bounded_malloc(2);
    }
    mesh_runtime::install_crypto_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return print_error(&Error::io("start", "the runtime", error)),
    };
    let ended = runtime.block_on(commands::run(cli));
    // Without a timeout, a thread blocked on a disk would delay the end forever.
    runtime.shutdown_timeout(mesh_runtime::LAST_THREADS);
    match ended {
        Ok(code) => code,
        Err(error) => {
            if is_json_of_verify() {
                print_unverified(&mesh_runtime::error_chain(&error), error.denied_archive());
            }
            print_error(&error)
        }
    }
}

/// Whether a JSON client of `smesh verify` waits for an answer, which it gets in any case.
fn is_json_of_verify() -> bool {
    let has = |wanted: &str| std::env::args_os().any(|argument| argument == wanted);
    has("verify") && has("--json")
}

/// Answers that nothing is proven. A reader that is gone is no error here: the exit status says the same.
fn print_unverified(error: &str, unreadable: Option<&Path>) {
    let mut answer = serde_json::json!({ "verified": false, "error": error });
    if let Some(path) = unreadable {
        answer["unreadable"] = path.to_string_lossy().into();
    }
    drop(writeln!(std::io::stdout(), "{answer}"));
}

fn print_error(error: &Error) -> ExitCode {
    if !error.is_broken_pipe() {
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        anstream::eprintln!("{red}error:{red:#} {}", mesh_runtime::error_chain(error));
    }
    ExitCode::from(error.exit_status())
}
