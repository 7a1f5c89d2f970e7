//! The command line. Parsed by hand: Slurm passes its own arguments, arguments may be any bytes, and parsing must never fail.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// Text of `--help`.
pub const HELP: &str = "\
Sends a doorbell to slurm-mesh when a job or node changes. Slurm calls it as a hook; it never fails a job.

Usage: mesh-hook [--config FILE] [--hook NAME] [--] [ARGUMENT...]
       mesh-hook [--config FILE] [--hook NAME] --chain PROGRAM [ARGUMENT...]
       mesh-hook [--config FILE] --flush
       mesh-hook [--config FILE] --listen SOCKET

  --config FILE   configuration file [default: /etc/slurm-mesh/hook.toml]
  --hook NAME     parameter of slurm.conf that calls it, e.g. SuspendProgram, or a trigger, e.g. strigger-down; only needed
                  for SuspendProgram, ResumeFailProgram, strigger and SpotNotice, because Slurm's environment names the others.
                  SpotNotice takes a NodeName, or - for the node with the instance id in it, and the provider's notice
  --chain PROGRAM become the site's program (exec) with these arguments and everything else unchanged, and send the doorbell
                  in parallel
  --flush         deliver all spooled doorbells now; exit status 1 if some cannot be delivered
  --listen SOCKET take the SPANK plugin's reports from this Unix socket until it is ended; a service on each node
  --probe UUID    send a probe with this id, as `smesh hooks test` does; it is only counted
  --version       print the version

Without --chain, --flush and --listen the exit status is always 0. `smesh hooks print` prints the lines for slurm.conf.
";

/// The action the command line requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Invocation {
    /// Print the help.
    Help,
    /// Print the version.
    Version,
    /// Run as the sender.
    Ring(Options),
    /// Start a sender, then replace this process with the site's program.
    Send(Options),
    /// Options of the sender.
    Chain {
        /// Options of the sender.
        options: Options,
        /// The site's program.
        program: OsString,
    },
    /// Deliver all spooled doorbells.
    Flush(Options),
    /// Deliver the SPANK plugin's reports.
    Listen {
        /// Options.
        options: Options,
        /// Path of the socket.
        socket: PathBuf,
    },
}

/// Options of a hook call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Configuration file, if given.
    pub config: Option<PathBuf>,
    /// Hook name, if given.
    pub hook: Option<OsString>,
    /// Time of the hook call, if another process received it.
    pub called_at: Option<SystemTime>,
    /// Id of the doorbell if it is a probe.
    pub probe: Option<Uuid>,
    /// Slurm's own arguments.
    pub arguments: Vec<OsString>,
    /// The argument that was not understood. Logged once, never fatal.
    pub complaint: Option<String>,
}

impl Options {
    /// The command line that parses back to these options, for the sender process.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = Vec::new();
        if let Some(config) = &self.config {
            args.extend(["--config".into(), config.clone().into()]);
        }
        if let Some(hook) = &self.hook {
            args.extend(["--hook".into(), hook.clone()]);
        }
        if let Some(since) = self
            .called_at
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        {
            args.extend(["--called-at".into(), since.as_nanos().to_string().into()]);
        }
        if let Some(probe) = self.probe {
            args.extend(["--probe".into(), probe.to_string().into()]);
        }
        args.push("--".into());
        args.extend(self.arguments.iter().cloned());
        args
    }
}

/// Parses the arguments after the program's name. Never fails: an unknown argument is taken for one of Slurm's.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Invocation {
    let mut args = args.into_iter();
    let mut options = Options::default();
    let mut step: fn(Options) -> Invocation = Invocation::Ring;
    let mut socket = None;
    while let Some(arg) = args.next() {
        let (name, attached) = split(&arg);
        let mut value = || attached.clone().or_else(|| args.next());
        match name.to_str().unwrap_or_default() {
            "--help" | "-h" => return Invocation::Help,
            "--version" | "-V" => return Invocation::Version,
            "--config" => options.config = value().map(PathBuf::from),
            "--hook" => options.hook = value(),
            "--called-at" => options.called_at = value().as_deref().and_then(nanoseconds),
            "--probe" => match value().and_then(|id| Uuid::parse_str(id.to_str()?).ok()) {
                Some(id) => options.probe = Some(id),
                None => options.complaint = Some("--probe needs a UUID".into()),
            },
            "--send" => step = Invocation::Send,
            "--flush" => step = Invocation::Flush,
            "--listen" => match value() {
                Some(path) => socket = Some(PathBuf::from(path)),
                None => options.complaint = Some("--listen needs the path of a socket".into()),
            },
            "--chain" => match value() {
                Some(program) => {
                    options.arguments = args.collect();
                    return Invocation::Chain { options, program };
                }
                None => options.complaint = Some("--chain needs the path of a program".into()),
            },
            "--" => {
                options.arguments = args.collect();
                break;
            }
            text => {
                if text.starts_with("--") {
                    options.complaint = Some(format!(
                        "unknown option {text:.64}; taken as an argument of Slurm's (see mesh-hook --help)"
                    ));
                }
                options.arguments = std::iter::once(arg).chain(args).collect();
                break;
            }
        }
    }
    match socket {
        Some(socket) => Invocation::Listen { options, socket },
        None => step(options),
    }
}

/// Splits `--name=value`.
fn split(arg: &OsStr) -> (OsString, Option<OsString>) {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = arg.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if bytes.starts_with(b"--") => (
            OsString::from_vec(bytes[..at].to_vec()),
            Some(OsString::from_vec(bytes[at + 1..].to_vec())),
        ),
        _ => (arg.to_owned(), None),
    }
}

fn nanoseconds(text: &OsStr) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_nanos(text.to_str()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    fn tokens(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn everything_after_the_chained_program_belongs_to_it() {
        let Invocation::Chain { options, program } = parse(tokens(
            "--hook Prolog --chain /site/prolog --config x -- --help",
        )) else {
            panic!("no chain");
        };
        assert_eq!(program, "/site/prolog");
        assert_eq!(options.hook.unwrap(), "Prolog");
        assert_eq!(options.arguments, tokens("--config x -- --help"));
    }

    #[test]
    fn arguments_of_slurm_are_preserved() {
        let Invocation::Ring(options) = parse(tokens("--hook=MailProg -- -s subject user")) else {
            panic!("no ring")
        };
        assert_eq!(options.arguments, tokens("-s subject user"));
        let Invocation::Ring(options) = parse(tokens("n[1-3] --hook x")) else {
            panic!("no ring")
        };
        assert_eq!(options.arguments, tokens("n[1-3] --hook x"));
        assert_eq!(options.complaint, None);
    }

    #[test]
    fn the_listener_has_a_socket_and_a_configuration() {
        let expected = Invocation::Listen {
            options: Options {
                config: Some("/c".into()),
                ..Options::default()
            },
            socket: "/s".into(),
        };
        assert_eq!(parse(tokens("--config /c --listen /s")), expected);
        assert_eq!(parse(tokens("--listen=/s --config=/c")), expected);
    }

    #[test]
    fn unknown_options_are_reported_and_the_doorbell_is_sent() {
        for text in ["--confg x", "--chain", "--listen"] {
            let Invocation::Ring(options) = parse(tokens(text)) else {
                panic!("{text}: no ring")
            };
            assert!(options.complaint.is_some(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_invocation(args: Vec<Vec<u8>>) {
            parse(args.into_iter().map(OsString::from_vec));
        }

        #[test]
        fn options_survive_the_way_to_the_sender(config: Option<Vec<u8>>, hook: Option<Vec<u8>>, nanos: Option<u64>, probe: Option<u128>, arguments: Vec<Vec<u8>>) {
            let options = Options {
                config: config.map(|bytes| OsString::from_vec(bytes).into()),
                hook: hook.map(OsString::from_vec),
                called_at: nanos.map(|nanos| UNIX_EPOCH + Duration::from_nanos(nanos)),
                probe: probe.map(Uuid::from_u128),
                arguments: arguments.into_iter().map(OsString::from_vec).collect(),
                complaint: None,
            };
            prop_assert_eq!(parse(options.to_args()), Invocation::Ring(options));
        }
    }
}
