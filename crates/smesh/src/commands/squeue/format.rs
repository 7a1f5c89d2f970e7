//! squeue's `--format`: `%[.][width]letter`, with text between (print.c and opts.c of squeue, 22.05).

use chrono::{DateTime, Local};

use super::Listing;
use super::arguments::SqueueRequest;

/// Letters whose numbers squeue prints with a unit unless `--noconvert` is given.
const WITH_UNITS: &str = "cCdDmHIJXz";
/// Letters whose texts squeue does not cut to the width.
const NOT_CUT: &str = "BNnRxY";

struct Field {
    letter: char,
    /// Column of the listing.
    column: usize,
    width: usize,
    is_right: bool,
    suffix: String,
}

/// `None` if only squeue knows what to print.
pub(super) fn print(
    listing: &Listing,
    asked: &SqueueRequest,
    jobs: &[&[String]],
) -> Option<String> {
    let (prefix, fields) = parse(&asked.format, listing)?;
    let mut text = String::new();
    if !asked.no_header {
        text.push_str(&prefix);
        for field in &fields {
            field.print(listing.titles.get(field.column)?, &mut text);
        }
        text.push('\n');
    }
    for job in jobs {
        text.push_str(&prefix);
        for field in &fields {
            let value = job.get(field.column)?;
            let has_unit = WITH_UNITS.contains(field.letter) && number(value) >= 1_000;
            if has_unit && !asked.no_convert {
                return None;
            }
            let is_long = field.width > 0 && value.len() > field.width;
            if is_long && (NOT_CUT.contains(field.letter) || !value.is_ascii()) {
                return None;
            }
            let is_running = listing.column(job, 'T') == "RUNNING";
            match field.letter {
                'M' if is_running => field.print(&aged(value, listing.age_seconds)?, &mut text),
                'L' if is_running => field.print(&aged(value, -listing.age_seconds)?, &mut text),
                'e' | 'S' | 'V' => field.print(&local_time(value)?, &mut text),
                _ => field.print(value, &mut text),
            }
        }
        text.push('\n');
    }
    Some(text)
}

fn parse(format: &str, listing: &Listing) -> Option<(String, Vec<Field>)> {
    let mut parts = format.split('%');
    let prefix = parts.next()?.to_owned();
    let mut fields = Vec::new();
    for part in parts {
        let (is_right, rest) = match part.strip_prefix('.') {
            Some(rest) => (true, rest),
            None => (false, part),
        };
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        let width = if digits == 0 {
            0
        } else {
            rest[..digits].parse().ok()?
        };
        // Also for `%%`, and for letters that are not in the list.
        let letter = rest[digits..].chars().next()?;
        fields.push(Field {
            letter,
            column: listing.position(letter)?,
            width,
            is_right,
            suffix: rest[digits + letter.len_utf8()..].to_owned(),
        });
    }
    (!fields.is_empty()).then_some((prefix, fields))
}

impl Field {
    /// Prints as `_print_str`: padded and cut to the width.
    fn print(&self, value: &str, text: &mut String) {
        let width = self.width;
        let value = match value.char_indices().nth(width) {
            Some((end, _)) if width > 0 => &value[..end],
            _ => value,
        };
        let padding = " ".repeat(width.saturating_sub(value.len()));
        if self.is_right {
            text.push_str(&padding);
        }
        text.push_str(value);
        if !self.is_right {
            text.push_str(&padding);
        }
        text.push_str(&self.suffix);
    }
}

fn number(value: &str) -> u64 {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    value[..digits].parse().unwrap_or(0)
}

/// A time, which ingest reads in Unix seconds, as squeue prints it here. Others are texts such as `N/A`.
fn local_time(value: &str) -> Option<String> {
    let Ok(seconds) = value.parse() else {
        return Some(value.to_owned());
    };
    let time = DateTime::from_timestamp(seconds, 0)?.with_timezone(&Local);
    Some(time.format("%Y-%m-%dT%H:%M:%S").to_string())
}

/// A time of a running job, so many seconds later.
fn aged(value: &str, seconds: i64) -> Option<String> {
    if value.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
        return Some(value.to_owned());
    }
    let before = slurm_types::parse_duration_secs(value)?;
    let total = i64::try_from(before).ok()? + seconds;
    let (days, hours, minutes, rest) = (
        total / 86_400,
        total / 3_600 % 24,
        total / 60 % 60,
        total % 60,
    );
    // The end may have passed: squeue knows.
    match (total, days, hours) {
        (..0, ..) => None,
        (_, 0, 0) => Some(format!("{minutes}:{rest:02}")),
        (_, 0, _) => Some(format!("{hours}:{minutes:02}:{rest:02}")),
        _ => Some(format!("{days}-{hours:02}:{minutes:02}:{rest:02}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print_one(format: &str, value: &str) -> Option<String> {
        let listing = Listing {
            letters: "jRT".into(),
            titles: vec!["NAME".into(), "NODELIST(REASON)".into(), "STATE".into()],
            ..Listing::default()
        };
        let asked = SqueueRequest {
            format: format.into(),
            no_header: true,
            ..SqueueRequest::default()
        };
        let job = vec![value.to_owned(), value.to_owned(), "PENDING".to_owned()];
        print(&listing, &asked, &[&job])
    }

    #[test]
    fn widths_are_those_of_squeue() {
        let text = |format| print_one(format, "train").unwrap();
        assert_eq!(text("%j"), "train\n");
        assert_eq!(text("<%.8j>%8j|"), "<   train>train   |\n");
        assert_eq!(text("%.3j %3j"), "tra tra\n");
    }

    #[test]
    fn what_is_not_certain_is_not_printed() {
        assert_eq!(print_one("%q", "x"), None);
        assert_eq!(print_one("%%", "x"), None);
        assert_eq!(print_one("text", "x"), None);
        assert_eq!(print_one("%.3R", "long"), None);
        assert_eq!(print_one("%.3j", "größe"), None);
    }

    #[test]
    fn times_are_local() {
        assert_eq!(local_time("N/A").as_deref(), Some("N/A"));
        let text = local_time("1795680320").unwrap();
        let local = chrono::NaiveDateTime::parse_from_str(&text, "%Y-%m-%dT%H:%M:%S").unwrap();
        let time = local.and_local_timezone(Local).earliest().unwrap();
        assert_eq!(time.timestamp(), 1_795_680_320);
    }

    #[test]
    fn times_of_running_jobs_go_on() {
        for (value, seconds, expected) in [
            ("0:59", 1, Some("1:00")),
            ("59:59", 1, Some("1:00:00")),
            ("23:59:59", 1, Some("1-00:00:00")),
            ("1-00:00:00", -1, Some("23:59:59")),
            ("UNLIMITED", -5, Some("UNLIMITED")),
            ("0:01", -2, None),
        ] {
            assert_eq!(aged(value, seconds).as_deref(), expected, "{value}");
        }
    }
}
