//! Connecting to a server.

use std::time::Duration;

use postgres::{Client, NoTls};

use super::failure::Failure;
use super::settings::{Mode, Settings};
use super::{password, tls};
use crate::error::StoreError;
use crate::location::PostgresUrl;

/// Connects to the server of an address.
pub(super) fn connect(url: &PostgresUrl, patience: Duration) -> Result<Client, StoreError> {
    let address = match &url.address {
        Ok(address) => address,
        Err(why) => return Err(StoreError::Refused(format!("{url}: {why}"))),
    };
    let variable = |name: &str| std::env::var(name).ok();
    let mut settings = Settings::new(address, &variable)?;
    if settings.password.is_none() {
        settings.password = password::from_file(&settings, &variable);
    }
    let config = settings.config(patience);
    let client = match settings.mode {
        Mode::Disable => config.connect(NoTls),
        _ => config.connect(tls::connector(&settings)?),
    };
    client.map_err(|error| Failure::Client(error).error(url))
}
