//! Left singular vectors of a tall matrix, from the eigenvectors of its Gram matrix.

/// The most sweeps over all pairs; Jacobi's method converges in far fewer.
const SWEEPS: usize = 60;

/// The left singular vectors of a row-major matrix of `rows` rows and `columns` columns, one after the other, and the
/// squares of their singular values, from the largest to the smallest. The vector of a zero singular value is zero.
pub(super) fn left_singular_vectors(
    matrix: &[f64],
    rows: usize,
    columns: usize,
) -> (Vec<f32>, Vec<f64>) {
    let mut gram = vec![0.0; columns * columns];
    for row in matrix.chunks_exact(columns).take(rows) {
        for (line, a) in gram.chunks_exact_mut(columns).zip(row) {
            line.iter_mut().zip(row).for_each(|(sum, b)| *sum += a * b);
        }
    }
    let mut pairs = eigenpairs(gram, columns);
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut vectors = Vec::with_capacity(rows * columns);
    for (square, right) in &pairs {
        let scale = if *square > 0.0 { 1.0 / square.sqrt() } else { 0.0 };
        vectors.extend(
            matrix
                .chunks_exact(columns)
                .take(rows)
                .map(|row| (row.iter().zip(right).map(|(a, b)| a * b).sum::<f64>() * scale) as f32),
        );
    }
    (vectors, pairs.into_iter().map(|(square, _)| square.max(0.0)).collect())
}

/// The eigenvalues and eigenvectors of a symmetric matrix, by Jacobi rotations.
fn eigenpairs(mut a: Vec<f64>, n: usize) -> Vec<(f64, Vec<f64>)> {
    let mut v: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    let diagonal = |a: &[f64]| (0..n).map(|i| a[i * n + i] * a[i * n + i]).sum::<f64>();
    for _ in 0..SWEEPS {
        let off_diagonal = (0..n * n).filter(|i| i / n != i % n).map(|i| a[i] * a[i]).sum::<f64>();
        if off_diagonal <= 1e-30 * diagonal(&a) {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, n, p, q);
            }
        }
    }
    (0..n).map(|i| (a[i * n + i], (0..n).map(|k| v[k * n + i]).collect())).collect()
}

/// The Jacobi rotation that makes element (p, q) zero.
fn rotate(a: &mut [f64], v: &mut [f64], n: usize, p: usize, q: usize) {
    let apq = a[p * n + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + theta.hypot(1.0));
    let c = 1.0 / t.hypot(1.0);
    let s = t * c;
    for k in 0..n {
        let (x, y) = (a[k * n + p], a[k * n + q]);
        (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
    for k in 0..n {
        let (x, y) = (a[p * n + k], a[q * n + k]);
        (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
    }
    for k in 0..n {
        let (x, y) = (v[k * n + p], v[k * n + q]);
        (v[k * n + p], v[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_the_product_of_its_singular_vectors_and_values() {
        let (rows, columns) = (9, 4);
        let mut random = crate::test::SplitMix64(3);
        let value = |i: usize| f64::from(random.unit() - 0.5) * (1 + i % 4) as f64;
        let matrix: Vec<f64> = (0..rows * columns).map(value).collect();
        let (vectors, squares) = left_singular_vectors(&matrix, rows, columns);
        assert!(squares.windows(2).all(|pair| pair[0] >= pair[1]));
        let vector = |j: usize| &vectors[j * rows..(j + 1) * rows];
        for (i, j) in (0..columns).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let product: f32 = vector(i).iter().zip(vector(j)).map(|(a, b)| a * b).sum();
            assert!((product - f32::from(u8::from(i == j))).abs() < 1e-6, "{i} {j}: {product}");
        }
        // U U^T A = A, since U spans the columns; and |U_j^T A|^2 is the square of singular value j.
        for column in 0..columns {
            let coefficient = |j: usize| -> f64 {
                (0..rows).map(|r| f64::from(vector(j)[r]) * matrix[r * columns + column]).sum()
            };
            for r in 0..rows {
                let sum: f64 = (0..columns).map(|j| f64::from(vector(j)[r]) * coefficient(j)).sum();
                assert!((sum - matrix[r * columns + column]).abs() < 1e-5);
            }
        }
        for (j, square) in squares.iter().enumerate() {
            let coefficient = |column: usize| -> f64 {
                (0..rows).map(|r| f64::from(vector(j)[r]) * matrix[r * columns + column]).sum()
            };
            let found: f64 = (0..columns).map(|column| coefficient(column).powi(2)).sum();
            assert!((found - square).abs() < 1e-5 * squares[0], "{found} for {square}");
        }
    }

    #[test]
    fn a_matrix_of_zeros_has_vectors_of_zeros() {
        let (vectors, squares) = left_singular_vectors(&[0.0; 12], 4, 3);
        assert!(vectors.iter().all(|x| *x == 0.0) && squares == [0.0; 3]);
    }
}
