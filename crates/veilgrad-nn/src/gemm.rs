//! Products of f32 matrices with a fixed order of operations for every element.
//!
//! # Guarantee
//! Element `(i, j)` of a product is a sum of chains `fma(a_i,p+127, b_p+127,j, … fma(a_ip, b_pj, 0))`, of 128 fused
//! multiply-adds each, in the order of the inner index; the first chain begins with `start` instead of 0, and products
//! with patches are one chain. (One chain for thousands of inputs rounds ten times as much.) That holds for any number
//! of rows, any position of the row, any machine and any kernel. So row i of a product depends on row i of `a` alone.
//! The portable kernel computes exactly these chains; a test compares the AVX2 and AVX-512 kernels with it bit for bit.

use std::ops::Range;

/// Columns of a panel.
const WIDTH: usize = 16;
/// Panels of a wide panel, interleaved row by row: used on machines with AVX-512.
const WIDE: usize = 4;
/// Rows of a wide panel that are computed at once: they fill the AVX-512 registers.
#[cfg(target_arch = "x86_64")]
const WIDE_HEIGHT: usize = 6;

/// Rows of a panel that all rows of `a` use before the next ones, so that they stay in cache, and the length of a chain. Of a
/// wide panel they are 32 KB.
const DEPTH: usize = 128;

/// The left matrix: `m` rows of `k` numbers.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// Row-major.
    Rows(&'a [f32]),
    /// Column-major.
    Columns(&'a [f32]),
    /// A row per patch of an image.
    Patches(Patches<'a>),
    /// A column per patch of an image.
    PatchColumns(Patches<'a>),
}

/// Patches of an image, without copying them (implicit im2col): patch p is made of the numbers
/// `image[corners[p] + lines[l] + r]`, for every line l and, within it, every r below `run`.
#[derive(Clone, Copy)]
pub(crate) struct Patches<'a> {
    pub(crate) image: &'a [f32],
    pub(crate) corners: &'a [usize],
    pub(crate) lines: &'a [usize],
    pub(crate) run: usize,
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub(crate) enum Start<'a> {
    /// Zero: the output is overwritten.
    Zero,
    /// One number per column.
    Bias(&'a [f32]),
    /// The values already in the output.
    Existing,
}

/// A right matrix of `k` rows and `n` columns, packed into panels of sixteen columns.
#[derive(Default)]
pub(crate) struct Panels {
    /// The panels begin at the first cache line boundary, see [`unaligned`].
    values: Vec<f32>,
    k: usize,
    n: usize,
    /// How many columns are in wide panels. They come first.
    wide: usize,
}

impl Panels {
    /// Packs a row-major matrix.
    pub(crate) fn pack(&mut self, matrix: &[f32], k: usize, n: usize) {
        self.pack_with(is_wide(), matrix, k, n);
    }

    fn pack_with(&mut self, wide: bool, matrix: &[f32], k: usize, n: usize) {
        self.pack_rows(wide, k, n, |p, first, row| {
            let width = WIDTH.min(n - first);
            let from = &matrix[p * n + first..][..width];
            match from.first_chunk() {
                Some(from) => *row = *from,
                None => {
                    row[..width].copy_from_slice(from);
                    row[width..].fill(0.0);
                }
            }
        });
    }

    /// Packs the transpose of a matrix of `n` rows of `k` numbers.
    pub(crate) fn pack_transposed(&mut self, matrix: &[f32], k: usize, n: usize) {
        self.pack_rows(is_wide(), k, n, |p, first, row| {
            for (column, value) in (first..).zip(row) {
                *value = if column < n { matrix[column * k + p] } else { 0.0 };
            }
        });
    }

    /// Writes all panels: `write(p, first, row)` fills row p from column `first` on.
    fn pack_rows(
        &mut self,
        wide: bool,
        k: usize,
        n: usize,
        write: impl Fn(usize, usize, &mut [f32; WIDTH]),
    ) {
        let panels = n.div_ceil(WIDTH);
        (self.k, self.n) = (k, n);
        self.wide = if wide { n / (WIDE * WIDTH) * (WIDE * WIDTH) } else { 0 };
        self.values.resize(panels * WIDTH * k + LINE, 0.0);
        let first = unaligned(&self.values);
        let mut rows = self.values[first..].as_chunks_mut::<WIDTH>().0.iter_mut();
        let mut column = 0;
        while column < n {
            let together = if column < self.wide { WIDE } else { 1 };
            for p in 0..k {
                for (panel, row) in (0..together).zip(&mut rows) {
                    write(p, column + panel * WIDTH, row);
                }
            }
            column += together * WIDTH;
        }
    }

    /// Overwrites the matrix with zeros.
    pub(crate) fn wipe(&mut self) {
        wipe(&mut self.values);
    }

    #[cfg(test)]
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    fn right(&self) -> Right<'_> {
        Right::Panels { values: &self.values[unaligned(&self.values)..], wide: self.wide }
    }
}

/// Overwrites a vector's whole allocation with zeros, including the unused capacity.
pub(crate) fn wipe(values: &mut Vec<f32>) {
    values.clear();
    values.resize(values.capacity(), 0.0);
}

/// Whether this machine has a kernel for wide panels.
fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return pulp::x86::V4::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Whether a right matrix of `n` columns should be packed before [`multiply`]; else [`multiply_plain`] is as quick, and
/// takes no memory for panels.
pub(crate) fn needs_panels(n: usize) -> bool {
    !is_wide() || !n.is_multiple_of(WIDE * WIDTH)
}

/// Four-byte numbers in a cache line.
pub(crate) const LINE: usize = 16;

/// How many four-byte numbers come before the first cache line boundary. A row of a panel is one cache line, and a
/// load should not touch two.
pub(crate) fn unaligned<T>(values: &[T]) -> usize {
    values.as_ptr().align_offset(64).min(values.len().min(LINE))
}

/// `c = start + a b`: `c` has `m` rows of as many columns as `b`.
pub(crate) fn multiply(m: usize, a: Left<'_>, b: &Panels, start: Start<'_>, c: &mut [f32]) {
    let (k, n) = (b.k, b.n);
    if m == 0 || n == 0 {
        return;
    }
    multiply_blocks(Shape { m, n, k }, a, b.right(), start, c);
}

/// `c = start + a b` for a row-major `b` of `k` rows and `n` columns. Packs it into panels first unless `n`
/// is a multiple of the panel width.
pub(crate) fn multiply_plain(
    (m, k, n): (usize, usize, usize),
    a: Left<'_>,
    b: &[f32],
    start: Start<'_>,
    c: &mut [f32],
    spare: &mut Panels,
) {
    if n % WIDTH == 0 && k > 0 && m > 0 {
        multiply_blocks(Shape { m, n, k }, a, Right::Rows(b), start, c);
    } else {
        spare.pack(b, k, n);
        multiply(m, a, spare, start, c);
    }
}

#[derive(Clone, Copy)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
}

#[derive(Clone, Copy)]
enum Right<'a> {
    /// Packed into panels; those of the first `wide` columns are wide.
    Panels { values: &'a [f32], wide: usize },
    /// Row-major, with a multiple of the panel width as number of columns.
    Rows(&'a [f32]),
}

impl<'a> Right<'a> {
    /// The panel that begins with this column, and the distance between its rows.
    fn panel(self, Shape { n, k, .. }: Shape, column: usize) -> (&'a [f32], usize) {
        match self {
            // Every earlier panel has `k` numbers per column.
            Self::Panels { values, wide } if column < wide => {
                let width = WIDE * WIDTH;
                let first = column / width * width;
                (&values[first * k + (column - first)..], width)
            }
            Self::Panels { values, .. } => (&values[column * k..], WIDTH),
            Self::Rows(values) => (&values[column..], n),
        }
    }
}

/// Computes a product block by block, with the best kernel of the machine.
fn multiply_blocks(shape: Shape, a: Left<'_>, b: Right<'_>, start: Start<'_>, c: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(v4) = pulp::x86::V4::try_new() {
            let blocks = Blocks { kernel: v4, shape, a, b, start, c, column: 0 };
            let blocks = v4.vectorize(
                #[inline(always)]
                || blocks.wide(v4),
            );
            return v4.vectorize(
                #[inline(always)]
                || blocks.run(),
            );
        }
        if let Some(v3) = pulp::x86::V3::try_new() {
            let blocks = Blocks { kernel: v3, shape, a, b, start, c, column: 0 };
            return v3.vectorize(
                #[inline(always)]
                || blocks.run(),
            );
        }
    }
    Blocks { kernel: Portable, shape, a, b, start, c, column: 0 }.run();
}

/// The chains of one block: `sums[i][j] = fma(a_ip, b_pj, sums[i][j])` for each p in turn.
trait Kernel: Copy {
    /// How many rows of a panel are computed at once: as many as fill the registers, or keep the multipliers busy.
    const HEIGHT: usize;

    /// For rows of `a` that are stored in segments: `row(s, i)` is segment s of row i.
    fn rows<'a, const H: usize>(
        self,
        segments: usize,
        row: impl Fn(usize, usize) -> &'a [f32],
        b: (&[f32], usize),
        sums: &mut [[f32; WIDTH]; H],
    );

    /// For columns of `a` that are contiguous: `column(p)` begins with `a_ip` of the block's rows.
    fn columns<'a, const H: usize>(
        self,
        k: usize,
        column: impl Fn(usize) -> &'a [f32],
        b: (&[f32], usize),
        sums: &mut [[f32; WIDTH]; H],
    );
}

#[derive(Clone, Copy)]
struct Portable;

impl Kernel for Portable {
    const HEIGHT: usize = 6;

    fn rows<'a, const H: usize>(
        self,
        segments: usize,
        row: impl Fn(usize, usize) -> &'a [f32],
        (b, stride): (&[f32], usize),
        sums: &mut [[f32; WIDTH]; H],
    ) {
        for (i, sums) in sums.iter_mut().enumerate() {
            let numbers = (0..segments).flat_map(|segment| row(segment, i));
            for (a, b) in numbers.zip(b.chunks(stride)) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(*b, *sum);
                }
            }
        }
    }

    fn columns<'a, const H: usize>(
        self,
        k: usize,
        column: impl Fn(usize) -> &'a [f32],
        (b, stride): (&[f32], usize),
        sums: &mut [[f32; WIDTH]; H],
    ) {
        for (p, b) in (0..k).zip(b.chunks(stride)) {
            for (sums, a) in sums.iter_mut().zip(column(p)) {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(*b, *sum);
                }
            }
        }
    }
}

/// Implements [`Kernel`] with the vectors of a machine, of which `$lanes` hold a row of a panel.
#[cfg(target_arch = "x86_64")]
macro_rules! vector_kernel {
    ($machine:ty, $height:literal, $vector:ty, $lanes:literal, $splat:ident, $mul_add:ident) => {
        // With indices, the compiler sees that all rows have the same length.
        #[allow(clippy::needless_range_loop)]
        impl Kernel for $machine {
            const HEIGHT: usize = $height;

            #[inline(always)]
            fn rows<'a, const H: usize>(
                self,
                segments: usize,
                row: impl Fn(usize, usize) -> &'a [f32],
                (b, stride): (&[f32], usize),
                sums: &mut [[f32; WIDTH]; H],
            ) {
                let mut lanes = [[self.$splat(0.0); $lanes]; H];
                for (lanes, sums) in lanes.iter_mut().zip(sums.iter()) {
                    *lanes = pulp::cast(*sums);
                }
                let mut b = b;
                for segment in 0..segments {
                    // Slices of the same length: the inner loop has no bounds checks.
                    let length = row(segment, 0).len();
                    let mut rows: [&[f32]; H] = [&[]; H];
                    for (i, slot) in rows.iter_mut().enumerate() {
                        *slot = &row(segment, i)[..length];
                    }
                    for p in 0..length {
                        let Some(numbers) = b.first_chunk::<WIDTH>() else { return };
                        let right: [$vector; $lanes] = pulp::cast(*numbers);
                        b = b.get(stride..).unwrap_or(&[]);
                        for i in 0..H {
                            let left = self.$splat(rows[i][p]);
                            for j in 0..$lanes {
                                lanes[i][j] = self.$mul_add(left, right[j], lanes[i][j]);
                            }
                        }
                    }
                }
                for (lanes, sums) in lanes.iter().zip(sums) {
                    *sums = pulp::cast(*lanes);
                }
            }

            #[inline(always)]
            fn columns<'a, const H: usize>(
                self,
                k: usize,
                column: impl Fn(usize) -> &'a [f32],
                (b, stride): (&[f32], usize),
                sums: &mut [[f32; WIDTH]; H],
            ) {
                let mut lanes = [[self.$splat(0.0); $lanes]; H];
                for (lanes, sums) in lanes.iter_mut().zip(sums.iter()) {
                    *lanes = pulp::cast(*sums);
                }
                let mut b = b;
                for p in 0..k {
                    let Some(numbers) = b.first_chunk::<WIDTH>() else { return };
                    let Some(column) = column(p).first_chunk::<H>() else { return };
                    let right: [$vector; $lanes] = pulp::cast(*numbers);
                    b = b.get(stride..).unwrap_or(&[]);
                    for i in 0..H {
                        let left = self.$splat(column[i]);
                        for j in 0..$lanes {
                            lanes[i][j] = self.$mul_add(left, right[j], lanes[i][j]);
                        }
                    }
                }
                for (lanes, sums) in lanes.iter().zip(sums) {
                    *sums = pulp::cast(*lanes);
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector_kernel!(pulp::x86::V3, 6, pulp::f32x8, 2, splat_f32x8, mul_add_f32x8);
#[cfg(target_arch = "x86_64")]
vector_kernel!(pulp::x86::V4, 8, pulp::f32x16, 1, splat_f32x16, mul_add_f32x16);

struct Blocks<'a, K> {
    kernel: K,
    shape: Shape,
    a: Left<'a>,
    b: Right<'a>,
    start: Start<'a>,
    c: &'a mut [f32],
    /// The first column that is not computed yet.
    column: usize,
}

impl<K: Kernel> Blocks<'_, K> {
    #[inline(always)]
    fn run(mut self) {
        let Shape { m, n, k } = self.shape;
        for column in (self.column..n).step_by(WIDTH) {
            match self.a {
                // A long inner index is split: each part is a chain.
                Left::Rows(_) | Left::Columns(_) => {
                    for first in (0..k).step_by(DEPTH) {
                        self.strip(0..m, column, first..(first + DEPTH).min(k));
                    }
                }
                // The rows of a block must lie in one run of pixels.
                Left::PatchColumns(patches) => {
                    for first in (0..m).step_by(patches.run) {
                        self.strip(first..first + patches.run, column, 0..k);
                    }
                }
                Left::Patches(_) => self.strip(0..m, column, 0..k),
            }
        }
    }

    /// Computes a range of rows of one panel, in blocks of about the same height.
    #[inline(always)]
    fn strip(&mut self, rows: Range<usize>, column: usize, part: Range<usize>) {
        let blocks = rows.len().div_ceil(K::HEIGHT);
        let mut row = rows.start;
        for block in 0..blocks {
            let height = (rows.end - row).div_ceil(blocks - block);
            match height {
                1 => self.block::<1>(row, column, &part),
                2 => self.block::<2>(row, column, &part),
                3 => self.block::<3>(row, column, &part),
                4 => self.block::<4>(row, column, &part),
                5 => self.block::<5>(row, column, &part),
                7 if K::HEIGHT > 6 => self.block::<7>(row, column, &part),
                8 if K::HEIGHT > 6 => self.block::<8>(row, column, &part),
                _ => self.block::<6>(row, column, &part),
            }
            row += height;
        }
    }

    #[inline(always)]
    fn block<const H: usize>(&mut self, row: usize, column: usize, part: &Range<usize>) {
        let Shape { m, n, k } = self.shape;
        let width = WIDTH.min(n - column);
        let mut sums = [[0f32; WIDTH]; H];
        let is_first = part.start == 0;
        let start = if is_first { self.start } else { Start::Zero };
        for (i, sums) in sums.iter_mut().enumerate() {
            let from = match start {
                Start::Zero => continue,
                Start::Bias(bias) => &bias[column..column + width],
                Start::Existing => &self.c[(row + i) * n + column..][..width],
            };
            match from.first_chunk::<WIDTH>() {
                Some(from) => *sums = *from,
                None => sums[..width].copy_from_slice(from),
            }
        }
        let (b, stride) = self.b.panel(self.shape, column);
        let b = (&b[part.start * stride..], stride);
        match self.a {
            Left::Rows(a) => {
                let row = |_, i: usize| &a[(row + i) * k..][part.clone()];
                self.kernel.rows::<H>(1, row, b, &mut sums);
            }
            Left::Columns(a) => {
                let column = |p: usize| &a[(part.start + p) * m + row..];
                self.kernel.columns::<H>(part.len(), column, b, &mut sums);
            }
            Left::Patches(Patches { image, corners, lines, run }) => {
                let corners = &corners[row..row + H];
                let row = |line: usize, i: usize| &image[corners[i] + lines[line]..][..run];
                self.kernel.rows::<H>(lines.len(), row, b, &mut sums);
            }
            Left::PatchColumns(Patches { image, corners, lines, run }) => {
                let offset = lines[row / run] + row % run;
                let column = |p: usize| &image[corners[p] + offset..];
                self.kernel.columns::<H>(k, column, b, &mut sums);
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut self.c[(row + i) * n + column..][..width];
            match (is_first, to.first_chunk_mut::<WIDTH>()) {
                (true, Some(to)) => *to = *sums,
                (true, None) => to.copy_from_slice(&sums[..width]),
                (false, Some(to)) => to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum),
                (false, None) => to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide;

#[cfg(test)]
mod tests;
