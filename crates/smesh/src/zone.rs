//! Time zones by their IANA names.

use std::path::Path;

use chrono_tz::Tz;

const LOCALTIME: &str = "/etc/localtime";

/// Parses a zone's name.
///
/// # Errors
/// If there is no such zone.
pub fn parse(name: &str) -> Result<Tz, String> {
    name.parse().map_err(|_| {
        "not a time zone; expected an IANA name such as Europe/Berlin or UTC".to_owned()
    })
}

/// The zone in which `date` shows times here: that of `$TZ`, or of /etc/localtime, or UTC.
///
/// # Errors
/// If it has no name, as text.
pub fn of_machine() -> Result<Tz, String> {
    let variable = std::env::var_os("TZ").map(|name| name.to_string_lossy().into_owned());
    // A link that leads nowhere is as good as none.
    let file = Path::new(LOCALTIME);
    let target = file
        .exists()
        .then(|| std::fs::read_link(file).unwrap_or_else(|_| file.to_owned()));
    named(variable.as_deref(), target.as_deref())
}

/// `localtime`: what /etc/localtime links to, or itself. `None` if it is missing.
fn named(variable: Option<&str>, localtime: Option<&Path>) -> Result<Tz, String> {
    let unknown = |what: &str| {
        Err(format!(
            "the time zone of this machine has no name ({what}): name it with --timezone"
        ))
    };
    match (variable, localtime) {
        // tzset(3): without a value it is UTC.
        (Some(""), _) | (None, None) => Ok(Tz::UTC),
        (Some(variable), _) => {
            let name = variable.strip_prefix(':').unwrap_or(variable);
            name.parse().or_else(|_| unknown(&format!("TZ={variable}")))
        }
        (None, Some(file)) => {
            let name = file
                .to_str()
                .and_then(|path| Some(path.split_once("/zoneinfo/")?.1));
            let zone = name.and_then(|name| name.parse().ok());
            zone.map_or_else(
                || unknown(&format!("{LOCALTIME} is {}", file.display())),
                Ok,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_is_that_of_date_or_unknown() {
        let berlin = Some(Path::new("/usr/share/zoneinfo/Europe/Berlin"));
        for (variable, localtime, expected) in [
            (None, berlin, Some(Tz::Europe__Berlin)),
            (
                Some("America/New_York"),
                berlin,
                Some(Tz::America__New_York),
            ),
            (Some(":Asia/Tokyo"), berlin, Some(Tz::Asia__Tokyo)),
            (Some(""), berlin, Some(Tz::UTC)),
            (None, None, Some(Tz::UTC)),
            (Some("CET-1CEST"), berlin, None),
            (None, Some(Path::new("/etc/localtime")), None),
        ] {
            let read = named(variable, localtime);
            assert_eq!(read.clone().ok(), expected, "{variable:?} {localtime:?}");
            if let Err(error) = read {
                assert!(error.contains("--timezone"), "{error}");
            }
        }
    }
}
