//! Requests on the command line: options that may be repeated after each `--if`.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

/// Fields of a request as the API has them.
pub type Request = Map<String, Value>;

/// A request, and variants of it.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Options before the first `--if`.
    pub base: Request,
    /// Options after each `--if`.
    pub variants: Vec<Request>,
}

/// Option, short form, field of the API, name of the value, and its help.
const OPTIONS: [(&str, Option<char>, &str, &str, &str); 8] = [
    (
        "time",
        Some('t'),
        "time_limit_minutes",
        "TIME",
        "Time limit: 2h, 90min, or in sbatch's form: minutes, hours:minutes:seconds, days-hours",
    ),
    (
        "partition",
        Some('p'),
        "partition",
        "NAMES",
        "Partition, or several separated by commas",
    ),
    (
        "nodes",
        Some('N'),
        "nodes",
        "N",
        "Nodes; CPUs, memory and GPUs that are not given change with them",
    ),
    ("cpus", None, "cpus", "N", "CPUs of all nodes together"),
    (
        "mem",
        None,
        "memory_mib",
        "SIZE",
        "Memory of all nodes together: 16G, 4000 (MiB)",
    ),
    ("gpus", Some('G'), "gpus", "N", "GPUs of all nodes together"),
    ("account", Some('A'), "account", "NAME", "Account"),
    ("qos", Some('q'), "qos", "NAME", "QOS"),
];

impl Args for Requests {
    fn augment_args(command: Command) -> Command {
        // A flag does not record where it stands, so this is an option without a value.
        let start = Arg::new("if")
            .long("if")
            .action(ArgAction::Append)
            .num_args(0)
            .value_parser(clap::value_parser!(bool))
            .default_missing_value("true")
            .help("Begins a variant: the options after it are what is different (up to 8)");
        let options = OPTIONS.map(|(name, short, field, value_name, help)| {
            let arg = Arg::new(name).long(name).value_name(value_name);
            let arg = arg.action(ArgAction::Append).help(help);
            let arg = arg.value_parser(move |text: &str| value(field, text));
            match short {
                Some(short) => arg.short(short),
                None => arg,
            }
        });
        command
            .next_help_heading("Request")
            .arg(start)
            .args(options)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Requests {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let places = |name: &str| matches.indices_of(name).into_iter().flatten();
        let starts: Vec<usize> = if given("if") {
            places("if").collect()
        } else {
            Vec::new()
        };
        let mut requests = Self {
            base: Request::new(),
            variants: vec![Request::new(); starts.len()],
        };
        for (name, _, field, ..) in OPTIONS {
            let values = matches.get_many::<Value>(name).into_iter().flatten();
            for (place, value) in places(name).zip(values) {
                let variant = starts.partition_point(|start| *start < place);
                let request = match variant.checked_sub(1) {
                    Some(variant) => &mut requests.variants[variant],
                    None => &mut requests.base,
                };
                request.insert(field.to_owned(), value.clone());
            }
        }
        Ok(requests)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn value(field: &str, text: &str) -> Result<Value, String> {
    match field {
        "time_limit_minutes" => minutes(text).map(Value::from).ok_or_else(|| {
            "not a time, such as 2h, 120 (minutes), 02:00:00 or 1-12 (days-hours)".to_owned()
        }),
        "memory_mib" => slurm_types::parse_mem_mib(text)
            .map(Value::from)
            .ok_or_else(|| "not an amount of memory, such as 16G".to_owned()),
        "partition" | "account" | "qos" => Ok(text.into()),
        _ => match text.parse::<u32>() {
            Ok(number) if number > 0 => Ok(number.into()),
            _ => Err("not a number above 0".to_owned()),
        },
    }
}

/// A time limit in whole minutes, rounded up.
fn minutes(text: &str) -> Option<u32> {
    let seconds = if text.contains(|letter: char| letter.is_ascii_alphabetic()) {
        humantime::parse_duration(text).ok()?.as_secs()
    } else {
        // sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds.
        let (days, clock) = match text.split_once('-') {
            Some((days, clock)) => (Some(days.parse::<u64>().ok()?), clock),
            None => (None, text),
        };
        let parts = clock.split(':').map(|part| part.parse::<u64>().ok());
        let parts: Vec<u64> = parts.collect::<Option<_>>()?;
        let [hours, minutes, seconds] = match (days.is_some(), parts.as_slice()) {
            (false, [minutes]) => [0, *minutes, 0],
            (false, [minutes, seconds]) => [0, *minutes, *seconds],
            (true, [hours]) => [*hours, 0, 0],
            (true, [hours, minutes]) => [*hours, *minutes, 0],
            (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
            _ => return None,
        };
        let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
        let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
        minutes.checked_mul(60)?.checked_add(seconds)?
    };
    u32::try_from(seconds.div_ceil(60))
        .ok()
        .filter(|minutes| *minutes > 0)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn options_belong_to_the_variant_that_they_follow() {
        let line = "smesh when -N 4 --time 6h -p gpu --if --time 2h --if -p cpu2 --nodes 2";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::When(when) = cli.command else {
            panic!("{cli:?}");
        };
        assert_eq!(
            Value::from(when.requests.base),
            json!({"nodes": 4, "time_limit_minutes": 360, "partition": "gpu"})
        );
        let variants: Vec<Value> = when
            .requests
            .variants
            .into_iter()
            .map(Value::from)
            .collect();
        assert_eq!(
            Value::from(variants),
            json!([{"time_limit_minutes": 120}, {"partition": "cpu2", "nodes": 2}])
        );
    }

    #[test]
    fn time_limits_have_the_forms_of_sbatch() {
        for (text, expected) in [
            ("2h", Some(120)),
            ("90", Some(90)),
            ("1:30", Some(2)),
            ("02:00:00", Some(120)),
            ("1-12", Some(2_160)),
            ("1-12:30", Some(2_190)),
            ("1-00:00:01", Some(1_441)),
            ("0", None),
            ("soon", None),
            ("1:2:3:4", None),
        ] {
            assert_eq!(minutes(text), expected, "{text}");
        }
    }
}
