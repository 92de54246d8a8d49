//! Numbers for people, rounded to the side that promises less.
//!
//! Programs get exact numbers; these functions are for tables, pages and statements.

/// Five significant digits, rounded up: for epsilon, delta, rates of sampling and rates of attacks.
pub fn up(value: f64) -> String {
    let text = rounded(value, f64::ceil);
    // Printing decimal digits may have rounded down again.
    if text.parse::<f64>().is_ok_and(|shown| shown >= value) { text } else { value.to_string() }
}

/// Five significant digits, rounded down: for what is left of a budget and for lower bounds.
pub fn down(value: f64) -> String {
    let text = rounded(value, f64::floor);
    if text.parse::<f64>().is_ok_and(|shown| shown <= value) { text } else { value.to_string() }
}

/// Noise that protects or protected records, rounded down: more noise would promise more.
pub fn claimed_noise_down(noise: f64) -> String {
    down(noise)
}

/// Noise that somebody is told to use, rounded up: what is shown still keeps the target.
pub fn required_noise_up(noise: f64) -> String {
    up(noise)
}

/// A mean number of runs, to five significant digits.
pub fn runs(mean: f64) -> String {
    rounded(mean, f64::round)
}

/// A measured share as a percentage. All percentages have two decimals.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// An upper bound on a share, as a percentage.
pub fn percent_up(share: f64) -> String {
    let below = (10_000.0 * share).floor();
    // The product was rounded: 0.07 is no more than 7.00 %, the next number is.
    hundredths(if below / 10_000.0 < share { below + 1.0 } else { below })
}

/// A lower bound on a share, such as a confidence, as a percentage.
pub fn percent_down(share: f64) -> String {
    let above = (10_000.0 * share).ceil();
    hundredths(if above / 10_000.0 > share { above - 1.0 } else { above })
}

fn hundredths(of_a_percent: f64) -> String {
    format!("{:.2} %", of_a_percent / 100.0)
}

fn rounded(value: f64, round: fn(f64) -> f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = 4 - value.abs().log10().floor() as i32;
    if !(0..=12).contains(&digits) {
        return value.to_string();
    }
    let scale = 10f64.powi(digits);
    let places = usize::try_from(digits).unwrap_or(0);
    let text = format!("{:.places$}", round(value * scale) / scale);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_never_see_a_number_below_the_bound() {
        assert_eq!(runs(10.000_000_000_000_002), "10");
        assert_eq!(up(2.379_554_518), "2.3796");
        assert_eq!(down(2.379_554_518), "2.3795");
        assert_eq!(up(2.0), "2");
        assert_eq!(up(0.0), "0");
        assert_eq!(up(506.190_931), "506.2");
        for value in [1.1, 0.1 + 0.2, 1e-7, 123_456.789, 9.999_999, 4.377_178_095_68] {
            assert!(up(value).parse::<f64>().unwrap() >= value, "{value}");
            assert!(down(value).parse::<f64>().unwrap() <= value, "{value}");
        }
    }

    #[test]
    fn percentages_have_two_decimals_and_bounds_stay_bounds() {
        assert_eq!((percent(0.98244), percent(1.0)), ("98.24 %".into(), "100.00 %".into()));
        assert_eq!((percent_up(0.01), percent_up(0.07)), ("1.00 %".into(), "7.00 %".into()));
        assert_eq!(
            (percent_up(0.123_401), percent_down(0.123_499)),
            ("12.35 %".into(), "12.34 %".into())
        );
        assert_eq!(
            (percent_up(1e-9), percent_down(0.999_999_9)),
            ("0.01 %".into(), "99.99 %".into())
        );
        for i in 0..=10_000 {
            let share = f64::from(i) / 10_000.0;
            assert_eq!((percent_up(share), percent_down(share)), (percent(share), percent(share)));
            let (above, below) = (share.next_up(), share.next_down());
            let shown = |text: String| text.trim_end_matches(" %").parse::<f64>().unwrap() / 100.0;
            assert!(shown(percent_up(above)) > share, "{share}");
            assert!(shown(percent_down(below)) < share || share == 0.0, "{share}");
        }
    }

    #[test]
    fn noise_that_was_used_is_rounded_down_and_noise_to_use_up() {
        assert_eq!(claimed_noise_down(1.590_138_79), "1.5901");
        assert_eq!(required_noise_up(1.590_138_79), "1.5902");
        assert_eq!((claimed_noise_down(1.1), required_noise_up(1.1)), ("1.1".into(), "1.1".into()));
    }
}
