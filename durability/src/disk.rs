//! Full disks and read-only disks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use veilgrad_ledger::{Ledger, Options, StoreError};

use crate::charge::GRANTED_AFTER_FAILURE;
use crate::scratch::{Directory, Found, charged, create, open_run, released, round, text};

/// A small tmpfs, unmounted on drop.
struct Disk(PathBuf);

impl Disk {
    fn mount(directory: &Path, kilobytes: u64) -> Result<Self, String> {
        let mount = directory.join("disk");
        std::fs::create_dir(&mount).map_err(text)?;
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "tmpfs"])
            .arg(&mount)
            .stderr(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            Ok(Self(mount))
        } else {
            Err("not tested: a small disk needs the right to mount one".to_owned())
        }
    }

    fn make_read_only(&self) -> Found {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status();
        match status.map_err(text)?.success() {
            true => Ok(()),
            false => Err("the disk could not be made read-only".to_owned()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Charges on disks of many sizes until they are full.
pub(crate) fn full(quick: bool) -> Found {
    let step = if quick { 32 } else { 4 };
    let (mut tried, mut cut_short) = (0, 0);
    for kilobytes in (48..=256).step_by(step) {
        let directory = Directory::new()?;
        let disk = Disk::mount(directory.path(), kilobytes)?;
        tried += 1;
        let outcome = fill(&disk.0, &directory.path().join("out"));
        cut_short += u64::from(outcome.map_err(|why| format!("{kilobytes} kB: {why}"))?);
    }
    println!(
        "full: {tried} sizes of disk, {cut_short} processes ended with an error, 0 rounds released \
         without a charge or after a failed one, 0 ledgers damaged"
    );
    Ok(())
}

/// Charges until done or the disk is full; returns whether the disk was too small.
fn fill(disk: &Path, out: &Path) -> Result<bool, String> {
    let path = disk.join("ledger.db");
    // Too small even for an empty ledger: no charge can be lost.
    if create(&path, 1e3).is_err() {
        return Ok(true);
    }
    // Releases are written to another disk, so that only charges fail.
    let code = Command::new(std::env::current_exe().map_err(text)?)
        .arg("charge")
        .args([&path, out])
        .args(["4000", "8"])
        .stderr(Stdio::null())
        .status()
        .map_err(text)?
        .code();
    if code == Some(i32::from(GRANTED_AFTER_FAILURE)) {
        return Err("a round was granted after a failed charge".to_owned());
    }
    let ledger = Ledger::read(&path, Options::default()).map_err(text)?;
    if released(out) > charged(&ledger) {
        return Err(format!("{} rounds released, {} charged", released(out), charged(&ledger)));
    }
    Ok(code != Some(0))
}

/// On a read-only disk a ledger can be read but not charged.
pub(crate) fn read_only(_quick: bool) -> Found {
    for unfinished in [false, true] {
        let directory = Directory::new()?;
        let disk = Disk::mount(directory.path(), 1024)?;
        let path = disk.0.join("ledger.db");
        let mut run = open_run(create(&path, 1e3)?)?;
        run.reserve(&round(0.01, 1.0)?, 5).map_err(text)?;
        if unfinished {
            // As if the writer had died: the last rows are in the WAL only.
            for name in ["ledger.db", "ledger.db-wal", "ledger.db.anchor"] {
                let (from, to) = (disk.0.join(name), disk.0.join(format!("copy-{name}")));
                std::fs::copy(from, to).map_err(text)?;
            }
            drop(run);
            for name in ["ledger.db", "ledger.db-wal", "ledger.db.anchor"] {
                std::fs::rename(disk.0.join(format!("copy-{name}")), disk.0.join(name))
                    .map_err(text)?;
            }
        } else {
            drop(run);
        }
        disk.make_read_only()?;
        let fail = |what: String| Err(format!("unfinished {unfinished}: {what}"));
        match Ledger::open(&path, Options::default()) {
            Err(StoreError::Refused(why)) if why.contains("read-only") => {}
            Err(StoreError::File { cause, .. })
                if cause.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {}
            Err(error) => return fail(format!("opening said {error}")),
            Ok(_) => return fail("it was opened to be charged".to_owned()),
        }
        match Ledger::read(&path, Options::default()) {
            Ok(ledger) if charged(&ledger) == 5 => {}
            Ok(ledger) => return fail(format!("{} rounds were read", charged(&ledger))),
            Err(StoreError::Refused(why)) if unfinished && why.contains("copy the ledger") => {}
            Err(error) => return fail(format!("reading said {error}")),
        }
    }
    println!("read-only: 2 disks, charges refused; read where nothing is left in the WAL");
    Ok(())
}
