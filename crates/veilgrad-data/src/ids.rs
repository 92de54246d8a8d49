//! The users of examples, from a file with one whole number for each.

use std::collections::HashMap;
use std::path::Path;

use crate::file::{Skip, open_array};
use crate::number::{self, Layout};
use crate::{DataError, idx, npy};

/// Reads the ids of users from a `.npy` file, the array `name` of a `.npz` file, or an IDX file: one whole number for each
/// example. Returns the index of each example's user; users are counted from 0 in the order of their first example.
///
/// # Guarantee
/// Ids are compared without rounding, so that two users never become one: their examples would then be one record, and
/// removing one of them would replace that record.
///
/// # Errors
/// When the file cannot be read, is malformed, or is not of one whole number per example.
///
/// # Example
/// ```
/// use veilgrad_data::ids;
///
/// // Three examples, the first and the last of user 7: type 8, one dimension.
/// let path = std::env::temp_dir().join(format!("veilgrad-ids-{}.idx", std::process::id()));
/// std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 3, 7, 9, 7])?;
/// assert_eq!(ids::read(&path, None)?, [0, 1, 0]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: &Path, name: Option<&str>) -> Result<Vec<u32>, DataError> {
    let is = |end: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(end));
    let ids = if is("npy") || is("npz") {
        npy::open(path, name, |reader| {
            let layout = npy::header(path, &mut *reader)?;
            whole_numbers(path, reader, layout)
        })?
    } else {
        let mut reader = open_array(path)?;
        let layout = idx::header(path, &mut reader)?;
        whole_numbers(path, &mut *reader, layout)?
    };
    let mut users: HashMap<i128, u32> = HashMap::new();
    let too_many = |_| DataError::format(path, "has more than 2^32 users");
    ids.into_iter()
        .map(|id| {
            let next = u32::try_from(users.len()).map_err(too_many)?;
            Ok(*users.entry(id).or_insert(next))
        })
        .collect()
}

fn whole_numbers(
    path: &Path,
    reader: &mut dyn Skip,
    layout: Layout,
) -> Result<Vec<i128>, DataError> {
    if layout.shape.iter().any(|length| *length != 1) {
        return Err(DataError::format(path, "has not one id for each example"));
    }
    number::read_whole(path, reader, layout.coding, layout.rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids of a `.npy` file.
    fn ids(kind: &str, shape: &str, data: &[u8]) -> Result<Vec<u32>, String> {
        let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
        let length = (header.len() as u16).to_le_bytes();
        let bytes = [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), data].concat();
        let name = format!("veilgrad-ids-{}-{}.npy", std::process::id(), kind.len() + shape.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        let found = read(&path, None).map_err(|error| error.to_string());
        std::fs::remove_file(&path).unwrap();
        found
    }

    #[test]
    fn ids_that_floating_point_would_merge_are_different_users() {
        let long = |id: i64| ((1i64 << 60) + id).to_le_bytes();
        let data = [long(0), long(1), long(0), long(2), (-1i64).to_le_bytes()].concat();
        assert_eq!(ids("<i8", "5,", &data).unwrap(), [0, 1, 0, 2, 3]);
        assert_eq!(ids("<i8", "5, 1", &data).unwrap(), [0, 1, 0, 2, 3]);
        assert_eq!(ids("<u8", "5,", &data).unwrap(), [0, 1, 0, 2, 3]);
        assert_eq!(ids("|u1", "3,", &[9, 9, 1]).unwrap(), [0, 0, 1]);
        assert!(ids("|u1", "0,", &[]).unwrap().is_empty());
    }

    #[test]
    fn files_without_one_whole_number_for_each_example_are_refused() {
        for (kind, shape, data, what) in [
            ("<f8", "1,", &[0; 8][..], "save whole numbers"),
            ("<f2", "1,", &[0; 2], "save whole numbers"),
            ("|u1", "2, 2", &[0; 4], "one id for each example"),
            ("|u1", "3,", &[0; 2], "shorter than its header says"),
            ("|u1", "3,", &[0; 4], "longer than its header says"),
            ("|S4", "1,", b"anna", "a type that is not read"),
        ] {
            let error = ids(kind, shape, data).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
