//! Whether a connect replays the schema. Pure: facts in, decision out.

/// What the database says it was last loaded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Schema generation; 0 before the first load has succeeded.
    pub generation: i32,
    /// Who replayed.
    pub loader: String,
    /// What was replayed; `None` after it was cleared, before a replay or by force.
    pub content_hash: Option<Vec<u8>>,
    /// Generation of a replay that has begun and not succeeded.
    pub replaying: Option<i32>,
}

impl Stamp {
    /// L6: the newest generation of which this database may hold a part. No older program may load it.
    pub fn newest(&self) -> i32 {
        self.replaying.map_or(self.generation, |replaying| replaying.max(self.generation))
    }
}

/// What this program carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mine<'a> {
    /// Schema generation.
    pub generation: i32,
    /// Loader name.
    pub loader: &'a str,
    /// Hash of the files.
    pub content_hash: [u8; 32],
}

/// What a connect does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: the stamp vouches for exactly our files.
    Skip,
    /// Replay every file.
    Replay(Reason),
}

/// Why a replay runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The database was never loaded.
    NoStamp,
    /// A replay did not finish, or an operator forced one.
    Cleared,
    /// Another loader replayed last; it may not carry all our files (L3).
    OtherLoader,
    /// Another schema generation.
    OtherGeneration,
    /// A file's text differs.
    OtherContent,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::NoStamp => "the database was never loaded",
            Reason::Cleared => "the last replay did not finish, or a replay was forced",
            Reason::OtherLoader => "another loader replayed last",
            Reason::OtherGeneration => "the schema generation differs",
            Reason::OtherContent => "the content of the schema differs",
        })
    }
}

/// L1, L4: skip only when generation, loader and hash all match. Every doubt replays.
pub fn decide(stamp: Option<&Stamp>, mine: Mine<'_>) -> Decision {
    let Some(stamp) = stamp else { return Decision::Replay(Reason::NoStamp) };
    let Some(hash) = &stamp.content_hash else { return Decision::Replay(Reason::Cleared) };
    if stamp.replaying.is_some() {
        Decision::Replay(Reason::Cleared)
    } else if stamp.loader != mine.loader {
        Decision::Replay(Reason::OtherLoader)
    } else if stamp.generation != mine.generation {
        Decision::Replay(Reason::OtherGeneration)
    } else if *hash != mine.content_hash {
        Decision::Replay(Reason::OtherContent)
    } else {
        Decision::Skip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Mine<'static> = Mine { generation: 7, loader: "tidegate", content_hash: [1; 32] };

    fn stamp(generation: i32, loader: &str, content_hash: Option<Vec<u8>>) -> Stamp {
        Stamp { generation, loader: loader.to_owned(), content_hash, replaying: None }
    }

    #[test]
    fn l1_l3_l4_only_a_full_match_skips() {
        let same = Some(vec![1; 32]);
        let table = [
            (None, Decision::Replay(Reason::NoStamp)),
            (Some(stamp(7, "tidegate", None)), Decision::Replay(Reason::Cleared)),
            (Some(stamp(7, "partial", None)), Decision::Replay(Reason::Cleared)),
            // A partial loader that left our hash in place: its name alone tells.
            (Some(stamp(7, "partial", same.clone())), Decision::Replay(Reason::OtherLoader)),
            (Some(stamp(6, "tidegate", same.clone())), Decision::Replay(Reason::OtherGeneration)),
            (Some(stamp(8, "tidegate", same.clone())), Decision::Replay(Reason::OtherGeneration)),
            (Some(stamp(7, "tidegate", Some(vec![2; 32]))), Decision::Replay(Reason::OtherContent)),
            (Some(stamp(7, "tidegate", Some(vec![1; 31]))), Decision::Replay(Reason::OtherContent)),
            (Some(stamp(7, "tidegate", Some(vec![]))), Decision::Replay(Reason::OtherContent)),
            (
                Some(Stamp { replaying: Some(7), ..stamp(7, "tidegate", same.clone()) }),
                Decision::Replay(Reason::Cleared),
            ),
            (Some(stamp(7, "tidegate", same)), Decision::Skip),
        ];
        for (stamp, expected) in table {
            assert_eq!(decide(stamp.as_ref(), MINE), expected, "{stamp:?}");
        }
    }

    #[test]
    fn l6_a_newer_generation_counts_from_the_moment_at_which_its_load_begins() {
        assert_eq!(stamp(7, "tidegate", None).newest(), 7);
        assert_eq!(Stamp { replaying: Some(8), ..stamp(7, "tidegate", None) }.newest(), 8);
        assert_eq!(Stamp { replaying: Some(7), ..stamp(8, "tidegate", None) }.newest(), 8);
        assert_eq!(Stamp { replaying: Some(7), ..stamp(0, "tidegate", None) }.newest(), 7);
    }
}
