//! Formats amounts and durations for people.

pub use event_filter::fields::cut;
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::user::v1::Quota;

/// An amount with its currency: two decimals, four below a tenth of a unit, rounded half to even.
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

/// That runs without a price are missing in amounts: `2 runs have no price and are not included`.
pub fn unpriced(runs: u64) -> String {
    match runs {
        1 => "1 run has no price and is not included".to_owned(),
        runs => format!("{runs} runs have no price and are not included"),
    }
}

/// Used part of a budget in percent. `None` if it is not known, because nothing that counts has a price. Events of first versions have
/// no 0: there only a use with runs without a price and nothing settled is not known.
pub fn used_percent(quota: &Quota) -> Option<u64> {
    let is_used = quota.unpriced_runs == 0 || quota.settled.is_some();
    let zero = is_used.then_some(0);
    quota.percent.or(zero)
}

/// A duration in its two largest units: `1 d 3 h`, `2 h 5 min`, `45 s`.
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

#[cfg(test)]
mod tests {
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
}
