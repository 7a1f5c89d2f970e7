//! Runs Slurm's commands: limited in number, time and output, with an environment that makes their output parseable.
//!
//! The environment is built from scratch, since a dozen `SQUEUE_*`, `SACCT_*` and `SLURM_*` variables change what the commands print.
//! `SLURM_TIME_FORMAT=%s` makes squeue, scontrol, sacct and sinfo print times as seconds since 1970 (seen on 22.05.8 for each of them;
//! `SLURM_TIME_FORMAT` is in their manuals since 14.03). `SLURM_BITSTR_LEN=0` keeps long lists of array tasks whole.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{ChildStdin, Command},
};
use unix_process::ProcessGroup;

use crate::{Config, Error, metrics, request_limits::RequestLimits, spill::Text};

/// More than the output of 100,000 jobs (`scontrol show jobs`: about 1.1 kB each).
const MAX_OUTPUT_BYTES: usize = 256 << 20;
/// Slurm's error texts are short; the rest of a longer one is dropped.
const MAX_STDERR_BYTES: u64 = 64 << 10;
/// Longest output that may count as blank.
const MAX_BLANK_BYTES: usize = 1 << 10;
/// Variables inherited from our own environment.
const INHERITED: [&str; 6] = [
    "PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
];

/// Runs commands with an environment that the caller gives, and nothing of this process's own: for commands that change something in Slurm.
/// Clones share the limits.
#[derive(Clone, Debug)]
pub struct Commands(Runner);

/// Output of a command, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// Standard output.
    pub stdout: String,
    /// Standard error, at most 64 KiB.
    pub stderr: String,
    /// Exit status, -1 if a signal ended it.
    pub status: i32,
}

impl Commands {
    /// Commands with exactly these variables, and `SLURM_CONF` if the configuration names one.
    pub fn new(config: Config, environment: Vec<(OsString, OsString)>) -> Self {
        metrics::describe();
        Self(Runner::with_environment(config, environment))
    }

    /// Runs a command with more variables and this standard input.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] and [`Error::ConfigMissing`]: it was not started. After any other error it may have done all, a part, or
    /// nothing of its work. A status that is not 0 is no error.
    pub async fn run(
        &self,
        command: &'static str,
        arguments: &[&str],
        variables: &BTreeMap<String, String>,
        stdin: &[u8],
    ) -> Result<CommandOutput, Error> {
        let input = Input { variables, stdin };
        let output = self.0.run_with_input(command, arguments, Some(input)).await;
        let (output, stdout) = output.and_then(|mut output| {
            let stdout = std::mem::take(&mut output.stdout).into_string();
            Ok((
                output,
                stdout.map_err(|source| Error::Io { command, source })?,
            ))
        })?;
        Ok(CommandOutput {
            stdout,
            stderr: output.stderr,
            status: output.status,
        })
    }
}

/// Input of a command besides its arguments.
#[derive(Clone, Copy, Debug)]
struct Input<'a> {
    variables: &'a BTreeMap<String, String>,
    stdin: &'a [u8],
}

#[derive(Clone, Debug)]
pub(crate) struct Runner {
    config: Config,
    environment: Arc<Vec<(OsString, OsString)>>,
    limits: RequestLimits,
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Output<T = String> {
    pub(crate) stdout: T,
    pub(crate) stderr: String,
    pub(crate) status: i32,
}

impl Runner {
    pub(crate) fn new(config: Config) -> Self {
        let inherited = INHERITED
            .iter()
            .filter_map(|name| Some((OsString::from(name), env::var_os(name)?)));
        let inherited = inherited.filter(|(name, _)| config.conf.is_none() || name != "SLURM_CONF");
        let inherited = inherited.collect();
        Self::for_reading(config, inherited)
    }

    /// A runner whose commands print what this crate parses, with these variables in place of inherited ones.
    pub(crate) fn for_reading(config: Config, mut environment: Vec<(OsString, OsString)>) -> Self {
        let fixed = [
            ("SLURM_TIME_FORMAT", "%s"),
            ("SLURM_BITSTR_LEN", "0"),
            ("TZ", "UTC"),
            ("LC_ALL", "C.UTF-8"),
        ];
        environment.extend(fixed.map(|(name, value)| (name.into(), value.into())));
        Self::with_environment(config, environment)
    }

    fn with_environment(config: Config, mut environment: Vec<(OsString, OsString)>) -> Self {
        if let Some(conf) = &config.conf {
            environment.push(("SLURM_CONF".into(), conf.into()));
        }
        Self {
            limits: RequestLimits::new(&config),
            config,
            environment: Arc::new(environment),
        }
    }

    /// A runner with another deadline and separate permits, within the same number of commands per second.
    pub(crate) fn with_timeout(&self, command_timeout: Duration) -> Self {
        Self {
            limits: self.limits.with_timeout(command_timeout),
            ..self.clone()
        }
    }

    /// The slurm.conf passed to the commands, if any.
    pub(crate) fn conf(&self) -> Option<PathBuf> {
        let (_, conf) = self
            .environment
            .iter()
            .find(|(name, _)| name == "SLURM_CONF")?;
        Some(conf.into())
    }

    /// Runs a command that must succeed.
    pub(crate) async fn run(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<String, Error> {
        let text = self.run_long(command, arguments).await?;
        text.into_string()
            .map_err(|source| Error::Io { command, source })
    }

    /// As [`Self::run`], for output that may be too long for memory.
    pub(crate) async fn run_long(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<Text, Error> {
        let output = self.run_any_long(command, arguments).await?;
        // Only an error message, with status 0: treated like status 1.
        let only_error = output.stderr.contains("error") && {
            let begin = output.stdout.window(0, MAX_BLANK_BYTES);
            let begin = begin.map_err(|source| Error::Io { command, source })?;
            begin.trim().is_empty() && output.stdout.len() <= MAX_BLANK_BYTES
        };
        if output.status == 0 && !only_error {
            return Ok(output.stdout);
        }
        let error = Error::from_stderr(command, output.status, &output.stderr);
        metrics::failed(command, error.kind());
        Err(error)
    }

    /// Runs a command whose failure may be a result. Truncated output is an error.
    pub(crate) async fn run_any(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<Output, Error> {
        let output = self.run_any_long(command, arguments).await?;
        let stdout = output.stdout.into_string();
        Ok(Output {
            stdout: stdout.map_err(|source| Error::Io { command, source })?,
            stderr: output.stderr,
            status: output.status,
        })
    }

    /// As [`Self::run_any`], for output that may be too long for memory.
    pub(crate) async fn run_any_long(
        &self,
        command: &'static str,
        arguments: &[&str],
    ) -> Result<Output<Text>, Error> {
        self.run_with_input(command, arguments, None).await
    }

    async fn run_with_input(
        &self,
        command: &'static str,
        arguments: &[&str],
        input: Option<Input<'_>>,
    ) -> Result<Output<Text>, Error> {
        let answer = self.run_within_limits(command, arguments, input).await;
        if let Err(error) = &answer {
            metrics::failed(command, error.kind());
        }
        answer
    }

    async fn run_within_limits(
        &self,
        command: &'static str,
        arguments: &[&str],
        input: Option<Input<'_>>,
    ) -> Result<Output<Text>, Error> {
        if let Some(path) = self.conf() {
            std::fs::metadata(&path).map_err(|source| Error::ConfigMissing { path, source })?;
        }
        // Boxed, since it is large. Dropping it kills the child.
        let question = Box::pin(self.spawn(command, arguments, input));
        self.limits.ask(command, question).await
    }

    async fn spawn(
        &self,
        command: &'static str,
        arguments: &[&str],
        input: Option<Input<'_>>,
    ) -> Result<Output<Text>, Error> {
        let program = self
            .config
            .bin_dir
            .as_ref()
            .map_or_else(|| PathBuf::from(command), |dir| dir.join(command));
        let mut child = Command::new(&program)
            .args(arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(input.into_iter().flat_map(|input| input.variables))
            .stdin(input.map_or_else(Stdio::null, |_| Stdio::piped()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // A separate group, so that processes started by a site's wrapper end with it.
            .process_group(0)
            .spawn()
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => Error::NotInstalled {
                    command,
                    hint: self.install_hint(),
                },
                _ => Error::Io { command, source },
            })?;
        let group = ProcessGroup::of(child.id());
        let stdin = write(child.stdin.take(), input.map_or(&[], |input| input.stdin));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let io_error = |source| Error::Io { command, source };
        let stdout = async {
            match stdout {
                Some(stdout) => Text::of(stdout, MAX_OUTPUT_BYTES).await,
                None => Ok(Text::default()),
            }
        };
        let (stdout, stderr, ()) =
            tokio::try_join!(stdout, read(stderr, MAX_STDERR_BYTES), stdin).map_err(io_error)?;
        let status = child.wait().await.map_err(io_error)?;
        group.has_ended();
        if stdout.len() > MAX_OUTPUT_BYTES {
            return Err(Error::TooLarge { command });
        }
        if status.success() && !stdout.is_whole().map_err(io_error)? {
            return Err(Error::Suspicious {
                command,
                problem: "the last line has no end: the answer was truncated",
            });
        }
        Ok(Output {
            stdout,
            stderr: into_text(stderr),
            status: exit_code(status),
        })
    }

    fn install_hint(&self) -> String {
        match &self.config.bin_dir {
            Some(dir) => format!("bin_dir in [slurm] is {}; correct it or install Slurm's client commands (Debian: slurm-client)", dir.display()),
            None => "install Slurm's client commands (Debian: slurm-client; a checkout: make setup), or set bin_dir in [slurm]".to_owned(),
        }
    }
}

/// Writes the input. A command that ends without reading it has its reasons, which its status and messages tell.
async fn write(stream: Option<ChildStdin>, bytes: &[u8]) -> io::Result<()> {
    let Some(mut stream) = stream else {
        return Ok(());
    };
    match stream.write_all(bytes).await {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

async fn read(stream: Option<impl AsyncRead + Unpin>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let mut limited = stream.take(limit + 1);
        limited.read_to_end(&mut bytes).await?;
        // Read to the end, so that the child does not hang on a full pipe until its deadline.
        tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

/// Job names may hold any byte; invalid UTF-8 becomes replacement characters.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}
