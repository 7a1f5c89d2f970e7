//! Process groups: a command with everything it starts.

#![expect(
    unsafe_code,
    reason = "calls of libc that std and rustix have no safe form of"
)]

/// A child that leads a process group of its own (`Command::process_group(0)`), with all processes it has started. Killed on drop, unless
/// the child was waited for.
#[derive(Debug)]
pub struct ProcessGroup(Option<libc::pid_t>);

impl ProcessGroup {
    /// The group of a child, by the child's id.
    pub fn of(leader: Option<u32>) -> Self {
        let id = leader.and_then(|id| libc::pid_t::try_from(id).ok());
        Self(id.filter(|id| *id > 1))
    }

    /// The child was waited for: its id may belong to another process by now.
    pub fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            // SAFETY: sends a signal. Until its leader was waited for, no other group has this id.
            unsafe { libc::killpg(id, libc::SIGKILL) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_a_command_has_started_ends_with_it() {
        let mut leader = Command::new("sh")
            .args(["-c", "sleep 600 & echo started; wait"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let group = ProcessGroup::of(Some(leader.id()));
        let mut output = leader.stdout.take().unwrap();
        let mut line = [0; 8];
        output.read_exact(&mut line).unwrap();
        drop(group);
        assert_eq!(leader.wait().unwrap().signal(), Some(libc::SIGKILL));
        // The pipe ends with the last process that has it.
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_group_that_has_ended_gets_no_signal() {
        let mut leader = Command::new("true").process_group(0).spawn().unwrap();
        let group = ProcessGroup::of(Some(leader.id()));
        assert!(leader.wait().unwrap().success());
        group.has_ended();
    }
}
