//! Witnesses: copies of the head outside the ledger's directory, by which a rollback of the ledger is detected.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

use crate::chain::Head;
use crate::error::StoreError;

/// A witness, to which the head is written after every charge.
///
/// # Guarantee
/// A permit is granted only after the witness has the head of its charge. If writing to it fails, the charge stands and
/// the run gets an error instead of permits.
///
/// # Example
/// ```
/// use veilgrad_ledger::Witness;
///
/// let file: Witness = "/mnt/other-disk/heads".parse().unwrap();
/// assert_eq!(file, Witness::File("/mnt/other-disk/heads".into()));
/// let command: Witness = "|ssh archive 'cat >> heads'".parse().unwrap();
/// assert_eq!(command, Witness::Command("ssh archive 'cat >> heads'".to_owned()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Witness {
    /// A file that gets one line per charge, synced.
    File(PathBuf),
    /// A shell command that gets the head as a line on its standard input and must succeed.
    Command(String),
}

impl FromStr for Witness {
    type Err = String;

    /// Parses a command if the text begins with `|` or `cmd:`, else a file name.
    fn from_str(text: &str) -> Result<Self, String> {
        let command = text.strip_prefix('|').or_else(|| text.strip_prefix("cmd:"));
        match command.map(str::trim) {
            Some("") => Err("the command of a witness is empty".to_owned()),
            Some(command) => Ok(Self::Command(command.to_owned())),
            None if text.is_empty() => Err("the name of a witness is empty".to_owned()),
            None => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

impl Witness {
    /// Writes a head to the witness.
    ///
    /// # Errors
    /// When writing the file or the command fails.
    pub(crate) fn record(&self, head: &Head) -> Result<(), StoreError> {
        let (name, result) = match self {
            Self::File(path) => (path.display().to_string(), append(path, head)),
            Self::Command(command) => (command.clone(), pipe(command, head)),
        };
        result.map_err(|cause| {
            StoreError::Refused(format!(
                "row {} stands, but the witness {name} did not take it: {cause}",
                head.sequence
            ))
        })
    }
}

fn append(path: &Path, head: &Head) -> std::io::Result<()> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    // One write, so that lines of several processes do not mix.
    file.write_all(format!("{head}\n").as_bytes())?;
    file.sync_all()
}

fn pipe(command: &str, head: &Head) -> std::io::Result<()> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    // A command that does not read its input may still succeed.
    let written = child.stdin.take().map_or(Ok(()), |mut input| writeln!(input, "{head}"));
    let status = child.wait()?;
    match written {
        Err(cause) if cause.kind() != std::io::ErrorKind::BrokenPipe => Err(cause),
        _ if status.success() => Ok(()),
        _ => Err(std::io::Error::other(status.to_string())),
    }
}
