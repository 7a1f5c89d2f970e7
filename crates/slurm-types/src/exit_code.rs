//! Exit codes of processes: `exit:signal`, and the raw wait status behind it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Exit code of a job or step, as Slurm prints it: `exit:signal`.
///
/// Out of memory is `0:125`: Slurm stores the dummy signal 253 in the low byte, whose low seven bits are 125. Three sources disagree on
/// purpose or by mistake (seen on 22.05 and 26.05). Slurm's own failure value is `1:0` in sacct but `0:1` in jobcomp, and sacct of 22.05
/// subtracts 128 from exit codes above 127. The controller's record is the true one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ExitCode {
    /// Exit status, 0 to 255.
    pub exit: u8,
    /// Signal number, 0 if none.
    pub signal: u8,
}

/// The text is not an exit code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read exit code {text:?}: expected exit:signal")]
pub struct ParseExitCodeError {
    text: String,
}

impl ExitCode {
    /// Success: `0:0`.
    pub const SUCCESS: Self = Self { exit: 0, signal: 0 };
    /// Slurm's value for a job killed by the out-of-memory killer.
    pub const OUT_OF_MEMORY: Self = Self {
        exit: 0,
        signal: 125,
    };

    /// Splits a raw wait(2) status, as in `SLURM_JOB_EXIT_CODE` and in JSON of Slurm 22.05.
    pub const fn from_wait_status(status: u32) -> Self {
        Self {
            exit: ((status >> 8) & 0xff) as u8,
            signal: (status & 0x7f) as u8,
        }
    }

    /// The wait status of this code, without the core dump bit.
    pub const fn wait_status(self) -> u32 {
        ((self.exit as u32) << 8) | (self.signal as u32 & 0x7f)
    }

    /// True if it is `0:0`.
    pub const fn is_success(self) -> bool {
        self.exit == 0 && self.signal == 0
    }

    /// True if this is Slurm's value for "out of memory".
    pub const fn is_out_of_memory(self) -> bool {
        self.signal == Self::OUT_OF_MEMORY.signal
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.exit, self.signal)
    }
}

impl FromStr for ExitCode {
    type Err = ParseExitCodeError;

    /// Parses `exit:signal`, `exit` alone, and texts like `exit:signal(NAME)`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseExitCodeError {
            text: text.chars().take(64).collect(),
        };
        let trimmed = text.trim();
        let (exit, signal) = trimmed.split_once(':').unwrap_or((trimmed, "0"));
        let signal = signal.split(['(', ' ']).next().unwrap_or(signal);
        Ok(Self {
            exit: exit.parse().map_err(|_| error())?,
            signal: signal.parse().map_err(|_| error())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wait_statuses_seen_on_real_clusters() {
        assert_eq!(ExitCode::from_wait_status(768).to_string(), "3:0");
        assert_eq!(ExitCode::from_wait_status(15).to_string(), "0:15");
        assert_eq!(ExitCode::from_wait_status(253), ExitCode::OUT_OF_MEMORY);
        assert_eq!("0:125".parse(), Ok(ExitCode::OUT_OF_MEMORY));
        assert!("abc".parse::<ExitCode>().is_err());
        assert!("-1:0".parse::<ExitCode>().is_err());
    }

    proptest! {
        #[test]
        fn format_then_parse_is_identity(exit: u8, signal in 0_u8..128) {
            let code = ExitCode { exit, signal };
            prop_assert_eq!(code.to_string().parse::<ExitCode>(), Ok(code));
            prop_assert_eq!(ExitCode::from_wait_status(code.wait_status()), code);
        }

        #[test]
        fn any_text_is_survived(text in ".*") {
            if let Ok(code) = text.parse::<ExitCode>() {
                prop_assert_eq!(code.to_string().parse(), Ok(code));
            }
        }
    }
}
