//! The types of values, and how they are named.

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Text,
    Path,
    /// One character.
    Character,
    Boolean,
    Number,
    /// A whole number from this one on, up to the largest of TOML, `i64::MAX`.
    Whole(u64),
    /// A whole number from the first one to the second.
    WholeTo(u64, u64),
    /// Two values.
    Pair(&'static Value),
    List(&'static Value),
    /// One of these words.
    OneOf(&'static [&'static str]),
    Either(&'static Value, &'static Value),
    /// A table, by its path.
    Table(&'static str),
    /// A list of tables, by their path.
    Tables(&'static str),
}

/// The largest number that 32 bits hold.
pub(super) const U32: u64 = u32::MAX as u64;

impl Value {
    /// The type in words, for messages.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Text => "a text in quotes".to_owned(),
            Self::Path => "a path in quotes".to_owned(),
            Self::Character => "a character in quotes".to_owned(),
            Self::Boolean => "true or false".to_owned(),
            Self::Number => "a number".to_owned(),
            Self::Whole(0) | Self::WholeTo(0, _) => "a whole number".to_owned(),
            Self::Whole(least) | Self::WholeTo(least, _) => {
                format!("a whole number of {least} or more")
            }
            Self::Pair(&Self::Number) => "two numbers, [low, high]".to_owned(),
            Self::Pair(value) => format!("two values, each {}", value.describe()),
            Self::List(value) => format!("a list, each value {}", value.describe()),
            Self::OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                match words.as_slice() {
                    [one] => one.clone(),
                    [all @ .., last] => format!("{} or {last}", all.join(", ")),
                    [] => String::new(),
                }
            }
            Self::Either(one, other) => format!("{}, or {}", one.describe(), other.describe()),
            Self::Table(path) => match path {
                "data.record" => {
                    "{ user = \"column\", max_examples = N }, { user_ids = \"file\", max_examples = N } or \
                     { microbatch = N }"
                        .to_owned()
                }
                path => format!("a table, [{path}]"),
            },
            Self::Tables(path) => format!("a list of tables, [[{path}]]"),
        }
    }
}
