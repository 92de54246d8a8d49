//! Colour spaces.

/// Replaces red, green and blue by brightness and two differences of colours (red against blue, and both against green): an
/// orthonormal change of basis, pixel by pixel. In photographs, colours are strongly correlated and these are much less so.
///
/// # Guarantee
/// A function of one pixel alone: it costs no privacy budget.
///
/// # Example
/// ```
/// let mut grey = [0.5, 0.5, 0.5];
/// veilgrad_data::opponent_colours(&mut grey);
/// assert!((grey[0] - 0.5 * 3f32.sqrt()).abs() < 1e-6 && grey[1] == 0.0 && grey[2].abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn opponent_colours(pixels: &mut [f32]) {
    let [third, half, sixth] = [3f32, 2.0, 6.0].map(|number| number.sqrt().recip());
    for pixel in pixels.chunks_exact_mut(3) {
        if let [red, green, blue] = pixel {
            let (r, g, b) = (*red, *green, *blue);
            (*red, *green, *blue) =
                (third * (r + g + b), half * (r - b), sixth * (r + b - 2.0 * g));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_change_of_basis_is_orthonormal() {
        let mut rows = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        opponent_colours(&mut rows);
        for (i, a) in rows.chunks_exact(3).enumerate() {
            for (j, b) in rows.chunks_exact(3).enumerate() {
                let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                assert!((product - f32::from(u8::from(i == j))).abs() < 1e-6, "{i} {j} {product}");
            }
        }
    }
}
