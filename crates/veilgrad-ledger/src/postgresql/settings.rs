//! The settings of a connection, with the names that people know from other clients.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use postgres::Config;
use postgres::config::SslMode;

use crate::error::StoreError;
use crate::location::Address;

/// How a connection is encrypted, by the names of libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Disable,
    /// Encrypted if the server can, without looking at its certificate.
    Prefer,
    /// Encrypted, without looking at the certificate unless a root certificate is named.
    Require,
    /// The certificate must be signed by a trusted one.
    VerifyCa,
    /// It must also be for this host.
    VerifyFull,
}

/// Everything that a connection needs.
pub(super) struct Settings {
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: String,
    pub(super) mode: Mode,
    pub(super) root: Option<PathBuf>,
    connect_timeout: Option<u64>,
    options: Option<String>,
}

impl Settings {
    /// The settings of an address; what it lacks comes from the variables of the environment that other clients use.
    pub(super) fn new(
        address: &Address,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, StoreError> {
        const KNOWN: [&str; 10] = [
            "user",
            "password",
            "host",
            "port",
            "dbname",
            "sslmode",
            "sslrootcert",
            "connect_timeout",
            "options",
            "application_name",
        ];
        let refused = |why: String| StoreError::Refused(why);
        let unknown = address.parameters.iter().find(|(key, _)| !KNOWN.contains(&key.as_str()));
        if let Some((key, _)) = unknown {
            let known = KNOWN.join(", ");
            return Err(refused(format!(
                "the address has a parameter {key:?}; these are known: {known}"
            )));
        }
        let parameter = |name: &str, environment: &str| {
            let mut parameters = address.parameters.iter();
            let given = parameters.find(|(key, _)| key == name).map(|(_, value)| value.clone());
            given.or_else(|| variable(environment).filter(|value| !value.is_empty()))
        };
        let user = address.user.clone().or_else(|| parameter("user", "PGUSER"));
        let user = user.or_else(|| variable("USER")).or_else(|| variable("LOGNAME"));
        let user = user.ok_or_else(|| refused("the address names no user".to_owned()))?;
        let host = address.host.clone().or_else(|| parameter("host", "PGHOST"));
        let host = host.unwrap_or_else(|| "localhost".to_owned());
        let port = match address.port {
            Some(port) => port,
            None => match parameter("port", "PGPORT") {
                Some(port) => {
                    port.parse().map_err(|_| refused(format!("port {port:?} is not a number")))?
                }
                None => 5432,
            },
        };
        let database = address.database.clone().or_else(|| parameter("dbname", "PGDATABASE"));
        let mode = match parameter("sslmode", "PGSSLMODE").as_deref() {
            None if is_this_machine(&host) => Mode::Disable,
            None | Some("verify-full") => Mode::VerifyFull,
            Some("verify-ca") => Mode::VerifyCa,
            Some("require") => Mode::Require,
            Some("prefer") => Mode::Prefer,
            Some("disable") => Mode::Disable,
            Some(other) => {
                return Err(refused(format!(
                    "sslmode {other:?} is not disable, prefer, require, verify-ca or verify-full"
                )));
            }
        };
        let timeout = parameter("connect_timeout", "PGCONNECT_TIMEOUT");
        let timeout = timeout.map(|seconds| {
            seconds
                .parse()
                .map_err(|_| refused(format!("connect_timeout {seconds:?} is not a number")))
        });
        Ok(Self {
            database: database.unwrap_or_else(|| user.clone()),
            user,
            password: address.password.clone().or_else(|| parameter("password", "PGPASSWORD")),
            host,
            port,
            mode,
            root: parameter("sslrootcert", "PGSSLROOTCERT").map(PathBuf::from),
            connect_timeout: timeout.transpose()?,
            options: parameter("options", "PGOPTIONS"),
        })
    }

    pub(super) fn config(&self, patience: Duration) -> Config {
        let mut config = Config::new();
        config
            .user(&self.user)
            .host(&self.host)
            .port(self.port)
            .dbname(&self.database)
            .application_name("veilgrad")
            .keepalives_idle(Duration::from_secs(20))
            .keepalives_interval(Duration::from_secs(10))
            .keepalives_retries(3)
            .connect_timeout(self.connect_timeout.map_or(patience, Duration::from_secs))
            .ssl_mode(match self.mode {
                Mode::Disable => SslMode::Disable,
                Mode::Prefer => SslMode::Prefer,
                Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
            });
        if let Some(password) = &self.password {
            config.password(password);
        }
        if let Some(options) = &self.options {
            config.options(options);
        }
        config
    }
}

/// Whether a connection to this host does not leave the machine.
fn is_this_machine(host: &str) -> bool {
    let loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    host == "localhost" || host.starts_with('/') || loopback
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::{Location, PostgresUrl};

    fn settings(text: &str, environment: &[(&str, &str)]) -> Result<Settings, StoreError> {
        let Location::Postgres(PostgresUrl { address: Ok(address), .. }) = Location::parse(text)
        else {
            panic!("{text}")
        };
        Settings::new(&address, &|name| {
            let found = environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_certificate_is_verified_unless_the_connection_stays_here_or_the_address_says_otherwise() {
        let mode =
            |text: &str| settings(text, &[("USER", "me")]).map(|settings| settings.mode).ok();
        assert_eq!(mode("postgres://me@db.example.org/d"), Some(Mode::VerifyFull));
        assert_eq!(mode("postgres://me@10.0.0.7/d"), Some(Mode::VerifyFull));
        assert_eq!(mode("postgres://me@localhost/d"), Some(Mode::Disable));
        assert_eq!(mode("postgres://me@127.0.0.1/d?sslmode=verify-full"), Some(Mode::VerifyFull));
        assert_eq!(mode("postgres://me@h/d?sslmode=require"), Some(Mode::Require));
        assert_eq!(mode("postgres:///d?host=/run/postgresql"), Some(Mode::Disable));
        assert_eq!(mode("postgres://me@h/d?sslmode=allow"), None);
        assert_eq!(mode("postgres://me@h/d?sslmod=require"), None);
        let variables = [("PGSSLMODE", "verify-ca"), ("PGUSER", "other")];
        let found = settings("postgres://h/d", &variables).unwrap();
        assert_eq!((found.mode, found.user.as_str(), found.port), (Mode::VerifyCa, "other", 5432));
    }

    #[test]
    fn passwords_come_from_the_address_then_the_environment() {
        let variables = [("PGPASSWORD", "from-environment"), ("USER", "me")];
        let password = |text: &str| settings(text, &variables).unwrap().password;
        assert_eq!(password("postgres://me:own@h/d").as_deref(), Some("own"));
        assert_eq!(password("postgres://me@h/d?password=own").as_deref(), Some("own"));
        assert_eq!(password("postgres://me@h/d").as_deref(), Some("from-environment"));
    }
}
