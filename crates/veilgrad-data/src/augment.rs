//! Data augmentation: shifted and mirrored copies of an image.

/// An augmented copy of an image: shifted by whole pixels, and optionally mirrored.
///
/// # Guarantee
/// A function of one image alone, so copies belong to the record of their image. All copies of an image with a NaN are NaN.
///
/// # Example
/// ```
/// use veilgrad_data::ImageCopy;
///
/// let copies = ImageCopy::all(1, true); // nine shifts, each mirrored too
/// assert_eq!(copies.len(), 18);
/// let mut copy = [0.0; 4];
/// copies[1].write(&[1.0, 2.0, 3.0, 4.0], [2, 2, 1], &mut copy); // the second is mirrored and not shifted
/// assert_eq!(copy, [2.0, 1.0, 4.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageCopy {
    down: isize,
    right: isize,
    mirrored: bool,
}

impl ImageCopy {
    /// The image itself and all copies shifted by up to `shift` pixels along both axes, smallest shift first. With `mirrored`,
    /// each is followed by its mirror image.
    #[must_use]
    pub fn all(shift: u8, mirrored: bool) -> Vec<Self> {
        let most = isize::from(shift);
        let mut offsets: Vec<(isize, isize)> = (-most..=most)
            .flat_map(|down| (-most..=most).map(move |right| (down, right)))
            .collect();
        offsets.sort_by_key(|(down, right)| down * down + right * right);
        let flips: &[bool] = if mirrored { &[false, true] } else { &[false] };
        let copies = offsets.into_iter().flat_map(|(down, right)| {
            flips.iter().map(move |mirrored| Self { down, right, mirrored: *mirrored })
        });
        copies.collect()
    }

    /// By how many pixels the copy is shifted down and to the right, and whether it is mirrored before.
    #[must_use]
    pub const fn offsets(&self) -> (isize, isize, bool) {
        (self.down, self.right, self.mirrored)
    }

    /// Writes the copy of an image of shape `[rows, columns, colours]`. Pixels shifted in repeat the edge of the image.
    pub fn write(&self, image: &[f32], [rows, columns, colours]: [usize; 3], to: &mut [f32]) {
        if image.iter().any(|value| value.is_nan()) {
            to.fill(f32::NAN);
            return;
        }
        let source = |position: usize, shift: isize, side: usize| {
            position.saturating_add_signed(-shift).min(side.saturating_sub(1))
        };
        let (pixel, line) = (colours.max(1), colours.max(1) * columns);
        for (row, to) in to.chunks_exact_mut(line.max(1)).enumerate().take(rows) {
            let from = image.chunks_exact(line.max(1)).nth(source(row, self.down, rows));
            let Some(from) = from else { continue };
            for (column, to) in to.chunks_exact_mut(pixel).enumerate() {
                let column = source(column, self.right, columns);
                let column = if self.mirrored { columns - 1 - column } else { column };
                if let Some(from) = from.chunks_exact(pixel).nth(column) {
                    to.copy_from_slice(from);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_shifted_and_mirrored_with_their_edges_repeated() {
        let image: Vec<f32> = (1..=9u8).map(f32::from).collect();
        let copy = |copy: ImageCopy| {
            let mut to = vec![0.0; 9];
            copy.write(&image, [3, 3, 1], &mut to);
            to
        };
        let shifted = |down, right, mirrored| copy(ImageCopy { down, right, mirrored });
        assert_eq!(shifted(0, 0, false), image);
        assert_eq!(shifted(1, 0, false), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(shifted(0, -1, false), [2.0, 3.0, 3.0, 5.0, 6.0, 6.0, 8.0, 9.0, 9.0]);
        assert_eq!(shifted(0, 0, true), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0]);
        assert_eq!(shifted(0, 1, true), [3.0, 3.0, 2.0, 6.0, 6.0, 5.0, 9.0, 9.0, 8.0]);
        assert_eq!(copy(ImageCopy::all(2, true)[0]), image);
        assert_eq!((ImageCopy::all(0, false).len(), ImageCopy::all(2, true).len()), (1, 50));
        assert_eq!(ImageCopy::all(1, false)[1..5].len(), 4);
        assert!(ImageCopy::all(1, false)[1..5].iter().all(|copy| copy.down * copy.right == 0));
    }

    #[test]
    fn colours_stay_together_and_one_nan_makes_all_pixels_nan() {
        let mut to = [0.0; 4];
        let mirrored = ImageCopy { down: 0, right: 0, mirrored: true };
        mirrored.write(&[1.0, 2.0, 3.0, 4.0], [1, 2, 2], &mut to);
        assert_eq!(to, [3.0, 4.0, 1.0, 2.0]);
        ImageCopy { down: 0, right: 1, mirrored: false }.write(
            &[1.0, 2.0, 3.0, f32::NAN],
            [1, 4, 1],
            &mut to,
        );
        assert!(to.iter().all(|value| value.is_nan()));
    }
}
