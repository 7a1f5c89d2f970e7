//! The fields of a job, each with its type and range.
//!
//! Values may come from templates over an event's data. So a value is never more than one word of one option, and every field has the
//! characters that Slurm gives a meaning to in that field, and no others.

use serde::{Deserialize, Serialize};
use slurm_types::{parse_duration_secs, parse_mem_mib};

use crate::FieldError;

/// Slurm refuses longer texts (`MAX_STR_LEN` of names, comments and paths is 1024 in slurmctld).
const MAX_TEXT_BYTES: usize = 1024;
/// The comment also has the key and a space.
const MAX_COMMENT_BYTES: usize = MAX_TEXT_BYTES - 32;
/// A year.
const MAX_MINUTES: u32 = 366 * 24 * 60;
/// An exbibyte.
const MAX_MIB: u64 = 1 << 40;
/// More nodes, tasks or CPUs than any cluster has.
const MAX_COUNT: u32 = 1 << 24;

/// What a job asks for. Fields that are `None` are left to the script and to Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobFields {
    /// Name.
    pub job_name: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// Partition, or several with commas.
    pub partition: Option<String>,
    /// QOS.
    pub qos: Option<String>,
    /// Time limit in minutes.
    pub time: Option<u32>,
    /// Memory per node in MiB.
    pub memory: Option<u64>,
    /// Number of nodes.
    pub nodes: Option<u32>,
    /// Number of tasks.
    pub tasks: Option<u32>,
    /// CPUs per task.
    pub cpus: Option<u32>,
    /// Generic resources per node: `gpu:2`.
    pub gres: Option<String>,
    /// Required features.
    pub constraint: Option<String>,
    /// File of the standard output, with Slurm's patterns.
    pub output: Option<String>,
    /// File of the standard error, with Slurm's patterns.
    pub error: Option<String>,
    /// Working directory, an absolute path; the owner's home if unset.
    pub work_dir: Option<String>,
    /// Dependencies: `afterok:123`.
    pub dependency: Option<String>,
    /// Array: `0-9%2`.
    pub array: Option<String>,
    /// Nodes not to run on, as a host list.
    pub exclude: Option<String>,
    /// The user's own comment, stored after the key.
    pub comment: Option<String>,
    /// Reservation.
    pub reservation: Option<String>,
    /// Workload characterization key.
    pub wckey: Option<String>,
}

impl JobFields {
    /// Names of the fields.
    pub const NAMES: [&'static str; 20] = [
        "job_name",
        "account",
        "partition",
        "qos",
        "time",
        "memory",
        "nodes",
        "tasks",
        "cpus",
        "gres",
        "constraint",
        "output",
        "error",
        "work_dir",
        "dependency",
        "array",
        "exclude",
        "comment",
        "reservation",
        "wckey",
    ];

    /// Sets a field from text: `time` as `90` or `90m` (minutes), `2h`, `1d`, `1:30:00` or `1-12:00:00`, `memory` as `4096` (MiB), `512M` or `4G`.
    ///
    /// # Errors
    /// If there is no such field, or the text is not acceptable for it.
    pub fn set(&mut self, field: &str, text: &str) -> Result<(), FieldError> {
        let count = || -> Result<Option<u32>, FieldError> {
            let count = number(text).ok_or_else(|| FieldError::new(field, "expected a number"))?;
            Ok(Some(count))
        };
        let own = || Some(text.to_owned());
        match field {
            "job_name" => self.job_name = own(),
            "account" => self.account = own(),
            "partition" => self.partition = own(),
            "qos" => self.qos = own(),
            "time" => self.time = Some(minutes(field, text)?),
            "memory" => self.memory = Some(mib(field, text)?),
            "nodes" => self.nodes = count()?,
            "tasks" => self.tasks = count()?,
            "cpus" => self.cpus = count()?,
            "gres" => self.gres = own(),
            "constraint" => self.constraint = own(),
            "output" => self.output = own(),
            "error" => self.error = own(),
            "work_dir" => self.work_dir = own(),
            "dependency" => self.dependency = own(),
            "array" => self.array = own(),
            "exclude" => self.exclude = own(),
            "comment" => self.comment = own(),
            "reservation" => self.reservation = own(),
            "wckey" => self.wckey = own(),
            _ => {
                let names = Self::NAMES.join(", ");
                return Err(FieldError::new(
                    field,
                    format!("no such field; there are {names}"),
                ));
            }
        }
        self.validate()
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is not acceptable.
    pub fn validate(&self) -> Result<(), FieldError> {
        type Check = fn(&str, &str) -> Result<(), FieldError>;
        let texts: [(&str, &Option<String>, Check); 15] = [
            ("job_name", &self.job_name, check_text),
            ("account", &self.account, check_name),
            ("partition", &self.partition, check_name),
            ("qos", &self.qos, check_name),
            ("gres", &self.gres, check_word),
            ("constraint", &self.constraint, check_word),
            ("output", &self.output, check_text),
            ("error", &self.error, check_text),
            ("work_dir", &self.work_dir, check_directory),
            ("dependency", &self.dependency, check_dependency),
            ("array", &self.array, check_array),
            ("exclude", &self.exclude, check_hostlist),
            ("comment", &self.comment, check_comment),
            ("reservation", &self.reservation, check_name),
            ("wckey", &self.wckey, check_name),
        ];
        for (field, text, check) in texts {
            text.as_ref().map_or(Ok(()), |text| check(field, text))?;
        }
        for (field, count) in [
            ("nodes", self.nodes),
            ("tasks", self.tasks),
            ("cpus", self.cpus),
        ] {
            count.map_or(Ok(()), |count| check_count(field, count))?;
        }
        self.time
            .map_or(Ok(()), |time| check_minutes("time", time))?;
        self.memory.map_or(Ok(()), |mib| check_mib("memory", mib))
    }
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn minutes(field: &str, text: &str) -> Result<u32, FieldError> {
    let units = [('m', 1), ('h', 60), ('d', 24 * 60)];
    let unit = units
        .into_iter()
        .find_map(|(unit, minutes)| Some((text.strip_suffix(unit)?, minutes)));
    let minutes = match unit {
        Some((count, minutes)) => number(count).and_then(|count| count.checked_mul(minutes)),
        None => number(text).or_else(|| {
            let seconds = parse_duration_secs(text).filter(|_| text.contains([':', '-']))?;
            u32::try_from(seconds.div_ceil(60)).ok()
        }),
    };
    minutes.ok_or_else(|| FieldError::new(field, "expected a time as 90, 90m, 2h, 1d or 1:30:00"))
}

fn mib(field: &str, text: &str) -> Result<u64, FieldError> {
    let begins = text.starts_with(|c: char| c.is_ascii_digit());
    parse_mem_mib(text)
        .filter(|_| begins)
        .ok_or_else(|| FieldError::new(field, "expected an amount of memory as 4096, 512M or 4G"))
}

fn check(holds: bool, field: &str, problem: &str) -> Result<(), FieldError> {
    match holds {
        true => Ok(()),
        false => Err(FieldError::new(field, problem)),
    }
}

pub(crate) fn check_minutes(field: &str, minutes: u32) -> Result<(), FieldError> {
    let sane = (1..=MAX_MINUTES).contains(&minutes);
    check(sane, field, "expected 1 minute to 366 days")
}

pub(crate) fn check_mib(field: &str, mib: u64) -> Result<(), FieldError> {
    let sane = (1..=MAX_MIB).contains(&mib);
    check(sane, field, "expected at least 1 MiB")
}

pub(crate) fn check_count(field: &str, count: u32) -> Result<(), FieldError> {
    let sane = (1..=MAX_COUNT).contains(&count);
    check(sane, field, "expected at least 1")
}

/// A text of one line that cannot pass for an option.
fn check_text(field: &str, text: &str) -> Result<(), FieldError> {
    check(!text.is_empty(), field, "it is empty")?;
    check(!text.contains('\0'), field, "it contains NUL")?;
    let length = text.len() <= MAX_TEXT_BYTES;
    check(length, field, "it is longer than 1024 bytes")?;
    let one_line = !text.contains(char::is_control);
    check(one_line, field, "it contains a control character")?;
    check(!text.starts_with('-'), field, "it begins with -")
}

fn check_comment(field: &str, text: &str) -> Result<(), FieldError> {
    check_text(field, text)?;
    let length = text.len() <= MAX_COMMENT_BYTES;
    check(length, field, "it is longer than 992 bytes")
}

fn check_directory(field: &str, text: &str) -> Result<(), FieldError> {
    check_text(field, text)?;
    check(text.starts_with('/'), field, "it is not an absolute path")
}

/// A text of these characters.
fn check_charset(field: &str, text: &str, others: &str) -> Result<(), FieldError> {
    check_text(field, text)?;
    let odd = text
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !others.contains(*c));
    match odd {
        None => Ok(()),
        Some(odd) => Err(FieldError::new(field, format!("it contains {odd:?}"))),
    }
}

/// A name of Slurm's, or several with commas.
pub(crate) fn check_name(field: &str, text: &str) -> Result<(), FieldError> {
    check_charset(field, text, "_-.,@+:/")
}

fn check_word(field: &str, text: &str) -> Result<(), FieldError> {
    check_charset(field, text, "_-.,:=*&|()[]/")
}

fn check_dependency(field: &str, text: &str) -> Result<(), FieldError> {
    check_charset(field, text, "_:,?+")
}

fn check_array(field: &str, text: &str) -> Result<(), FieldError> {
    let indexes = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b",-:%".contains(&byte));
    check(indexes, field, "expected indexes as 0-9%2")?;
    check_text(field, text)
}

pub(crate) fn check_hostlist(field: &str, text: &str) -> Result<(), FieldError> {
    check_charset(field, text, "_-.,[]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(field: &str, text: &str, accepted: bool) {
        let result = JobFields::default().set(field, text);
        assert_eq!(result.is_ok(), accepted, "{field} = {text:?}: {result:?}");
        if let Err(error) = result {
            assert_eq!(error.field, field);
        }
    }

    #[test]
    fn texts_are_read_by_their_field() {
        let mut fields = JobFields::default();
        for (field, text) in [
            ("time", "1:30:00"),
            ("memory", "4G"),
            ("nodes", "2"),
            ("job_name", "align é $(id) \"x\""),
            ("partition", "cpu,gpu"),
            ("dependency", "afterok:12_3,afterany:5"),
            ("array", "0-9,20%2"),
            ("exclude", "n[1-3],gpu4"),
            ("work_dir", "/home/alice/with space"),
        ] {
            fields.set(field, text).expect(field);
        }
        assert_eq!((fields.time, fields.memory), (Some(90), Some(4096)));
        for (text, minutes) in [
            ("90", 90),
            ("90m", 90),
            ("2h", 120),
            ("1d", 1440),
            ("1-12:00:00", 2160),
            ("30:01", 31),
        ] {
            fields.set("time", text).expect(text);
            assert_eq!(fields.time, Some(minutes), "{text}");
        }
    }

    #[test]
    fn shapes_of_options_and_other_languages_are_refused() {
        for field in JobFields::NAMES {
            for text in ["", "--uid=0", "a\0b", "a\nb", "-1", &"x".repeat(2_000)] {
                check(field, text, false);
            }
        }
        for (field, text) in [
            ("account", "a b"),
            ("account", "a;b"),
            ("partition", "cpu --uid=0"),
            ("time", "0"),
            ("time", "1e3"),
            ("time", "UNLIMITED"),
            ("time", "99999d"),
            ("memory", "0"),
            ("memory", "-4G"),
            ("nodes", "1-2"),
            ("nodes", "+1"),
            ("work_dir", "tmp"),
            ("dependency", "singleton --hold"),
            ("array", "0-9 --uid=0"),
            ("exclude", "n1 n2"),
            ("uid", "0"),
            ("export", "ALL"),
        ] {
            check(field, text, false);
        }
    }
}
