//! Training on copies of images, and predictions averaged over them.

use crate::common::{Directory, idx, ok, refused};
use serde_json::Value;

const SIDE: usize = 8;

/// Images whose class is whether they are bright at the top, and their mirror images.
fn images(count: usize) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let (mut pixels, mut mirrored, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for image in 0..count {
        let top = image % 2 == 0;
        let pixel = |row: usize, column: usize| {
            let bright = (row < SIDE / 2) == top;
            (40 * (image * 7 + row * 3 + column * 5 % 11) % 90 + if bright { 160 } else { 0 }) as u8
        };
        for row in 0..SIDE {
            pixels.extend((0..SIDE).map(|column| pixel(row, column)));
            mirrored.extend((0..SIDE).rev().map(|column| pixel(row, column)));
        }
        labels.push(u8::from(top));
    }
    (pixels, mirrored, labels)
}

fn config(directory: &Directory, model: &str) -> String {
    let here = directory.0.display();
    let path = directory.file("config.toml");
    let text = format!(
        r#"
[data]
train = "{here}/images"
labels = "{here}/labels"
test = "{here}/test"
test_labels = "{here}/test_labels"
dataset = "toy"
records = 200
classes = 2
shape = [{SIDE}, {SIDE}]
bounds = [0, 255]
[model]
{model}
[privacy]
epsilon = 8.0
delta = 1e-5
expected_batch = 100
[train]
rounds = 20
optimizer = {{ kind = "sgd", lr = 1.0 }}
"#
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn predictions_averaged_over_mirror_images_are_the_same_for_an_image_and_its_mirror_image() {
    let directory = Directory::new("augment");
    let (pixels, mirrored, labels) = images(200);
    let write = |name: &str, bytes: Vec<u8>| std::fs::write(directory.file(name), bytes).unwrap();
    let side = SIDE as u32;
    write("images", idx(&[200, side, side], &pixels));
    write("labels", idx(&[200], &labels));
    write("test", idx(&[50, side, side], &pixels[..50 * SIDE * SIDE]));
    write("test_labels", idx(&[50], &labels[..50]));
    write("mirrored", idx(&[50, side, side], &mirrored[..50 * SIDE * SIDE]));
    let scattering = "features = \"scattering\"\ninput_norm = 4.0\n\
                      scattering = { scales = 1, orientations = 2, grid = 3, pool_sigma = 1.0, norm_groups = 1 }";
    for (name, model) in [
        ("pixels", "kind = \"linear\"".to_owned()),
        ("hidden", "kind = \"mlp\"\nhidden = [5]\ninput_norm = 2.0".to_owned()),
        ("features", format!("kind = \"linear\"\n{scattering}")),
    ] {
        let augmented = format!("{model}\naugment = {{ copies = 2, flip = true }}");
        let config = config(&directory, &augmented);
        let (out, ledger) = (directory.file(name), directory.file(&format!("{name}.db")));
        let report = ok(&["train", &config, "--out", &out, "--ledger", &ledger, "-q", "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["unit"], "example");
        assert!(report["epsilon"].as_f64().unwrap() <= 8.0);
        assert!(report["test_accuracy"].as_f64().unwrap() > 0.9, "{name}: {report}");
        let model = format!("{out}/model.safetensors");
        let predict = |file: &str| -> Vec<(String, f64)> {
            let text = ok(&["predict", &model, &directory.file(file), "--json"]);
            let found: Value = serde_json::from_str(&text).unwrap();
            let row =
                |row: &Value| (row["class"].to_string(), row["probability"].as_f64().unwrap());
            found["predictions"].as_array().unwrap().iter().map(row).collect()
        };
        for (one, two) in predict("test").iter().zip(predict("mirrored")) {
            assert_eq!(one.0, two.0);
            assert!((one.1 - two.1).abs() < 1e-3, "{name}: {one:?} {two:?}");
        }
    }
    let bad = config(&directory, "kind = \"linear\"\naugment = { copies = 3, flip = true }");
    refused(&["check", &bad], 2, "copies must be 1 to 2");
    let bad = config(&directory, "kind = \"linear\"\naugment = { copies = 2, shift = 99 }");
    refused(&["check", &bad], 2, "shift must be 16 or less");
}
