//! Builds ONNX graphs: nodes, constants, and the model around them.

use super::protobuf::Message;

/// The version of the operators. 17 is read by runtimes from 2022 on.
const OPERATORS: i64 = 17;
/// The version of the file format that comes with these operators.
const FILE_FORMAT: i64 = 8;

/// Types of numbers, by their number in `TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    F32 = 1,
    I64 = 7,
    F64 = 11,
}

/// The value of an operator's attribute.
pub(super) enum Attribute<'a> {
    Integer(i64),
    Integers(&'a [i64]),
}

/// The name of a value in the graph.
pub(super) type Name = String;

/// A graph under construction. Every value has one number per example in its first axis.
#[derive(Default)]
pub(super) struct Graph {
    nodes: Vec<Message>,
    constants: Vec<Message>,
    inputs: Vec<Message>,
    outputs: Vec<Message>,
}

/// The first axis, whose length is known only when the graph runs.
const BATCH: &str = "examples";

impl Graph {
    /// Declares an input of this shape per example.
    pub(super) fn input(
        &mut self,
        name: &str,
        number: Number,
        shape: &[usize],
        about: &str,
    ) -> Name {
        self.inputs.push(value_info(name, number, shape).text(3, about));
        name.to_owned()
    }

    /// Declares a value as an output of this shape per example.
    pub(super) fn output(&mut self, value: &str, name: &str, shape: &[usize], about: &str) {
        self.nodes.push(node("Identity", &[value], name, &[]));
        self.outputs.push(value_info(name, Number::F32, shape).text(3, about));
    }

    /// Adds an operator with one output.
    pub(super) fn node(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute<'_>)],
    ) -> Name {
        let name = format!("{}_{}", operator.to_ascii_lowercase(), self.nodes.len());
        self.nodes.push(node(operator, inputs, &name, attributes));
        name
    }

    pub(super) fn floats(&mut self, shape: &[usize], values: &[f32]) -> Name {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Number::F32, shape, &bytes)
    }

    pub(super) fn doubles(&mut self, shape: &[usize], values: &[f64]) -> Name {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Number::F64, shape, &bytes)
    }

    pub(super) fn integers(&mut self, values: &[i64]) -> Name {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(Number::I64, &[values.len()], &bytes)
    }

    /// A number.
    pub(super) fn float(&mut self, value: f32) -> Name {
        self.floats(&[], &[value])
    }

    fn constant(&mut self, number: Number, shape: &[usize], bytes: &[u8]) -> Name {
        let name = format!("constant_{}", self.constants.len());
        let tensor =
            shape.iter().fold(Message::default(), |all, side| all.integer(1, as_i64(*side)));
        self.constants.push(tensor.integer(2, number as i64).text(8, &name).bytes(9, bytes));
        name
    }

    /// `a operator b`, or an operator on one value.
    pub(super) fn apply(&mut self, operator: &str, inputs: &[&str]) -> Name {
        self.node(operator, inputs, &[])
    }

    /// Reshapes what belongs to one example.
    pub(super) fn reshape(&mut self, value: &str, shape: &[usize]) -> Name {
        let sides: Vec<i64> = [-1].into_iter().chain(shape.iter().map(|s| as_i64(*s))).collect();
        let sides = self.integers(&sides);
        self.apply("Reshape", &[value, &sides])
    }

    /// Permutes axes; the first is that of examples.
    pub(super) fn transpose(&mut self, value: &str, axes: &[i64]) -> Name {
        self.node("Transpose", &[value], &[("perm", Attribute::Integers(axes))])
    }

    /// The mean over axes, which stay with length 1 if `keep`.
    pub(super) fn mean(&mut self, value: &str, axes: &[i64], keep: bool) -> Name {
        let keep = Attribute::Integer(i64::from(keep));
        self.node(
            "ReduceMean",
            &[value],
            &[("axes", Attribute::Integers(axes)), ("keepdims", keep)],
        )
    }

    /// The sum over axes, which stay with length 1 if `keep`.
    pub(super) fn sum(&mut self, value: &str, axes: &[i64], keep: bool) -> Name {
        let axes = self.integers(axes);
        let keep = Attribute::Integer(i64::from(keep));
        self.node("ReduceSum", &[value, &axes], &[("keepdims", keep)])
    }

    pub(super) fn cast(&mut self, value: &str, number: Number) -> Name {
        self.node("Cast", &[value], &[("to", Attribute::Integer(number as i64))])
    }

    /// Picks indices along an axis.
    pub(super) fn gather(&mut self, value: &str, axis: i64, indices: &[usize]) -> Name {
        let indices: Vec<i64> = indices.iter().map(|index| as_i64(*index)).collect();
        let indices = self.integers(&indices);
        self.node("Gather", &[value, &indices], &[("axis", Attribute::Integer(axis))])
    }

    /// Joins values along an axis.
    pub(super) fn concat(&mut self, values: &[Name], axis: i64) -> Name {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        self.node("Concat", &values, &[("axis", Attribute::Integer(axis))])
    }

    /// The file: the graph, the version of its operators, and texts by name.
    pub(super) fn into_model(self, texts: &[(&str, &str)]) -> Message {
        let graph = Message::default()
            .messages(1, &self.nodes)
            .text(2, "veilgrad")
            .messages(5, &self.constants)
            .messages(11, &self.inputs)
            .messages(12, &self.outputs);
        let operators = Message::default().text(1, "").integer(2, OPERATORS);
        let texts: Vec<Message> =
            texts.iter().map(|(key, text)| Message::default().text(1, key).text(2, text)).collect();
        Message::default()
            .integer(1, FILE_FORMAT)
            .text(2, "veilgrad")
            .text(3, env!("CARGO_PKG_VERSION"))
            .message(7, &graph)
            .message(8, &operators)
            .messages(14, &texts)
    }
}

pub(super) fn as_i64(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn node(
    operator: &str,
    inputs: &[&str],
    output: &str,
    attributes: &[(&str, Attribute<'_>)],
) -> Message {
    let attributes: Vec<Message> = attributes
        .iter()
        .map(|(name, value)| {
            let named = Message::default().text(1, name);
            match value {
                Attribute::Integer(value) => named.integer(3, *value).integer(20, 2),
                Attribute::Integers(values) => {
                    values.iter().fold(named, |all, value| all.integer(8, *value)).integer(20, 7)
                }
            }
        })
        .collect();
    let node = inputs.iter().fold(Message::default(), |all, input| all.text(1, input));
    node.text(2, output).text(3, output).text(4, operator).messages(5, &attributes)
}

fn value_info(name: &str, number: Number, shape: &[usize]) -> Message {
    let batch = Message::default().text(2, BATCH);
    let sides = shape.iter().map(|side| Message::default().integer(1, as_i64(*side)));
    let sides: Vec<Message> = std::iter::once(batch).chain(sides).collect();
    let shape = Message::default().messages(1, &sides);
    let tensor = Message::default().integer(1, number as i64).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_has_its_nodes_constants_and_versions() {
        let mut graph = Graph::default();
        let x = graph.input("x", Number::F32, &[2], "two numbers");
        let two = graph.float(2.0);
        let y = graph.apply("Mul", &[&x, &two]);
        graph.output(&y, "y", &[2], "twice as much");
        let bytes = graph.into_model(&[("veilgrad", "{}")]).into_bytes();
        // ir_version 8, and the operators of version 17 with an empty domain.
        assert_eq!(bytes[..2], [0x08, 8]);
        assert!(bytes.windows(4).any(|part| part == [0x0a, 0, 0x10, 17]));
        for text in ["Mul", "Identity", "constant_0", "examples", "twice as much"] {
            assert!(bytes.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
        }
        // The constant: no axes, f32, its name, and its four bytes.
        let tensor = [&[0x10, 1, 0x42, 10][..], b"constant_0", &[0x4a, 4, 0, 0, 0, 0x40]].concat();
        assert!(bytes.windows(tensor.len()).any(|part| part == tensor));
    }
}
