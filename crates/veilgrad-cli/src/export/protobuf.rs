//! Writes messages in the wire format of protocol buffers: as much of it as ONNX files need.

/// A message, as its encoded fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Adds an integer field.
    pub(super) fn integer(mut self, field: u32, value: i64) -> Self {
        self.key(field, 0);
        // Negative numbers are encoded as their two's complement.
        self.varint(value as u64);
        self
    }

    /// Adds a field of bytes.
    pub(super) fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub(super) fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a message as a field.
    pub(super) fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    /// Adds a field once for each message.
    pub(super) fn messages<'a>(
        self,
        field: u32,
        messages: impl IntoIterator<Item = &'a Self>,
    ) -> Self {
        messages.into_iter().fold(self, |all, message| all.message(field, message))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    fn key(&mut self, field: u32, kind: u8) {
        self.varint(u64::from(field) << 3 | u64::from(kind));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_bytes_of_the_specification() {
        // The examples of the encoding guide of protocol buffers.
        assert_eq!(Message::default().integer(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        let text = Message::default().text(2, "testing").into_bytes();
        assert_eq!(text, [b"\x12\x07".as_slice(), b"testing"].concat());
        let inner = Message::default().integer(1, 150);
        let outer = Message::default().message(3, &inner).into_bytes();
        assert_eq!(outer, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let minus_two = Message::default().integer(1, -2).into_bytes();
        assert_eq!(minus_two, [&[0x08, 0xfe][..], &[0xff; 8], &[0x01]].concat());
        // A field number above 15 takes two bytes.
        assert_eq!(Message::default().integer(20, 1).into_bytes(), [0xa0, 0x01, 0x01]);
    }
}
