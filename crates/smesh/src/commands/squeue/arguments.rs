//! squeue's command line, as far as it is answered here.

use super::long_format;

/// squeue's format without `--format` (22.05 to 26.05).
const DEFAULT_FORMAT: &str = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R";

/// What is asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SqueueRequest {
    pub(super) no_header: bool,
    /// Numbers without units.
    pub(super) no_convert: bool,
    /// In the form of `--format`.
    pub(super) format: String,
    pub(super) states: Option<Vec<String>>,
    pub(super) users: Option<Vec<String>>,
    pub(super) jobs: Option<Vec<String>>,
    pub(super) partitions: Option<Vec<String>>,
    pub(super) accounts: Option<Vec<String>>,
    pub(super) names: Option<Vec<String>>,
    pub(super) cluster: Option<String>,
}

/// `None` if there is an option that is not known here.
pub(super) fn parse(arguments: &[&str]) -> Option<SqueueRequest> {
    let mut asked = SqueueRequest::default();
    let mut rest = arguments.iter().copied();
    while let Some(argument) = rest.next() {
        if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            let letter = match name {
                "noheader" => 'h',
                "all" => 'a',
                "me" => 'm',
                "noconvert" => 'c',
                "format" => 'o',
                "Format" => 'O',
                "states" | "state" => 't',
                "user" | "users" => 'u',
                "jobs" | "job" => 'j',
                "partition" => 'p',
                "account" => 'A',
                "name" => 'n',
                "clusters" | "cluster" => 'M',
                _ => return None,
            };
            if is_flag(letter) {
                if value.is_some() {
                    return None;
                }
                asked.set(letter, "")?;
            } else {
                asked.set(letter, value.or_else(|| rest.next())?)?;
            }
            continue;
        }
        let mut letters = argument.strip_prefix('-')?.chars();
        while let Some(letter) = letters.next() {
            if ['m', 'c'].contains(&letter) {
                return None;
            }
            if is_flag(letter) {
                asked.set(letter, "")?;
                continue;
            }
            let attached = letters.as_str();
            let value = if attached.is_empty() {
                rest.next()?
            } else {
                attached
            };
            asked.set(letter, value)?;
            break;
        }
    }
    if asked.format.is_empty() {
        DEFAULT_FORMAT.clone_into(&mut asked.format);
    }
    // With a header, squeue names the cluster first. Without, versions differ.
    (asked.cluster.is_none() || !asked.no_header).then_some(asked)
}

const fn is_flag(letter: char) -> bool {
    matches!(letter, 'h' | 'a' | 'm' | 'c')
}

impl SqueueRequest {
    fn set(&mut self, letter: char, value: &str) -> Option<()> {
        let list = || -> Option<Vec<String>> {
            let items: Vec<String> = value.split(',').map(str::to_owned).collect();
            (!items.iter().any(String::is_empty)).then_some(items)
        };
        // An option that is given twice is rare, and its meaning not obvious.
        let once = |field: &mut Option<Vec<String>>| {
            let items = list()?;
            field.replace(items).is_none().then_some(())
        };
        match letter {
            'h' => self.no_header = true,
            'a' => {}
            'c' => self.no_convert = true,
            'm' => {
                let name = uzers::get_current_username()?.into_string().ok()?;
                return self.users.replace(vec![name]).is_none().then_some(());
            }
            'o' | 'O' if !self.format.is_empty() => return None,
            'o' => value.clone_into(&mut self.format),
            'O' => self.format = long_format::in_letters(value)?,
            't' => return once(&mut self.states),
            'u' => return once(&mut self.users),
            'j' => return once(&mut self.jobs),
            'p' => return once(&mut self.partitions),
            'A' => return once(&mut self.accounts),
            'n' => return once(&mut self.names),
            'M' => self.cluster = Some(value.to_owned()),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_pollers_are_understood() {
        let list = |items: &[&str]| Some(items.iter().map(|item| (*item).to_owned()).collect());
        // Nextflow
        let line = [
            "--noheader",
            "-o",
            "%i %t",
            "-t",
            "all",
            "-p",
            "cpu",
            "-u",
            "alice",
        ];
        let nextflow = SqueueRequest {
            no_header: true,
            format: "%i %t".into(),
            states: list(&["all"]),
            partitions: list(&["cpu"]),
            users: list(&["alice"]),
            ..SqueueRequest::default()
        };
        assert_eq!(parse(&line), Some(nextflow));
        // Snakemake
        let line = [
            "--format=%i|%T",
            "--states=all",
            "--noheader",
            "--name",
            "run-1",
        ];
        let snakemake = SqueueRequest {
            no_header: true,
            format: "%i|%T".into(),
            states: list(&["all"]),
            names: list(&["run-1"]),
            ..SqueueRequest::default()
        };
        assert_eq!(parse(&line), Some(snakemake));
        // Parsl
        let parsl = parse(&["--noheader", "--format=%i %t", "--job", "1,2"]);
        assert_eq!(parsl.unwrap().jobs, list(&["1", "2"]));
        let long = parse(&["--Format=JobArrayID:30,State"]).unwrap();
        assert_eq!(long.format, "%30i%20T");
        let attached = parse(&["-hj1,2", "-o%i"]).unwrap();
        assert_eq!(
            (attached.no_header, attached.jobs),
            (true, list(&["1", "2"]))
        );
    }

    #[test]
    fn what_is_not_known_is_left_to_squeue() {
        for line in [
            &["--version"][..],
            &["-l"],
            &["--json"],
            &["-O", "jobid,stdout"],
            &["-O", "jobid", "-o", "%i"],
            &["-S", "i"],
            &["-r"],
            &["12"],
            &["-j"],
            &["-m"],
            &["-u", "a", "-u", "b"],
            &["-u", "a,"],
            &["--me=1"],
            &["-h", "-M", "c"],
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }
}
