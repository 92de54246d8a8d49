//! Listed layers: their sizes, and what is refused.

use super::super::build;
use super::*;

fn declaration(shape: &str, layers: &str) -> Declaration {
    let text = format!(
        "{{\"classes\":3,\"shape\":{shape},\"bounds\":[0,1],\"model\":{{\"kind\":\"layers\",\"layers\":{layers}}}}}"
    );
    serde_json::from_str(&text).unwrap()
}

const IMAGE: &str = r#"[{"kind":"conv","filters":4,"kernel":3,"padding":"same","stride":2},{"kind":"relu"},
    {"kind":"max-pool","size":2,"stride":1},{"kind":"group-norm","groups":2},
    {"kind":"conv","filters":6,"kernel":2},{"kind":"gelu"},{"kind":"average-pool","size":2},
    {"kind":"layer-norm"},{"kind":"flatten"},{"kind":"linear","outputs":5},{"kind":"batch-norm"},{"kind":"tanh"}]"#;

#[test]
fn the_sizes_that_are_checked_before_allocation_are_those_of_the_model() {
    let pool = r#"[{"kind":"global-average"},{"kind":"linear","outputs":7}]"#;
    for (shape, layers) in [
        ("[12,17]", IMAGE),
        ("[20,9,3]", IMAGE),
        ("[5,4,2]", pool),
        ("[9]", r#"[{"kind":"linear","outputs":4},{"kind":"relu"}]"#),
        // The outputs of the last layer are flattened.
        ("[9,8]", r#"[{"kind":"conv","filters":2,"kernel":3}]"#),
    ] {
        let declaration = declaration(shape, layers);
        declaration.check().unwrap();
        let model = build::model(&declaration).unwrap();
        assert_eq!(model.output(), [3], "{shape}");
        let (bound, size) = (most_parameters(&declaration).unwrap(), model.size() as u128);
        // Biases are not counted; norms are counted twice.
        assert!(bound + 40 >= size && bound <= 2 * size, "{shape}: {bound} {size}");
    }
}

#[test]
fn layers_that_do_not_fit_are_named_with_their_place_and_the_rule() {
    for (shape, layers, what) in [
        (
            "[8,8]",
            r#"[{"kind":"linear","outputs":4}]"#,
            "1 (linear): takes numbers in a row, and the input is [8, 8, 1]: put a flatten",
        ),
        ("[8]", r#"[{"kind":"conv","filters":4,"kernel":3}]"#, "1 (conv): takes an image"),
        (
            "[8]",
            r#"[{"kind":"relu"},{"kind":"max-pool","size":2}]"#,
            "2 (max-pool): takes an image",
        ),
        (
            "[8,8]",
            r#"[{"kind":"conv","filters":4,"kernel":9}]"#,
            "1 (conv): 9 x 9 is larger than the image",
        ),
        ("[8,8]", r#"[{"kind":"average-pool","size":9}]"#, "1 (average-pool): 9 x 9 is larger"),
        (
            "[8,8]",
            r#"[{"kind":"conv","filters":4,"kernel":3},{"kind":"group-norm","groups":3}]"#,
            "2 (group-norm): 4 channels cannot be split into 3",
        ),
        ("[4096,4096]", r#"[{"kind":"relu"}]"#, "more than 8388608 numbers for each example"),
        (
            "[2048,2048]",
            r#"[{"kind":"conv","filters":16777216,"kernel":1}]"#,
            "more than 8388608 numbers",
        ),
        (
            "[64]",
            r#"[{"kind":"linear","outputs":8000000},{"kind":"linear","outputs":1000}]"#,
            "more than 2^30 parameters",
        ),
        (
            "[9,9]",
            r#"[{"kind":"conv","filters":1000000,"kernel":16777216,"padding":"same"}]"#,
            "more than 2^30 parameters",
        ),
    ] {
        let declaration = declaration(shape, layers);
        declaration.check().unwrap();
        let error = layers_error(&declaration);
        assert!(error.contains(what), "{what}: {error}");
    }
}

fn layers_error(declaration: &Declaration) -> String {
    layers(declaration).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn embedded_columns_are_counted_and_placed() {
    let columns = r#"[{"name":"a","bounds":[0,1]},
        {"name":"b","categories":["x","y","z"],"embedding":4},
        {"name":"c","categories":["x","y"]},
        {"name":"d","categories":["p","q"],"embedding":2}]"#;
    let text = format!(
        "{{\"label_bounds\":[0,1],\"columns\":{columns},\"model\":{{\"kind\":\"mlp\",\"hidden\":[5]}}}}"
    );
    let declaration: Declaration = serde_json::from_str(&text).unwrap();
    declaration.check().unwrap();
    let places: Vec<_> =
        schema::embedded(&declaration).iter().map(|c| (c.column, c.entries)).collect();
    assert_eq!(places, [(1, 3), (4, 2)]);
    let model = build::model(&declaration).unwrap();
    assert_eq!(model.output(), [1]);
    assert_eq!(model.size(), 3 * 4 + 2 * 2 + (1 + 4 + 2 + 2) * 5 + 5 + 5 + 1);
    assert_eq!(most_parameters(&declaration).unwrap(), 12 + 4 + 45 + 5);
}
