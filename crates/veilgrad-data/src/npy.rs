//! NumPy arrays: `.npy` files, and single arrays of `.npz` files.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::file::{Sequential, Skip};
use crate::number::{self, Coding, Kind, Layout};
use crate::{Array, DataError, RowRanges};

/// The longest header that is read. NumPy writes a few dozen bytes.
const LONGEST_HEADER: u32 = 1 << 16;

/// Reads a `.npy` file, or the array `name` of a `.npz` file, whose rows have `width` numbers each. The
/// first dimension is the number of rows.
///
/// # Errors
/// When the file cannot be read or has no such array, or when the array is not of plain numbers, has rows of another width,
/// or is shorter or longer than its header says.
///
/// # Example
/// ```
/// use veilgrad_data::npy;
///
/// let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }";
/// let mut file = [b"\x93NUMPY\x01\x00".as_slice(), &(header.len() as u16).to_le_bytes()].concat();
/// file.extend_from_slice(header.as_bytes());
/// file.extend([0.5f32, -1.0].iter().flat_map(|number| number.to_le_bytes()));
/// let path = std::env::temp_dir().join(format!("veilgrad-{}.npy", std::process::id()));
/// std::fs::write(&path, file)?;
/// assert_eq!(npy::read(&path, None, 1)?.values, [0.5, -1.0]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: &Path, name: Option<&str>, width: usize) -> Result<Array, DataError> {
    open(path, name, |reader| parse(path, reader, width, None))
}

/// As [`read`], of some rows alone: those beyond the end of the array are left out. Others are skipped without being read,
/// unless the file is compressed or in Fortran order.
///
/// # Errors
/// As for [`read`].
pub fn read_rows(
    path: &Path,
    name: Option<&str>,
    width: usize,
    rows: &RowRanges,
) -> Result<Array, DataError> {
    open(path, name, |reader| parse(path, reader, width, Some(rows)))
}

/// Calls `read` with the bytes of a `.npy` file, or of the array `name` of a `.npz` file.
pub(crate) fn open<T>(
    path: &Path,
    name: Option<&str>,
    read: impl FnOnce(&mut dyn Skip) -> Result<T, DataError>,
) -> Result<T, DataError> {
    let file = File::open(path).map_err(|cause| DataError::file(path, cause))?;
    let mut file = BufReader::new(file);
    let zipped = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("npz"));
    match (zipped, name) {
        (false, _) => read(&mut file),
        (true, None) => Err(DataError::format(path, "holds several arrays; name one of them")),
        (true, Some(name)) => {
            let mut archive = zip::ZipArchive::new(file)
                .map_err(|_| DataError::format(path, "is not a .npz file"))?;
            let entry = archive
                .by_name(&format!("{name}.npy"))
                .map_err(|_| DataError::format(path, format!("has no array {name:?}")))?;
            read(&mut Sequential(BufReader::new(entry)))
        }
    }
}

fn parse(
    path: &Path,
    reader: &mut dyn Skip,
    width: usize,
    rows: Option<&RowRanges>,
) -> Result<Array, DataError> {
    let layout = header(path, &mut *reader)?;
    Array::read(path, reader, layout, width, rows)
}

/// Reads the header of an array.
pub(crate) fn header(path: &Path, mut reader: impl Read) -> Result<Layout, DataError> {
    let wrong = |why: &str| DataError::format(path, why);
    let mut read_exact = |to: &mut [u8]| number::read_header(path, &mut reader, to);
    let mut start = [0; 8];
    read_exact(&mut start)?;
    let mut length = [0; 4];
    match start {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _] => read_exact(&mut length[..2])?,
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _] => read_exact(&mut length)?,
        _ => return Err(wrong("is not a .npy file")),
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return Err(wrong("has a header that is too long"));
    }
    let mut header = vec![0; length as usize];
    read_exact(&mut header)?;
    let header =
        std::str::from_utf8(&header).map_err(|_| wrong("has a header that is not text"))?;
    let header = Header::parse(header).ok_or_else(|| wrong("has a malformed header"))?;
    let coding = header.coding().ok_or_else(|| {
        wrong("has numbers of a type that is not read: save plain numbers, such as float32")
    })?;
    let mut shape = header.shape;
    if shape.is_empty() {
        return Err(wrong("has no dimensions"));
    }
    let rows = shape.remove(0);
    Ok(Layout { coding, rows, shape, fortran: header.fortran })
}

struct Header<'a> {
    kind: &'a str,
    fortran: bool,
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    /// Parses a Python dictionary with three keys, as NumPy writes it, and nothing else.
    fn parse(text: &'a str) -> Option<Self> {
        let text_after = |key: &str| {
            let quoted = [format!("'{key}'"), format!("\"{key}\"")];
            let (_, rest) = quoted.iter().find_map(|key| text.split_once(key.as_str()))?;
            rest.trim_start().strip_prefix(':').map(str::trim_start)
        };
        let kind = text_after("descr")?;
        let quote = kind.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
        let (kind, _) = kind.get(1..)?.split_once(quote)?;
        let order = text_after("fortran_order")?;
        let fortran = order.starts_with("True");
        if !fortran && !order.starts_with("False") {
            return None;
        }
        let (shape, _) = text_after("shape")?.strip_prefix('(')?.split_once(')')?;
        let lengths = shape.split(',').map(str::trim).filter(|length| !length.is_empty());
        let shape = lengths.map(|length| length.parse().ok()).collect::<Option<_>>()?;
        Some(Self { kind, fortran, shape })
    }

    fn coding(&self) -> Option<Coding> {
        let (order, kind) = self.kind.split_at_checked(1)?;
        let big_endian = match order {
            "<" | "|" => false,
            ">" => true,
            "=" => cfg!(target_endian = "big"),
            _ => return None,
        };
        let kind = match kind {
            "b1" | "u1" => Kind::U8,
            "u2" => Kind::U16,
            "u4" => Kind::U32,
            "u8" => Kind::U64,
            "i1" => Kind::I8,
            "i2" => Kind::I16,
            "i4" => Kind::I32,
            "i8" => Kind::I64,
            "f2" => Kind::F16,
            "f4" => Kind::F32,
            "f8" => Kind::F64,
            _ => return None,
        };
        Some(Coding { kind, big_endian })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a `.npy` file.
    fn file(version: u8, kind: &str, shape: &str, fortran: bool, data: &[u8]) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let mut header =
            format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': ({shape}), }}");
        while (header.len() + 11) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut bytes = [b"\x93NUMPY".as_slice(), &[version, 0]].concat();
        match version {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn parsed(bytes: &[u8], width: usize) -> Result<Array, DataError> {
        parse(Path::new("x.npy"), &mut Sequential(bytes), width, None)
    }

    fn error(bytes: &[u8], width: usize) -> String {
        parsed(bytes, width).err().unwrap().to_string()
    }

    #[test]
    fn plain_numbers_are_read_whatever_their_type() {
        for (kind, data) in [
            ("|u1", vec![0, 1, 2, 3]),
            ("<i2", vec![0, 0, 1, 0, 2, 0, 3, 0]),
            (">f4", [0f32, 1.0, 2.0, 3.0].iter().flat_map(|x| x.to_be_bytes()).collect()),
            ("<f8", [0f64, 1.0, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect()),
            ("<f2", vec![0, 0, 0, 0x3c, 0, 0x40, 0, 0x42]),
            (">f2", vec![0, 0, 0x3c, 0, 0x40, 0, 0x42, 0]),
            ("<i8", [0i64, 1, 2, 3].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ] {
            for version in [1, 2, 3] {
                let whole = file(version, kind, "2, 2", false, &data);
                let array = parsed(&whole, 2).unwrap();
                assert!(array.values == [0.0, 1.0, 2.0, 3.0] && array.shape == [2], "{kind}");
                for length in 0..whole.len() {
                    assert!(parsed(&whole[..length], 2).is_err(), "{kind} {length}");
                }
                assert!(parsed(&[whole, vec![0]].concat(), 2).is_err(), "{kind}");
            }
        }
    }

    #[test]
    fn fortran_order_gives_the_rows_of_c_order() {
        let read = |shape: &str, fortran, data: &[u8], width| {
            parsed(&file(1, "|u1", shape, fortran, data), width).unwrap().values
        };
        assert!(read("2, 3", true, &[1, 4, 2, 5, 3, 6], 3) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(read("3,", true, &[1, 2, 3], 1) == [1.0, 2.0, 3.0]);
        assert!(read("0, 3", true, &[], 3).is_empty());
        let whole = file(1, "|u1", "2, 3", true, &[1, 4, 2, 5, 3, 6]);
        for length in 0..whole.len() {
            assert!(parsed(&whole[..length], 3).is_err(), "{length}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(error(&file(1, "<c8", "1,", false, &[0; 8]), 1).contains("type"));
        assert!(error(&file(1, "é", "1,", false, &[0; 8]), 1).contains("type"));
        assert!(error(&file(1, "|u1", "", false, &[0]), 1).contains("no dimensions"));
        assert!(error(&file(1, "|u1", "2, -1", false, &[0; 2]), 1).contains("malformed"));
        assert!(error(b"no array", 1).contains("not a .npy file"));
    }

    #[test]
    fn what_a_header_promises_is_not_believed() {
        let most = u64::MAX.to_string();
        assert!(error(&file(1, "<f8", &most, false, &[0; 8]), 1).contains("too large"));
        assert!(
            error(&file(1, "<f8", &format!("{most}, {most}"), false, &[]), 2).contains("shape")
        );
        let text = error(&file(1, "|u1", "999999999999, 2", false, &[0; 7]), 2);
        assert_eq!(text, "x.npy: is shorter than its header says");
        // A header that claims 4 GiB, and one that is all brackets.
        let mut long = b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec();
        assert!(error(&long, 1).contains("too long"));
        long = file(1, "|u1", &"(".repeat(20_000), false, &[]);
        assert!(error(&long, 1).contains("malformed"));
    }

    #[test]
    fn arrays_of_archives_are_found_by_name_and_damage_is_an_error() {
        use std::io::Write;
        let path = std::env::temp_dir().join(format!("veilgrad-npy-{}.npz", std::process::id()));
        let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
        archive.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(&file(1, "|u1", "3,", false, &[7, 8, 9])).unwrap();
        archive.finish().unwrap();
        let found = read(&path, Some("x"), 1);
        let (missing, unnamed) =
            (read(&path, Some("y"), 1).is_err(), read(&path, None, 1).is_err());
        assert!(found.unwrap().values == [7.0, 8.0, 9.0]);
        assert!(missing && unnamed);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(read(&path, Some("x"), 1).is_err(), "{length}");
        }
        for (place, bit) in (0..whole.len()).flat_map(|place| [(place, 1), (place, 0x80)]) {
            let mut damaged = whole.clone();
            damaged[place] ^= bit;
            std::fs::write(&path, &damaged).unwrap();
            // It is an error or the same numbers; never a panic or other numbers.
            let read = read(&path, Some("x"), 1);
            assert!(read.is_err() || read.is_ok_and(|array| array.values == [7.0, 8.0, 9.0]));
        }
        std::fs::remove_file(&path).unwrap();
    }
}
