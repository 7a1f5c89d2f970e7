//! Reads secrets from files, standard input or a prompt. On the command line, every user of the machine could see them.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::Path;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::error::Error;

/// Reads the secrets of one command line. Standard input can be read only once.
#[derive(Debug, Default)]
pub struct SecretInput {
    is_stdin_read: bool,
}

impl SecretInput {
    /// Resolves a value: `@FILE` is the content of a file, `-` is standard input or the answer to a prompt.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn value(&mut self, name: &str, written: &str) -> Result<String, Error> {
        match written.strip_prefix('@') {
            Some(file) => read_file(Path::new(file)),
            None if written == "-" => self.read_stdin(name),
            None => Ok(written.to_owned()),
        }
    }

    /// Content of a file. `-` is standard input or a prompt.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn file(&mut self, name: &str, file: &Path) -> Result<String, Error> {
        if file.as_os_str() == "-" {
            self.read_stdin(name)
        } else {
            read_file(file)
        }
    }

    /// Prompts for a value if there is a terminal. `None` otherwise.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn prompt(&mut self, name: &str) -> Result<Option<String>, Error> {
        let can_answer = !self.is_stdin_read && std::io::stdin().is_terminal();
        can_answer.then(|| ask(name)).transpose()
    }

    fn read_stdin(&mut self, name: &str) -> Result<String, Error> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            return ask(name);
        }
        if self.is_stdin_read {
            return Err(Error::Usage(format!(
                "{name}: standard input was read already; pass one of the values as @FILE"
            )));
        }
        self.is_stdin_read = true;
        let mut text = String::new();
        stdin
            .lock()
            .read_to_string(&mut text)
            .map_err(|source| Error::io("read", "standard input", source))?;
        given(name, &text)
    }
}

/// Prompts on the terminal, which does not echo the answer.
fn ask(name: &str) -> Result<String, Error> {
    let failed = |source| Error::io("read", "the terminal", source);
    // Before the prompt, because the answer may be pasted at once.
    let hidden = HiddenInput::begin().map_err(failed)?;
    let mut terminal = std::io::stderr();
    write!(terminal, "{name} (not echoed): ").map_err(failed)?;
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    drop(hidden);
    // The terminal did not echo the line end either.
    writeln!(terminal).map_err(failed)?;
    read.map_err(failed)?;
    given(name, &answer)
}

/// Disables echo on the terminal of standard input until dropped.
struct HiddenInput(Termios);

impl HiddenInput {
    fn begin() -> std::io::Result<Self> {
        let original = tcgetattr(std::io::stdin())?;
        let mut hidden = original.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(original))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // If the terminal is gone, there is no echo to restore.
        tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0).unwrap_or_default();
    }
}

fn read_file(file: &Path) -> Result<String, Error> {
    let text =
        secret_file::read_of_any_owner(file).map_err(|source| Error::io("read", file, source))?;
    given(&file.display().to_string(), &text)
}

/// Trims blanks around a secret.
fn given(name: &str, text: &str) -> Result<String, Error> {
    match text.trim() {
        "" => Err(Error::Usage(format!("{name}: empty"))),
        text => Ok(text.to_owned()),
    }
}
