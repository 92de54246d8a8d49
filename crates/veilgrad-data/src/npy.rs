//! NumPy's arrays: `.npy`, and one of a `.npz`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use npyz::{DType, Deserialize, NpyFile, Order, TypeChar};

use crate::{Array, DataError};

/// Reads a `.npy` file, or the array `name` of a `.npz` file: the first dimension counts rows.
///
/// # Errors
/// When it cannot be read, holds no such array, or one whose numbers are not plain or not in C order.
pub fn read(path: &Path, name: Option<&str>) -> Result<Array, DataError> {
    let file = File::open(path).map_err(|cause| DataError::file(path, cause))?;
    let file = BufReader::new(file);
    let zipped = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("npz"));
    match (zipped, name) {
        (false, None) => parse(path, file),
        (false, Some(_)) => Err(DataError::format(path, "holds one array, which has no name")),
        (true, None) => Err(DataError::format(path, "holds several arrays; name one of them")),
        (true, Some(name)) => {
            let mut archive = zip::ZipArchive::new(file)
                .map_err(|_| DataError::format(path, "is not a .npz file"))?;
            let entry = archive
                .by_name(&format!("{name}.npy"))
                .map_err(|_| DataError::format(path, format!("has no array {name:?}")))?;
            parse(path, entry)
        }
    }
}

fn parse(path: &Path, reader: impl Read) -> Result<Array, DataError> {
    let wrong = |why: &str| DataError::format(path, why);
    let array = NpyFile::new(reader).map_err(|_| wrong("is not a .npy file"))?;
    if array.order() != Order::C && array.shape().len() > 1 {
        return Err(wrong("is in Fortran order; save it in C order"));
    }
    let mut shape = Vec::new();
    for length in array.shape() {
        shape.push(usize::try_from(*length).map_err(|_| wrong("is too large"))?);
    }
    if shape.is_empty() {
        return Err(wrong("has no dimensions"));
    }
    let DType::Plain(kind) = array.dtype() else {
        return Err(wrong("has rows of mixed types"));
    };
    let values = match (kind.type_char(), kind.size_field()) {
        (TypeChar::Bool, _) => numbers(array, |x: bool| f32::from(u8::from(x))),
        (TypeChar::Uint, 1) => numbers(array, |x: u8| f32::from(x)),
        (TypeChar::Uint, 2) => numbers(array, |x: u16| f32::from(x)),
        (TypeChar::Uint, 4) => numbers(array, |x: u32| x as f32),
        (TypeChar::Uint, 8) => numbers(array, |x: u64| x as f32),
        (TypeChar::Int, 1) => numbers(array, |x: i8| f32::from(x)),
        (TypeChar::Int, 2) => numbers(array, |x: i16| f32::from(x)),
        (TypeChar::Int, 4) => numbers(array, |x: i32| x as f32),
        (TypeChar::Int, 8) => numbers(array, |x: i64| x as f32),
        (TypeChar::Float, 4) => numbers(array, |x: f32| x),
        (TypeChar::Float, 8) => numbers(array, |x: f64| x as f32),
        _ => return Err(wrong("has numbers of a type that is not read: use float32")),
    };
    let values = values.ok_or_else(|| wrong("ends before its last number"))?;
    shape.remove(0);
    Ok(Array { values, shape })
}

fn numbers<T: Deserialize, R: Read>(
    array: NpyFile<R>,
    number: impl Fn(T) -> f32,
) -> Option<Vec<f32>> {
    let numbers = array.data::<T>().ok()?;
    numbers.map(|value| value.ok().map(&number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version 1 file by hand.
    fn file(kind: &str, shape: &str, fortran: bool, data: &[u8]) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let mut header =
            format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': ({shape}), }}");
        while (header.len() + 11) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn plain_numbers_are_read_whatever_their_type() {
        let path = Path::new("x.npy");
        for (kind, data) in [
            ("|u1", vec![0, 1, 2, 3]),
            ("<i2", vec![0, 0, 1, 0, 2, 0, 3, 0]),
            (">f4", [0f32, 1.0, 2.0, 3.0].iter().flat_map(|x| x.to_be_bytes()).collect()),
            ("<f8", [0f64, 1.0, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect()),
            ("<i8", [0i64, 1, 2, 3].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ] {
            let array = parse(path, file(kind, "2, 2", false, &data).as_slice()).unwrap();
            assert!(array.values == [0.0, 1.0, 2.0, 3.0] && array.shape == [2], "{kind}");
            let cut = parse(path, file(kind, "2, 2", false, &data[..3]).as_slice());
            assert!(cut.is_err(), "{kind}");
        }
        assert!(parse(path, file("|u1", "2, 2", true, &[0; 4]).as_slice()).is_err());
        assert!(parse(path, file("<c8", "1,", false, &[0; 8]).as_slice()).is_err());
        assert!(parse(path, b"no array".as_slice()).is_err());
    }

    #[test]
    fn arrays_of_archives_are_found_by_name() {
        use std::io::Write;
        let path = std::env::temp_dir().join(format!("veilgrad-npy-{}.npz", std::process::id()));
        let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
        archive.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(&file("|u1", "3,", false, &[7, 8, 9])).unwrap();
        archive.finish().unwrap();
        let found = read(&path, Some("x"));
        let (missing, unnamed) = (read(&path, Some("y")).is_err(), read(&path, None).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(found.unwrap().values == [7.0, 8.0, 9.0]);
        assert!(missing && unnamed);
    }
}
