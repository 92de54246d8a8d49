//! The files of a ledger: paths, safe opening, identity, and the file system.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use crate::error::{StoreError, file_error, not_a_ledger};
use crate::schema::{APPLICATION, BACKUP, MOVED, SCHEMA};

/// The canonical path of an existing ledger, next to which its other files are. Checks the file system and the version.
pub(crate) fn find(path: &Path, allow_network: bool) -> Result<PathBuf, StoreError> {
    let path = std::fs::canonicalize(path).map_err(|cause| file_error(path, cause))?;
    check_file_system(&path, allow_network)?;
    check_kind(&path)?;
    Ok(path)
}

/// The canonical path of a new file.
pub(crate) fn new_path(path: &Path) -> Result<PathBuf, StoreError> {
    let name = path.file_name().ok_or_else(|| not_a_ledger(path, "is not a file name"))?;
    let directory = directory(path);
    let real = std::fs::canonicalize(directory).map_err(|cause| file_error(directory, cause))?;
    Ok(real.join(name))
}

/// The path of a file next to the database: its path with a suffix.
pub(crate) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

pub(crate) fn anchor_path(database: &Path) -> PathBuf {
    beside(database, ".anchor")
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Syncs the directory of a file, so that the directory entries of new files survive a crash.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let directory = directory(path);
    std::fs::File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|cause| file_error(directory, cause))
}

/// Opens a regular file without following a symbolic link and without blocking.
pub(crate) fn open_itself(path: &Path, writable: bool) -> std::io::Result<File> {
    use rustix::fs::OFlags;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new()
        .read(true)
        .write(writable)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|cause| match rustix::io::Errno::from_io_error(&cause) {
            Some(rustix::io::Errno::LOOP) => std::io::Error::other("is a symbolic link"),
            _ => cause,
        })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("is not a file")) }
}

/// Opens a file that an interrupted creation may have left: owned by this user, with one hard link.
pub(crate) fn open_left_over(path: &Path, writable: bool) -> std::io::Result<File> {
    let file = open_itself(path, writable)?;
    let metadata = file.metadata()?;
    if metadata.nlink() != 1 {
        return Err(std::io::Error::other("has another name, too"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(std::io::Error::other("belongs to another user"));
    }
    Ok(file)
}

/// Refuses a file that is not a ledger of this version, without locking, creating or changing anything.
fn check_kind(path: &Path) -> Result<(), StoreError> {
    let metadata = std::fs::metadata(path).map_err(|cause| file_error(path, cause))?;
    if !metadata.is_file() {
        return Err(not_a_ledger(path, "is not a file"));
    }
    if metadata.len() == 0 {
        return Err(not_a_ledger(path, "is empty"));
    }
    // Through SQLite: opening and closing the file directly would release SQLite's locks.
    check_not_foreign(path, &open_unchanging(path)?)
}

/// Refuses a database that is not a ledger, or one of a later version. A database that cannot be read alone may be
/// readable with its WAL, so it passes; reading its rows will fail if it is damaged.
pub(crate) fn check_not_foreign(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    match check_version(connection) {
        Err(VersionError::Kind(why)) => Err(not_a_ledger(path, &why)),
        Err(_) | Ok(()) => Ok(()),
    }
}

pub(crate) enum VersionError {
    /// It is not a ledger, or one of a later version.
    Kind(String),
    /// It is a backup, to be read only.
    Backup,
    /// It is a ledger that was moved elsewhere, to be read only.
    Moved,
    /// It is a ledger of this earlier version.
    Old(i32),
    /// The database cannot be read.
    Unreadable,
}

/// Checks that the header of a database is that of a ledger of this version.
pub(crate) fn check_version(connection: &Connection) -> Result<(), VersionError> {
    let pragma = |name: &str| -> Result<i32, VersionError> {
        connection.pragma_query_value(None, name, |row| row.get(0)).map_err(|error| {
            match error.sqlite_error_code() {
                Some(rusqlite::ErrorCode::NotADatabase) => {
                    VersionError::Kind("is not a database".into())
                }
                _ => VersionError::Unreadable,
            }
        })
    };
    let application = pragma("application_id")?;
    if ![APPLICATION, BACKUP, MOVED].contains(&application) {
        return Err(VersionError::Kind("is another program's database".into()));
    }
    match pragma("user_version")? {
        1..=SCHEMA if application == BACKUP => Err(VersionError::Backup),
        1..=SCHEMA if application == MOVED => Err(VersionError::Moved),
        SCHEMA => Ok(()),
        old if (1..SCHEMA).contains(&old) => Err(VersionError::Old(old)),
        other => Err(VersionError::Kind(format!(
            "has schema {other}, and this version understands schema {SCHEMA}"
        ))),
    }
}

/// Opens a database as immutable: without locks and without files next to it.
pub(crate) fn open_unchanging(path: &Path) -> Result<Connection, StoreError> {
    let text = path.to_str().ok_or_else(|| not_a_ledger(path, "has a name that is not UTF-8"))?;
    let mut uri = String::from("file:");
    // An absolute path needs an empty host name in a URI.
    if text.starts_with('/') {
        uri.push_str("//");
    }
    for character in text.chars() {
        match character {
            '%' | '?' | '#' => uri.push_str(&format!("%{:02x}", u32::from(character))),
            other => uri.push(other),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(uri, flags)?)
}

/// The device and inode numbers of a ledger's files.
///
/// If a file is deleted or replaced, an open handle would write to a file that no other process sees, and
/// both would grant the same budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity(Vec<Option<(u64, u64)>>);

impl Identity {
    /// The identity of the database, its WAL and its anchor now.
    pub(crate) fn of(path: &Path) -> Self {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let files = [path.to_owned(), beside(path, "-wal"), anchor_path(path)];
        let identity = |file: &PathBuf| {
            // Without times: the next sync must write times that were read.
            let found = statx(CWD, file, AtFlags::empty(), StatxFlags::INO).ok()?;
            Some((
                (u64::from(found.stx_dev_major) << 32) | u64::from(found.stx_dev_minor),
                found.stx_ino,
            ))
        };
        Self(files.iter().map(identity).collect())
    }
}

/// Refuses network and user-space file systems, whose locks and syncs may not be reliable.
pub(crate) fn check_file_system(path: &Path, allow_network: bool) -> Result<(), StoreError> {
    if allow_network {
        return Ok(());
    }
    let directory = directory(path);
    let found = rustix::fs::statfs(directory)
        .map_err(|error| file_error(directory, std::io::Error::from(error)))?;
    // The type is signed on some machines; its low 32 bits identify the file system.
    let kind = found.f_type as u64 & 0xffff_ffff;
    match remote_file_system(kind) {
        None => Ok(()),
        Some(name) => Err(StoreError::Refused(format!(
            "{} is on a network or user-space file system ({name}), where locks and syncs may not \
             hold; allow it explicitly if you know that they do",
            path.display()
        ))),
    }
}

/// The name of a network or user-space file system, by its number in `statfs`.
fn remote_file_system(kind: u64) -> Option<&'static str> {
    const REMOTE: [(u64, &str); 19] = [
        (0x786f_4256, "vboxsf"),
        (0xbaca_cbc2, "vmhgfs"),
        (0x2003_0528, "OrangeFS"),
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xfe53_4d42, "SMB2"),
        (0xff53_4d42, "CIFS"),
        (0x564c, "NCP"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "kAFS"),
        (0x0102_1997, "9P"),
        (0x6573_5546, "FUSE"),
        (0x7375_7245, "Coda"),
        (0x00c3_6400, "Ceph"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
    ];
    REMOTE.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        assert_eq!(remote_file_system(0x6969), Some("NFS"));
        assert_eq!(remote_file_system(0xff53_4d42), Some("CIFS"));
        // ext4, xfs, btrfs, tmpfs, overlay.
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(remote_file_system(local), None);
        }
    }

    #[test]
    fn names_with_special_characters_of_uris_are_opened() {
        let directory = std::env::temp_dir().join(format!("veilgrad-place-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("a?b#c%20 d.db");
        let created = Connection::open(&path).unwrap();
        created.execute_batch("CREATE TABLE t (x); PRAGMA application_id = 7").unwrap();
        drop(created);
        let opened = open_unchanging(&path).unwrap();
        let id: i32 = opened.pragma_query_value(None, "application_id", |row| row.get(0)).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(id, 7);
    }
}
