//! Model files describe what the model computes, and `export` writes it as ONNX. Outputs of the exported models are compared in
//! `adapters/veilgrad-python/tests/test_exchange.py`, which has ONNX Runtime and PyTorch.

use crate::common::{Directory, config, ok, refused, safetensors, table};
use serde_json::{Value, json};

fn kept(name: &str) -> String {
    format!("{}/tests/first_edition/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn description(model: &str) -> Value {
    let (header, _) = safetensors(&std::fs::read(model).unwrap());
    serde_json::from_str(header["__metadata__"]["veilgrad"].as_str().unwrap()).unwrap()
}

/// A trained mlp of the toy table.
fn trained(directory: &Directory) -> String {
    table(&directory.file("data.csv"), 400);
    let (config, out) = (config(directory, 3, ""), directory.file("out"));
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("kind = \"linear\"", "kind = \"mlp\"\nhidden = [5]\ninput_norm = 2.0");
    std::fs::write(&config, text).unwrap();
    ok(&["train", &config, "--out", &out, "--quiet"]);
    format!("{out}/model.safetensors")
}

#[test]
fn a_model_file_describes_its_network() {
    let directory = Directory::new("network");
    let model = trained(&directory);
    let network = &description(&model)["network"];
    assert_eq!(network["version"], 1);
    let inputs = json!([
        { "kind": "table", "columns": [
            { "name": "x", "inputs": [0, 1], "encoding": "number", "low": 0.0, "high": 1.0, "missing": null },
            { "name": "y", "inputs": [1, 2], "encoding": "number", "low": 0.0, "high": 1.0, "missing": null },
            { "name": "word", "inputs": [2, 3], "encoding": "one-hot", "words": ["declared"], "missing": null },
        ] },
        { "kind": "norm", "norm": 2.0 },
        { "kind": "reshape", "shape": [3] },
    ]);
    assert_eq!(network["inputs"], inputs);
    let layers = json!([
        { "kind": "linear", "weight": "linear1.weight", "bias": "linear1.bias", "input": [3], "output": [5] },
        { "kind": "relu", "input": [5], "output": [5] },
        { "kind": "linear", "weight": "linear2.weight", "bias": "linear2.bias", "input": [5], "output": [2] },
    ]);
    assert_eq!(network["layers"], layers);
    assert_eq!(network["outputs"], json!({ "kind": "logits", "classes": ["a", "b"] }));
    // Every array that a step names is in the file.
    let (_, entries) = safetensors(&std::fs::read(&model).unwrap());
    assert!(entries.contains_key("linear1.weight") && entries.len() == 4);
}

/// The file with another text in its metadata.
fn with_text(bytes: &[u8], text: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    header["__metadata__"]["veilgrad"] = text.into();
    let mut header = header.to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat()
}

#[test]
fn a_description_of_another_network_is_refused_and_a_missing_one_is_not() {
    let directory = Directory::new("network-forged");
    let model = trained(&directory);
    let bytes = std::fs::read(&model).unwrap();
    let (forged, data) = (directory.file("forged.safetensors"), directory.file("test.csv"));
    let write =
        |text: &Value| std::fs::write(&forged, with_text(&bytes, &text.to_string())).unwrap();
    let original = description(&model);
    write(&original);
    assert_eq!(ok(&["predict", &forged, &data]), ok(&["predict", &model, &data]));
    let mut text = original.clone();
    text["network"]["layers"][0]["output"] = json!([4]);
    write(&text);
    refused(&["predict", &forged, &data], 5, "describes another network");
    text = original.clone();
    text["network"]["version"] = 2.into();
    write(&text);
    refused(&["predict", &forged, &data], 5, "in version 2");
    text = original;
    text.as_object_mut().unwrap().remove("network");
    write(&text);
    assert_eq!(ok(&["predict", &forged, &data]), ok(&["predict", &model, &data]));
}

#[test]
fn models_of_every_kind_and_of_the_first_version_are_exported() {
    let directory = Directory::new("export");
    let file = directory.file("model.onnx");
    let new = trained(&directory);
    for (model, operators) in [
        (new, &["MatMul", "Softmax", "IsNaN", "Equal", "Sqrt"][..]),
        (kept("linear.safetensors"), &["MatMul", "Softmax"]),
        (kept("mlp.safetensors"), &["MatMul", "Relu"]),
        (kept("cnn.safetensors"), &["Conv", "MaxPool", "Transpose"]),
    ] {
        let text = ok(&["export", &model, "--to", "onnx", "-o", &file]);
        assert!(text.contains("probabilities"), "{text}");
        let bytes = std::fs::read(&file).unwrap();
        // ir_version 8, and a producer.
        assert_eq!(bytes[..4], [0x08, 8, 0x12, 8], "{model}");
        for name in operators {
            let found = bytes.windows(name.len()).any(|part| part == name.as_bytes());
            assert!(found, "{model}: {name}");
        }
        // The weights are in the file, bit by bit; those of convolutions in another order.
        let (_, entries) = safetensors(&std::fs::read(&model).unwrap());
        let weights = entries.iter().filter(|(name, _)| !name.starts_with("conv"));
        for (name, values) in weights {
            assert!(bytes.windows(values.len()).any(|part| part == values), "{model}: {name}");
        }
    }
    let found: Value = serde_json::from_str(&ok(&[
        "export",
        &kept("cnn.safetensors"),
        "--to",
        "onnx",
        "-o",
        &file,
        "--json",
    ]))
    .unwrap();
    assert_eq!((&found["schema"], &found["format"]), (&1.into(), &"onnx".into()));
    assert_eq!(found["input"]["type"], "float32");
    refused(&["export", &kept("cnn.safetensors"), "--to", "tflite", "-o", &file], 2, "onnx");
    refused(&["export", &kept("data.csv"), "--to", "onnx", "-o", &file], 5, "data.csv");
    refused(&["export", &kept("cnn.safetensors"), "--to", "onnx"], 2, "--output");
}
