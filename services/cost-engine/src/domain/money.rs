//! Money: exact fractions for computing, integer millionths of the currency unit as the result.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One as _, Pow as _, ToPrimitive as _, Zero as _};

use super::PriceError;

/// An exact fraction.
pub type Exact = BigRational;

/// Millionths of a currency unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Micros(pub i64);

impl Micros {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Saturating difference.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Sums saturate at nine million million currency units instead of wrapping.
impl Add for Micros {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Micros {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An integer as an exact fraction.
pub fn integer(value: impl Into<BigInt>) -> Exact {
    Exact::from_integer(value.into())
}

/// A fraction of two integers; `None` if the second is zero.
pub fn ratio(numerator: impl Into<BigInt>, denominator: impl Into<BigInt>) -> Option<Exact> {
    let denominator = denominator.into();
    (!denominator.is_zero()).then(|| Exact::new(numerator.into(), denominator))
}

/// Rounds to whole millionths. Ties go to the even neighbour, so that many roundings do not drift.
///
/// # Errors
/// If the amount does not fit 64 bits.
pub fn round_half_even(exact: &Exact) -> Result<Micros, PriceError> {
    let floor = exact.floor().to_integer();
    let twice_the_rest = (exact - integer(floor.clone())) * integer(2);
    let odd = (&floor % 2u8) != BigInt::zero();
    let up = twice_the_rest > Exact::one() || (twice_the_rest.is_one() && odd);
    let rounded = if up { floor + 1 } else { floor };
    rounded.to_i64().map(Micros).ok_or(PriceError::TooLarge)
}

/// A fraction in lowest terms as text: `3/4`, `2/1`.
pub fn fraction(exact: &Exact) -> String {
    format!("{}/{}", exact.numer(), exact.denom())
}

/// A fraction as a decimal number with this many places: `12.345678`. More places are rounded, ties away from zero.
pub fn decimal_text(exact: &Exact, places: usize) -> String {
    let scale = (0..places).fold(integer(1u32), |scale, _| scale * integer(10u32));
    let scaled = (exact * scale).round().to_integer();
    let sign = if scaled < BigInt::zero() { "-" } else { "" };
    let digits = format!("{:0>width$}", scaled.magnitude(), width = places + 1);
    let (whole, rest) = digits.split_at(digits.len() - places);
    let point = if places == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{rest}")
}

/// Maximum number of digits on either side of the decimal point. Enough for every amount, and a bound for hostile input.
const MAX_DIGITS: usize = 40;

/// Parses a plain decimal number exactly: `0.68`, `12`, `1_000.5`. No sign, no exponent.
pub fn decimal(text: &str) -> Option<Exact> {
    let text = text.replace('_', "");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let digits =
        |part: &str| part.len() <= MAX_DIGITS && part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(rest) || text.ends_with('.') {
        return None;
    }
    let numerator: BigInt = format!("{whole}{rest}").parse().ok()?;
    Some(Exact::new(numerator, BigInt::from(10).pow(rest.len())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ties_go_to_the_even_neighbour() {
        for (numerator, denominator, rounded) in [
            (1, 2, 0),
            (3, 2, 2),
            (5, 2, 2),
            (7, 2, 4),
            (-1, 2, 0),
            (-3, 2, -2),
            (2, 3, 1),
            (1, 3, 0),
            (51, 100, 1),
            (8, 2, 4),
        ] {
            let exact = ratio(numerator, denominator).expect("not over zero");
            assert_eq!(
                round_half_even(&exact),
                Ok(Micros(rounded)),
                "{numerator}/{denominator}"
            );
        }
    }

    #[test]
    fn an_amount_beyond_64_bits_is_an_error() {
        assert_eq!(round_half_even(&integer(i64::MAX)), Ok(Micros(i64::MAX)));
        assert_eq!(
            round_half_even(&(integer(i64::MAX) + integer(1))),
            Err(PriceError::TooLarge)
        );
    }

    #[test]
    fn a_fraction_has_a_decimal_text() {
        for (numerator, denominator, places, text) in [
            (1, 3, 4, "0.3333"),
            (2, 3, 4, "0.6667"),
            (-6_500_000, 1_000_000, 6, "-6.500000"),
            (12, 1, 0, "12"),
            (1, 1_000_000, 6, "0.000001"),
        ] {
            let exact = ratio(numerator, denominator).unwrap();
            assert_eq!(decimal_text(&exact, places), text);
        }
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(decimal("0.1"), ratio(1, 10));
        assert_eq!(decimal("32.7726"), ratio(327_726, 10_000));
        assert_eq!(decimal("1_000"), ratio(1000, 1));
        for bad in [
            "",
            ".5",
            "5.",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "a",
            "0x1",
            "1.2.3",
            &"9".repeat(41),
        ] {
            assert_eq!(decimal(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn rounding_moves_by_at_most_half_and_ties_end_even(numerator in -1_000_000i64..1_000_000, denominator in 1i64..1000) {
            let exact = ratio(numerator, denominator).unwrap();
            let rounded = round_half_even(&exact).unwrap();
            let moved = (integer(rounded.0) - exact) * integer(2);
            prop_assert!(moved >= integer(-1) && moved <= integer(1));
            prop_assert!((moved != integer(-1) && moved != integer(1)) || rounded.0 % 2 == 0);
        }

        #[test]
        fn integers_round_to_themselves(value: i64) {
            prop_assert_eq!(round_half_even(&integer(value)), Ok(Micros(value)));
        }

        #[test]
        fn any_text_is_a_decimal_or_not(text in "\\PC{0,12}") {
            let _ = decimal(&text);
        }
    }
}
