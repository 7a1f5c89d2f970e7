//! Amounts, spans of time and escaped text for people.

use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::proto::mesh::cost::v1::Money;

/// An amount with its currency: two decimals, four below a tenth of a unit; rounded half to even.
pub fn money(money: &Money) -> String {
    let micros = i128::from(money.micros);
    let decimals: u32 = if micros != 0 && micros.abs() < 100_000 {
        4
    } else {
        2
    };
    let unit = 10_i128.pow(6 - decimals);
    let (whole, rest) = (micros.abs() / unit, micros.abs() % unit);
    let up = rest * 2 > unit || (rest * 2 == unit && whole % 2 == 1);
    let rounded = whole + i128::from(up);
    let scale = 10_i128.pow(decimals);
    let sign = if micros < 0 && rounded != 0 { "-" } else { "" };
    format!(
        "{sign}{}.{:0width$} {}",
        rounded / scale,
        rounded % scale,
        money.currency,
        width = decimals as usize
    )
}

/// A span of time in its two largest units: `1 d 3 h`, `2 h 5 min`, `45 s`.
pub fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let parts = match (days, hours, minutes) {
        (0, 0, 0) => [(seconds, "s"), (0, "")],
        (0, 0, minutes) => [(minutes, "min"), (seconds % 60, "s")],
        (0, hours, minutes) => [(hours, "h"), (minutes, "min")],
        (days, hours, _) => [(days, "d"), (hours, "h")],
    };
    let shown: Vec<_> = parts
        .iter()
        .enumerate()
        .filter(|(i, (n, _))| *i == 0 || *n > 0)
        .map(|(_, (n, u))| format!("{n} {u}"))
        .collect();
    shown.join(" ")
}

/// A moment that Slack shows in the reader's own time zone; the text after `|` is for clients that cannot.
pub fn slack_time(time: DateTime<Utc>) -> String {
    format!(
        "<!date^{}^{{date_short_pretty}} {{time_secs}}|{}>",
        time.timestamp(),
        time.to_rfc3339_opts(SecondsFormat::Secs, true)
    )
}

/// Text from outside, made harmless for Slack (`&`, `<`, `>` become entities, so that no `<!channel>` and no link comes through) and
/// at most `limit` characters long. Line breaks and control characters become blanks.
pub fn escape(text: &str, limit: usize) -> String {
    let mut escaped = String::new();
    let mut length = 0;
    for character in text.trim().chars() {
        let piece: &str = match character {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            // Slack would show the rest as code, bold or struck through: a look-alike keeps the name readable.
            '`' => "'",
            c if c.is_control() => " ",
            _ => "",
        };
        let width = if piece.is_empty() {
            1
        } else {
            piece.chars().count()
        };
        if length + width + 1 > limit {
            escaped.push('…');
            return escaped;
        }
        length += width;
        if piece.is_empty() {
            escaped.push(character)
        } else {
            escaped.push_str(piece)
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn money_is_rounded_half_to_even() {
        let cases = [
            (0, "0.00"),
            (1_000_000, "1.00"),
            (1_005_000, "1.00"),
            (1_015_000, "1.02"),
            (1_015_001, "1.02"),
            (123, "0.0001"),
            (50, "0.0000"),
            (99_950, "0.1000"),
            (-1_500_000, "-1.50"),
            (-10, "0.0000"),
            (i64::MAX, "9223372036854.78"),
        ];
        for (micros, expected) in cases {
            assert_eq!(
                money(&Money {
                    micros,
                    currency: "EUR".into()
                }),
                format!("{expected} EUR"),
                "{micros}"
            );
        }
    }

    #[test]
    fn spans_show_two_units() {
        let cases = [
            (0, "0 s"),
            (-5, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3_600, "1 h"),
            (7_530, "2 h 5 min"),
            (86_400, "1 d"),
            (97_200, "1 d 3 h"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(span(seconds), expected);
        }
    }

    #[test]
    fn mentions_and_links_do_not_come_through() {
        assert_eq!(
            escape("<!channel> a&b `x`\nnext", 100),
            "&lt;!channel&gt; a&amp;b 'x' next"
        );
        assert_eq!(escape("abcdef", 4), "abc…");
        assert_eq!(escape("<<<", 9), "&lt;&lt;…");
    }

    proptest! {
        #[test]
        fn escaped_text_is_short_and_has_no_markup(text in ".{0,60}", limit in 1usize..40) {
            let escaped = escape(&text, limit);
            prop_assert!(escaped.chars().count() <= limit);
            prop_assert!(!escaped.contains(['<', '>', '\n', '`']));
            let entities = ["amp;", "lt;", "gt;"];
            prop_assert!(escaped.split('&').skip(1).all(|rest| entities.iter().any(|entity| rest.starts_with(entity))));
        }
    }
}
