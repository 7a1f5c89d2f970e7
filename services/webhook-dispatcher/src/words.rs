//! Enums whose variants have fixed words: in the database, the API, the audit and metrics.

/// Declares an enum with the word of each variant.
macro_rules! words {
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($(#[$note:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$note])* $variant,)* }

        impl $name {
            /// Every variant.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// Its word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The variant of a word.
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == word)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}
pub(crate) use words;
