//! Where a ledger is: a file, or a database on a server whose password is never shown.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// Parameters of an address that are secret.
const SECRET: [&str; 2] = ["password", "sslpassword"];

/// Where a ledger is.
///
/// # Example
/// ```
/// use veilgrad_ledger::Location;
///
/// assert_eq!(Location::parse("ledger.db"), Location::File("ledger.db".into()));
/// let shared = Location::parse("postgres://trainer:secret@db.example.org/privacy?sslmode=verify-full");
/// assert_eq!(shared.to_string(), "postgres://trainer@db.example.org/privacy?sslmode=verify-full");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// An SQLite file.
    File(PathBuf),
    /// A PostgreSQL database.
    Postgres(PostgresUrl),
}

impl Location {
    /// Parses `postgres://...` or `postgresql://...` as the address of a database; everything else is the path of a file.
    /// An address that is wrong is refused when it is used, so that no error has to quote it.
    pub fn parse(text: impl AsRef<OsStr>) -> Self {
        let text = text.as_ref();
        match text.to_str().filter(|text| scheme(text).is_some()) {
            Some(address) => Self::Postgres(PostgresUrl::new(address)),
            None => Self::File(PathBuf::from(text)),
        }
    }

    /// The path of a file; `None` for a database on a server.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Postgres(address) => address.fmt(f),
        }
    }
}

impl From<OsString> for Location {
    fn from(text: OsString) -> Self {
        Self::parse(text)
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        Self::File(path.clone())
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}

/// The address of a PostgreSQL database: `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?KEY=VALUE&...]`.
///
/// # Guarantee
/// The password is in no text that this type prints, with `Debug` either.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// Without passwords.
    public: String,
    pub(crate) address: Result<Address, &'static str>,
}

/// The parts of an address, decoded.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
pub(crate) struct Address {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) database: Option<String>,
    pub(crate) parameters: Vec<(String, String)>,
}

impl PostgresUrl {
    fn new(text: &str) -> Self {
        let scheme = scheme(text).unwrap_or_default();
        let rest = text.get(scheme.len()..).unwrap_or_default();
        match parse(rest) {
            Ok((address, public)) => {
                Self { public: format!("{scheme}{public}"), address: Ok(address) }
            }
            Err(why) => {
                Self { public: format!("{scheme}(not a valid address)"), address: Err(why) }
            }
        }
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.public.fmt(f)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresUrl({})", self.public)
    }
}

/// Removes the passwords of all PostgreSQL addresses in a text, such as an error about arguments.
pub fn without_passwords(text: &str) -> String {
    let mut rest = text;
    let mut clean = String::with_capacity(text.len());
    while let Some(start) = SCHEMES.iter().filter_map(|scheme| rest.find(scheme)).min() {
        let (before, address) = rest.split_at(start);
        let is_end = |c: char| c.is_whitespace() || ['\'', '"', '`'].contains(&c);
        let (address, after) = address.split_at(address.find(is_end).unwrap_or(address.len()));
        clean.push_str(before);
        clean.push_str(&Location::parse(address).to_string());
        rest = after;
    }
    clean + rest
}

fn scheme(text: &str) -> Option<&'static str> {
    SCHEMES.into_iter().find(|scheme| text.starts_with(scheme))
}

/// Parses an address after its scheme; returns it, and its text without passwords.
fn parse(rest: &str) -> Result<(Address, String), &'static str> {
    // The last '@' ends the user and the password, so that no part of a password can look like a host.
    let (login, place) = match rest.rsplit_once('@') {
        Some((login, place)) => (Some(login), place),
        None => (None, rest),
    };
    if login.is_some_and(|login| login.contains(['@', '/', '?', '#'])) {
        return Err(
            "write '@', '/', '?' and '#' in the user or password of an address as %40, %2F, %3F and %23",
        );
    }
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (user, password),
        None => ("", ""),
    };
    let (place, query) = place.split_once('?').unwrap_or((place, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (host, port) = split_port(authority)?;
    let (mut parameters, mut shown) = (Vec::new(), Vec::new());
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) =
            parameter.split_once('=').ok_or("a parameter of the address has no value")?;
        let key = decode(key)?;
        if !SECRET.contains(&key.as_str()) {
            shown.push(parameter);
        }
        parameters.push((key, decode(value)?));
    }
    let mut public = String::new();
    if !user.is_empty() {
        public.push_str(&format!("{user}@"));
    }
    public.push_str(place);
    if !shown.is_empty() {
        public.push_str(&format!("?{}", shown.join("&")));
    }
    let some = |text: &str| Ok(Some(decode(text)?).filter(|text| !text.is_empty()));
    let address = Address {
        user: some(user)?,
        password: some(password)?,
        host: some(host)?,
        port,
        database: some(database)?,
        parameters,
    };
    Ok((address, public))
}

/// The host and the port of an address; an IPv6 address is in brackets.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => return Ok((host, None)),
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => return Ok((authority, None)),
        },
    };
    let port = port.and_then(|port| port.parse().ok());
    port.map(|port| (host, Some(port))).ok_or("the port of the address is not a number")
}

/// Decodes %XX.
fn decode(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "the address has a '%' that is not the code of a character";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(WRONG) };
        bytes.push(u8::try_from(16 * high + low).map_err(|_| WRONG)?);
    }
    String::from_utf8(bytes).map_err(|_| WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        match Location::parse(text) {
            Location::Postgres(url) => url.address.unwrap_or_else(|why| panic!("{text}: {why}")),
            Location::File(_) => panic!("{text} is a file"),
        }
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let full =
            address("postgresql://a%40b:p%2Fq@[::1]:5433/my%20db?sslmode=require&password=x");
        assert_eq!(full.user.as_deref(), Some("a@b"));
        assert_eq!(full.password.as_deref(), Some("p/q"));
        assert_eq!((full.host.as_deref(), full.port), (Some("::1"), Some(5433)));
        assert_eq!(full.database.as_deref(), Some("my db"));
        let parameters = [("sslmode", "require"), ("password", "x")];
        assert_eq!(full.parameters, parameters.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let short = address("postgres:///privacy");
        assert_eq!((short.user, short.host, short.port), (None, None, None));
        assert!(matches!(Location::parse("a/postgres://b"), Location::File(_)));
    }

    #[test]
    fn a_password_is_in_no_text_however_it_is_written() {
        let secret = "s3cret";
        for text in [
            "postgres://me:s3cret@host/db",
            "postgres://me:s3cret@host:1/db?password=s3cret&sslmode=require",
            "postgres://host/db?user=me&password=s3cret",
            "postgres://me:s3cret/x@host/db",
            "postgres://me:s3cret?x@host/db",
            "postgres://me:x#s3cret@host/db",
            "postgres://me:x@s3cret@host/db",
            "postgres://me:x/s3cret@host/db",
            "postgres://me:s3cret",
            "postgres://me:%zzs3cret@host/db",
            "postgres://host/db?pass%77ord=s3cret",
            "postgres://host/db?s3cret",
        ] {
            let location = Location::parse(text);
            let shown = format!("{location} {location:?}");
            assert!(!shown.contains(secret) && !shown.contains("s3c"), "{text}: {shown}");
            let error = without_passwords(&format!("error: '{text}' is not known\n{text}"));
            assert!(!error.contains(secret) && error.contains("is not known"), "{text}: {error}");
        }
    }
}
