//! Backups: copies that verify, hold a head, and are never charged.

use std::path::Path;

use crate::chain::Head;
use crate::create::create_files;
use crate::error::StoreError;
use crate::ledger::{Ledger, Options};
use crate::schema::BACKUP;

impl Ledger {
    /// Copies all rows that this handle has verified into a new file, with its own anchor; other processes may charge
    /// meanwhile. Returns the head that the copy holds.
    ///
    /// # Guarantee
    /// The copy can be read, verified, exported and imported; it refuses to be charged, so that no run goes on with
    /// it by mistake and forgets what was charged since.
    ///
    /// # Errors
    /// When there is a file of that name, or it cannot be written.
    pub fn backup(&self, path: &Path, options: &Options) -> Result<Head, StoreError> {
        let mut rows = Vec::new();
        self.visit_rows(&mut |_, bytes, _| {
            rows.push(bytes.to_vec());
            Ok(())
        })?;
        let head = create_files(path, options, &rows, BACKUP)?;
        if head != self.head {
            return Err(StoreError::Damaged(format!(
                "its rows changed on disk since they were verified; {} is not a backup of it",
                path.display()
            )));
        }
        // Read back from the disk: a copy that does not verify is not a backup.
        let copy = Self::read(path, options.clone())?;
        copy.audit()?;
        copy.contains(&head)?;
        Ok(head)
    }
}
