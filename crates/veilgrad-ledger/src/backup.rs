//! Backups: copies of a ledger that can be verified but not charged.

use std::path::Path;

use crate::chain::Head;
use crate::create::create_files;
use crate::error::StoreError;
use crate::ledger::Ledger;
use crate::options::Options;
use crate::schema::BACKUP;

impl Ledger {
    /// Copies all verified rows into a new backup file with its own anchor, while other processes may charge. Returns
    /// the head of the copy.
    ///
    /// # Guarantee
    /// The copy can be read, verified, exported and imported. It refuses charges, so that no run continues with it by
    /// mistake and ignores what was charged since.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn backup(&self, path: &Path, options: &Options) -> Result<Head, StoreError> {
        let mut rows = Vec::new();
        self.visit_rows(&mut |_, bytes, _| {
            rows.push(bytes.to_vec());
            Ok(())
        })?;
        let head = create_files(path, options, &rows, BACKUP)?;
        if head != *self.head() {
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
