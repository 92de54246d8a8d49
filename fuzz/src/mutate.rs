//! Inputs that are almost valid: saved ones, with alterations that suit their format.

use crate::random::Random;

/// Longer inputs are truncated.
const LONGEST: usize = 1 << 16;

/// The format of an input, so that alterations get past the first checks of its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Bytes with fields of fixed size.
    Binary,
    /// Lines of text, with numbers, quoted words and brackets.
    Text,
    /// Lines of cells between commas.
    Csv,
    /// A JSON header after its length in eight bytes, then numbers.
    Safetensors,
    /// A text header after its length in two bytes at offset 8, then numbers.
    Npy,
}

/// Numbers at which readers often fail.
const NUMBERS: [&str; 42] = [
    "0",
    "1",
    "-1",
    "2",
    "-0.0",
    "0.5",
    "1.5",
    "1e-5",
    "127",
    "128",
    "255",
    "256",
    "32767",
    "65535",
    "65536",
    "16777216",
    "16777217",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "340282366920938463463374607431768211456",
    "1e308",
    "1.7976931348623157e308",
    "1e309",
    "-1e309",
    "5e-324",
    "1e-400",
    "2.2250738585072014e-308",
    "0.1e1",
    "NaN",
    "inf",
    "1e999999999",
    "0x10",
    "+1",
    "1_000",
];

/// Values of every kind, to replace others.
const VALUES: [&str; 12] = [
    "null",
    "true",
    "false",
    "\"\"",
    "\"x\"",
    "[]",
    "{}",
    "[1,2]",
    "{\"a\":1}",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "[[[[[[[[[[]]]]]]]]]]",
];

/// An input: one of the saved ones with a few alterations.
#[must_use]
pub fn input(random: &mut Random, format: Format, saved: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = random.choose(saved).cloned().unwrap_or_default();
    let most = if random.one_in(8) { 16 } else { 4 };
    for _ in 0..=random.below(most) {
        alter(random, format, &mut bytes, saved, words);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn alter(
    random: &mut Random,
    format: Format,
    bytes: &mut Vec<u8>,
    saved: &[Vec<u8>],
    words: &[&str],
) {
    match format {
        Format::Binary => binary(random, bytes, saved, words),
        Format::Text | Format::Csv if random.one_in(4) => binary(random, bytes, saved, words),
        Format::Csv if random.one_in(2) => cells(random, bytes, words),
        Format::Text | Format::Csv => text(random, bytes, words),
        Format::Safetensors => with_header::<8>(random, bytes, 0, saved, words),
        Format::Npy => with_header::<2>(random, bytes, 8, saved, words),
    }
}

/// Alters the header and updates its length, or alters any bytes.
fn with_header<const N: usize>(
    random: &mut Random,
    bytes: &mut Vec<u8>,
    place: usize,
    saved: &[Vec<u8>],
    words: &[&str],
) {
    let length = bytes.get(place..place + N).map(|field| {
        field.iter().rev().fold(0u64, |length, byte| length << 8 | u64::from(*byte)) as usize
    });
    let start = place + N;
    let header = length.and_then(|length| bytes.get(start..start.checked_add(length)?));
    match header.map(<[u8]>::to_vec) {
        Some(mut header) if !random.one_in(4) => {
            let old = header.len();
            text(random, &mut header, words);
            header.truncate(LONGEST);
            let length = header.len() as u64;
            bytes.splice(start..start + old, header);
            bytes.splice(place..start, length.to_le_bytes().into_iter().take(N));
        }
        _ => binary(random, bytes, saved, words),
    }
}

/// A random range of an input of this length; not empty unless the input is.
fn part(random: &mut Random, length: usize) -> std::ops::Range<usize> {
    let start = random.below(length);
    let most = if random.one_in(4) { length } else { 16 };
    start..(start + 1 + random.below(most)).min(length)
}

fn binary(random: &mut Random, bytes: &mut Vec<u8>, saved: &[Vec<u8>], words: &[&str]) {
    let length = bytes.len();
    let place = random.below(length + 1);
    match random.below(13) {
        0 | 1 => {
            let flip = 1 << random.below(8);
            bytes.get_mut(random.below(length)).into_iter().for_each(|byte| *byte ^= flip);
        }
        2 => {
            let value = [0, 1, 0x7f, 0x80, 0xff, random.word() as u8][random.below(6)];
            bytes.get_mut(random.below(length)).into_iter().for_each(|byte| *byte = value);
        }
        3..=5 => field(random, bytes),
        6 => drop(bytes.drain(part(random, length))),
        7 => {
            let copy = bytes[part(random, length)].to_vec();
            bytes.splice(place..place, copy);
        }
        8 => {
            let fresh: Vec<u8> = (0..random.below(16)).map(|_| random.word() as u8).collect();
            bytes.splice(place..place, fresh);
        }
        9 => bytes.truncate(place),
        10 => {
            // The beginning of this input and the end of another.
            let other = random.choose(saved).map_or(&[][..], Vec::as_slice);
            bytes.truncate(place);
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        11 => {
            let word = random.choose(words).copied().unwrap_or_default();
            bytes.splice(place..place, word.bytes());
        }
        _ => {
            let zeros = random.below(600);
            bytes.splice(place..place, std::iter::repeat_n(0, zeros));
        }
    }
}

/// Sets a field of 2, 4 or 8 bytes, in either order, to an extreme value.
fn field(random: &mut Random, bytes: &mut [u8]) {
    let size = [2, 4, 8][random.below(3)];
    let length = bytes.len() as u64;
    let extremes = [
        0,
        1,
        u64::MAX,
        u64::MAX >> 1,
        (1 << 63) + 1,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x7fff_ffff_7fff_ffff,
        length,
        length.wrapping_sub(1),
        length + 1,
        random.word() >> random.below(64),
    ];
    let value = random.choose(&extremes).copied().unwrap_or(0);
    let mut value = value.to_le_bytes()[..size].to_vec();
    if random.one_in(2) {
        value.reverse();
    }
    let place = random.below(bytes.len());
    bytes[place..].iter_mut().zip(value).for_each(|(byte, value)| *byte = value);
}

fn text(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
    match random.below(12) {
        0..=3 => number(random, bytes),
        4 => reals(random, bytes),
        5 => value(random, bytes, words),
        6 => word(random, bytes, words),
        7 | 8 => lines(random, bytes),
        9 => {
            let place = random.below(bytes.len() + 1);
            let fresh = random.choose(words).copied().unwrap_or_default();
            bytes.splice(place..place, fresh.bytes());
        }
        10 => {
            let place = random.below(bytes.len() + 1);
            let bracket = [b'[', b'{', b'(', b'"', b'\\'][random.below(5)];
            let count = if random.one_in(8) { 2000 } else { 1 + random.below(8) };
            bytes.splice(place..place, std::iter::repeat_n(bracket, count));
        }
        _ => drop(bytes.drain(part(random, bytes.len()))),
    }
}

/// The ranges of consecutive bytes for which `belongs` is true.
fn runs(bytes: &[u8], belongs: impl Fn(u8) -> bool) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for place in (0..bytes.len()).filter(|place| belongs(bytes[*place])) {
        match found.last_mut() {
            Some(last) if last.end == place => last.end += 1,
            _ => found.push(place..place + 1),
        }
    }
    found
}

/// Replaces a number with an extreme one.
fn number(random: &mut Random, bytes: &mut Vec<u8>) {
    let digits = |byte: u8| byte.is_ascii_digit() || b".+-".contains(&byte);
    let mut places = runs(bytes, digits);
    places.retain(|place| bytes[place.clone()].iter().any(u8::is_ascii_digit));
    let Some(place) = random.choose(&places).cloned() else { return };
    let random_number = (random.word() >> random.below(64)).to_string();
    let fresh = random.choose(&NUMBERS).copied().unwrap_or_default();
    let fresh = if random.one_in(4) { &random_number } else { fresh };
    bytes.splice(place, fresh.bytes());
}

/// Replaces a real number of a ledger, and its bits, with an extreme one.
fn reals(random: &mut Random, bytes: &mut Vec<u8>) {
    const BEGIN: &[u8] = br#"{"bits":""#;
    let places: Vec<usize> = bytes
        .windows(BEGIN.len())
        .enumerate()
        .filter_map(|(place, window)| (window == BEGIN).then_some(place))
        .collect();
    let Some(start) = random.choose(&places).copied() else { return number(random, bytes) };
    let end =
        bytes[start..].iter().position(|byte| *byte == b'}').map_or(start, |end| start + end + 1);
    let fresh: f64 = random.choose(&NUMBERS).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let fresh = if random.one_in(4) { f64::from_bits(random.word()) } else { fresh };
    let fresh = format!("{{\"bits\":\"{:016x}\",\"is\":{fresh:?}}}", fresh.to_bits());
    bytes.splice(start..end, fresh.into_bytes());
}

/// Replaces the value after a colon or an equals sign.
fn value(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
    let places: Vec<usize> =
        (0..bytes.len()).filter(|place| matches!(bytes[*place], b':' | b'=')).collect();
    let Some(place) = random.choose(&places).copied() else { return };
    let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b'\n');
    let start = place + 1;
    let end = bytes[start..].iter().position(ends).map_or(bytes.len(), |end| start + end);
    let quoted = format!("\"{}\"", random.choose(words).copied().unwrap_or_default());
    let fresh = match random.below(3) {
        0 => random.choose(&VALUES).copied().unwrap_or_default(),
        1 => random.choose(&NUMBERS).copied().unwrap_or_default(),
        _ => &quoted,
    };
    bytes.splice(start..end, fresh.bytes());
}

/// Replaces a word with another.
fn word(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
    let letters = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'-');
    let places = runs(bytes, letters);
    let Some(place) = random.choose(&places).cloned() else { return };
    let fresh = random.choose(words).copied().unwrap_or_default();
    bytes.splice(place, fresh.bytes());
}

/// Swaps, duplicates, removes or moves lines.
fn lines(random: &mut Random, bytes: &mut Vec<u8>) {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    let Some(line) = lines.get(one).copied() else { return };
    match random.below(4) {
        0 => lines.swap(one, other),
        1 => lines.insert(other, line),
        2 => drop(lines.remove(one)),
        _ => {
            // Moves a line.
            lines.remove(one);
            lines.insert(other.min(lines.len()), line);
        }
    }
    *bytes = lines.concat();
}

/// Alters one cell of a table, or the number of cells of a line.
fn cells(random: &mut Random, bytes: &mut Vec<u8>, words: &[&str]) {
    let places = runs(bytes, |byte| !matches!(byte, b',' | b'\n'));
    let Some(place) = random.choose(&places).cloned() else { return };
    let other = random.choose(&places).map_or(Vec::new(), |other| bytes[other.clone()].to_vec());
    let cell = bytes[place.clone()].to_vec();
    let fresh = match random.below(8) {
        0 => Vec::new(),
        1 => other,
        2 => [b"\"", cell.as_slice(), b"\""].concat(),
        3 => [b"\"", cell.as_slice()].concat(),
        4 => [cell.as_slice(), b",", other.as_slice()].concat(),
        5 => vec![0xff, 0xfe, 0],
        6 => random.choose(&NUMBERS).map_or(Vec::new(), |text| text.as_bytes().to_vec()),
        _ => random.choose(words).map_or(Vec::new(), |text| text.as_bytes().to_vec()),
    };
    bytes.splice(place, fresh);
}
