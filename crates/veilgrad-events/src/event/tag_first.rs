//! Reading of enums whose tag is the first key of their map.

use std::fmt;

use serde::Deserializer;
use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{
    DeserializeSeed, EnumAccess, Error, Expected, IntoDeserializer, MapAccess, Unexpected,
    VariantAccess, Visitor,
};

/// Reads `{"tag": "variant", fields...}` as an enum, one field after the other.
///
/// Serde's own reader of tagged enums accepts the tag anywhere in the map, so it holds all fields in a tree until it
/// knows the variant: 150 MB for a plan with 100,000 entries. A ledger writes the tag first.
///
/// # Example
/// ```
/// use serde::Deserialize;
/// use veilgrad_events::TagFirst;
///
/// #[derive(Debug, PartialEq, Deserialize)]
/// enum Shape {
///     Circle { radius: u32 },
/// }
/// let read = |json| {
///     let mut json = serde_json::Deserializer::from_str(json);
///     Shape::deserialize(TagFirst::new("shape", &mut json))
/// };
/// assert_eq!(read(r#"{"shape":"Circle","radius":2}"#)?, Shape::Circle { radius: 2 });
/// assert!(read(r#"{"radius":2,"shape":"Circle"}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug)]
pub struct TagFirst<D> {
    tag: &'static str,
    deserializer: D,
}

impl<D> TagFirst<D> {
    /// A reader of enums with this tag.
    pub const fn new(tag: &'static str, deserializer: D) -> Self {
        Self { tag, deserializer }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for TagFirst<D> {
    type Error = D::Error;

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.deserializer.deserialize_map(TagVisitor { tag: self.tag, visitor })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        Err(D::Error::invalid_type(Unexpected::Enum, &visitor))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Reads the tag of a map, and gives the rest of the map to the visitor of the enum.
struct TagVisitor<V> {
    tag: &'static str,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for TagVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a map with the first key {:?} for ", self.tag)?;
        Expected::fmt(&self.visitor, formatter)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<V::Value, A::Error> {
        match map.next_key::<String>()? {
            Some(key) if key == self.tag => {}
            _ => return Err(A::Error::custom(format!("the first key must be {:?}", self.tag))),
        }
        let variant = map.next_value()?;
        self.visitor.visit_enum(TaggedMap { variant, fields: map })
    }
}

/// A variant's name, and a map with its fields.
struct TaggedMap<A> {
    variant: String,
    fields: A,
}

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for TaggedMap<A> {
    type Error = A::Error;
    type Variant = Fields<A>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Fields<A>), A::Error> {
        let variant: StringDeserializer<A::Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(variant)?, Fields(self.fields)))
    }
}

/// The fields of a variant.
struct Fields<A>(A);

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        seed.deserialize(MapAccessDeserializer::new(self.0))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }

    fn unit_variant(self) -> Result<(), A::Error> {
        Err(A::Error::invalid_type(Unexpected::Map, &"a variant with fields"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, A::Error> {
        Err(A::Error::invalid_type(Unexpected::Map, &visitor))
    }
}
