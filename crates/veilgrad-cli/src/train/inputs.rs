//! From declared numbers to the inputs of the model: scaling, features, whitening, norms. Every step is a function of one
//! example alone, so that none costs budget.

use veilgrad_data::{
    CompactRows, GroupNorm, ImageCopy, Pool, Scattering, opponent_colours, scale_to_norm,
};
use veilgrad_nn::{InMemory, Model, Whitening, public};

use super::config::{self, Declaration};
use super::schema::{missing_number, schema};
use crate::error::Error;

/// Examples whose features are computed at once: more would only take memory.
const BLOCK: usize = 512;

/// The shape that the model sees, from the declaration alone.
pub(crate) fn shape(declaration: &Declaration) -> Result<Vec<usize>, Error> {
    let declared = declared_shape(declaration)?;
    match declaration.model.features {
        config::Features::Scattering => {
            let image = Image::new(declaration, &declared)?;
            let [channels, rows, columns] = image.shape()?;
            // A group of single numbers would be normalised to zeros.
            if image.pool.is_some() && declaration.model.scattering.norm_groups > channels {
                return Err(Error::Usage(format!(
                    "[model.scattering] norm_groups must be at most {channels}, one for each channel"
                )));
            }
            Ok(vec![image.planes * channels * rows * columns])
        }
        config::Features::None if declaration.model.kind == config::Kind::Layers => {
            Ok(match declared[..] {
                [rows, columns] => vec![rows, columns, 1],
                _ => declared,
            })
        }
        config::Features::None if declaration.model.kind == config::Kind::Cnn => match declared[..]
        {
            [rows, columns] => Ok(vec![rows, columns, 1]),
            [_, _, _] => Ok(declared),
            _ => Err(Error::Usage("a cnn needs [data] shape = [rows, columns]".to_owned())),
        },
        config::Features::None => Ok(vec![declared.iter().product()]),
    }
}

pub(crate) fn declared_shape(declaration: &Declaration) -> Result<Vec<usize>, Error> {
    match &declaration.shape {
        _ if !declaration.columns.is_empty() => Ok(vec![schema(declaration).width()]),
        Some(shape) => Ok(shape.clone()),
        None => Err(Error::Usage("[data] has neither shape nor columns".to_owned())),
    }
}

/// An image, and how its scattering features are computed: of each colour on its own.
struct Image {
    rows: usize,
    columns: usize,
    planes: usize,
    scales: u32,
    orientations: usize,
    pool: Option<Pool>,
    colours: Option<config::Colours>,
    mirror: bool,
}

impl Image {
    fn new(declaration: &Declaration, shape: &[usize]) -> Result<Self, Error> {
        let (rows, columns, planes) = match *shape {
            [rows, columns] => (rows, columns, 1),
            [rows, columns, planes] => (rows, columns, planes),
            _ => {
                return Err(Error::Usage(
                    "scattering needs [data] shape = [rows, columns] or [rows, columns, colours]"
                        .to_owned(),
                ));
            }
        };
        let config::Scattering { scales, orientations, grid, pool_sigma, colours, mirror, .. } =
            declaration.model.scattering;
        let pool = match (grid, pool_sigma) {
            (None, None) => None,
            (Some(grid), Some(sigma)) => Some(Pool { grid, sigma }),
            _ => {
                return Err(Error::Usage(
                    "[model.scattering] grid and pool_sigma go together: give both, or none"
                        .to_owned(),
                ));
            }
        };
        if mirror && pool.is_none() {
            return Err(Error::Usage(
                "[model.scattering] mirror needs grid and pool_sigma".to_owned(),
            ));
        }
        if colours.is_some() && planes != 3 {
            return Err(Error::Usage(
                "[model.scattering] colours = \"opponent\" needs [data] shape = [rows, columns, 3]"
                    .to_owned(),
            ));
        }
        Ok(Self { rows, columns, planes, scales, orientations, pool, colours, mirror })
    }

    fn shape(&self) -> Result<[usize; 3], Error> {
        let Self { rows, columns, scales, orientations, .. } = *self;
        match self.pool {
            None => Scattering::shape_of(rows, columns, scales, orientations),
            Some(pool) => Scattering::pooled_shape_of(rows, columns, scales, orientations, pool),
        }
        .map_err(Error::usage)
    }

    fn scattering(&self) -> Result<Scattering, Error> {
        let Self { rows, columns, scales, orientations, .. } = *self;
        match self.pool {
            None => Scattering::new(rows, columns, scales, orientations),
            Some(pool) => Scattering::pooled(rows, columns, scales, orientations, pool),
        }
        .map_err(Error::usage)
    }
}

/// Clamps numbers to their declared bounds and scales them to [0, 1].
pub(crate) fn scale(declaration: &Declaration, inputs: &mut [f32]) -> Result<(), Error> {
    let [low, high] = declaration
        .bounds
        .ok_or_else(|| Error::Usage("[data] bounds of numbers are not declared".to_owned()))?;
    let missing = declaration.missing.as_deref();
    let missing = missing.and_then(|policy| missing_number(policy, [low, high]));
    let missing = missing.map_or(f32::NAN, |number| number as f32);
    let (low, scale) = (low as f32, (1.0 / (high - low)) as f32);
    for value in inputs {
        let number = if value.is_nan() { missing } else { *value };
        let scaled = (number - low) * scale;
        // NaN stays NaN, so that its record contributes zero.
        *value = if scaled.is_nan() { scaled } else { scaled.clamp(0.0, 1.0) };
    }
    Ok(())
}

/// Computes the inputs of the model from scaled numbers.
pub(crate) struct Inputs {
    scattering: Option<Scattering>,
    group_norm: GroupNorm,
    planes: usize,
    colours: Option<config::Colours>,
    mirror: bool,
    /// Numbers of a scaled example.
    size: usize,
    /// Numbers of an input of the model.
    pub(crate) width: usize,
    norm: Option<f64>,
    compact: bool,
    /// The copies of an image that are averaged in training, and in use.
    copies: Vec<ImageCopy>,
    predict_copies: Vec<ImageCopy>,
    /// Rows, columns and colours of an image.
    image: [usize; 3],
}

impl Inputs {
    pub(crate) fn new(declaration: &Declaration) -> Result<Self, Error> {
        let declared = declared_shape(declaration)?;
        let model = &declaration.model;
        let image = match model.features {
            config::Features::None => None,
            config::Features::Scattering => Some(Image::new(declaration, &declared)?),
        };
        let copies = |count: fn(&config::Augment) -> usize| match &model.augment {
            None => ImageCopy::all(0, false),
            Some(augment) => {
                let mut all = ImageCopy::all(augment.shift, augment.flip);
                all.truncate(count(augment));
                all
            }
        };
        Ok(Self {
            copies: copies(|augment| augment.copies),
            predict_copies: copies(config::Augment::predict_copies),
            image: match declared[..] {
                [rows, columns] => [rows, columns, 1],
                [rows, columns, colours] => [rows, columns, colours],
                _ => [1, 1, declared.iter().product()],
            },
            scattering: image.as_ref().map(Image::scattering).transpose()?,
            group_norm: GroupNorm { groups: model.scattering.norm_groups },
            planes: image.as_ref().map_or(1, |image| image.planes.max(1)),
            colours: image.as_ref().and_then(|image| image.colours),
            mirror: image.as_ref().is_some_and(|image| image.mirror),
            size: declared.iter().product::<usize>().max(1),
            width: shape(declaration)?.iter().product::<usize>().max(1),
            norm: model.input_norm,
            compact: image.is_some_and(|image| image.pool.is_some()),
        })
    }

    /// The inputs of scaled examples, as the model takes them.
    pub(crate) fn compute(
        &self,
        scaled: &[f32],
        whitening: Option<&Whitening>,
        threads: usize,
    ) -> Vec<f32> {
        let mut rows = Vec::new();
        for block in scaled.chunks(self.size * BLOCK) {
            let mut inputs = self.features(block, threads);
            each_part(&mut inputs, self.width, threads, |part| self.finish(part, whitening));
            rows.extend(inputs);
        }
        rows
    }

    /// The outputs of a model for **public** scaled examples, averaged over copies: one number per class, example after
    /// example. NaN for an example that is not finite.
    pub(crate) fn outputs(
        &self,
        scaled: &[f32],
        model: &Model,
        whitening: Option<&Whitening>,
        threads: usize,
    ) -> Vec<f32> {
        let mut outputs = Vec::new();
        for block in scaled.chunks(self.size * BLOCK) {
            let mut sums: Vec<f32> = Vec::new();
            for copy in &self.predict_copies {
                let rows = match self.predict_copies.len() {
                    1 => self.compute(block, whitening, threads),
                    _ => self.compute(&self.copy(block, &[*copy]), whitening, threads),
                };
                let labels = vec![0.0; block.len() / self.size];
                let records = InMemory::new(rows, self.width, labels, 1);
                let found = public::outputs(model, &records);
                sums.resize(found.len(), 0.0);
                sums.iter_mut().zip(found).for_each(|(sum, value)| *sum += value);
            }
            let share = 1.0 / self.predict_copies.len() as f32;
            outputs.extend(sums.iter().map(|sum| sum * share));
        }
        outputs
    }

    /// The copies of scaled images: all of the first, then all of the next.
    fn copy(&self, scaled: &[f32], copies: &[ImageCopy]) -> Vec<f32> {
        let mut all = vec![0.0; scaled.len() * copies.len()];
        let images = scaled.chunks_exact(self.size);
        let to = all.chunks_exact_mut(self.size * copies.len());
        for (image, to) in images.zip(to) {
            for (copy, to) in copies.iter().zip(to.chunks_exact_mut(self.size)) {
                copy.write(image, self.image, to);
            }
        }
        all
    }

    /// How many copies of an example are read in training.
    pub(crate) fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Reads a copy of an example of the training data.
    pub(crate) fn read(&self, rows: &Rows, example: usize, copy: usize, to: &mut [f32]) {
        if self.stores_copies() {
            rows.read(example * self.copies.len() + copy, to);
        } else if let (Rows::Full(values), Some(image_copy), true) =
            (rows, self.copies.get(copy), self.copies.len() > 1)
        {
            if let Some(image) = values.get(example * self.size..(example + 1) * self.size) {
                image_copy.write(image, self.image, to);
            }
        } else {
            rows.read(example, to);
        }
    }

    /// Whether rows are stored for every copy. Otherwise copies are made when they are read.
    fn stores_copies(&self) -> bool {
        self.copies.len() > 1 && (self.scattering.is_some() || self.norm.is_some())
    }

    /// The features of scaled examples, before whitening and norm.
    fn features(&self, scaled: &[f32], threads: usize) -> Vec<f32> {
        let Some(scattering) = &self.scattering else { return scaled.to_vec() };
        let plane_width = self.width / self.planes;
        let mut features = match self.planes {
            1 => scattering.transform(scaled, threads),
            planes => {
                let mut pixels = scaled.to_vec();
                if let Some(config::Colours::Opponent) = self.colours {
                    opponent_colours(&mut pixels);
                }
                let images = pixels.chunks_exact(self.size);
                let plane = |image, colour| <[f32]>::iter(image).skip(colour).step_by(planes);
                let by_colour: Vec<f32> = images
                    .flat_map(|image| (0..planes).flat_map(move |colour| plane(image, colour)))
                    .copied()
                    .collect();
                scattering.transform(&by_colour, threads)
            }
        };
        if self.mirror {
            let average = |part: &mut [f32]| scattering.average_with_mirror_image(part);
            each_part(&mut features, plane_width, threads, average);
        }
        self.group_norm.apply_all(&mut features, plane_width, threads);
        let images = scaled.chunks_exact(self.size).zip(features.chunks_exact_mut(self.width));
        // The features of an image with NaN are NaN.
        let bad = images.filter(|(image, _)| image.iter().any(|value| value.is_nan()));
        bad.for_each(|(_, features)| features.fill(f32::NAN));
        features
    }

    /// Whitens features and scales them to the declared norm.
    fn finish(&self, rows: &mut [f32], whitening: Option<&Whitening>) {
        if let Some(whitening) = whitening {
            whitening.apply(rows);
        }
        if let Some(norm) = self.norm {
            rows.chunks_exact_mut(self.width).for_each(|row| scale_to_norm(row, norm));
        }
    }

    /// The rows of the training data, before whitening if there is to be one. Features that are averaged on a grid are held
    /// in 16 bits a number: their rounding is below that of the exact sums, whose factors have 13 bits.
    pub(crate) fn rows(&self, mut scaled: Vec<f32>, whitened: bool, threads: usize) -> Rows {
        if self.scattering.is_none() {
            if self.stores_copies() {
                scaled = self.copy(&scaled, &self.copies);
            }
            if !whitened {
                each_part(&mut scaled, self.width, threads, |part| self.finish(part, None));
            }
            return Rows::Full(scaled);
        }
        let mut full = Vec::new();
        let mut compact = CompactRows::new(self.width);
        if self.compact {
            compact.reserve(scaled.len() / self.size * self.copies.len());
        }
        // Blocks of their own, so that the memory of each is free once it is done.
        let blocks = scaled.chunks(self.size * BLOCK.div_ceil(self.copies.len()));
        let blocks: Vec<Vec<f32>> = blocks.map(<[f32]>::to_vec).collect();
        drop(scaled);
        for block in blocks {
            let mut rows = match self.copies.len() {
                1 => self.features(&block, threads),
                _ => self.features(&self.copy(&block, &self.copies), threads),
            };
            if !whitened {
                each_part(&mut rows, self.width, threads, |part| self.finish(part, None));
            }
            match self.compact {
                true => compact.extend(&rows),
                false => full.extend(rows),
            }
        }
        if self.compact { Rows::Compact(compact) } else { Rows::Full(full) }
    }

    /// Whitens the rows of the training data, and scales them to the declared norm.
    pub(crate) fn whiten(&self, rows: &mut Rows, whitening: &Whitening, threads: usize) {
        match rows {
            Rows::Full(values) => {
                each_part(values, self.width, threads, |part| self.finish(part, Some(whitening)));
            }
            Rows::Compact(rows) => {
                rows.change(32, threads, |part| self.finish(part, Some(whitening)));
            }
        }
    }
}

/// Rows of inputs of the training data. Not `Debug`, because they are private.
#[derive(Clone)]
pub(crate) enum Rows {
    Full(Vec<f32>),
    Compact(CompactRows),
}

impl Rows {
    pub(crate) fn read(&self, row: usize, to: &mut [f32]) {
        match self {
            Self::Full(values) => {
                let width = to.len();
                let row = values.get(row * width..(row + 1) * width);
                to.iter_mut().zip(row.unwrap_or_default()).for_each(|(to, from)| *to = *from);
            }
            Self::Compact(rows) => rows.read(row, to),
        }
    }
}

/// Calls `change` on parts of whole rows, one per thread.
fn each_part(rows: &mut [f32], width: usize, threads: usize, change: impl Fn(&mut [f32]) + Sync) {
    let share = (rows.len() / width).div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for part in rows.chunks_mut(share * width) {
            scope.spawn(|| change(part));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 16;

    fn declaration(model: &str) -> Declaration {
        let text = format!(
            "{{\"classes\":2,\"shape\":[4,4],\"bounds\":[0,1],\"model\":{{\"kind\":\"linear\",{model}}}}}"
        );
        serde_json::from_str(&text).unwrap()
    }

    /// All copies of the examples, as training reads them.
    fn copies(inputs: &Inputs, scaled: &[f32]) -> Vec<Vec<f32>> {
        let rows = inputs.rows(scaled.to_vec(), false, 2);
        let read = |example: usize, copy: usize| {
            let mut row = vec![0.0; inputs.width];
            inputs.read(&rows, example, copy, &mut row);
            row
        };
        let examples = 0..scaled.len() / SIZE;
        examples
            .flat_map(|example| (0..inputs.copies()).map(move |c| (example, c)))
            .map(|(e, c)| read(e, c))
            .collect()
    }

    /// A declaration with this shape and scattering features.
    fn scattering(shape: &str, keys: &str) -> Declaration {
        let text = format!(
            "{{\"classes\":2,\"shape\":{shape},\"bounds\":[0,1],\"model\":{{\"kind\":\"linear\",\
             \"features\":\"scattering\",\"scattering\":{{{keys}}}}}}}"
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn each_colour_has_the_features_of_an_image_of_that_colour_alone() {
        let images: Vec<f32> = (0..2 * 30 * 3).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
        for keys in [
            r#""scales":1,"orientations":3,"norm_groups":2"#,
            r#""scales":1,"orientations":3,"norm_groups":4,"grid":3,"pool_sigma":1.0"#,
        ] {
            let colours = Inputs::new(&scattering("[5,6,3]", keys)).unwrap();
            let grey = Inputs::new(&scattering("[5,6]", keys)).unwrap();
            let together = colours.compute(&images, None, 2);
            let alone: Vec<f32> = images
                .chunks_exact(30 * 3)
                .flat_map(|image| (0..3).map(move |colour| image.iter().skip(colour).step_by(3)))
                .flat_map(|plane| grey.compute(&plane.copied().collect::<Vec<_>>(), None, 1))
                .collect();
            assert_eq!(colours.width, 3 * grey.width);
            assert!(together == alone, "{keys}");
            assert!(together[..grey.width] != together[grey.width..2 * grey.width]);
        }
    }

    #[test]
    fn opponent_colours_are_those_of_their_definition_and_mirror_images_have_the_same_features() {
        let (rows, columns) = (8, 10);
        let image: Vec<f32> =
            (0..rows * columns * 3).map(|i| (i * i * 37 % 101) as f32 / 101.0).collect();
        let keys = r#""scales":1,"orientations":4,"norm_groups":2,"grid":4,"pool_sigma":0.9"#;
        let features = |keys: &str, image: &[f32]| {
            Inputs::new(&scattering("[8,10,3]", keys)).unwrap().compute(image, None, 1)
        };
        let distance =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let mut changed = image.clone();
        opponent_colours(&mut changed);
        let opponent = features(&format!(r#"{keys},"colours":"opponent""#), &image);
        assert!(opponent == features(keys, &changed));
        assert!(distance(&opponent, &features(keys, &image)) > 0.1);

        let mut mirrored = image.clone();
        for row in mirrored.chunks_exact_mut(3 * columns) {
            let pixels: Vec<f32> = row.rchunks_exact(3).flatten().copied().collect();
            row.copy_from_slice(&pixels);
        }
        let averaged = |image: &[f32]| features(&format!(r#"{keys},"mirror":true"#), image);
        assert!(distance(&averaged(&image), &averaged(&mirrored)) < 1e-2);
        assert!(distance(&features(keys, &image), &features(keys, &mirrored)) > 0.1);
        assert!(distance(&averaged(&image), &features(keys, &image)) > 0.1);
    }

    #[test]
    fn copies_of_an_example_do_not_depend_on_other_examples() {
        let scaled: Vec<f32> = (0..5 * SIZE).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
        let augment = r#""augment":{"copies":3,"shift":1,"flip":true}"#;
        let features =
            r#""features":"scattering","scattering":{"scales":1,"orientations":2,"norm_groups":1"#;
        for model in [
            augment.to_owned(),
            format!("{augment},\"input_norm\":2.0"),
            format!("{augment},{features}}}"),
            format!("{augment},{features},\"grid\":2,\"pool_sigma\":1.0}},\"input_norm\":2.0"),
        ] {
            let inputs = Inputs::new(&declaration(&model)).unwrap();
            let together = copies(&inputs, &scaled);
            let alone: Vec<_> =
                scaled.chunks_exact(SIZE).flat_map(|example| copies(&inputs, example)).collect();
            assert_eq!(together.len(), 15);
            assert!(together == alone, "{model}");
            // They are different copies.
            assert!(together[0] != together[1] && together[1] != together[2], "{model}");
        }
    }
}
