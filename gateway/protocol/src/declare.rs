//! The macros in which the frame table is written. Each statement of a frame, map, tuple or list of words becomes a Rust type, its
//! codec, and its entry of the table: nothing about the wire is said twice.

/// `Name` or `Name<'static>`.
macro_rules! static_type {
    ($name:ident) => { $name };
    ($name:ident, $lt:lifetime) => { $name<'static> };
}
pub(crate) use static_type;

/// A struct with named fields that is one map on the wire. Each field: doc, wire name, Rust name, type.
macro_rules! fields {
    (
        $(#[doc = $doc:literal])* $name:ident $(<$lt:lifetime>)?
        { $( $(#[doc = $fdoc:literal])* $wire:literal $field:ident: $ty:ty, )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$lt>)? { $( $(#[doc = $fdoc])* pub $field: $ty, )* }

        impl<'a> $crate::table::Fields<'a> for $name $(<$lt>)? {
            const FIELDS: &'static [$crate::wire::Field] = &[$( $crate::wire::Field {
                name: $wire,
                shape: <$ty as $crate::wire::Wire<'a>>::SHAPE,
                nullable: <$ty as $crate::wire::Wire<'a>>::NULLABLE,
                doc: concat!($($fdoc, "\n"),*),
            } ),*];

            fn pairs(&self) -> usize {
                0 $( + usize::from(!$crate::wire::Wire::is_absent(&self.$field)) )*
            }

            #[allow(unused_variables)]
            fn put_fields(&self, out: &mut Vec<u8>) {
                $( if !$crate::wire::Wire::is_absent(&self.$field) {
                    $crate::write::str(out, $wire);
                    $crate::wire::Wire::put(&self.$field, out);
                } )*
            }

            fn take_fields(
                reader: &mut $crate::read::Reader<'a>,
                pairs: u32,
            ) -> Result<Self, $crate::read::Malformed> {
                $( let mut $field: Option<$ty> = None; )*
                for _ in 0..pairs {
                    match reader.name()? {
                        $( $wire => {
                            if $field.is_some() {
                                return Err($crate::read::Malformed::new($crate::read::Reason::Duplicate).within($wire));
                            }
                            let value = <$ty as $crate::wire::Wire>::take(reader);
                            $field = Some(value.map_err(|error| error.within($wire))?);
                        } )*
                        _ => {
                            reader.skip()?;
                        }
                    }
                }
                $( let $field = $field
                    .or_else(<$ty as $crate::wire::Wire>::absent)
                    .ok_or($crate::read::Malformed::new($crate::read::Reason::Missing).within($wire))?; )*
                Ok(Self { $($field),* })
            }
        }

        impl $(<$lt>)? $crate::wire::IntoOwned for $name $(<$lt>)? {
            type Owned = $crate::declare::static_type!($name $(, $lt)?);
            fn into_owned(self) -> Self::Owned {
                $name { $( $field: $crate::wire::IntoOwned::into_owned(self.$field) ),* }
            }
        }
    };
}
pub(crate) use fields;

/// A map inside a frame.
macro_rules! record {
    ( $(#[doc = $doc:literal])* $name:ident $(<$lt:lifetime>)? { $($body:tt)* } ) => {
        $crate::declare::fields! { $(#[doc = $doc])* $name $(<$lt>)? { $($body)* } }

        impl<'a> $crate::wire::Wire<'a> for $name $(<$lt>)? {
            const SHAPE: $crate::wire::Shape = $crate::wire::Shape::Record(&$crate::wire::Record {
                name: stringify!($name),
                doc: concat!($($doc, "\n"),*),
                fields: <Self as $crate::table::Fields<'a>>::FIELDS,
            });
            fn put(&self, out: &mut Vec<u8>) {
                $crate::write::map(out, $crate::table::Fields::pairs(self));
                $crate::table::Fields::put_fields(self, out);
            }
            fn take(reader: &mut $crate::read::Reader<'a>) -> Result<Self, $crate::read::Malformed> {
                let pairs = reader.map()?;
                $crate::table::Fields::take_fields(reader, pairs)
            }
        }
    };
}
pub(crate) use record;

/// An array whose elements have a name and type each. Readers accept longer ones: a tuple may grow at its end.
macro_rules! tuple {
    (
        $(#[doc = $doc:literal])* $name:ident $(<$lt:lifetime>)?
        [ $( $(#[doc = $fdoc:literal])* $wire:literal $field:ident: $ty:ty, )* ]
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$lt>)? { $( $(#[doc = $fdoc])* pub $field: $ty, )* }

        impl<'a> $crate::wire::Wire<'a> for $name $(<$lt>)? {
            const SHAPE: $crate::wire::Shape = $crate::wire::Shape::Tuple(&$crate::wire::Record {
                name: stringify!($name),
                doc: concat!($($doc, "\n"),*),
                fields: &[$( $crate::wire::Field {
                    name: $wire,
                    shape: <$ty as $crate::wire::Wire<'a>>::SHAPE,
                    nullable: <$ty as $crate::wire::Wire<'a>>::NULLABLE,
                    doc: concat!($($fdoc, "\n"),*),
                } ),*],
            });
            fn put(&self, out: &mut Vec<u8>) {
                $crate::write::array(out, [$($wire),*].len());
                $( $crate::wire::Wire::put(&self.$field, out); )*
            }
            fn take(reader: &mut $crate::read::Reader<'a>) -> Result<Self, $crate::read::Malformed> {
                let count = reader.array()? as usize;
                let known = [$($wire),*].len();
                if count < known {
                    return Err($crate::read::Malformed::expected("a longer tuple"));
                }
                $( let $field = <$ty as $crate::wire::Wire>::take(reader).map_err(|error| error.within($wire))?; )*
                for _ in known..count {
                    reader.skip()?;
                }
                Ok(Self { $($field),* })
            }
        }

        impl $(<$lt>)? $crate::wire::IntoOwned for $name $(<$lt>)? {
            type Owned = $crate::declare::static_type!($name $(, $lt)?);
            fn into_owned(self) -> Self::Owned {
                $name { $( $field: $crate::wire::IntoOwned::into_owned(self.$field) ),* }
            }
        }
    };
}
pub(crate) use tuple;

/// A closed list of words.
macro_rules! words {
    (
        $(#[doc = $doc:literal])* $name:ident
        { $( $(#[doc = $wdoc:literal])* $wire:literal $variant:ident, )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[doc = $wdoc])* $variant, )* }

        impl $name {
            /// The wire form.
            pub const fn as_str(self) -> &'static str {
                match self { $( $name::$variant => $wire ),* }
            }
            /// Reads the wire form.
            pub fn parse(word: &str) -> Option<$name> {
                match word { $( $wire => Some($name::$variant), )* _ => None }
            }
        }

        impl<'a> $crate::wire::Wire<'a> for $name {
            const SHAPE: $crate::wire::Shape = $crate::wire::Shape::Word(&$crate::wire::Words {
                name: stringify!($name),
                words: &[$( ($wire, concat!($($wdoc, "\n"),*)) ),*],
            });
            fn put(&self, out: &mut Vec<u8>) {
                $crate::write::str(out, self.as_str());
            }
            fn take(reader: &mut $crate::read::Reader<'a>) -> Result<Self, $crate::read::Malformed> {
                $name::parse(reader.name()?).ok_or($crate::read::Malformed::expected("a word of its list"))
            }
        }

        $crate::wire::owned_already!($name);
    };
}
pub(crate) use words;

/// All frames of one direction: their structs, the enum of them, and their part of the table.
macro_rules! frames {
    (
        $(#[doc = $edoc:literal])* $direction:ident $enum:ident
        $(
            $(#[doc = $doc:literal])* $wire:literal $name:ident $(<$lt:lifetime>)? { $($body:tt)* }
        )*
    ) => {
        $( $crate::declare::fields! { $(#[doc = $doc])* $name $(<$lt>)? { $($body)* } } )*

        $(#[doc = $edoc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $enum<'a> {
            $( $(#[doc = $doc])* $name($crate::declare::frame_type!($name $(, $lt)?)), )*
        }

        pub(crate) const FRAMES: &[$crate::table::Frame] = &[$( $crate::table::Frame {
            name: $wire,
            type_name: stringify!($name),
            direction: $crate::table::Direction::$direction,
            doc: concat!($($doc, "\n"),*),
            fields: <$crate::declare::static_type!($name $(, $lt)?) as $crate::table::Fields<'static>>::FIELDS,
        } ),*];

        impl<'a> $enum<'a> {
            /// Reads one frame, borrowing from its bytes.
            pub fn decode(
                bytes: &'a [u8],
                limits: &$crate::read::Limits,
            ) -> Result<$enum<'a>, $crate::table::DecodeError> {
                let (reader, name, pairs) = $crate::table::take_head(bytes, limits)?;
                match std::str::from_utf8(name) {
                    $( Ok($wire) => $crate::table::take_body($wire, reader, pairs).map($enum::$name), )*
                    _ => Err($crate::table::unknown(name)),
                }
            }

            /// Writes the frame at the end of `out`.
            pub fn encode_into(&self, out: &mut Vec<u8>) {
                match self { $( $enum::$name(body) => $crate::table::put_frame($wire, body, out), )* }
            }

            /// The frame's bytes.
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                self.encode_into(&mut out);
                out
            }

            /// The value of `t`.
            pub fn name(&self) -> &'static str {
                match self { $( $enum::$name(_) => $wire, )* }
            }
        }

        impl $crate::wire::IntoOwned for $enum<'_> {
            type Owned = $enum<'static>;
            fn into_owned(self) -> $enum<'static> {
                match self { $( $enum::$name(body) => $enum::$name($crate::wire::IntoOwned::into_owned(body)), )* }
            }
        }

        $( impl<'a> From<$crate::declare::frame_type!($name $(, $lt)?)> for $enum<'a> {
            fn from(body: $crate::declare::frame_type!($name $(, $lt)?)) -> Self {
                $enum::$name(body)
            }
        } )*
    };
}
pub(crate) use frames;

/// `Name` or `Name<'a>`.
macro_rules! frame_type {
    ($name:ident) => { $name };
    ($name:ident, $lt:lifetime) => { $name<$lt> };
}
pub(crate) use frame_type;
