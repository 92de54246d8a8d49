//! Passwords from the file that other clients use, `~/.pgpass`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::settings::Settings;

/// The password for a connection from `$PGPASSFILE` or `~/.pgpass`, if the file is there and nobody else may read it.
pub(super) fn from_file(
    settings: &Settings,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    let named = variable("PGPASSFILE").filter(|name| !name.is_empty()).map(PathBuf::from);
    let path = named.or_else(|| Some(Path::new(&variable("HOME")?).join(".pgpass")))?;
    let metadata = std::fs::metadata(&path).ok()?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o077 != 0 {
        return None;
    }
    find(&std::fs::read_to_string(path).ok()?, settings)
}

/// The password of the first line that fits: `host:port:database:user:password`, where `*` fits everything.
fn find(text: &str, settings: &Settings) -> Option<String> {
    // A connection through a socket is one to localhost.
    let host = if settings.host.starts_with('/') { "localhost" } else { &settings.host };
    let port = settings.port.to_string();
    let wanted = [host, &port, &settings.database, &settings.user];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = split(line);
        let [own @ .., password] = fields.as_slice() else { return None };
        let fits = own.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        (own.len() == wanted.len() && fits).then(|| password.clone())
    })
}

/// The fields of a line, of which the fifth is the rest. A backslash keeps the character after it.
fn split(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let count = fields.len();
        let Some(field) = fields.last_mut() else { break };
        match character {
            ':' if count < 5 => fields.push(String::new()),
            '\\' => field.extend(characters.next()),
            other => field.push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_split_at_colons_that_are_not_escaped() {
        assert_eq!(split(r"h:5432:d\:b:*:p:a\\s\:s"), ["h", "5432", "d:b", "*", r"p:a\s:s"]);
        assert_eq!(split("h:1"), ["h", "1"]);
    }
}
